"""Prints each stack of a file of memray with the number of its allocations, as JSON."""

from __future__ import annotations

import collections
import json
import sys

from memray import AllocatorType, FileReader

RELEASES = {AllocatorType.FREE, AllocatorType.MUNMAP}  # have no stacks
counts: collections.Counter[tuple[str, ...]] = collections.Counter()
for record in FileReader(sys.argv[1]).get_allocation_records():
    if record.allocator not in RELEASES:
        frames = (f"{name} {file.rpartition('/')[2]}:{line}" for name, file, line in record.native_stack_trace())
        counts[(str(record.size), *frames)] += 1
json.dump([[list(stack), count] for stack, count in counts.items()], sys.stdout)
