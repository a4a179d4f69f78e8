"""Live sources: each turns something outside gputui into events."""
