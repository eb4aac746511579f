"""Scans a CFI section for its entries: finds where each CIE and FDE begins and ends. Compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING

try:
    import cython
except ImportError:
    from sframegen.base import cython_shadow as cython  # type: ignore[no-redef]

from sframegen.base.columns import ByteReader

if not cython.compiled:
    from bisect import bisect_left
if TYPE_CHECKING:
    from sframegen.base.columns import Bytes, Column, Entries

COMPILED: bool = cython.compiled


@cython.locals(result="long long[::1]")
def scan_entries(
    data: Bytes, big: cython.bint, eh: cython.bint, fde_count: cython.longlong, cies: Entries, fdes: Entries, result: Column
) -> None:
    """Fill the tables of CIEs and FDEs, as far as they have room. `fde_count` is as in CfiSection.

    `result` gets four numbers: a fault's index in SCAN_FAULTS and its offset, the number of CIEs, and the number of FDEs.
    """
    source: ByteReader = ByteReader(data, big)
    size: cython.longlong = len(data)
    escape: cython.ulonglong = 0xFFFFFFFF  # as a length: 64-bit DWARF; as a CIE pointer: a CIE of .debug_frame
    pos: cython.longlong = 0
    cie: cython.Py_ssize_t = 0
    fde: cython.Py_ssize_t = 0
    wide: cython.ulonglong  # the number read last, which may not fit into `length` or `pointer`
    length: cython.longlong
    pointer: cython.longlong
    at: cython.longlong
    width: cython.longlong
    is_cie: cython.bint
    while pos + 4 <= size and result[0] == 0:
        result[1] = pos
        at = pos + 4
        wide = length = source.number(pos, 4)
        width = 8 if wide == escape and not eh else 4
        if length == 0:
            if 0 <= fde_count <= fde:
                pos = size
                break
            pos = at
            continue
        if wide == escape:  # 64-bit DWARF
            if pos + 12 > size:
                result[0] = 1  # the length is cut off
                continue
            wide = source.number(at, 8)
            length = size if wide >> 62 else wide
            at += 8
        if length > size - at:
            result[0] = 2  # the entry reaches past the end of the section
            continue
        if length < width:
            result[0] = 3  # the entry is too short for its CIE pointer
            continue
        wide = source.number(at, width)
        pointer = size if wide >> 62 else wide
        if eh:
            pointer = at - pointer
            is_cie = wide == 0
        else:
            is_cie = wide == escape if width == 4 else wide >> 62 != 0
        if is_cie:
            cie = add_entry(cies, cie, pos, at + width, at + length)
        elif pointer < 0 or pointer >= size:
            result[0] = 4  # the CIE pointer leads out of the section
        else:
            if fde < len(fdes.cie):
                fdes.cie[fde] = pointer
            fde = add_entry(fdes, fde, pos, at + width, at + length)
        pos = at + length
    if result[0] == 0 and any(data[pos:]):
        result[0] = 1  # the length is cut off
        result[1] = pos
    result[2] = cie
    result[3] = fde


@cython.cfunc
@cython.exceptval(-1)
def add_entry(
    entries: Entries, number: cython.Py_ssize_t, start: cython.longlong, body: cython.longlong, end: cython.longlong
) -> cython.Py_ssize_t:
    """Set entry `number` of the table, if it has room; return the number of entries so far."""
    if number < len(entries.start):
        entries.start[number] = start
        entries.body[number] = body
        entries.end[number] = end
    return number + 1


@cython.locals(cie="unsigned int[::1]")
def fill_cie_numbers(fdes: Entries, cies: Entries, cie: Column) -> int:
    """Fill `cie` with the number of each FDE's CIE; return the first FDE whose CIE pointer does not lead to a CIE, or -1."""
    fde: cython.Py_ssize_t
    last: cython.Py_ssize_t = 0
    for fde in range(len(fdes.cie)):
        if last >= len(cies.start) or cies.start[last] != fdes.cie[fde]:
            last = bisect_left(cies.start, fdes.cie[fde], 0, len(cies.start))
            if last == len(cies.start) or cies.start[last] != fdes.cie[fde]:
                return fde
        cie[fde] = last
    return -1
