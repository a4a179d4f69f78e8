"""Files written by other tools, as the events of a session."""
