"""What views and exports read from a session: tables, phases, findings. Pure functions."""
