"""Reads CFI sections: takes their bytes, and returns their CIEs, FDEs and the rows of all FDEs.

For each section, scan.py finds the entries, `_read_cie` reads the CIEs, Cursor.read_ranges reads the code that each FDE describes,
and CfiMachine runs the FDEs' instructions, which gives each row the number of a state (machine.py). States then become CfiRules.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from functools import cache, partial
from itertools import chain
from operator import attrgetter, itemgetter
from struct import Struct
from typing import TYPE_CHECKING

from cfi import scan
from cfi.machine import CfiMachine, Cursor
from cfi.opcodes import PACKED_INSTRUCTIONS, RuleKind
from cfi.rules import UNKNOWN_START, CfiRule, Cie, FdeFault, FdeTable, RegisterRule
from cfi.section import MAX_REPORTED, MAX_STATES, RUN_FAULTS, SCAN_FAULTS, TOO_MANY_STATES, CfiSection, FollowedRegisters
from sframegen.base.columns import Entries, Fdes, Programs, Rows, make_columns, zeros
from sframegen.base.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from sframegen.base.columns import Bytes, Column

KINDS = tuple(RuleKind)
EXPRESSION_KINDS = (RuleKind.EXPRESSION, RuleKind.VAL_EXPRESSION)
DW_EH_PE_INDIRECT = 0x80
POINTER_WIDTHS = {2: 2, 3: 4}  # DW_EH_PE_udata2 and DW_EH_PE_udata4 in bytes; all other fixed widths are 8
SUPPORTED_VERSIONS = (1, 3, 4)
LETTERS_WITHOUT_DATA = set("SBG")  # augmentation letters that add no augmentation data
MAX_CODE_ALIGNMENT = 1 << 24  # so that a 32-bit advance, scaled, stays within 64 bits
ADDRESS_SIZES = (4, 8)
MAX_ROWS = 0xFFFFFFFF  # row numbers are 32 bits
MAX_DATA_ALIGNMENT = 0x7FFFFFFF  # so that a 32-bit offset, scaled, stays within 64 bits
MAX_SIZE = 0xFFFFFFFF  # bytes of code of one FDE; larger ones have no rows
# The parts of a state's bytes (machine.py): RA column and CFA; RA, FP, SP and RA_SIGN_STATE, one each; the CFA's expression.
CFA_PART, REGISTER_PART, EXPRESSION_PART = Struct("=4q"), Struct("=3q"), Struct("=2q")
CFA_PART_END, REGISTER_PARTS_END = CFA_PART.size, CFA_PART.size + 4 * REGISTER_PART.size
UNREADABLE = CFA_PART.pack(0, RuleKind.UNREADABLE, 0, 0) + bytes(4 * REGISTER_PART.size + EXPRESSION_PART.size)


def read_cfi_sections(sections: Iterable[CfiSection], registers: FollowedRegisters) -> FdeTable:
    """Return the FDEs of all sections, with rows. Raises FormatError for a fault that costs a section; section.py lists them."""
    rule_numbers: dict[bytes, int] = {}  # distinct state of a row in any section -> number of its rule, ascending
    section_bases: list[tuple[int, CfiSection]] = []  # (base of its expression offsets, section), for all sections
    section_tables: list[FdeTable] = []
    list_ends: list[int] = []
    base = 0
    for section in sections:
        section_bases.append((base, section))
        section_tables.append(_read_section(section, registers, base, rule_numbers))
        base += len(section.data)
        before = list_ends.pop() if section.continues else list_ends[-1] if list_ends else 0
        list_ends.append(before + len(section_tables[-1]))
        if len(rule_numbers) > MAX_STATES:
            raise FormatError(RUN_FAULTS[TOO_MANY_STATES], section.name)
    table = _join_tables(section_tables)
    table.list_ends = list_ends
    # Cached, so that rules that share a long expression copy it only once.
    register_rule = cache(partial(_build_register_rule, section_bases))
    register_rules = cache(lambda states: [register_rule(*rule) for rule in REGISTER_PART.iter_unpack(states)])  # few differ
    table.rules = [_build_rule(state, register_rule, register_rules) for state in rule_numbers]
    return table


def _read_section(section: CfiSection, registers: FollowedRegisters, base: int, rule_numbers: dict[bytes, int]) -> FdeTable:
    """Return the table of one section, without rules: `read_cfi_sections` makes the rules of all sections."""
    table = FdeTable()
    cie_entries, entries = _scan_entries(section)
    offsets = zip(cie_entries.start, cie_entries.body, cie_entries.end, strict=True)
    table.cies = cies = [_read_cie(section, start, body, end) for start, body, end in offsets]
    cie: Column = make_columns("I", len(entries.start))[0]
    bad = scan.fill_cie_numbers(entries, cie_entries, cie)
    if bad >= 0:
        message = f"FDE's CIE pointer leads to {entries.cie[bad]:#x}, where no CIE is"
        raise FormatError(message, section.name, entries.start[bad])

    cursor = Cursor(*_cursor_arguments(section))
    shapes = bytes(
        byte for c in cies for byte in (c.fde_encoding, c.has_augmentation_data, c.address_size, c.segment_selector_size)
    )
    table.start, table.size = start, size = make_columns("QQ", len(cie))
    table.cie = cie
    fdes, programs = Fdes(start, size, cie), Programs(entries.body, entries.end)
    pointers = array("Q", entries.body) if section.has_known_pointer else array("Q")
    longest_program = cursor.read_ranges(entries, shapes, fdes, programs) if cie else 0
    _raise_fault(cursor, section)
    for fde, pointer in enumerate(pointers):
        if section.has_known_pointer and not section.has_known_pointer(pointer + cies[cie[fde]].segment_selector_size):
            start[fde] = UNKNOWN_START
    unknown_cies = set(_cies_with_unknown_fields(section, cie_entries, cies))
    unknown = [fde for fde, number in enumerate(cie) if number in unknown_cies] if unknown_cies else []
    for fde in chain(unknown, _fdes_with_unknown_fields(section, entries, pointers, cies, cie)):
        start[fde], size[fde] = UNKNOWN_START, size[fde] or 1
    machine = CfiMachine(*_cursor_arguments(section))
    machine.start(PACKED_INSTRUCTIONS, registers, base, _pack_cies(cies), rule_numbers)
    _raise_fault(machine, section)
    _run_fdes(machine, section, fdes, programs, longest_program, table, rule_numbers)
    return table


def _cies_with_unknown_fields(section: CfiSection, entries: Entries, cies: list[Cie]) -> Iterator[int]:
    """Yield the number of each CIE whose instructions contain a field of `section.unknown_fields`. `entries`: those of the CIEs."""
    for offset in section.unknown_fields:
        number = bisect_right(entries.start, offset) - 1
        if number >= 0 and cies[number].program <= offset < cies[number].end:
            yield number


def _fdes_with_unknown_fields(section: CfiSection, fdes: Entries, pointers: Column, cies: list[Cie], cie: Column) -> Iterator[int]:
    """Yield the number of each FDE whose address range or instructions contain a field of `section.unknown_fields`.

    `pointers`: the offsets of the FDEs' start pointers; `fdes.body`: those of their instructions. Only exception handling uses the
    augmentation data in between.
    """
    for offset in section.unknown_fields:
        fde = bisect_right(fdes.start, offset) - 1
        if fde >= 0 and offset < fdes.end[fde]:
            fde_cie = cies[cie[fde]]
            width = POINTER_WIDTHS.get(fde_cie.fde_encoding & 7, 8)
            if offset >= fdes.body[fde] or offset < pointers[fde] + fde_cie.segment_selector_size + 2 * width:
                yield fde


def _join_tables(section_tables: list[FdeTable]) -> FdeTable:
    """Return one table of all FDEs: the section's own table if there is only one section, as in nearly all files."""
    if len(section_tables) == 1:
        return section_tables[0]
    table = FdeTable()
    first_row, cie, rows = array("I", [0]), array("I"), 0
    for section_table in section_tables:
        first_row.extend(rows + row for row in section_table.first_row[1:])
        cie.extend(len(table.cies) + number for number in section_table.cie)
        table.cies += section_table.cies
        table.faulty += section_table.faulty
        table.faults += section_table.faults[: MAX_REPORTED - len(table.faults)]
        rows += len(section_table.row_start)
        if rows > MAX_ROWS:
            raise FormatError(f"more than {MAX_ROWS} rows")
    table.first_row, table.cie = first_row, cie
    table.start, table.size = (
        array("Q", b"".join(getattr(section_table, name) for section_table in section_tables)) for name in ("start", "size")
    )
    table.row_start, table.row_rule = (
        array("I", b"".join(getattr(section_table, name) for section_table in section_tables)) for name in ("row_start", "row_rule")
    )
    return table


