"""A recording at any moment: opened, folded, and played back."""

AT_END_S = 1e9
"""A time beyond the end of any recording: it opens at its end, where all that it holds is seen."""
