"""What views and exports read off a session: tables, phases, categories. Pure functions."""
