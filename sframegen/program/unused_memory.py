"""Returns memory to the system that is not needed for some time, for processes that run for days."""

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
    """Make new threads share one heap. By default glibc gives each its own, whose free memory others cannot use."""
    with suppress(AttributeError):
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)


def bytes_of_files() -> int:
    """Return the resident bytes of mapped files and shared memory of this process; 0 if unknown."""
    try:
        with open("/proc/self/statm", "rb") as file:  # noqa: PTH123 - without pathlib, which takes longer
            return int(file.read().split()[2]) * PAGESIZE
    except OSError:
        return 0


def drop_pages(data: Bytes) -> None:
    """Drop a mapped file's pages, which later reads get from the kernel's cache again. Other bytes are not affected."""
    held = data.obj if isinstance(data, memoryview) else None
    if isinstance(held, mmap):
        held.madvise(MADV_DONTNEED)
