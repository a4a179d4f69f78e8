"""Serving engines' own metrics: found, read and put into one vocabulary."""
