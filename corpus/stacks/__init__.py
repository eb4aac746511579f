"""Stacks of stopped processes, ours beside gdb's."""
