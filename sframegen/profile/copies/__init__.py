"""Registers and copies of stacks, from perf events or a perf.data file -> counted stacks."""
