"""Decodes an SFrame section: its header at once, its functions on demand.

Sections that are unsafe to read are refused. All other errors are found by `check`.
"""

from __future__ import annotations

import struct
from array import array
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, TypeVar

from sframegen.base.columns import zeros
from sframegen.base.errors import FormatError
from sframegen.elf.function_names import NO_NAMES, CopiedSymbols
from sframegen.elf.records import STRUCT_BYTE_ORDERS
from sframegen.format.abi import BY_SFRAME_ID, Abi
from sframegen.format.equations import base_name, equation
from sframegen.format.fre_bytes import words_size
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
    SframeHeader,
)
from sframegen.format.model import OUTERMOST, FdeType, FunctionRow, FunctionTable, Kind, Match, Rule, SframeFunction, Where
from sframegen.format.section_bytes import BAD, FAULTS, NO_ROWS, NOT_COVERED, Seeker
from sframegen.format.words import decode_rule

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from sframegen.format.layouts import Layout
    from sframegen.format.unpack import Unpacker

T = TypeVar("T")

# Functions may share a block of FREs, so a section can have more rows than bytes. In real files, sharing multiplies rows by at
# most 7 (libLLVM), and a row takes at least two bytes. A limit of 16 keeps the columns of a hostile megabyte below 200 MB.
MAX_ROWS_PER_BYTE = 16

# How many functions and rows columns are made for in advance, at most, when there are several small sections.
MOST_FUNCTIONS, MOST_ROWS = 1 << 12, 1 << 15


