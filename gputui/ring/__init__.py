"""The ring that a traced process writes: its layout, and how the monitor reads it."""
