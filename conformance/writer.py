"""Functions and data words -> the bytes of a section, and where each field is. It writes right and wrong sections alike."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from conformance.machines import MARKS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from conformance.machines import ByteOrder, Machine

SORTED, FRAME_POINTER, PCREL = 1, 2, 4
CODES = {1: "B", 2: "H", 4: "I", 8: "Q"}
HEADER = (
    ("magic", 2), ("version", 1), ("flags", 1), ("abi", 1), ("fixed_fp", 1), ("fixed_ra", 1), ("aux_len", 1), ("num_fdes", 4),
    ("num_fres", 4), ("fre_len", 4), ("fdeoff", 4), ("freoff", 4),
)  # fmt: skip
COMMON = (("size", 4), ("fre_off", 4))
INDEX = {
    1: (("start", 4), *COMMON, ("num_fres", 4), ("info", 1)),
    2: (("start", 4), *COMMON, ("num_fres", 4), ("info", 1), ("rep_size", 1), ("padding", 2)),
    3: (("start", 8), *COMMON),
}
ATTRIBUTE = {1: (), 2: (), 3: (("num_fres", 2), ("info", 1), ("info2", 1), ("rep_size", 1))}
LIMITS = {1: 0xFF, 2: 0xFFFF, 4: 0xFFFFFFFF}


@dataclass(frozen=True)
class Row:
    """An FRE. `words` may be negative; `width`: of each, in bytes."""

    start: int
    words: tuple[int, ...] = ()
    base: str = "sp"
    width: int = 1
    mangled: bool = False


@dataclass(frozen=True)
class Function:
    """`width`: of row starts. `shares`: the number of an earlier function whose rows are its own, too."""

    start: int
    size: int
    rows: Sequence[Row] = ()
    width: int = 1
    mask: bool = False
    rep_size: int = 0
    flex: bool = False
    signal: bool = False
    key_b: bool = False
    shares: int | None = None

    @property
    def info(self) -> int:
        return self.width.bit_length() - 1 | self.mask << 4 | self.key_b << 5 | self.signal << 7


@dataclass(frozen=True)
class Section:
    """`before_index`, `before_rows`, `after_rows`: bytes that no field describes; `padding`: at the end of the rows."""

    version: int
    machine: Machine
    functions: Sequence[Function]
    address: int = 0x5000
    flags: int | None = None  # SORTED, and PCREL where the version has it
    auxiliary: bytes = b""
    before_index: bytes = b""
    before_rows: bytes = b""
    after_rows: bytes = b""
    padding: bytes = b""
    backwards: bool = False  # the rows of the last function come first


class Written(NamedTuple):
    """`places`: offset and width of each field: `num_fdes`, `1.size` of function 1, `1.0.info` of its row 0."""

    data: bytes
    places: dict[str, tuple[int, int]]
    byte_order: ByteOrder

    def change(self, changes: dict[str, int]) -> Written:
        """The same with other numbers in these fields."""
        data = bytearray(self.data)
        for name, value in changes.items():
            at, width = self.places[name]
            data[at : at + width] = (value % (1 << 8 * width)).to_bytes(width, self.byte_order)
        return self._replace(data=bytes(data))


@dataclass
class Bytes:
    """Bytes that grow, and the fields in them."""

    byte_order: ByteOrder
    data: bytearray = field(default_factory=bytearray)
    places: dict[str, tuple[int, int]] = field(default_factory=dict)

    def put(self, prefix: str, fields: Sequence[tuple[str, int]], values: dict[str, int]) -> None:
        for name, width in fields:
            self.places[prefix + name] = (len(self.data), width)
            self.number(values.get(name, 0), width)

    def number(self, value: int, width: int) -> None:
        self.data += struct.pack(MARKS[self.byte_order] + CODES[width], value % (1 << 8 * width))


def write(section: Section) -> Written:
    order = section.machine.byte_order
    rows = Bytes(order)
    blocks: dict[int, int] = {}
    numbered = list(enumerate(section.functions))
    for number, function in reversed(numbered) if section.backwards else numbered:
        if function.shares is None:
            blocks[number] = len(rows.data)
            _put_block(rows, number, function, section.version)
    rows.data += section.padding

    out = Bytes(order)
    index_size = sum(width for _, width in INDEX[section.version])
    freoff = len(section.before_index) + len(section.functions) * index_size + len(section.before_rows)
    flags = section.flags if section.flags is not None else SORTED | (PCREL if section.version > 1 else 0)
    stored = sum(len(function.rows) for function in section.functions if function.shares is None)
    values = {
        "magic": 0xDEE2, "version": section.version, "flags": flags, "abi": section.machine.abi,
        "fixed_ra": section.machine.fixed_ra,
        "aux_len": len(section.auxiliary), "num_fdes": len(section.functions), "num_fres": stored, "fre_len": len(rows.data),
        "fdeoff": len(section.before_index), "freoff": freoff,
    }  # fmt: skip
    out.put("", HEADER, values)
    out.data += section.auxiliary + section.before_index
    for number, function in numbered:
        from_ = section.address + (len(out.data) if flags & PCREL else 0)
        block = blocks[function.shares if function.shares is not None else number]
        values = {"start": function.start - from_, "size": function.size, "fre_off": block, **_attribute(function, section)}
        out.put(f"{number}.", INDEX[section.version], values)
    out.data += section.before_rows
    at = len(out.data)
    places = out.places | {name: (at + place, width) for name, (place, width) in rows.places.items()}
    return Written(bytes(out.data + rows.data + section.after_rows), places, order)


def _attribute(function: Function, section: Section) -> dict[str, int]:
    count = len(function.rows if function.shares is None else section.functions[function.shares].rows)
    return {"num_fres": count, "info": function.info, "info2": function.flex, "rep_size": function.rep_size}


def _put_block(rows: Bytes, number: int, function: Function, version: int) -> None:
    values = {"num_fres": len(function.rows), "info": function.info, "info2": function.flex, "rep_size": function.rep_size}
    rows.put(f"{number}.", ATTRIBUTE[version], values)
    for at, row in enumerate(function.rows):
        info = (row.base == "sp") | len(row.words) << 1 | row.width.bit_length() - 1 << 5 | row.mangled << 7
        rows.put(f"{number}.{at}.", (("start", function.width), ("info", 1)), {"start": row.start, "info": info})
        for place, word in enumerate(row.words):
            rows.put(f"{number}.{at}.", ((f"word{place}", row.width),), {f"word{place}": word})
