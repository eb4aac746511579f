"""Where stacks end: code of which a file's call frame information says that it has no caller."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

from benchmarks.ours import open_input
from sframegen.base.errors import SframegenError
from sframegen.conversion import convert
from sframegen.elf.records import PT
from sframegen.format.layouts import V3

MAPPING = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) ..x. ([0-9a-f]+) \S+ \d+ +(/.*)$", re.MULTILINE)


class Place(NamedTuple):
    """`offset`: in the file; of the instruction that calls, or of the one after it."""

    path: str
    offset: int


class Mapped(NamedTuple):
    start: int
    end: int
    offset: int
    path: str


class Code(NamedTuple):
    """`loads`: (start, end, file offset) of the segments; `outermost`: file offsets [start, end) of code without a caller."""

    loads: list[tuple[int, int, int]]
    outermost: list[tuple[int, int]]

    def offset(self, address: int) -> int | None:
        """The file offset of a link-time address."""
        return next((address - start + offset for start, end, offset in self.loads if start <= address < end), None)


def mappings(text: str) -> list[Mapped]:
    """The executable mappings of files in /proc/PID/maps."""
    return [Mapped(int(start, 16), int(end, 16), int(offset, 16), path) for start, end, offset, path in MAPPING.findall(text)]


def mapped_place(address: int, maps: list[Mapped]) -> Place | None:
    """Where a run-time address is; None: in no file."""
    return next((Place(one.path, address - one.start + one.offset) for one in maps if one.start <= address < one.end), None)


def linked_place(path: str, address: int, *, relative: bool = False) -> Place | None:
    """Where a link-time address is, or one relative to the lowest of them."""
    code = code_of(path)
    base = min((start for start, *_ in code.loads), default=0) if relative else 0
    offset = code.offset(base + address)
    return None if offset is None else Place(path, offset)


def is_outermost(where: Place | None) -> bool:
    """True in _start and in what starts threads (clone, clone3), up to the address after it: a call may be the last instruction."""
    return where is not None and any(start <= where.offset <= end for start, end in code_of(where.path).outermost)


@cache
def code_of(path: str) -> Code:
    """Nothing for what is no ELF file."""
    try:
        source = open_input(Path(path))
    except (OSError, SframegenError):
        return Code([], [])
    segments = (one for one in source.elf.segments if one.p_type == PT.LOAD)
    code = Code([(one.p_vaddr, one.p_vaddr + one.p_filesz, one.p_offset) for one in segments], [])
    table, *_ = convert.convert(source.sources.sections, source.code, source.abi, V3)
    last = {number for number, rule in enumerate(table.rules) if rule.cfa is None}
    for function in range(len(table) if last else 0):
        starts = [offset for offset, rule in table.numbered_rows(function) if rule in last]
        begin = code.offset(table.start[function] + min(starts)) if starts else None
        if begin is not None:
            code.outermost.append((begin, begin + table.size[function] - min(starts)))
    return code
