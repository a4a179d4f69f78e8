"""The one screen around the views, and its keys."""
