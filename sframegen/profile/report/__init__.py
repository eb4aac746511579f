"""Turns counted stacks into named stacks, and these into tables, flame graphs, and the file formats of other profilers."""
