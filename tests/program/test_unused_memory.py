"""Pages of mapped files that are given back, and read again; limits of memory."""

from __future__ import annotations

import mmap
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from sframegen.elf.file import map_file
from sframegen.program.forked import ForkedProcess, limit_memory
from sframegen.program.own_memory import drop_pages, resident_file_bytes, trim_heap

pytestmark = pytest.mark.sampled

SIZE = 1 << 22
KIB = 1 << 10


def resident() -> int:
    """Bytes of files that this process has in its memory."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssFile:")) * KIB


def test_pages_of_a_file_are_given_back(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"\1" * SIZE)
    data, _ = map_file(path)
    part = data[mmap.PAGESIZE :]
    assert sum(part[:: mmap.PAGESIZE]) == len(part) // mmap.PAGESIZE
    before, also = resident(), resident_file_bytes()
    drop_pages(part)
    assert resident() < before - SIZE // 2
    assert resident_file_bytes() < also - SIZE // 2
    assert bytes(data) == b"\1" * SIZE


def test_bytes_in_memory_stay() -> None:
    kept = bytearray(b"\1" * mmap.PAGESIZE)
    for data in (kept, memoryview(kept), b""):
        drop_pages(data)
    trim_heap()
    assert sum(kept) == mmap.PAGESIZE


THREAD = """
import ctypes, threading
from sframegen.program.own_memory import share_heap
share_heap()
malloc = ctypes.CDLL(None).malloc
malloc.restype = ctypes.c_size_t
found = []
thread = threading.Thread(target=lambda: found.append(malloc(1 << 10)))
thread.start()
thread.join()
heap = next(line.split()[0] for line in open("/proc/self/maps") if "[heap]" in line)
begin, end = (int(text, 16) for text in heap.split("-"))
print(begin <= found[0] < end)
"""


def test_a_thread_uses_the_one_heap() -> None:
    assert subprocess.check_output([sys.executable, "-P", "-c", THREAD], text=True) == "True\n"


def address_space() -> int:
    limit_memory(1 << 26)
    return resource.getrlimit(resource.RLIMIT_AS)[1]


@pytest.mark.parametrize("spare", [1 << 24, 1 << 30])
def test_a_lower_limit_of_the_user_stays(spare: int) -> None:
    """With `ulimit -v`, the process that demangles names ended before its first answer, and all names stayed mangled."""
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    allowed = size + spare

    def prepare(_: int) -> None:
        resource.setrlimit(resource.RLIMIT_AS, (allowed, allowed))
        if os.geteuid() == 0:
            os.setuid(65534)  # root may raise it

    process = ForkedProcess(address_space, prepare)
    process.ask(())
    limit = process.answer().value
    process.end()
    assert limit == allowed if spare == 1 << 24 else limit < allowed
