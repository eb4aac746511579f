"""Section bytes -> the header, and when it is asked for what the rest says: its functions as columns.

Refuses what would be unsafe to read; leaves the rest of what can be wrong to `check`.
"""

from __future__ import annotations

import struct
from array import array
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from cfi.columns import zeros
from cfi.errors import FormatError
from sframegen.elf.records import MARKS
from sframegen.format.abi import BY_SFRAME_ID
from sframegen.format.layouts import (
    F_FDE_FUNC_START_PCREL,
    FDE_TYPE_MASK,
    HEADER_CODE,
    HEADER_SIZE,
    LAYOUTS,
    MAGIC,
    PAUTH_KEY_B_BIT,
    PCTYPE_MASK_BIT,
    SIGNAL_BIT,
    Header,
)
from sframegen.format.model import OUTERMOST, FdeType, FunctionTable, Kind, Rule
from sframegen.format.search import Found
from sframegen.format.section_bytes import BAD, FAULTS, NO_ROWS, NOT_COVERED, Seeker, Unpacker, fill_numbers
from sframegen.format.words import decode_rule, words_size

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sframegen.format.abi import Abi
    from sframegen.format.layouts import Layout

T = TypeVar("T")

# Functions may share one block of FREs, so a section can name more rows than it holds bytes. Real sharing multiplies rows by
# at most 7 (libLLVM), and a row takes two bytes or more; 16 rows a byte keep a hostile megabyte below 200 MB of columns.
MAX_ROWS_PER_BYTE = 16


@dataclass(frozen=True)
class SframeSection:
    """A section that is loaded at `address`, with a checked header. The rest is decoded when it is first used."""

    data: memoryview  #: its bytes
    address: int  #: link-time address of the first
    header: Header  #: as it stands in the file: a named tuple with the specification's fields
    abi: Abi  #: a row of the table of ABIs: register names and numbers
    layout: Layout
    place: str
    starts: Sequence[int] | None = None  #: of its functions, if relocations have them, as in objects

    @cached_property
    def table(self) -> FunctionTable:
        """The decoded section, with absolute addresses. Raises FormatError with the offset in the section."""
        decoder = Decoder()
        decoder.add(self, self.starts)
        return decoder.table

    @cached_property
    def seeker(self) -> Seeker:
        """Finds rows without decoding. Raises FormatError where the functions are not in ascending order."""
        seeker = Seeker(self)
        if not seeker.ascends():
            raise FormatError("functions are not in ascending order of address: no unwinder can search this section", self.place)
        return seeker

    def rule_at(self, pc: int) -> Rule | None:
        """The rule at link-time address `pc`, found in the bytes: nothing else is decoded. None where the section has none.

        A function without rows is the outermost frame. Raises FormatError where the functions are not in ascending order, or what
        covers `pc` is damaged.
        """
        found = self.look_up(pc)
        return None if found is None else found.rule

    def rules_at(self, pcs: Iterable[int]) -> list[Rule | None]:
        """`rule_at` for many addresses, each below 2 ** 64: compiled code searches, and each row that it finds is decoded once."""
        addresses = array("Q", pcs)
        functions, rows = zeros("q", len(addresses)), zeros("q", len(addresses))
        self.seeker.find_all(addresses, functions, rows)
        places = list(zip(functions, rows, strict=True))
        rules = {place: self.rule_at(pc) for place, pc in dict(zip(places, addresses, strict=True)).items()}
        return [rules[place] for place in places]

    def look_up(self, pc: int) -> Found | None:
        """Return what covers link-time address `pc`. A default function without rows is an outermost frame; a flexible one nothing.

        Raises FormatError as `rule_at` does.
        """
        if pc >> 64:
            return None
        seeker = self.seeker
        row_at = seeker.find(pc)
        if row_at == NOT_COVERED:
            return None
        if row_at == BAD:
            raise FormatError(FAULTS[seeker.fault], self.place, seeker.at)
        kind = kind_of(seeker.info, seeker.info2, seeker.rep_size, self.place, seeker.at)
        function = (seeker.start, seeker.size, kind)
        if row_at != NO_ROWS:
            return Found(*function, seeker.row_offset, rule_of(self, kind.fde_type, row_at))
        return Found(*function, None, OUTERMOST) if kind.fde_type is FdeType.DEFAULT else None

    @property
    def index_at(self) -> int:
        return HEADER_SIZE + self.header.auxhdr_len + self.header.fdeoff

    @property
    def fres_at(self) -> int:
        return HEADER_SIZE + self.header.auxhdr_len + self.header.freoff

    @property
    def fres_end(self) -> int:
        return self.fres_at + self.header.fre_len

    @property
    def end(self) -> int:
        """Number of bytes up to the end of what the header claims."""
        return max(self.index_at + self.header.num_fdes * self.layout.index_size, self.fres_end)

    @property
    def relative(self) -> bool:
        """True if a function's start counts from its own field, else from the section's first byte."""
        return bool(self.header.flags & F_FDE_FUNC_START_PCREL)


