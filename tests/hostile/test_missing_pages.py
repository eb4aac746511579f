"""A mapped file that becomes shorter does not end a program that asks for zeros."""

from __future__ import annotations

import mmap
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

from sframegen.program.own_memory import zeros_for_missing_pages

if TYPE_CHECKING:
    from pathlib import Path

PAGE = mmap.PAGESIZE


def test_what_a_file_has_lost_reads_as_zeros(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 4 * PAGE)
    with path.open("r+b") as file, zeros_for_missing_pages():
        data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        file.truncate(PAGE + 3)
        assert bytes(data) == b"x" * (PAGE + 3) + bytes(3 * PAGE - 3)
        file.truncate(0)
        assert bytes(data) == bytes(4 * PAGE)


def test_after_the_block_it_ends_the_program_again(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * PAGE)
    script = f"""
import mmap
from sframegen.program.own_memory import zeros_for_missing_pages
with open({str(tmp_path / "file")!r}, "r+b") as file:
    data = mmap.mmap(file.fileno(), 0)
    with zeros_for_missing_pages():
        pass
    file.truncate(0)
    data[0]
"""
    assert subprocess.run([sys.executable, "-P", "-c", script], check=False).returncode == -signal.SIGBUS
