"""Finds the entries of a CFI section: where each CIE and FDE begins and ends. Compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING

try:
    import cython
except ImportError:
    from sframegen.base import cython_shadow as cython  # type: ignore[no-redef]

if not cython.compiled:
    from bisect import bisect_left
if TYPE_CHECKING:
    from sframegen.base.columns import Bytes, Column, Entries

COMPILED: bool = cython.compiled


@cython.cfunc
@cython.exceptval(-1)
@cython.locals(data="const unsigned char[::1]")
def number(data: Bytes, pos: cython.Py_ssize_t, width: cython.Py_ssize_t, big: cython.bint) -> cython.longlong:
    """The unsigned number at `pos`, caller-checked; 8-byte ones beyond 2 ** 62 come back as 2 ** 62, larger than any section."""
    value: cython.longlong = 0
    large: cython.longlong = 1 << 62
    i: cython.Py_ssize_t
    for i in range(width):
        if value >> 54:
            return large
        value = value * 256 + data[pos + (i if big else width - 1 - i)]
    return value


@cython.locals(data="const unsigned char[::1]", found="long long[::1]")
def scan_entries(
    data: Bytes, big: cython.bint, eh: cython.bint, fde_count: cython.longlong, cies: Entries, fdes: Entries, found: Column
) -> None:
    """Fills the tables up to their size. `fde_count` as in CfiSection.

    `found`: number and offset of a fault, number of CIEs, number of FDEs.
    """
    size: cython.longlong = len(data)
    mask32: cython.longlong = 0xFFFFFFFF
    pos: cython.longlong = 0
    cie: cython.Py_ssize_t = 0
    fde: cython.Py_ssize_t = 0
    length: cython.longlong
    at: cython.longlong
    stop: cython.longlong
    pointer: cython.longlong
    width: cython.longlong
    is_cie: cython.bint
    while pos + 4 <= size and found[0] == 0:
        found[1] = pos
        at = pos + 4
        length = number(data, pos, 4, big)
        width = 4
        if length == 0:
            if 0 <= fde_count <= fde:
                pos = size
                break
            pos = at
            continue
        if length == mask32:  # 64-bit DWARF
            if pos + 12 > size:
                found[0] = 1
                continue
            length = number(data, at, 8, big)
            at += 8
            width = 4 if eh else 8
        if length > size - at:
            found[0] = 2
            continue
        if length < width:
            found[0] = 3
            continue
        stop = at + length
        pointer = number(data, at, width, big)
        if eh:
            is_cie = pointer == 0
            pointer = at - pointer
        else:
            is_cie = pointer == mask32 if width == 4 else (pointer >> 62) != 0
        if is_cie:
            if cie < len(cies.start):
                cies.start[cie] = pos
                cies.body[cie] = at + width
                cies.end[cie] = stop
            cie += 1
        elif pointer < 0 or pointer >= size:
            found[0] = 4
        else:
            if fde < len(fdes.start):
                fdes.start[fde] = pos
                fdes.body[fde] = at + width
                fdes.end[fde] = stop
                fdes.cie[fde] = pointer
            fde += 1
        pos = stop
    if found[0] == 0 and pos < size:
        for at in range(pos, size):
            if data[at]:
                found[0] = 1
                found[1] = pos
    found[2] = cie
    found[3] = fde


@cython.locals(cie="unsigned int[::1]")
def cie_numbers(fdes: Entries, cies: Entries, cie: Column) -> int:
    """Fills `cie` with the number of each FDE's CIE; returns the first FDE whose CIE pointer leads to none, or -1."""
    fde: cython.Py_ssize_t
    last: cython.Py_ssize_t = 0
    for fde in range(len(fdes.cie)):
        if last >= len(cies.start) or cies.start[last] != fdes.cie[fde]:
            last = bisect_left(cies.start, fdes.cie[fde], 0, len(cies.start))
            if last == len(cies.start) or cies.start[last] != fdes.cie[fde]:
                return fde
        cie[fde] = last
    return -1
