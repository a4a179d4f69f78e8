"""gputui: the machine and the program on it, live, in a terminal."""

__version__ = "0.1.0"
