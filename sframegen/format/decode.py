"""Section bytes -> SFrame functions. Refuses what would be unsafe to read; leaves the rest of what can be wrong to `check`."""

from __future__ import annotations

import struct
from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cfi.errors import FormatError
from sframegen.abi import BY_SFRAME_ID
from sframegen.format import unpack
from sframegen.format.layouts import LAYOUTS
from sframegen.format.records import (
    BYTE_ORDER_MARKS,
    F_FDE_FUNC_START_PCREL,
    FDE_TYPE_MASK,
    FRE_TYPE_MASK,
    HEADER_CODE,
    HEADER_SIZE,
    MAGIC,
    PAUTH_KEY_B_BIT,
    PCTYPE_MASK_BIT,
    SIGNAL_BIT,
    Header,
)
from sframegen.format.words import decode_rule, words_size
from sframegen.model import FdeType, FunctionTable, Kind, Rule

if TYPE_CHECKING:
    from sframegen.abi import Abi
    from sframegen.format.layouts import Layout

# Functions may share one block of FREs, so a section can name more rows than it holds bytes. Real sharing multiplies rows by
# at most 3 (libxul); 64 rows a byte keeps a hostile megabyte below 768 MB of columns.
MAX_ROWS_PER_BYTE = 64
ADDRESS_MASK = 0xFFFFFFFFFFFFFFFF


@dataclass
class SframeSection:
    """A decoded section: its header as it stands in the file, and the functions with absolute addresses."""

    header: Header
    abi: Abi
    address: int
    table: FunctionTable


def decode(data: memoryview | bytes | bytearray, address: int, place: str = ".sframe") -> SframeSection:
    """Decodes a section that is loaded at `address`. Raises FormatError with the offset in the section."""
    view = memoryview(data)
    header, byte_order = _header(view, place)
    if header.abi_arch not in BY_SFRAME_ID:
        raise FormatError(f"unknown ABI {header.abi_arch}", place, 4)
    abi = BY_SFRAME_ID[header.abi_arch]._replace(
        fixed_fp_offset=header.cfa_fixed_fp_offset, fixed_ra_offset=header.cfa_fixed_ra_offset
    )
    layout = LAYOUTS[header.version]
    if abi.byte_order != byte_order:
        raise FormatError(f"ABI {abi.name} is {abi.byte_order}-endian, the section {byte_order}-endian", place, 4)
    index_at = HEADER_SIZE + header.auxhdr_len + header.fdeoff
    fres_at = HEADER_SIZE + header.auxhdr_len + header.freoff
    fres_end = fres_at + header.fre_len
    count = header.num_fdes
    if index_at + count * layout.index_size > len(view):
        raise FormatError(f"{count} functions do not fit into {len(view)} bytes", place, 8)
    if fres_end > len(view):
        raise FormatError(f"the FRE sub-section ends at {fres_end:#x}, the section at {len(view):#x}", place, 16)

    big = byte_order == "big"
    fault = array("q", [0, 0])
    offset = array("q", bytes(8 * count))
    table = FunctionTable(size=array("I", bytes(4 * count)), first_row=array("I", bytes(4 * (count + 1))))
    attribute = array("B", bytes(3 * count))
    block_at = array("Q", bytes(8 * count))
    unpack.functions(
        view, index_at, fres_at, fres_end, big, offset, table.size, attribute, table.first_row, block_at, layout.fields, fault
    )  # fmt: skip
    _raise(fault, place)
    if table.first_row[-1] > len(view) * MAX_ROWS_PER_BYTE:
        raise FormatError(f"{table.first_row[-1]} rows in {len(view)} bytes", place)
    table.row_start = array("I", bytes(4 * table.first_row[-1]))
    row_at = array("I", bytes(4 * table.first_row[-1]))
    unpack.rows(view, fres_end, big, table.size, attribute, table.first_row, block_at, table.row_start, row_at, fault)
    _raise(fault, place)

    if header.flags & F_FDE_FUNC_START_PCREL:  # from the entry's own field, else from the section's start
        origins: range | list[int] = range(address + index_at, address + index_at + count * layout.index_size, layout.index_size)
    else:
        origins = [address] * count
    table.start = array("Q", [(origin + distance) & ADDRESS_MASK for origin, distance in zip(origins, offset, strict=True)])
    _name_kinds(table, attribute, place, block_at)
    _name_rules(table, view, row_at, (abi, layout), place)
    return SframeSection(header, abi, address, table)


def _header(view: memoryview, place: str) -> tuple[Header, str]:
    if len(view) < HEADER_SIZE:
        raise FormatError(f"expected {HEADER_SIZE} bytes of header, have {len(view)}", place, 0)
    for byte_order, mark in BYTE_ORDER_MARKS.items():
        header = Header(*struct.unpack_from(mark + HEADER_CODE, view))
        if header.magic == MAGIC:
            if header.version not in LAYOUTS:
                raise FormatError(f"SFrame version {header.version} is not read, only {', '.join(map(str, LAYOUTS))}", place, 2)
            return header, byte_order
    raise FormatError(f"magic number is {bytes(view[:2]).hex()}, expected {MAGIC:#x}", place, 0)


def _raise(fault: array[int], place: str) -> None:
    if fault[0]:
        raise FormatError(unpack.FAULTS[fault[0]], place, fault[1])


def _name_kinds(table: FunctionTable, attribute: array[int], place: str, block_at: array[int]) -> None:
    numbers: dict[bytes, int] = {}
    raw = attribute.tobytes()
    for function in range(len(table.size)):
        info, info2, rep_size = raw[3 * function : 3 * function + 3]
        key = bytes([info & ~FRE_TYPE_MASK, info2, rep_size])
        number = numbers.get(key)
        if number is None:
            try:
                fde_type = FdeType(info2 & FDE_TYPE_MASK)
            except ValueError:
                raise FormatError(f"unknown FDE type {info2 & FDE_TYPE_MASK}", place, block_at[function] - 2) from None
            number = numbers[key] = len(table.kinds)
            mask, signal, key_b = (bool(info & bit) for bit in (PCTYPE_MASK_BIT, SIGNAL_BIT, PAUTH_KEY_B_BIT))
            table.kinds.append(Kind(fde_type, rep_size, mask, signal, key_b))
        table.kind.append(number)


def _name_rules(table: FunctionTable, view: memoryview, row_at: array[int], form: tuple[Abi, Layout], place: str) -> None:
    numbers: dict[tuple[FdeType, bytes], int] = {}
    rules: dict[Rule, int] = {}
    for function in range(len(table.size)):
        fde_type = table.kinds[table.kind[function]].fde_type
        for row in range(table.first_row[function], table.first_row[function + 1]):
            at = row_at[row]
            raw = bytes(view[at : at + 1 + words_size(view[at])])
            number = numbers.get((fde_type, raw))
            if number is None:
                rule = decode_rule(fde_type, raw, *form)
                if rule is None:
                    raise FormatError(f"data words fit no rule of FDE type {fde_type.name}", place, at)
                number = numbers[fde_type, raw] = rules.setdefault(rule, len(rules))
            table.row_rule.append(number)
    table.rules = list(rules)
