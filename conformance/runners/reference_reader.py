"""A reader of SFrame that follows the text of the specification, for run.py: as plain as it can be, and without a thought of speed.

Where the text is silent it does what costs least, which the cases of verdict "open" allow.
"""

from __future__ import annotations

import struct
from typing import Any

NAME = "reference"
VERSIONS = (1, 2, 3)
ABIS = (1, 2, 3, 4)
REPORTS = ("ra_signed", "signal", "key_b")

MAGIC, HEADER = 0xDEE2, 28
SORTED, FRAME_POINTER, PCREL = 1, 2, 4
FLAGS = {1: SORTED | FRAME_POINTER, 2: SORTED | FRAME_POINTER | PCREL, 3: SORTED | PCREL}
INDEX = {1: "iIIIB", 2: "iIIIBBH", 3: "qII"}
ATTRIBUTE = "HBBB"
ORDERS = {1: ">", 2: "<", 3: "<", 4: ">"}
S390X = 4
SP = {1: 31, 2: 31, 3: 7, 4: 15}
FP = {1: 29, 2: 29, 3: 6, 4: 11}


class DamagedError(ValueError):
    """The section, or what covers the PC, is not what the specification describes."""


def open_section(data: bytes, address: int) -> Reader:
    return Reader(data, address)


class Reader:
    def __init__(self, data: bytes, address: int) -> None:
        self.data, self.address = data, address
        if len(data) < HEADER:
            raise DamagedError("shorter than a header")
        self.mark = next((mark for mark in "<>" if struct.unpack_from(mark + "H", data)[0] == MAGIC), "")
        if not self.mark:
            raise DamagedError("no magic number")
        _, self.version, self.flags, self.abi, self.fixed_fp, self.fixed_ra, auxiliary, count, _, length, fdeoff, freoff = (
            self.unpack("HBBBbbBIIIII", 0)
        )
        if self.version not in VERSIONS or self.flags & ~FLAGS[self.version] or self.abi not in ABIS:
            raise DamagedError("a version, flag or ABI that is not defined")
        if ORDERS[self.abi] != self.mark:
            raise DamagedError("the other byte order than that of the ABI")
        self.entry_size = struct.calcsize("<" + INDEX[self.version])
        self.index = HEADER + auxiliary + fdeoff
        self.rows = HEADER + auxiliary + freoff
        self.rows_end = self.rows + length
        index_end = self.index + count * self.entry_size
        if index_end > self.rows or self.rows_end > len(data):
            raise DamagedError("sub-sections overlap, or reach past the section")
        self.functions = [self.function(number) for number in range(count)]
        starts = [start for start, *_ in self.functions]
        if self.flags & SORTED and starts != sorted(starts):
            raise DamagedError("functions descend")

    def unpack(self, codes: str, at: int) -> tuple[int, ...]:
        if at < 0 or at + struct.calcsize("<" + codes) > len(self.data):
            raise DamagedError(f"nothing at offset {at}")
        return struct.unpack_from(self.mark + codes, self.data, at)

    def function(self, number: int) -> tuple[int, int, int, tuple[int, ...]]:
        """Start, size, offset of its rows, and number of rows, info, info2, rep_size of Versions 1 and 2."""
        at = self.index + number * self.entry_size
        start, size, block, *rest = self.unpack(INDEX[self.version], at)
        start = (self.address + (at if self.flags & PCREL else 0) + start) % (1 << 64)
        if self.version != 3:
            count, info, *more = rest
            rest = [count, info, 0, more[0] if more else 0]
        return start, size, block, tuple(rest)

    def find(self, pc: int) -> dict[str, Any]:
        for start, size, block, attribute in self.functions:
            if start <= pc < start + size:
                return self.row_of(pc - start, size, self.rows + block, attribute)
        return {"kind": "none"}

    def row_of(self, offset: int, size: int, at: int, attribute: tuple[int, ...]) -> dict[str, Any]:
        if not attribute:
            attribute = self.unpack(ATTRIBUTE, at)
            at += struct.calcsize("<" + ATTRIBUTE)
        count, info, info2, period = attribute
        kind = info2 & 0x1F
        if kind > 1 or info & 0x0F > 2:
            raise DamagedError("unknown FDE or FRE type")
        if not count:
            return {"kind": "outermost" if kind == 0 and self.version == 3 else "none"}
        if info & 0x10 and self.version > 1:
            if not period:
                raise DamagedError("a repeated block of no bytes")
            offset %= period
        found, before = None, -1
        for _ in range(count):
            start, row_info = self.unpack("BHI"[info & 0x0F] + "B", at)
            width = 1 << (row_info >> 5 & 3)
            words_at = at + (1 << (info & 0x0F)) + 1
            at = words_at + (row_info >> 1 & 0x0F) * width
            if start <= before or start > size or width > 4 or at > self.rows_end:
                raise DamagedError("rows that do not ascend, or a row outside")
            if start > offset:
                break
            before, found = start, (row_info, words_at)
        if found is None:
            return {"kind": "none"}
        marks = {"ra_signed": bool(found[0] & 0x80), "signal": bool(info & 0x80 and self.version == 3), "key_b": bool(info & 0x20)}
        return self.rule(*found, flexible=kind == 1) | marks

    def rule(self, info: int, at: int, *, flexible: bool) -> dict[str, Any]:
        count, size = info >> 1 & 0x0F, info >> 5 & 3
        if not count:
            return {"kind": "outermost"}
        signed = list(self.unpack("bhi"[size] * count, at))
        if flexible:
            cfa, ra, fp = self.flexible(list(self.unpack("BHI"[size] * count, at)), signed)
        else:
            cfa, ra, fp = self.default(SP[self.abi] if info & 1 else FP[self.abi], signed)
        return {"kind": "rule", "cfa": cfa, "ra": ra, "fp": fp}

    def default(self, base: int, words: list[int]) -> list[dict[str, Any] | None]:
        offset = words.pop(0)
        if self.abi == S390X:
            offset = offset * 8 + 160
        saved = []
        for is_ra, fixed in ((True, self.fixed_ra), (False, self.fixed_fp)):
            if fixed or not words:
                saved.append(place(None, fixed, deref=True) if fixed else None)
                continue
            word = words.pop(0)
            if self.abi == S390X and self.version == 2 and word & 1:
                saved.append(place(word >> 1, 0))
            elif self.abi == S390X and is_ra and word == 0:
                saved.append(None)
            else:
                saved.append(place(None, word, deref=True))
        if words:
            raise DamagedError("data words left over")
        return [place(base, offset), *saved]

    def flexible(self, controls: list[int], offsets: list[int]) -> list[dict[str, Any] | None]:
        said: list[dict[str, Any] | None] = []
        at = 0
        for fixed in (0, self.fixed_ra, self.fixed_fp):
            control = controls[at] if at < len(controls) else 0
            at += 1
            if not control:
                said.append(place(None, fixed, deref=True) if fixed else None)
                continue
            if at == len(offsets):
                raise DamagedError("a control word without its offset")
            register = control >> 3 if control & 1 else None
            said.append(place(register, offsets[at], deref=bool(control & 2)))
            at += 1
        if at < len(controls):
            raise DamagedError("data words left over")
        if said[0] is None or said[0]["register"] is None:
            raise DamagedError("a CFA without a base register")
        return said


def place(register: int | None, offset: int, *, deref: bool = False) -> dict[str, Any]:
    return {"register": register, "offset": offset, "deref": deref}