def _pack_cies(cies: list[Cie]) -> array[int]:
    """Return the seven numbers for each CIE that CfiMachine.start takes."""
    get_numbers = attrgetter("program", "end", "ra_column", "code_alignment", "data_alignment", "fde_encoding", "address_size")
    return array("q", chain.from_iterable(map(get_numbers, cies)))


def _run_fdes(
    machine: CfiMachine, section: CfiSection, fdes: Fdes, programs: Programs, longest_program: int, table: FdeTable,
    rule_numbers: dict[bytes, int],
) -> None:  # fmt: skip
    """Run the instructions of all FDEs, and fill in the rows of `table`. `longest_program`: its size in bytes."""
    fde_count = len(fdes.start)
    [first_row] = make_columns("I", fde_count + 1)
    row_start: Column = array("I")
    row_rule: Column = array("I")
    row_count = fde = 0
    while fde < fde_count:
        # An FDE makes at most one row for each byte of its program, and one more; a section makes about one for each six bytes.
        min_room = row_count + 1 + longest_program
        if min_room > MAX_ROWS:
            raise FormatError(f"more than {MAX_ROWS} rows", section.name)
        added_room = min(MAX_ROWS, min_room + (row_count // 4 if fde else len(section.data) // 5)) - len(row_start)
        row_start, row_rule = (
            array("I", bytes(column) + bytes(new)) if len(column) else new
            for column, new in zip((row_start, row_rule), make_columns("II", added_room), strict=True)
        )
        rows = Rows(first_row, row_start, row_rule)
        while fde < fde_count:
            first_row[fde] = row_count
            fde = machine.run_fdes(fde, fdes, programs, rows, row_count)
            row_count = first_row[fde]
            if machine.fault == 0:
                break
            if machine.fault == TOO_MANY_STATES:
                _raise_fault(machine, section)
            table.faulty += 1
            if len(table.faults) < MAX_REPORTED:
                table.faults.append(FdeFault(fdes.start[fde], section.name, machine.pos, RUN_FAULTS[machine.fault]))
            if 0 < fdes.size[fde] <= MAX_SIZE:  # one row, whose CFA is UNREADABLE
                row_start[row_count] = 0
                row_rule[row_count] = rule_numbers.setdefault(UNREADABLE, len(rule_numbers))
                row_count += 1
            machine.fault = 0
            fde += 1
        first_row[fde] = row_count
    table.first_row, table.row_start, table.row_rule = first_row, row_start[:row_count], row_rule[:row_count]


def _cursor_arguments(section: CfiSection) -> tuple[Bytes, int, bool, int, int, Callable[[int], int] | None]:
    big = section.byte_order == "big"
    return section.data, section.address, big, section.text_base, section.data_base, section.memory


def _raise_fault(cursor: Cursor, section: CfiSection) -> None:
    if cursor.fault:
        raise FormatError(RUN_FAULTS[cursor.fault], section.name, cursor.pos)


def _scan_entries(section: CfiSection) -> tuple[Entries, Entries]:
    """Return the entries of a section: (CIEs, FDEs). Raises FormatError for an entry that cannot be read."""
    result = zeros("q", 4)
    cies = fdes = Entries(*(zeros("Q", 0) for _ in range(4)))
    for _ in range(2):  # the first pass counts the entries, the second fills their tables
        scan.scan_entries(section.data, section.byte_order == "big", section.eh, section.fde_count, cies, fdes, result)
        fault, fault_offset, cie_count, fde_count = result
        if fault:
            raise FormatError(SCAN_FAULTS[fault], section.name, fault_offset)
        if len(cies.start) or len(fdes.start) or not (cie_count or fde_count):
            break
        cies = Entries(*make_columns("QQQQ", cie_count))
        fdes = Entries(*make_columns("QQQQ", fde_count))
    return cies, fdes


def _read_cie(section: CfiSection, start: int, body: int, end: int) -> Cie:
    """Read the CIE whose fields begin at `body`. Raises FormatError."""
    cursor = Cursor(*_cursor_arguments(section))
    cursor.pos, cursor.end = body, end
    version = cursor.read_unsigned(1)
    raw = bytes(section.data[cursor.pos : end])
    zero = raw.find(b"\0")
    if version not in SUPPORTED_VERSIONS or zero < 0:
        fault = "augmentation string is not closed" if version in SUPPORTED_VERSIONS else f"unknown CIE version {version}"
        raise FormatError(fault, section.name, body)
    augmentation = raw[:zero].decode("latin-1")
    cursor.pos += zero + 1
    if augmentation.startswith("eh"):  # g++ before 3.0 adds a pointer to its exception table
        cursor.read_unsigned(8)
    address_size, segment_selector_size = 8, 0
    if version >= 4:
        address_size, segment_selector_size = cursor.read_unsigned(1), cursor.read_unsigned(1)
    code_alignment, data_alignment = cursor.read_uleb(), cursor.read_sleb()
    ra_column = cursor.read_unsigned(1) if version == 1 else cursor.read_uleb()
    encoding = 0
    if augmentation.startswith("z"):
        data_size = cursor.read_uleb()
        program = cursor.pos + data_size
        if program > end:
            raise FormatError("augmentation data reaches past the end of the CIE", section.name, cursor.pos)
        encoding = _read_fde_encoding(cursor, augmentation, program)
    else:
        program = cursor.pos
        if augmentation != "eh" and set(augmentation) - LETTERS_WITHOUT_DATA:
            raise FormatError(f"unknown augmentation {augmentation!r}", section.name, body + 1)
    _raise_fault(cursor, section)
    if address_size not in ADDRESS_SIZES or segment_selector_size > 8:
        raise FormatError(f"address size {address_size}, segment selector size {segment_selector_size}", section.name, body)
    if abs(data_alignment) > MAX_DATA_ALIGNMENT or code_alignment > MAX_CODE_ALIGNMENT:
        raise FormatError(f"alignment factors {code_alignment} and {data_alignment}", section.name, body)
    return Cie(
        section.name, start, augmentation, code_alignment, data_alignment, ra_column, encoding, augmentation.startswith("z"),
        address_size, segment_selector_size, program, end,
    )  # fmt: skip


def _read_fde_encoding(cursor: Cursor, augmentation: str, end: int) -> int:
    """Read the encoding of FDE pointers from the augmentation data at the cursor, up to the first unknown letter."""
    cursor.end = end
    encoding = 0
    for letter in augmentation[1:]:
        if letter == "R":
            encoding = cursor.read_unsigned(1)
        elif letter == "L":
            cursor.read_unsigned(1)
        elif letter == "P":
            cursor.read_pointer(cursor.read_unsigned(1) & ~DW_EH_PE_INDIRECT)
        elif letter not in LETTERS_WITHOUT_DATA:
            break
    return encoding


def _build_rule(
    state: bytes, register_rule: Callable[[int, int, int], RegisterRule], register_rules: Callable[[bytes], list[RegisterRule]]
) -> CfiRule:
    """Return the rule of a state. The callables make the rule of the CFA, and the rules of the four registers."""
    ra_column, kind, a, b = CFA_PART.unpack_from(state)
    if kind in EXPRESSION_KINDS:
        a, b = EXPRESSION_PART.unpack_from(state, REGISTER_PARTS_END)
    return CfiRule(ra_column, register_rule(kind, a, b), *register_rules(state[CFA_PART_END:REGISTER_PARTS_END]))


def _build_register_rule(section_bases: list[tuple[int, CfiSection]], kind: int, a: int, b: int) -> RegisterRule:
    if kind not in EXPRESSION_KINDS:
        return RegisterRule(KINDS[kind], a, b)
    base, section = section_bases[bisect_right(section_bases, a, key=itemgetter(0)) - 1]
    return RegisterRule(KINDS[kind], expression=bytes(section.data[a - base : a - base + b]))
