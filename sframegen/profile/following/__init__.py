"""Follows, from perf records and /proc, which files each process has mapped where."""
