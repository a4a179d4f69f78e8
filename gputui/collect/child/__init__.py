"""A child process: starting and ending it, reading its output and its reports."""
