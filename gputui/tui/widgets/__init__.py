"""Widgets that draw lines, and the pure functions that make those lines."""