def open_section(data: memoryview | bytes | bytearray, address: int, place: str = ".sframe") -> SframeSection:
    """Reads the header only. Raises FormatError where it is bad, or the section too short for what it claims."""
    view = memoryview(data)
    header, byte_order = _header(view, place)
    if header.abi_arch not in BY_SFRAME_ID:
        raise FormatError(f"unknown ABI {header.abi_arch}", place, 4)
    abi = _abi(header.abi_arch, header.cfa_fixed_fp_offset, header.cfa_fixed_ra_offset)
    if abi.byte_order != byte_order:
        raise FormatError(f"ABI {abi.name} is {abi.byte_order}-endian, the section {byte_order}-endian", place, 4)
    section = SframeSection(view, address, header, abi, LAYOUTS[header.version], place)
    if section.index_at + header.num_fdes * section.layout.index_size > len(view):
        raise FormatError(f"{header.num_fdes} functions do not fit into {len(view)} bytes", place, 8)
    fres_end = section.fres_at + header.fre_len
    if fres_end > len(view):
        raise FormatError(f"the FRE sub-section ends at {fres_end:#x}, the section at {len(view):#x}", place, 16)
    return section


@cache
def _abi(sframe_id: int, fixed_fp_offset: int, fixed_ra_offset: int) -> Abi:
    return BY_SFRAME_ID[sframe_id]._replace(fixed_fp_offset=fixed_fp_offset, fixed_ra_offset=fixed_ra_offset)


def decode(data: memoryview | bytes | bytearray, address: int, place: str = ".sframe") -> SframeSection:
    """Opens a section and decodes all of it. Raises FormatError with the offset in the section."""
    section = open_section(data, address, place)
    _ = section.table
    return section


def _header(view: memoryview, place: str) -> tuple[Header, str]:
    if len(view) < HEADER_SIZE:
        raise FormatError(f"expected {HEADER_SIZE} bytes of header, have {len(view)}", place, 0)
    for byte_order, mark in MARKS.items():
        header = Header(*struct.unpack_from(mark + HEADER_CODE, view))
        if header.magic == MAGIC:
            if header.version not in LAYOUTS:
                raise FormatError(f"SFrame version {header.version} is not read, only {', '.join(map(str, LAYOUTS))}", place, 2)
            return header, byte_order
    raise FormatError(f"magic number is {bytes(view[:2]).hex()}, expected {MAGIC:#x}", place, 0)


class Decoder:
    """Decodes sections into one `table`, one after the other: each kind and each rule is in it once."""

    def __init__(self) -> None:
        self._table = FunctionTable()
        self._kinds: dict[Kind, int] = {}
        self._rules: dict[Rule, int] = {}
        # What bytes mean depends on the section's header.
        self._known: dict[tuple[int, int, int, int], tuple[dict[int, int], dict[bytes, int]]] = {}

    @property
    def table(self) -> FunctionTable:
        """The functions added so far."""
        self._table.kinds, self._table.rules = list(self._kinds), list(self._rules)
        return self._table

    def add(self, section: SframeSection, starts: Sequence[int] | None = None) -> array[int]:
        """Returns the functions' sizes. `starts`: their addresses, where the section does not say them.

        After a FormatError `table` is of no use.
        """
        unpacker = Unpacker(section)
        count = unpacker.functions
        start, size, first_row = zeros("Q", count), zeros("I", count), zeros("I", count + 1)
        attribute, block_at = zeros("B", 3 * count), zeros("Q", count)
        unpacker.read_index(start, size, attribute, first_row, block_at)
        _raise(unpacker, section)
        if first_row[-1] > len(section.data) * MAX_ROWS_PER_BYTE:
            raise FormatError(f"{first_row[-1]} rows in {len(section.data)} bytes", section.place)
        row_start, row_at, row_rule = (zeros("I", first_row[-1]) for _ in range(3))
        unpacker.read_rows(size, attribute, first_row, block_at, row_start, row_at)
        _raise(unpacker, section)

        kind = zeros("H", count)
        fill_numbers(bytes(section.data), attribute, first_row, block_at, row_at, self._numbering(section), kind, row_rule)
        start = start if starts is None else array("Q", starts)
        self._table.extend(FunctionTable(start, size, kind, first_row, row_start, row_rule))
        return size

    def _numbering(self, section: SframeSection) -> _Numbering:
        abi = section.abi
        header = (abi.sframe_id, abi.fixed_fp_offset, abi.fixed_ra_offset, section.layout.version)
        kinds, rules = self._known.setdefault(header, ({}, {}))
        return _Numbering(section, kinds, rules, self._kinds, self._rules)


class _Numbering(NamedTuple):
    """See reader.Numbering. `all_kinds`, `all_rules`: those of the table, by what they mean."""

    section: SframeSection
    kinds: dict[int, int]
    rules: dict[bytes, int]
    all_kinds: dict[Kind, int]
    all_rules: dict[Rule, int]

    def new_kind(self, key: int, block_at: int) -> int:
        return _number(self.all_kinds, kind_of(key >> 16, key >> 8 & 0xFF, key & 0xFF, self.section.place, block_at - 2))

    def new_rule(self, fde_type: int, row_at: int) -> int:
        return _number(self.all_rules, rule_of(self.section, FdeType(fde_type), row_at))


def kind_of(info: int, info2: int, rep_size: int, place: str, offset: int) -> Kind:
    """Return the kind that a function's attribute encodes. Raises FormatError, at `offset`, for an unknown FDE type."""
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


def _raise(unpacker: Unpacker, section: SframeSection) -> None:
    if unpacker.fault:
        raise FormatError(FAULTS[unpacker.fault], section.place, unpacker.at)


def _number(numbers: dict[T, int], value: T) -> int:
    return numbers.setdefault(value, len(numbers))
