"""Views (one key each) and dialogs."""
