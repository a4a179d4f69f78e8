"""The command line: one module per command; dispatch picks one of them."""
