"""Splits a mapping of a file into spans of code: ranges of run-time addresses, each with a bias to its link-time addresses.

The mapping tells which bytes of the file are mapped where, and the segments of the ELF file tell which link-time addresses these
bytes have. A whole mapping is one span, unless it contains segments with different biases.
"""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING, NamedTuple

from sframegen.elf.records import PT, Phdr
from sframegen.profile.following.files import CodeSpan
from sframegen.profile.packed_frames import NO_FILE
from sframegen.stack.walking.frames import ADDRESS_MASK

if TYPE_CHECKING:
    from sframegen.elf.file import ElfFile
    from sframegen.profile.following.files import TracedFile

MAX_SPAN_LISTS = 64  # cached lists of spans for each file; a library is mapped in one or two ways
MAX_SEGMENTS = 64  # executable segments of a file that are used; linkers make one or two
PAGE_MASK = mmap.PAGESIZE - 1


class FileMapping(NamedTuple):
    """A mapping of a file, whose bytes from `offset` on are at addresses [start, end)."""

    start: int
    end: int
    offset: int


def make_spans(traced: TracedFile | None, mapped: FileMapping) -> list[CodeSpan]:
    """Return the spans of an executable mapping. `traced`: its file; None: code without a file."""
    if traced is None:
        return [CodeSpan(mapped.start, mapped.end, 0, NO_FILE)]
    if traced.elf is None:
        bias = mapped.start - mapped.offset & ADDRESS_MASK  # without segments, offsets stand for link-time addresses
        return [CodeSpan(mapped.start, mapped.end, bias, traced.number)]
    size = mapped.end - mapped.start
    spans = traced.spans.get((mapped.offset, size))
    if spans is None:
        if len(traced.spans) >= MAX_SPAN_LISTS:
            traced.spans.clear()
        at_zero = FileMapping(0, size, mapped.offset)
        spans = traced.spans[mapped.offset, size] = split_into_code_spans(traced.elf, traced.number, at_zero)
    at = mapped.start
    return [CodeSpan(at + start, at + end, at + bias & ADDRESS_MASK if file else 0, file) for start, end, bias, file in spans]


def split_into_code_spans(elf: ElfFile, number: int, mapped: FileMapping) -> list[CodeSpan]:
    """Return the spans of an executable mapping of an ELF file, ascending; one without a file if no segment is mapped there.

    The kernel and ld.so map a segment in whole pages, so that the whole mapping has the segment's bias. If a mapping contains
    segments with different biases, each segment gets a span of its own bytes.
    """
    stop = mapped.offset + mapped.end - mapped.start
    loads = [load for load in elf.executable_loads() if _overlaps(load, mapped.offset, stop)]
    if not loads:  # perhaps a segment that was made executable after loading
        loads = [load for load in elf.segments if load.p_type == PT.LOAD and _overlaps(load, mapped.offset, stop)]
    loads = loads[:MAX_SEGMENTS]
    biases = {_compute_bias(load, mapped) for load in loads}
    biases_of_whole = {_compute_bias(load, mapped) for load in loads if _is_mapped_whole(load, mapped.offset, stop)}
    for candidates in (biases, biases_of_whole):
        if len(candidates) == 1:
            return [CodeSpan(mapped.start, mapped.end, candidates.pop(), number)]
    spans: list[CodeSpan] = []
    last_end = mapped.start
    for load in sorted(loads, key=lambda load: load.p_offset):
        start = max(last_end, mapped.start + load.p_offset - mapped.offset)
        end = min(mapped.end, mapped.start + load.p_offset + load.p_filesz - mapped.offset)
        if start < end:
            spans.append(CodeSpan(start, end, _compute_bias(load, mapped), number))
            last_end = end
    return spans or [CodeSpan(mapped.start, mapped.end, 0, NO_FILE)]


def read_code_in_file(elf: ElfFile, span: CodeSpan) -> tuple[int, memoryview]:
    """Return the run-time address and the file's bytes of a span; no bytes unless one executable segment has all its pages."""
    start, end = span.start - span.bias & ADDRESS_MASK, span.end - span.bias & ADDRESS_MASK
    for load in elf.executable_loads():
        load_end = load.p_vaddr + load.p_filesz
        is_in_file = load.p_offset + load.p_filesz <= len(elf.data)  # a damaged file may be cut off
        if is_in_file and load.p_vaddr & ~PAGE_MASK <= start < end <= (load_end + PAGE_MASK) & ~PAGE_MASK:
            first, to_offset = max(start, load.p_vaddr), load.p_offset - load.p_vaddr
            return first + span.bias & ADDRESS_MASK, elf.data[to_offset + first : to_offset + min(end, load_end)]
    return 0, memoryview(b"")


def _overlaps(load: Phdr, start: int, stop: int) -> bool:
    return load.p_offset < stop and start < load.p_offset + load.p_filesz


def _is_mapped_whole(load: Phdr, start: int, stop: int) -> bool:
    """Return True if the mapping consists of this segment's pages, as a loader maps them."""
    return start == load.p_offset & ~PAGE_MASK and stop <= (load.p_offset + load.p_filesz + PAGE_MASK) & ~PAGE_MASK


def _compute_bias(load: Phdr, mapped: FileMapping) -> int:
    """Return the run-time address minus the link-time address of the segment's bytes in this mapping."""
    return mapped.start - (load.p_vaddr - load.p_offset + mapped.offset) & ADDRESS_MASK
