"""Walks the stacks of live processes with SFrame sections."""
