"""What each mode and subcommand does with the words behind it; `gputui.cli` picks one of them."""
