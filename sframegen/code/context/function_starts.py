"""Finds the starts of functions in code without call frame information. Compiled."""

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

if TYPE_CHECKING:
    import re
    from collections.abc import Iterator

    from sframegen.base.columns import Column
    from sframegen.elf.file import ElfFile
    from sframegen.elf.ranges import Range
    from sframegen.format.abi import Abi


ARRAYS = ((DT.INIT_ARRAY, DT.INIT_ARRAYSZ), (DT.FINI_ARRAY, DT.FINI_ARRAYSZ), (DT.PREINIT_ARRAY, DT.PREINIT_ARRAYSZ))
AT_A_TIME = 1 << 20  # bytes of data that are copied at a time
MAX_ARRAY = 1 << 16  # most functions that run at start or end of a file


def starts(elf: ElfFile, abi: Abi) -> set[int]:
    """Return the addresses of functions that have symbols, or run when a file is loaded or unloaded. They may lie anywhere."""
    found = {symbol.address for symbol in read_functions(elf)}
    dynamic = {entry.tag: entry.value for entry in read_dynamic(elf)}
    found.update(dynamic[tag] for tag in (DT.INIT, DT.FINI) if tag in dynamic)
    found.update(_in_arrays(elf, abi, dynamic))
    for name in (".init", ".fini"):  # static programs have no dynamic section
        section = elf.section(name)
        if section is not None:
            found.add(section.header.sh_addr)
    found.discard(0)
    return found


def relocated_pointers(elf: ElfFile) -> set[int]:
    """Return the addresses that relocations make pointers to, by adding the base to an address."""
    found = set(read_relr_addends(elf))
    abi = abi_of(elf)
    kinds = (abi.relative, machine_of(abi).irelative)  # without a symbol, that is all of r_info
    for _, entries in dynamic_relocations(elf):
        found.update(addend for info, addend in zip(entries.info, entries.addend, strict=True) if info in kinds)
    return found


def pointed_at(elf: ElfFile, within: Range) -> array[int]:
    """Return the addresses in a range that relocations make pointers to, or that are words in data: distinct, ascending."""
    low, high = within
    found = {address for address in relocated_pointers(elf) if low <= address < high}
    size = len(elf.data)
    headers = [(0, EHDR_SIZE), (elf.header.e_phoff, elf.header.e_phoff + PHDR_SIZE * len(elf.segments))]
    data = merge_ranges(
        (min(load.p_offset, size), min(load.p_offset + load.p_filesz, size))
        for load in elf.segments
        if load.p_type == PT.LOAD and not load.p_flags & PF.X
    )
    for start, end in subtract_ranges(data, merge_ranges(headers)):
        first, limit = start + -start % 8, end - end % 8
        for at in range(first, limit, AT_A_TIME):
            words = array("Q", bytes(elf.slice(at, min(AT_A_TIME, limit - at), "PT_LOAD")))
            found.update(words_within(words, low, high))
    return array("Q", sorted(found))


def _in_arrays(elf: ElfFile, abi: Abi, dynamic: dict[int, int]) -> Iterator[int]:
    """Return the values of arrays of functions: in the file, or in relocations that add the base to an address."""
    arrays = [(dynamic[at], dynamic[size]) for at, size in ARRAYS if at in dynamic and size in dynamic]
    sections = [section.header for name in (".init_array", ".fini_array") if (section := elf.section(name)) is not None]
    arrays += [(header.sh_addr, header.sh_size) for header in sections]
    wanted = {at for start, size in arrays for at in range(start, start + min(size, 8 * MAX_ARRAY), 8)}
    for at in wanted:
        try:
            yield int.from_bytes(elf.at(at, 8), elf.byte_order)
        except FormatError:
            continue
    if not wanted or DT.RELA not in dynamic or DT.RELASZ not in dynamic:
        return
    try:
        raw = elf.at(dynamic[DT.RELA], dynamic[DT.RELASZ] // RELA_SIZE * RELA_SIZE)
    except FormatError:
        return
    for place, info, addend in zip(*unpack_columns(raw, elf.byte_order), strict=True):
        if place in wanted and info & 0xFFFFFFFF == abi.relative:
            yield addend


ALIGNMENT = 16  # bytes: alignment of functions in assembly; bytes that only look like a reference rarely lead to such addresses
NUMBER, LONGEST = 4, 8  # bytes of a distance, and of the longest instruction with one
LEAST = 64  # bytes of code without CFI


def referred_to(elf: ElfFile, abi: Abi, silent: list[Range]) -> set[int]:
    """Return aligned addresses in `silent` ranges to which the rest of the code refers. None on machines where that is not read."""
    isa = machine_of(abi).isa
    silent = [(start, end) for start, end in silent if end - start >= LEAST]
    if isa is None or isa.refers is None or not silent:
        return set()
    starts, ends = (array("Q", column) for column in zip(*silent, strict=True))
    found: set[int] = set()
    for start, end in subtract_ranges(elf.executable_ranges(), silent):
        try:
            code = bytes(elf.at(start, end - start))
        except FormatError:  # the file is cut off before it
            continue
        if cython.compiled:
            places = distances_into(code, start, starts, ends, ALIGNMENT)
            after = [place for place in places if _ends_there(isa.refers, code, place)]
        else:
            after = [match.end(1) for match in isa.refers.finditer(code)]
        found |= {start + place + int.from_bytes(code[place - NUMBER : place], "little", signed=True) for place in after}
    return {target for target in found if target % ALIGNMENT == 0 and is_within((target, target + 1), silent)}


def _ends_there(form: re.Pattern[bytes], code: bytes, place: int) -> bool:
    """True if an instruction of that form ends at the place."""
    matches = (form.match(code, place - size) for size in range(NUMBER + 1, min(LONGEST, place) + 1))
    return any(match is not None and match.end(1) == place for match in matches)


@cython.locals(words="const unsigned long long[::1]")
def words_within(words: Column, low: cython.ulonglong, high: cython.ulonglong) -> list[int]:
    """Return the words in [low, high), in their order."""
    found: list[int] = []
    word: cython.ulonglong
    place: cython.Py_ssize_t
    if not cython.compiled:
        return [word for word in words if low <= word < high]
    for place in range(len(words)):
        word = words[place]
        if low <= word < high:
            found.append(word)
    return found


@cython.locals(code="const unsigned char[::1]", starts="const unsigned long long[::1]", ends="const unsigned long long[::1]")
def distances_into(code: bytes, address: cython.ulonglong, starts: Column, ends: Column, alignment: cython.ulonglong) -> list[int]:
    """Return the ends of 4 bytes of the code that are the distance from there to an aligned address in one of the ranges.

    `address`: of the code. The ranges ascend.
    """
    found: list[int] = []
    after: cython.Py_ssize_t
    low: cython.Py_ssize_t
    high: cython.Py_ssize_t
    middle: cython.Py_ssize_t
    number: cython.ulonglong
    target: cython.ulonglong
    first: cython.ulonglong = starts[0]
    last: cython.ulonglong = ends[len(ends) - 1]
    mask: cython.ulonglong = 0xFFFFFFFFFFFFFFFF
    for after in range(4, len(code) + 1):
        number = code[after - 1]
        number = number << 24 | code[after - 2] << 16 | code[after - 3] << 8 | code[after - 4]
        target = (address + after + number - ((number >> 31) << 32)) & mask
        if target % alignment or target < first or target >= last:
            continue
        low = 0
        high = len(starts)
        while low < high:
            middle = (low + high) >> 1
            if starts[middle] <= target:
                low = middle + 1
            else:
                high = middle
        if target < ends[low - 1]:
            found.append(after)
    return found
