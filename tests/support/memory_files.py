"""The one file that an input is written to, for what works on files; in memory where the machine has room for it there."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")
ROOM = 1 << 30  # bytes: containers often have 64 MiB there, for all processes together


def is_usable(folder: Path) -> bool:
    return os.access(folder, os.W_OK | os.X_OK) and shutil.disk_usage(folder).free >= ROOM


ALL = tempfile.TemporaryDirectory(dir=SHARED_MEMORY if is_usable(SHARED_MEMORY) else None)
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
