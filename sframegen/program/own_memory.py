"""Manages the memory of this process: replaces missing pages of truncated files by zeros, and gives unused memory back."""

from __future__ import annotations

import ctypes as c
import signal
from contextlib import contextmanager, suppress
from mmap import MADV_DONTNEED, MAP_ANONYMOUS, MAP_PRIVATE, PAGESIZE, PROT_READ, mmap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sframegen.base.columns import Bytes

SA_SIGINFO = 4
BUS_ADRERR = 2  # si_code: the address lies behind the end of the mapped file
MAP_FIXED = 0x10
SI_CODE_OFFSET, SI_ADDR_OFFSET = 8, 16  # in siginfo_t of 64-bit systems
PAGE_MASK = -PAGESIZE

_Handler = c.CFUNCTYPE(None, c.c_int, c.c_void_p, c.c_void_p)


class _Action(c.Structure):
    """struct sigaction of glibc and musl on 64-bit systems."""

    _fields_ = (("handler", c.c_void_p), ("mask", c.c_ulong * 16), ("flags", c.c_int), ("restorer", c.c_void_p))


@contextmanager
def zeros_for_missing_pages() -> Iterator[None]:
    """Within the block, replace the missing pages of a truncated file by zeros, so that reading it does not end this process.

    The kernel sends SIGBUS for a read of such a page. The handler maps zeros from there to the end of the file's mapping.
    """
    library = c.CDLL(None, use_errno=True)
    library.mmap.restype = c.c_void_p
    library.mmap.argtypes = (c.c_void_p, c.c_size_t, c.c_int, c.c_int, c.c_int, c.c_long)

    def replace(_number: int, information: int, _context: int) -> None:
        code = c.c_int.from_address(information + SI_CODE_OFFSET).value
        address = c.c_uint64.from_address(information + SI_ADDR_OFFSET).value
        start, end = address & PAGE_MASK, _end_of_mapping(address)
        flags = MAP_PRIVATE | MAP_FIXED | MAP_ANONYMOUS
        if code != BUS_ADRERR or not end or library.mmap(start, end - start, PROT_READ, flags, -1, 0) != start:
            signal.signal(signal.SIGBUS, signal.SIG_DFL)  # the access is repeated, and then ends the process

    handler = _Handler(replace)
    action, before = _Action(c.cast(handler, c.c_void_p), flags=SA_SIGINFO), _Action()
    library.sigaction(signal.SIGBUS, c.byref(action), c.byref(before))
    try:
        yield
    finally:
        library.sigaction(signal.SIGBUS, c.byref(before), None)


def _end_of_mapping(address: int) -> int:
    """Return the end address of the file mapping that contains an address; 0 if there is none."""
    with open("/proc/self/maps", "rb") as maps:  # noqa: PTH123 - this runs in a signal handler, which should do little
        for line in maps:
            span, _, _, _, inode, *_ = line.split(maxsplit=5)
            start, end = (int(part, 16) for part in span.split(b"-"))
            if start <= address < end:
                return end if int(inode) else 0
    return 0


M_ARENA_MAX = -8  # a parameter of mallopt


def trim_heap() -> None:
    """Give free pages of the heap back to the kernel. Only glibc has the function; other C libraries keep few free pages."""
    with suppress(AttributeError):
        c.CDLL(None).malloc_trim(0)


def share_heap() -> None:
    """Make new threads share one heap. By default, glibc gives each its own, whose free memory other threads cannot use."""
    with suppress(AttributeError):
        c.CDLL(None).mallopt(M_ARENA_MAX, 1)


def resident_file_bytes() -> int:
    """Return how many bytes of mapped files and shared memory are resident in this process; 0 if unknown."""
    try:
        with open("/proc/self/statm", "rb") as file:  # noqa: PTH123 - without pathlib, which takes longer
            return int(file.read().split()[2]) * PAGESIZE
    except OSError:
        return 0


def drop_pages(data: Bytes) -> None:
    """Drop a mapped file's pages from our memory; later reads get them from the page cache. Nothing is done for other bytes."""
    mapping = data.obj if isinstance(data, memoryview) else None
    if isinstance(mapping, mmap):
        mapping.madvise(MADV_DONTNEED)
