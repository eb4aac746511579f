"""The kernel program's object file; memory that it shares with this process."""

from __future__ import annotations

import mmap
import os
from typing import TYPE_CHECKING

from sframegen.profile.bpf.libbpf import LoadError, create_table
from sframegen.profile.bpf.object_files import COMPILER, HERE, object_name

if TYPE_CHECKING:
    from sframegen.profile.tables.decoded_table import DecodedTable


def read_object() -> bytes:
    machine = os.uname().machine
    try:
        return (HERE / object_name(machine)).read_bytes()
    except FileNotFoundError:
        raise LoadError(
            f"this installation has no kernel program for {machine}: install {COMPILER}, then sframegen again from its sources"
        ) from None


def filled_table(table: DecodedTable) -> int:
    """Return the descriptor of a map with a table."""
    size = len(table.data)
    try:
        fd = create_table(max(1, size // 8))
    except OSError as error:
        raise LoadError(f"a table of {size} bytes cannot be loaded: {error.strerror}") from error
    if size:
        with mapped(fd, size) as area:
            area[:size] = table.data
    return fd


def mapped(fd: int, size: int) -> mmap.mmap:
    return mmap.mmap(fd, -(-size // mmap.PAGESIZE) * mmap.PAGESIZE)
