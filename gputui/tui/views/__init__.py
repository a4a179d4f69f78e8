"""The views, one key each."""
