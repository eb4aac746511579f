"""Walks the stacks of live processes and of core files, by SFrame."""
