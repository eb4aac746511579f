"""The one file that an input is written to, for what works on files; in memory where the machine has such a directory."""

from __future__ import annotations

import atexit
import os
import tempfile
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")
ALL = tempfile.TemporaryDirectory(dir=SHARED_MEMORY if SHARED_MEMORY.is_dir() else None)
atexit.register(ALL.cleanup)  # of this process: children end without


def directory() -> Path:
    """Of this process: what a killed one left is not in the way."""
    made = Path(ALL.name, str(os.getpid()))
    made.mkdir(exist_ok=True)
    return made


def written(data: bytes) -> Path:
    file = directory() / "input"
    file.write_bytes(data)
    return file
