"""Files that other tools wrote, as the events of a session."""
