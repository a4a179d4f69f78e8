"""What lives inside a traced process, the ring it writes, and how a child is given it."""
