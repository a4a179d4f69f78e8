"""A child process: started, read, ended; what it prints and reports."""
