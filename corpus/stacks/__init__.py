"""Stacks of stopped processes, ours beside gdb's. See corpus/stacks."""
