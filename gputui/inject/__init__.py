"""What runs inside a traced process, and how a child is made to load it."""
