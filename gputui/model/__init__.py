"""The vocabulary: events, how they merge, distributions, names and units."""
