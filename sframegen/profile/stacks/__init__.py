"""Packed frames of samples -> a tree of calls that processes share, and counted rows: in memory, beyond a budget in a file."""
