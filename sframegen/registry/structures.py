"""Declares the C structures of docs/registration.md with their layouts, and encodes and decodes them."""

from __future__ import annotations

import struct
from typing import Any, NamedTuple, TypeVar

from sframegen.elf.records import STRUCT_BYTE_ORDERS, ByteOrder


class CodeJitInfo(NamedTuple):
    """struct code_jit_info, of codectl(CODE_REGISTER_JIT)."""

    text_start: int
    text_end: int
    unwind_head: int  # address of the first table


class JitTable(NamedTuple):
    """struct code_jit_unwind_table; entries follow it. The lengths are bytes of entries."""

    reserved_len: int
    used_len: int
    next: int
    fre_stride: int
    fre_size: int


class JitEntry(NamedTuple):
    """struct code_jit_unwind_fre: `size` bytes of code at text_start + ip_off."""

    size: int
    ip_off: int
    cfa_off: int
    ra_off: int
    fp_off: int
    info: int


class JitList(NamedTuple):
    """struct sframegen_jit_list, which the symbol `__sframegen_jit_tables` names."""

    version: int
    reserved: int
    first: int  # address of a JitNode, 0 for none


class JitNode(NamedTuple):
    """struct sframegen_jit_region: a registration that other processes can read."""

    next: int
    serial: int  # odd while it is registered
    text_start: int
    text_end: int
    unwind_head: int


LAYOUTS: dict[type[Any], tuple[str, int]] = {  # record -> its format for `struct`, and its sizeof in C
    CodeJitInfo: ("3Q", 24),
    JitTable: ("3Q2I", 32),
    JitEntry: ("2I3iB3x", 24),
    JitList: ("2IQ", 16),
    JitNode: ("5Q", 40),
}
RECORDS: dict[tuple[type[Any], ByteOrder], struct.Struct] = {
    (record, order): struct.Struct(mark + code)
    for record, (code, _) in LAYOUTS.items()
    for order, mark in STRUCT_BYTE_ORDERS.items()
}
assert all(code.size == LAYOUTS[record][1] for (record, _), code in RECORDS.items())

R = TypeVar("R", CodeJitInfo, JitTable, JitEntry, JitList, JitNode)


def struct_size(kind: type[R]) -> int:
    return LAYOUTS[kind][1]


def encode(record: R, byte_order: ByteOrder = "little") -> bytes:
    """Encode a record. Raises struct.error for a value that its field cannot hold."""
    return RECORDS[type(record), byte_order].pack(*record)


def decode_struct(kind: type[R], data: bytes, byte_order: ByteOrder = "little") -> R:
    """Decode a record. `data` has its size."""
    return kind(*RECORDS[kind, byte_order].unpack(data))
