"""Stores stacks as one call tree for all processes, with counted rows, in memory or, beyond a budget, in files."""
