"""What lives inside a traced process, and how a child is given it."""
