"""Registers and copies of stacks, from perf events -> counted stacks."""
