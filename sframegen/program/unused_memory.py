"""Give memory back that is not needed for some time: a process that runs for days is measured by what it holds."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from mmap import MADV_DONTNEED, PAGESIZE, mmap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sframegen.base.columns import Bytes


M_ARENA_MAX = -8  # of mallopt


def trim_heap() -> None:
    """Give back free pages of the heap. Other C libraries than glibc keep few of them."""
    with suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def share_heap() -> None:
    """Let threads that begin from now on use the one heap: glibc gives each its own, which keeps what others could use."""
    with suppress(AttributeError):
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)


def bytes_of_files() -> int:
    """How much of the files that this process has mapped, and of memory that it shares, is resident; 0 if nothing says so."""
    try:
        with open("/proc/self/statm", "rb") as file:  # noqa: PTH123 - without pathlib, which takes longer
            return int(file.read().split()[2]) * PAGESIZE
    except OSError:
        return 0


def drop_pages(data: Bytes) -> None:
    """Leave the pages of a mapped file to the kernel's cache, which has them again when they are read. Nothing for other bytes."""
    held = data.obj if isinstance(data, memoryview) else None
    if isinstance(held, mmap):
        held.madvise(MADV_DONTNEED)
