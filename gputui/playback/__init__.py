"""A recording at any moment: opened, folded, and played back."""
