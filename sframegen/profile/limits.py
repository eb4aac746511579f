"""Limits of size that a profile can reach on a user's machine. Its time limits are in program/time_limits.py."""

from __future__ import annotations

import os

MAX_DEPTH = 1024  # frames of one stack; bpf/walker.h has the same number
MAX_FILES = 0x7FFD  # mapped files that packed frames can number (packed_frames.py)
MAX_WAITING = 1 << 30  # bytes, in a temporary file, of copied stacks that wait for tables
MAX_COPY = 1 << 16  # bytes of one copied stack; bpf/walker.h has the same number
WORKERS = min(8, os.cpu_count() or 1)  # processes that make tables or read debug information; each takes 50 to 100 MiB
