"""Files that processes have mapped: each has a number, is opened once, and gets a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from sframegen.elf.file import ElfFile
    from sframegen.profile.tables.decoded_table import DecodedTable


class FileKey(NamedTuple):
    """What the kernel calls a mapped file: as in /proc/PID/maps and PERF_RECORD_MMAP2."""

    major: int
    minor: int
    inode: int
    generation: int = 0  # PERF_RECORD_MMAP2 only


@dataclass
class TracedFile:
    """`path`: as the process has it. `elf`: None if it cannot be opened or is no ELF file; `why` says so."""

    number: int
    path: str
    elf: ElfFile | None = None
    why: str = ""
    build_id: bytes = b""
    table: DecodedTable | None = None
    ready: bool = False  # its table is made, or cannot be made


class Span(NamedTuple):
    """An executable mapping: run-time addresses [start, end); link-time address = run-time address - bias (64 bits)."""

    start: int
    end: int
    bias: int
    file: int  # number; 0: no file