@dataclass(frozen=True)
class SframeSection:
    """A section that is loaded at `address`, with a checked header. The rest is decoded when it is first used."""

    data: memoryview  #: its bytes
    address: int  #: link-time address of the first
    header: SframeHeader  #: as stored in the file: a named tuple with the specification's fields
    abi: Abi  #: a row of the table of ABIs: register names and numbers
    layout: Layout
    place: str  #: name of the section in messages
    starts: Sequence[int] | None = None  #: addresses of its functions, if relocations give them, as in objects
    names: CopiedSymbols = NO_NAMES  #: copy of the functions in the file's symbol table

    @cached_property
    def table(self) -> FunctionTable:
        """The decoded section, with absolute addresses. Raises FormatError with the offset in the section."""
        decoder = Decoder()
        decoder.add(self, self.starts)
        return decoder.table

    @cached_property
    def seeker(self) -> Seeker:
        """Finds rows without decoding. Raises FormatError if the functions are not in ascending order."""
        seeker = Seeker(self)
        if not seeker.ascends():
            raise FormatError("functions are not in ascending order of address: unwinders cannot search this section", self.place)
        return seeker

    def rule_at(self, pc: int | str) -> Rule | None:
        """Return the rule at link-time address `pc`, or None without one. Only that row is decoded.

        `pc` may also be a name as for `address_of`: "main", "main+4". A function without rows is the outermost frame. Raises
        FormatError if the functions are not in ascending order, or the function or row that covers `pc` is damaged.
        """
        found = self.look_up(self.address_of(pc) if isinstance(pc, str) else pc)
        return None if found is None else found.rule

    def address_of(self, name: str) -> int:
        """Return the link-time address of a function, or of a place in it: "main", "main+4", "main+0x10".

        Names come from the symbol table of the file that was read; stripped files have only dynamic symbols. Raises FormatError
        if there is not exactly one function of that name, or the symbol table is damaged.
        """
        return self.names.address_of(name)

    def functions(self) -> Iterator[SframeFunction]:
        """Yield each function with its name and rows, in the section's order. Raises FormatError as `table` and `address_of` do."""
        table = self.table
        for number, (start, size, kind) in enumerate(zip(table.start, table.size, table.kind, strict=True)):
            rows = tuple(FunctionRow(offset, rule) for offset, rule in table.rows(number))
            yield SframeFunction(start, size, self.names.exactly_at(start), table.kinds[kind], rows)

    def base(self, where: Where) -> str:
        """Return the name of the register that a place is relative to, "rsp" for instance; "cfa" for the CFA."""
        return base_name(where, self.abi)

    def equation(self, rule: Rule) -> str:
        """Return a rule as `lookup` prints it: `(cfa, ra, fp) = (rsp + 16, *(cfa - 8), rbp)`."""
        return equation(rule, self.abi)

    def rules_at(self, pcs: Iterable[int]) -> list[Rule | None]:
        """Return the same as `rule_at` for each of many addresses. Compiled code searches, and each row found is decoded once."""
        pcs = list(pcs)
        try:
            addresses = array("Q", pcs)
        except OverflowError:  # a number that is not an address does not have a rule
            return [self.rule_at(pc) for pc in pcs]
        functions, rows = zeros("q", len(addresses)), zeros("q", len(addresses))
        self.seeker.find_all(addresses, functions, rows)
        places = list(zip(functions, rows, strict=True))
        rules = {place: self.rule_at(pc) for place, pc in dict(zip(places, addresses, strict=True)).items()}
        return [rules[place] for place in places]

    def look_up(self, pc: int) -> Match | None:
        """Return the function and row that cover link-time address `pc`, or None. A default function without rows is outermost.

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
        kind = kind_of_attribute(seeker.info, seeker.info2, seeker.rep_size, self.place, seeker.at)
        function = (seeker.start, seeker.size, kind)
        if row_at != NO_ROWS:
            return Match(*function, seeker.row_offset, rule_of_row(self, kind.fde_type, row_at))
        return Match(*function, None, OUTERMOST) if kind.fde_type is FdeType.DEFAULT else None

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
        """The size in bytes of the section by its header: up to the end of the index or of the FREs, whichever is later."""
        return max(self.index_at + self.header.num_fdes * self.layout.index_size, self.fres_end)

    @property
    def relative(self) -> bool:
        """True if a function's start is relative to its own field; False if relative to the section's first byte."""
        return bool(self.header.flags & F_FDE_FUNC_START_PCREL)


def open_section(data: memoryview | bytes | bytearray, address: int, place: str = ".sframe") -> SframeSection:
    """Open a section: only its header is read. Raises FormatError if the header is bad, or the section shorter than it claims."""
    view = memoryview(data)
    header, byte_order = _read_header(view, place)
    if header.abi_arch not in BY_SFRAME_ID:
        raise FormatError(f"unknown ABI {header.abi_arch}", place, 4)
    abi = _abi_with_offsets(header.abi_arch, header.cfa_fixed_fp_offset, header.cfa_fixed_ra_offset)
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
def _abi_with_offsets(sframe_id: int, fixed_fp_offset: int, fixed_ra_offset: int) -> Abi:
    return BY_SFRAME_ID[sframe_id]._replace(fixed_fp_offset=fixed_fp_offset, fixed_ra_offset=fixed_ra_offset)


def decode(data: memoryview | bytes | bytearray, address: int, place: str = ".sframe") -> SframeSection:
    """Open a section and decode all of it. Raises FormatError with the offset in the section."""
    section = open_section(data, address, place)
    _ = section.table
    return section


def _read_header(view: memoryview, place: str) -> tuple[SframeHeader, str]:
    if len(view) < HEADER_SIZE:
        raise FormatError(f"expected {HEADER_SIZE} bytes of header, have {len(view)}", place, 0)
    for byte_order, mark in STRUCT_BYTE_ORDERS.items():
        header = SframeHeader(*struct.unpack_from(mark + HEADER_CODE, view))
        if header.magic == MAGIC:
            if header.version not in LAYOUTS:
                raise FormatError(f"SFrame version {header.version} is not read, only {', '.join(map(str, LAYOUTS))}", place, 2)
            return header, byte_order
    raise FormatError(f"magic number is {bytes(view[:2]).hex()}, expected {MAGIC:#x}", place, 0)


class Decoder:
    """Decodes several sections into one `table`, which has each kind and each rule only once."""

    def __init__(self) -> None:
        self._table = FunctionTable()
        self._kinds: dict[Kind, int] = {}
        self._rules: dict[Rule, int] = {}
        self._numberings: dict[tuple[int, int, int, int], _Numbering] = {}  # by the header fields that decide what rows mean
        self._newest = FunctionTable()  # functions that are not yet in the table
        self._unpacker: Unpacker | None = None

    @property
    def table(self) -> FunctionTable:
        """The functions added so far."""
        if self._unpacker is not None:
            self._table.extend(self._newest, 0, self._unpacker.first)
            self._unpacker = None
            self._newest = FunctionTable()
        self._table.kinds, self._table.rules = list(self._kinds), list(self._rules)
        return self._table

    def add(self, section: SframeSection, starts: Sequence[int] | None = None) -> list[int]:
        """Decode a section, and return its functions' sizes. `starts`: their addresses, if the section does not contain them.

        Raises FormatError for a damaged section; `table` is then invalid.
        """
        numbering = self._numbering(section)
        unpacker = self._unpacker
        if unpacker is None:
            from sframegen.format.unpack import Unpacker  # noqa: PLC0415 - look-ups do not need it

            self._unpacker = unpacker = Unpacker(section, numbering, self._newest.columns())
        else:
            unpacker.open(section, numbering)
        if unpacker.first + unpacker.functions > len(self._newest.start):
            self._make_room(unpacker, 0)
        unpacker.read_index()
        _raise_fault(unpacker, section)
        if unpacker.rows > len(section.data) * MAX_ROWS_PER_BYTE:
            raise FormatError(f"{unpacker.rows} rows in {len(section.data)} bytes", section.place)
        if unpacker.first_row + unpacker.rows > len(self._newest.row_start):
            self._make_room(unpacker, unpacker.rows)
            unpacker.read_index()  # again, into the new columns
        unpacker.read_rows()
        _raise_fault(unpacker, section)
        unpacker.number_all()
        added = slice(unpacker.first, unpacker.first + unpacker.functions)
        if starts:  # without functions, the column may be empty, and would not accept the assignment
            self._newest.start[added] = array("Q", starts)
        unpacker.keep()
        return self._newest.size[added].tolist()

    def _make_room(self, unpacker: Unpacker, rows: int) -> None:
        """Move the newest functions into the table, and make columns for the functions of the section and `rows` rows."""
        newest = self._newest
        self._table.extend(newest, 0, unpacker.first)
        functions = max(unpacker.functions, min(2 * len(newest), MOST_FUNCTIONS))
        rows = max(rows, min(2 * len(newest.row_start), MOST_ROWS))
        self._newest = FunctionTable.with_room(functions, rows, [], [])
        unpacker.use(self._newest.columns())

    def _numbering(self, section: SframeSection) -> _Numbering:
        abi = section.abi
        header = (abi.sframe_id, abi.fixed_fp_offset, abi.fixed_ra_offset, section.layout.version)
        numbering = self._numberings.setdefault(header, _Numbering(self._kinds, self._rules))
        numbering.section = section
        return numbering


class _Numbering:
    """Numbers kinds and rules, by their bytes (see unpack.Numbering) and by their values (`all_kinds`, `all_rules`)."""

    section: SframeSection

    def __init__(self, all_kinds: dict[Kind, int], all_rules: dict[Rule, int]) -> None:
        self.kinds: dict[int, int] = {}
        self.rules: dict[bytes, int] = {}
        self.all_kinds, self.all_rules = all_kinds, all_rules

    def new_kind(self, key: int, block_at: int) -> int:
        kind = kind_of_attribute(key >> 16, key >> 8 & 0xFF, key & 0xFF, self.section.place, block_at - 2)
        return _number_value(self.all_kinds, kind)

    def new_rule(self, fde_type: int, row_at: int) -> int:
        return _number_value(self.all_rules, rule_of_row(self.section, FdeType(fde_type), row_at))


def kind_of_attribute(info: int, info2: int, rep_size: int, place: str, offset: int) -> Kind:
    """Return the kind that a function's attribute encodes. Raises FormatError, at `offset`, for an unknown FDE type."""
    try:
        fde_type = FdeType(info2 & FDE_TYPE_MASK)
    except ValueError:
        raise FormatError(f"unknown FDE type {info2 & FDE_TYPE_MASK}", place, offset) from None
    mask, signal, key_b = (bool(info & bit) for bit in (PCTYPE_MASK_BIT, SIGNAL_BIT, PAUTH_KEY_B_BIT))
    return Kind(fde_type, rep_size, mask, signal, key_b)


def rule_of_row(section: SframeSection, fde_type: FdeType, row_at: int) -> Rule:
    """Return the rule of the row whose info byte is at `row_at`. Raises FormatError if the data words do not fit any rule."""
    raw = bytes(section.data[row_at : row_at + 1 + words_size(section.data[row_at])])
    rule = decode_rule(fde_type, raw, section.abi, section.layout)
    if rule is None:
        raise FormatError(f"data words fit no rule of FDE type {fde_type.name}", section.place, row_at)
    return rule


def _raise_fault(unpacker: Unpacker, section: SframeSection) -> None:
    if unpacker.fault:
        raise FormatError(FAULTS[unpacker.fault], section.place, unpacker.at)


def _number_value(numbers: dict[T, int], value: T) -> int:
    """Return the number of a value; a new one gets the next number."""
    return numbers.setdefault(value, len(numbers))
