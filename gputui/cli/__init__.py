"""What is typed: one module a command; dispatch picks one of them."""
