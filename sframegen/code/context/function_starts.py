"""Finds where functions may begin in code without CFI: where symbols, pointers in data and references in code lead. Compiled."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

try:
    import cython
except ImportError:
    from sframegen.base import cython_shadow as cython  # type: ignore[no-redef]

from sframegen.base.errors import FormatError
from sframegen.code.isa.machines import machine_of
from sframegen.elf.dynamic import DT, read_dynamic
from sframegen.elf.ranges import is_within, merge_ranges, subtract_ranges
from sframegen.elf.records import EHDR_SIZE, PF, PHDR_SIZE, PT, RELA_SIZE
from sframegen.elf.relocations import dynamic_relocations, read_relr_addends, unpack_columns
from sframegen.elf.symbols import read_functions
from sframegen.format.abi import abi_of

if not cython.compiled:
    from bisect import bisect_right
if TYPE_CHECKING:
    import re
    from collections.abc import Iterator

    from sframegen.base.columns import Column
    from sframegen.elf.file import ElfFile
    from sframegen.elf.ranges import Range
    from sframegen.format.abi import Abi

ARRAYS = ((DT.INIT_ARRAY, DT.INIT_ARRAYSZ), (DT.FINI_ARRAY, DT.FINI_ARRAYSZ), (DT.PREINIT_ARRAY, DT.PREINIT_ARRAYSZ))
CHUNK_BYTES = 1 << 20  # bytes of data that are copied at a time
MAX_ARRAY_ENTRIES = 1 << 16  # most functions that run when a file is loaded, or unloaded


def find_starts(elf: ElfFile, abi: Abi) -> set[int]:
    """Return the addresses of functions that have symbols, or run when the file is loaded or unloaded. They may lie anywhere."""
    found = {symbol.address for symbol in read_functions(elf)}
    dynamic = {entry.tag: entry.value for entry in read_dynamic(elf)}
    found.update(dynamic[tag] for tag in (DT.INIT, DT.FINI) if tag in dynamic)
    found.update(_read_function_arrays(elf, abi, dynamic))
    for name in (".init", ".fini"):  # static programs have no dynamic section
        section = elf.section(name)
        if section is not None:
            found.add(section.header.sh_addr)
    found.discard(0)
    return found


def find_relocated_pointers(elf: ElfFile) -> set[int]:
    """Return the addresses that relative relocations make pointers to: the loader adds its base to each."""
    found = set(read_relr_addends(elf))
    abi = abi_of(elf)
    kinds = (abi.relative, machine_of(abi).irelative)  # these have no symbol, so that r_info is only the type
    for _, entries in dynamic_relocations(elf):
        found.update(addend for info, addend in zip(entries.info, entries.addend, strict=True) if info in kinds)
    return found


def find_pointed_at(elf: ElfFile, within: Range) -> array[int]:
    """Return the addresses in a range that relocations make pointers to, or that are words in data; distinct, ascending."""
    low, high = within
    found = {address for address in find_relocated_pointers(elf) if low <= address < high}
    size = len(elf.data)
    headers = [(0, EHDR_SIZE), (elf.header.e_phoff, elf.header.e_phoff + PHDR_SIZE * len(elf.segments))]
    data = merge_ranges(
        (min(load.p_offset, size), min(load.p_offset + load.p_filesz, size))
        for load in elf.segments
        if load.p_type == PT.LOAD and not load.p_flags & PF.X
    )
    for start, end in subtract_ranges(data, merge_ranges(headers)):
        first, limit = start + -start % 8, end - end % 8
        for at in range(first, limit, CHUNK_BYTES):
            words = array("Q", bytes(elf.slice(at, min(CHUNK_BYTES, limit - at), "PT_LOAD")))
            found.update(select_words(words, low, high))
    return array("Q", sorted(found))


def _read_function_arrays(elf: ElfFile, abi: Abi, dynamic: dict[int, int]) -> Iterator[int]:
    """Yield the addresses in arrays of functions, from the bytes in the file and from relative relocations."""
    arrays = [(dynamic[at], dynamic[size]) for at, size in ARRAYS if at in dynamic and size in dynamic]
    sections = [section.header for name in (".init_array", ".fini_array") if (section := elf.section(name)) is not None]
    arrays += [(header.sh_addr, header.sh_size) for header in sections]
    pointer_addresses = {at for start, size in arrays for at in range(start, start + min(size, 8 * MAX_ARRAY_ENTRIES), 8)}
    for at in pointer_addresses:
        try:
            yield int.from_bytes(elf.at(at, 8), elf.byte_order)
        except FormatError:
            continue
    if not pointer_addresses or DT.RELA not in dynamic or DT.RELASZ not in dynamic:
        return
    try:
        raw = elf.at(dynamic[DT.RELA], dynamic[DT.RELASZ] // RELA_SIZE * RELA_SIZE)
    except FormatError:
        return
    for address, info, addend in zip(*unpack_columns(raw, elf.byte_order), strict=True):
        if address in pointer_addresses and info & 0xFFFFFFFF == abi.relative:
            yield addend


ALIGNMENT = 16  # bytes: alignment of functions in assembly; bytes that only look like a reference rarely lead to such addresses
DISTANCE_BYTES, MAX_INSTRUCTION = 4, 8  # bytes of a PC-relative distance, and of the longest instruction with one
MIN_RANGE = 64  # bytes: shorter ranges without CFI are not searched for


def find_referenced_starts(elf: ElfFile, abi: Abi, without_cfi: list[Range]) -> set[int]:
    """Return aligned addresses in the ranges `without_cfi` to which the rest of the code refers; none for unknown instructions."""
    isa = machine_of(abi).isa
    ranges = [(start, end) for start, end in without_cfi if end - start >= MIN_RANGE]
    if isa is None or isa.references is None or not ranges:
        return set()
    starts, ends = (array("Q", column) for column in zip(*ranges, strict=True))
    found: set[int] = set()
    for start, end in subtract_ranges(elf.executable_ranges(), ranges):
        try:
            code = bytes(elf.at(start, end - start))
        except FormatError:  # the file is cut off before it
            continue
        if cython.compiled:  # a loop over all bytes is faster than the pattern; interpreted, it is slower
            candidates = find_distances_into(code, start, starts, ends, ALIGNMENT)
            offsets = [offset for offset in candidates if _instruction_ends_at(isa.references, code, offset)]
        else:
            offsets = [match.end(1) for match in isa.references.finditer(code)]
        for offset in offsets:
            found.add(start + offset + int.from_bytes(code[offset - DISTANCE_BYTES : offset], "little", signed=True))
    return {target for target in found if target % ALIGNMENT == 0 and is_within((target, target + 1), ranges)}


def _instruction_ends_at(form: re.Pattern[bytes], code: bytes, end: int) -> bool:
    """Return True if an instruction of that form ends at an offset in the code."""
    matches = (form.match(code, end - size) for size in range(DISTANCE_BYTES + 1, min(MAX_INSTRUCTION, end) + 1))
    return any(match is not None and match.end(1) == end for match in matches)


@cython.locals(words="const unsigned long long[::1]")
def select_words(words: Column, low: cython.ulonglong, high: cython.ulonglong) -> list[int]:
    """Return the words whose value is in [low, high), in their order."""
    found: list[int] = []
    word: cython.ulonglong
    index: cython.Py_ssize_t
    if not cython.compiled:
        return [word for word in words if low <= word < high]
    for index in range(len(words)):
        word = words[index]
        if low <= word < high:
            found.append(word)
    return found


@cython.locals(code="const unsigned char[::1]", starts="const unsigned long long[::1]", ends="const unsigned long long[::1]")
def find_distances_into(
    code: bytes, address: cython.ulonglong, starts: Column, ends: Column, alignment: cython.ulonglong
) -> list[int]:
    """Return the offsets in the code where 4 bytes end that are the distance from there to an aligned address in a range.

    `address`: the address of the code. The ranges ascend.
    """
    found: list[int] = []
    after: cython.Py_ssize_t
    number: cython.ulonglong
    target: cython.ulonglong
    first: cython.ulonglong = starts[0]
    last: cython.ulonglong = ends[len(ends) - 1]
    mask: cython.ulonglong = 0xFFFFFFFFFFFFFFFF
    for after in range(4, len(code) + 1):
        number = code[after - 1]
        # Little-endian. From 2 ** 31 on, the distance is negative.
        number = number << 24 | code[after - 2] << 16 | code[after - 3] << 8 | code[after - 4]
        target = (address + after + number - ((number >> 31) << 32)) & mask
        if target % alignment or target < first or target >= last:
            continue
        if target < ends[bisect_right(starts, target, 0, len(starts)) - 1]:
            found.append(after)
    return found
