"""The functions of a section -> columns. Refuses what would be unsafe to read; leaves the rest of what can be wrong to `check`."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from cfi.errors import FormatError
from sframegen.format import unpack
from sframegen.format.records import FDE_TYPE_MASK, FRE_TYPE_MASK, PAUTH_KEY_B_BIT, PCTYPE_MASK_BIT, SIGNAL_BIT
from sframegen.format.words import decode_rule, words_size
from sframegen.model import FdeType, FunctionTable, Kind, Rule

if TYPE_CHECKING:
    from sframegen.format.decode import SframeSection

# Functions may share one block of FREs, so a section can name more rows than it holds bytes. Real sharing multiplies rows by
# at most 3 (libxul); 64 rows a byte keeps a hostile megabyte below 768 MB of columns.
MAX_ROWS_PER_BYTE = 64
ADDRESS_MASK = 0xFFFFFFFFFFFFFFFF


def decode_table(section: SframeSection) -> FunctionTable:
    """All of it. Raises FormatError with the offset in the section."""
    view, layout, place, fres_end = section.data, section.layout, section.place, section.fres_end
    index_at, count = section.index_at, section.header.num_fdes
    big = section.abi.byte_order == "big"
    fault = array("q", [0, 0])
    offset = array("q", bytes(8 * count))
    table = FunctionTable(size=array("I", bytes(4 * count)), first_row=array("I", bytes(4 * (count + 1))))
    attribute = array("B", bytes(3 * count))
    block_at = array("Q", bytes(8 * count))
    unpack.functions(
        view, index_at, section.fres_at, fres_end, big, offset, table.size, attribute, table.first_row, block_at, layout.fields,
        fault,
    )  # fmt: skip
    _raise(fault, place)
    if table.first_row[-1] > len(view) * MAX_ROWS_PER_BYTE:
        raise FormatError(f"{table.first_row[-1]} rows in {len(view)} bytes", place)
    table.row_start = array("I", bytes(4 * table.first_row[-1]))
    row_at = array("I", bytes(4 * table.first_row[-1]))
    unpack.rows(view, fres_end, big, table.size, attribute, table.first_row, block_at, table.row_start, row_at, fault)
    _raise(fault, place)

    if section.relative:
        first = section.address + index_at
        origins: range | list[int] = range(first, first + count * layout.index_size, layout.index_size)
    else:
        origins = [section.address] * count
    table.start = array("Q", [(origin + distance) & ADDRESS_MASK for origin, distance in zip(origins, offset, strict=True)])
    _name_kinds(table, attribute, place, block_at)
    _name_rules(table, section, row_at)
    return table


def kind_of(info: int, info2: int, rep_size: int, place: str, offset: int) -> Kind:
    """What a function's attribute says. Raises FormatError, at `offset`, for an unknown FDE type."""
    try:
        fde_type = FdeType(info2 & FDE_TYPE_MASK)
    except ValueError:
        raise FormatError(f"unknown FDE type {info2 & FDE_TYPE_MASK}", place, offset) from None
    mask, signal, key_b = (bool(info & bit) for bit in (PCTYPE_MASK_BIT, SIGNAL_BIT, PAUTH_KEY_B_BIT))
    return Kind(fde_type, rep_size, mask, signal, key_b)


def rule_of(section: SframeSection, fde_type: FdeType, row_at: int) -> Rule:
    """The rule of the row whose info byte is at `row_at`. Raises FormatError where the data words fit none."""
    raw = bytes(section.data[row_at : row_at + 1 + words_size(section.data[row_at])])
    rule = decode_rule(fde_type, raw, section.abi, section.layout)
    if rule is None:
        raise FormatError(f"data words fit no rule of FDE type {fde_type.name}", section.place, row_at)
    return rule


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
            number = numbers[key] = len(table.kinds)
            table.kinds.append(kind_of(info, info2, rep_size, place, block_at[function] - 2))
        table.kind.append(number)


def _name_rules(table: FunctionTable, section: SframeSection, row_at: array[int]) -> None:
    view = section.data
    numbers: dict[tuple[FdeType, bytes], int] = {}
    rules: dict[Rule, int] = {}
    for function in range(len(table.size)):
        fde_type = table.kinds[table.kind[function]].fde_type
        for row in range(table.first_row[function], table.first_row[function + 1]):
            at = row_at[row]
            raw = bytes(view[at : at + 1 + words_size(view[at])])
            number = numbers.get((fde_type, raw))
            if number is None:
                number = numbers[fde_type, raw] = rules.setdefault(rule_of(section, fde_type, at), len(rules))
            table.row_rule.append(number)
    table.rules = list(rules)
