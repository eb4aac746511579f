"""Walks the stacks of live processes, by SFrame."""
