"""The command line: commands by family; dispatch picks one of them."""
