"""The limits of a profile that users can meet."""

from __future__ import annotations

import os

MAX_DEPTH = 1024  # frames of one stack; bpf/walker.h has the same number
MAX_FILES = 0x7FFD  # with numbers of their own (packed_frames.py)
MAX_WAITING = 1 << 30  # bytes of copied stacks that wait for tables, in a file
MAX_COPY = 1 << 16  # bytes of one copied stack; bpf/walker.h has the same number
WORKERS = min(8, os.cpu_count() or 1)  # processes that make tables, or read debug information: some 50 to 100 MiB each
