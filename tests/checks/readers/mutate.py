"""Small sections of all versions and ABIs, and seeded damage to them: bits, bytes, fields, places, lengths."""

from __future__ import annotations

import struct
from collections.abc import Callable
from random import Random
from typing import NamedTuple

from sframegen.elf.records import STRUCT_BYTE_ORDERS, ByteOrder
from sframegen.format.abi import ABIS, Abi
from sframegen.format.encode import Encoder
from sframegen.format.layouts import HEADER_CODE, HEADER_SIZE, LAYOUTS, WRITABLE, SframeHeader
from sframegen.format.model import OUTERMOST, FdeType, FunctionTable, Kind, Rule, Where
from sframegen.tables.lower import lower_table

ADDRESS = 0x5000
CODE = (0x1000, 0x40000)


class Base(NamedTuple):
    """A sound section, and the code that it is about."""

    name: str
    data: bytes
    address: int
    order: ByteOrder
    code: tuple[int, int]


def table_for(abi: Abi) -> FunctionTable:
    """Default and flexible functions, a repeated block, shared rows, row starts and offsets of one, two and four bytes."""
    ra = Where(None, abi.fixed_ra_offset, deref=True) if abi.fixed_ra_offset else None
    saved_ra, saved_fp = ra or Where(None, -8, deref=True), Where(None, -16, deref=True)
    entry = Rule(Where(abi.sp, 160), ra)
    frame = Rule(Where(abi.sp, 176), saved_ra, saved_fp)
    by_fp = Rule(Where(abi.fp, 32), saved_ra, saved_fp)
    large = Rule(Where(abi.sp, 40_000), ra)
    huge = Rule(Where(abi.sp, 8_000_000), saved_ra, saved_fp)
    drap = Rule(Where(abi.fp, -8, deref=True), ra, Where(abi.fp, 0, deref=True))
    based = Rule(Where(10, 0), ra, None)
    usual = [(0, entry), (1, frame), (4, by_fp), (20, entry)]
    functions = [
        (0x1000, 0x40, Kind(), usual),
        (0x1040, 0x60, Kind(), usual),
        (0x10A0, 0x10, Kind(), [(0, entry)]),
        (0x10C0, 0x40, Kind(rep_size=16, mask=True), [(0, entry), (6, frame), (11, large)]),
        (0x1200, 0x400, Kind(), [(0, entry), (2, frame), (0x123, large), (0x3FF, entry)]),
        (0x1600, 0x20000, Kind(), [(0, entry), (0x10000, huge), (0x18000, frame)]),
        (0x22000, 0x30, Kind(fde_type=FdeType.FLEX), [(0, entry), (4, drap), (9, based), (0x20, entry)]),
        (0x22040, 0x10, Kind(), [(0, OUTERMOST)]),
        (0x30000, 0x80, Kind(), [(0, entry), (0x30, frame)]),
    ]
    table = FunctionTable()
    rules: dict[Rule, int] = {}
    for start, size, kind, rows in functions:
        if kind not in table.kinds:
            table.kinds.append(kind)
        table.append(start, size, table.kinds.index(kind), [(offset, rules.setdefault(rule, len(rules))) for offset, rule in rows])
    table.rules = list(rules)
    return table


def bases() -> list[Base]:
    found = []
    for abi in ABIS:
        for layout in WRITABLE.values():
            table = lower_table(table_for(abi), abi, layout)[0]
            for share in {abi.shares_rows, False}:
                data = bytes(Encoder(table, abi, layout, share=share).encode(ADDRESS))
                name = f"{abi.name} V{layout.version}{' shared' if share else ''}"
                found.append(Base(name, data, ADDRESS, abi.byte_order, CODE))
    return found


def header_of(data: bytes | bytearray, order: ByteOrder) -> SframeHeader:
    return SframeHeader(*struct.unpack_from(STRUCT_BYTE_ORDERS[order] + HEADER_CODE, data))


NUMBERS = (0, 1, 2, 3, 4, 15, 16, 17, 0x7F, 0x80, 0xFF, 0x100, 0xFFFF, 0x10000, 0x7FFFFFFF, 0xFFFFFFFF)


def put(data: bytearray, at: int, width: int, number: int, order: ByteOrder) -> None:
    if 0 <= at <= len(data) - width:
        data[at : at + width] = (number % (1 << 8 * width)).to_bytes(width, order)


def changed(random: Random, old: int) -> int:
    """Near to a number, or one that is often a limit."""
    return random.choice((old + random.choice((-16, -4, -1, 1, 2, 8, 64)), random.choice(NUMBERS), old ^ 1 << random.randrange(32)))


def a_bit(random: Random, data: bytearray, _: Base) -> None:
    data[random.randrange(len(data))] ^= 1 << random.randrange(8)


def a_byte(random: Random, data: bytearray, _: Base) -> None:
    data[random.randrange(len(data))] = random.randrange(256)


