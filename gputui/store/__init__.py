"""Recordings: the journal, the trace beside it, and the folder they lie in."""
