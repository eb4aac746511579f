"""Core files made by hand: the notes and the memory that a test names, nothing else."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from sframegen.elf.records import ET_CORE, MARKS, PF_R, PF_W, PF_X, PN_XNUM, PT_LOAD, PT_NOTE, RECORDS, Ehdr, Phdr, Shdr
from sframegen.stack.abi.machines import conventions_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from sframegen.format.abi import Abi

NT_PRSTATUS, NT_PRFPREG, NT_PRPSINFO, NT_AUXV, NT_FILE, NT_ARM_PAC_MASK = 1, 2, 3, 6, 0x46494C45, 0x406
DATA, CODE, CONSTANT = PF_R | PF_W, PF_R | PF_X, PF_R
PAGE = 4096


class Load(NamedTuple):
    """A PT_LOAD. `size`: bytes of memory, where they are more than the core has."""

    start: int
    data: bytes
    flags: int = DATA
    size: int = 0


def core(abi: Abi, loads: Sequence[Load], notes: bytes, *, extended: bool = False) -> bytes:
    """`extended`: the count of program headers stands in section header 0, as where there are too many for the ELF header."""
    order = abi.byte_order
    count = len(loads) + 1
    at = 64 + count * 56
    segments = [Phdr(PT_NOTE, 0, at, 0, 0, len(notes), 0, 4)]
    body = bytearray(notes + bytes(-(at + len(notes)) % PAGE))
    for load in loads:
        size = max(load.size, len(load.data))
        segments.append(Phdr(PT_LOAD, load.flags, at + len(body), load.start, 0, len(load.data), size, PAGE))
        body += load.data
    ident = b"\x7fELF\2" + (b"\1" if order == "little" else b"\2") + b"\1" + bytes(9)
    tail = RECORDS[Shdr, order].pack(0, 0, 0, 0, 0, 1, 0, count, 0, 0) if extended else b""
    header = Ehdr(
        ident, ET_CORE, abi.machine, 1, 0, 64, at + len(body) if extended else 0, 0, 64, 56,
        PN_XNUM if extended else count, 64 if extended else 0, 1 if extended else 0, 0,
    )  # fmt: skip
    table = b"".join(RECORDS[Phdr, order].pack(*segment) for segment in segments)
    return RECORDS[Ehdr, order].pack(*header) + table + bytes(body) + tail


def note(abi: Abi, kind: int, desc: bytes, name: bytes = b"CORE\0") -> bytes:
    head = struct.pack(MARKS[abi.byte_order] + "III", len(name), len(desc), kind)
    return head + name + bytes(-len(name) % 4) + desc + bytes(-len(desc) % 4)


def status(abi: Abi, tid: int, pc: int, values: Mapping[int, int]) -> bytes:
    """NT_PRSTATUS; registers by DWARF number."""
    mark, places = MARKS[abi.byte_order], conventions_of(abi).general
    desc = bytearray(112 + 8 * places.words + 8)
    struct.pack_into(mark + "i", desc, 32, tid)
    struct.pack_into(mark + "Q", desc, 112 + 8 * places.pc, pc)
    for number, value in values.items():
        struct.pack_into(mark + "Q", desc, 112 + 8 * places.places[number], value)
    return note(abi, NT_PRSTATUS, bytes(desc))


def process(abi: Abi, pid: int, name: str) -> bytes:
    """NT_PRPSINFO."""
    desc = bytearray(136)
    struct.pack_into(MARKS[abi.byte_order] + "i", desc, 24, pid)
    desc[40 : 40 + len(name)] = name.encode()
    return note(abi, NT_PRPSINFO, bytes(desc))


def auxiliary(abi: Abi, values: Mapping[int, int]) -> bytes:
    """NT_AUXV."""
    pairs = [*values.items(), (0, 0)]
    return note(abi, NT_AUXV, b"".join(struct.pack(MARKS[abi.byte_order] + "QQ", *pair) for pair in pairs))


def files(abi: Abi, rows: Iterable[tuple[int, int, int, str]], page: int = PAGE) -> bytes:
    """NT_FILE: (start, end, offset in the file, path)."""
    rows = list(rows)
    mark = MARKS[abi.byte_order]
    table = b"".join(struct.pack(mark + "QQQ", start, end, offset // page) for start, end, offset, _ in rows)
    names = b"".join(path.encode() + b"\0" for *_, path in rows)
    return note(abi, NT_FILE, struct.pack(mark + "QQ", len(rows), page) + table + names)