def a_header_field(random: Random, data: bytearray, base: Base) -> None:
    if len(data) < HEADER_SIZE:
        return
    fields = list(header_of(data, base.order))
    field = random.randrange(1, len(fields))
    width = 4 if field > 6 else 1
    put(data, 8 + 4 * (field - 7) if width == 4 else field + 1, width, changed(random, fields[field]), base.order)


def an_index_field(random: Random, data: bytearray, base: Base) -> None:
    layout = LAYOUTS[base.data[2]]
    entry = HEADER_SIZE + layout.index_size * random.randrange(header_of(base.data, base.order).num_fdes)
    at, width = random.choice([(0, layout.start_width), (layout.size_at, 4), (layout.fre_offset_at, 4)])
    put(data, entry + at, width, changed(random, int.from_bytes(data[entry + at : entry + at + width], base.order)), base.order)


def an_attribute(random: Random, data: bytearray, base: Base) -> None:
    """Number of FREs, info bytes or period of a function."""
    layout, header = LAYOUTS[base.data[2]], header_of(base.data, base.order)
    entry = HEADER_SIZE + layout.index_size * random.randrange(header.num_fdes)
    block = int.from_bytes(base.data[entry + layout.fre_offset_at :][:4], base.order)
    place = HEADER_SIZE + header.freoff + block if layout.attribute_in_block else entry
    at, width = random.choice(
        [(at, 1) for at in (layout.info_at, layout.info2_at, layout.rep_size_at) if at >= 0]
        + [(layout.num_fres_at, layout.num_fres_width)]
    )
    at += place
    put(data, at, width, changed(random, int.from_bytes(data[at : at + width], base.order)), base.order)


def a_row(random: Random, data: bytearray, base: Base) -> None:
    """A byte of the FREs, by a little."""
    at = random.randrange(HEADER_SIZE + header_of(base.data, base.order).freoff, len(base.data))
    if at < len(data):
        data[at] = changed(random, data[at]) % 256


def two_functions(random: Random, data: bytearray, base: Base) -> None:
    """The index entries change places."""
    width, count = LAYOUTS[base.data[2]].index_size, header_of(base.data, base.order).num_fdes
    one, other = (HEADER_SIZE + width * random.randrange(count) for _ in range(2))
    data[one : one + width], data[other : other + width] = data[other : other + width], data[one : one + width]


def a_start(random: Random, data: bytearray, base: Base) -> None:
    """A function begins below all others, the lowest ones round the end of the address space."""
    layout = LAYOUTS[base.data[2]]
    count = header_of(base.data, base.order).num_fdes
    entry = HEADER_SIZE + layout.index_size * random.choice((count - 1, random.randrange(count)))
    start = random.choice((-0x40_0000, -0x1000, -1, 0, 0x800))
    put(data, entry, layout.start_width, start - base.address - entry, base.order)


def a_period(random: Random, data: bytearray, base: Base) -> None:
    """A function that is repeated, with a period of nothing; often it cannot be found, or has no FREs that can be read."""
    layout, header = LAYOUTS[base.data[2]], header_of(base.data, base.order)
    entry = HEADER_SIZE + layout.index_size * random.randrange(header.num_fdes)
    block = HEADER_SIZE + header.freoff + int.from_bytes(base.data[entry + layout.fre_offset_at :][:4], base.order)
    place = block if layout.attribute_in_block else entry
    if layout.rep_size_at < 0 or place + layout.info_at >= len(data):
        return
    put(data, place + layout.rep_size_at, 1, 0, base.order)
    put(data, place + layout.info_at, 1, base.data[place + layout.info_at] | random.choice((0x10, 0x10, 0x17)), base.order)
    what = random.randrange(4)
    if what == 0:
        put(data, entry + layout.size_at, 4, 0, base.order)
    elif what == 1:
        put(data, place + layout.num_fres_at, layout.num_fres_width, 0, base.order)


def a_cut(random: Random, data: bytearray, _: Base) -> None:
    del data[random.choice((random.randrange(len(data)), len(data) - random.randrange(1, 9))) :]


def more(random: Random, data: bytearray, _: Base) -> None:
    data += random.choice((bytes(8), random.randbytes(5), bytes(data)))


def a_move(random: Random, data: bytearray, _: Base) -> None:
    at = random.randrange(len(data))
    if random.random() < 0.5:
        del data[at : at + random.randrange(1, 5)]
    else:
        data[at:at] = random.randbytes(random.randrange(1, 5))


DAMAGES: tuple[Callable[[Random, bytearray, Base], None], ...] = (
    a_bit, a_byte, a_header_field, an_index_field, an_index_field, an_attribute, an_attribute, a_row, a_row, two_functions, a_start,
    a_period, a_cut, more, a_move,
)  # fmt: skip


def mutant(random: Random, base: Base) -> bytes:
    data = bytearray(base.data)
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        if data:
            random.choice(DAMAGES)(random, data, base)
    return bytes(data)
