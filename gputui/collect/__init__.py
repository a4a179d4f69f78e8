"""Live sources: each turns something outside the program into events."""
