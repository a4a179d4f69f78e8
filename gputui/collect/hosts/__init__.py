"""Other hosts: gputui there writes its events to a pipe, and this end folds them."""
