"""A mapping of an ELF file -> its spans: where its executable segments are, and their biases."""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING, NamedTuple

from sframegen.elf.records import PT_LOAD
from sframegen.profile.following.files import CodeSpan
from sframegen.stack.walking.frames import ADDRESS_MASK

if TYPE_CHECKING:
    from sframegen.elf.file import ElfFile
    from sframegen.elf.ranges import Range
    from sframegen.elf.records import Phdr
    from sframegen.profile.following.files import TracedFile

MAX_KEPT = 64  # places in a file from which something is mapped: of a library one or two
MAX_SEGMENTS = 64  # executable ones of a file; linkers make one or two
PAGE_MASK = mmap.PAGESIZE - 1


class Mapped(NamedTuple):
    """Addresses [start, end) are mapped from `offset` in a file."""

    start: int
    end: int
    offset: int


def spans_in(traced: TracedFile | None, mapped: Mapped) -> list[CodeSpan]:
    """Return the spans of an executable mapping; of a file that is not open, one with its number."""
    if traced is None:
        return [CodeSpan(mapped.start, mapped.end, 0, 0)]
    if traced.elf is None:
        return [CodeSpan(mapped.start, mapped.end, mapped.start - mapped.offset & ADDRESS_MASK, traced.number)]
    size = mapped.end - mapped.start
    spans = traced.spans.get((mapped.offset, size))
    if spans is None:
        if len(traced.spans) >= MAX_KEPT:
            traced.spans.clear()
        spans = traced.spans[mapped.offset, size] = code_spans_of(traced.elf, traced.number, Mapped(0, size, mapped.offset))
    at = mapped.start
    return [CodeSpan(at + start, at + end, (at + bias & ADDRESS_MASK) * (file > 0), file) for start, end, bias, file in spans]


def code_spans_of(elf: ElfFile, number: int, mapped: Mapped) -> list[CodeSpan]:
    """Return the spans of an executable mapping, ascending; one without a file if it is not code of the file.

    The kernel and ld.so map a segment in whole pages: then all of the mapping has its bias. If a mapping has segments with
    different biases, each has the bytes that are its own.
    """
    stop = mapped.offset + mapped.end - mapped.start
    loads = [load for load in elf.executable_loads() if _is_in(load, mapped.offset, stop)]
    if not loads:  # code in a segment that was not executable when it was loaded
        loads = [load for load in elf.segments if load.p_type == PT_LOAD and _is_in(load, mapped.offset, stop)]
    loads = loads[:MAX_SEGMENTS]
    biases = {_bias(load, mapped) for load in loads}
    exact = {_bias(load, mapped) for load in loads if _is_whole(load, mapped.offset, stop)}
    for only in (biases, exact):
        if len(only) == 1:
            return [CodeSpan(mapped.start, mapped.end, only.pop(), number)]
    spans: list[CodeSpan] = []
    at = mapped.start
    for load in sorted(loads, key=lambda load: load.p_offset):
        start = max(at, mapped.start + load.p_offset - mapped.offset)
        end = min(mapped.end, mapped.start + load.p_offset + load.p_filesz - mapped.offset)
        if start < end:
            spans.append(CodeSpan(start, end, _bias(load, mapped), number))
            at = end
    return spans or [CodeSpan(mapped.start, mapped.end, 0, 0)]


def bytes_in_file(elf: ElfFile, span: CodeSpan) -> Range:
    """Return the link-time addresses that the file has bytes for; none unless one executable segment has all pages of the span."""
    start, end = span.start - span.bias & ADDRESS_MASK, span.end - span.bias & ADDRESS_MASK
    for load in elf.executable_loads():
        limit = load.p_vaddr + load.p_filesz
        is_whole = load.p_offset + load.p_filesz <= len(elf.data)
        if is_whole and load.p_vaddr & ~PAGE_MASK <= start < end <= (limit + PAGE_MASK) & ~PAGE_MASK:
            return max(start, load.p_vaddr), min(end, limit)
    return 0, 0


def _is_in(load: Phdr, start: int, stop: int) -> bool:
    return load.p_offset < stop and start < load.p_offset + load.p_filesz


def _is_whole(load: Phdr, start: int, stop: int) -> bool:
    """Return True if the mapping has the pages of this segment, as a loader maps them."""
    return start == load.p_offset & ~PAGE_MASK and stop <= (load.p_offset + load.p_filesz + PAGE_MASK) & ~PAGE_MASK


def _bias(load: Phdr, mapped: Mapped) -> int:
    return mapped.start - (load.p_vaddr - load.p_offset + mapped.offset) & ADDRESS_MASK
