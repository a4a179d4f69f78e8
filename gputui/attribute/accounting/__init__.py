"""Where the time of each device goes: steps, and every nanosecond under one leaf."""
