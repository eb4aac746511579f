"""Threads with known waits, and what `sframegen profile --off-cpu` says of them."""
