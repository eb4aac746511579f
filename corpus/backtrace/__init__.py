"""Heap profilers and stack traces of real programs, with libsframe-backtrace and without: the same stacks, and what they cost."""
