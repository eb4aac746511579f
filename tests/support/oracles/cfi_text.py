"""Reads the CFI that GNU `readelf -wF` prints into a table of rules, or the reason why SFrame V3 has no words for a row.

`-wF` leaves out the text of expressions and whether RA is signed, and prints DW_CFA_undefined and "never mentioned" alike;
`-wf`, the raw operations, supplies all three for the FDEs that have them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import IO, NamedTuple

from .expressions import CFA, Value, evaluate
from .files import paragraphs, running
from .rules import OUTERMOST, Abi, Interner, OracleError, Ranges, Rule, Table, overlay, repeat_block


class CfiRow(NamedTuple):
    """`rule` is None where no SFrame rule is true, and `reason` says why; else `reason` says why it takes a flexible FDE."""

    rule: Rule | None
    reason: str


SILENT = CfiRow(None, "")
AMBIGUOUS = CfiRow(None, "FDEs that disagree")

SECTION = re.compile(rb"Contents of the (\S+) section:")
CIE = re.compile(rb'([0-9a-f]{8,}) [0-9a-f]+ [0-9a-f]+ CIE(?: "([^"]*)" .* ra=(\d+))?')
FDE = re.compile(rb"([0-9a-f]{8,}) [0-9a-f]+ [0-9a-f]+ FDE cie=([0-9a-f]+) pc=([0-9a-f]+)\.\.([0-9a-f]+)")
TERMINATOR = re.compile(rb"[0-9a-f]{8,} ZERO terminator\n*")
CELL = re.compile(r"r\d+ \([^)]*\)|\S+")
SUM = re.compile(r"([a-z][\w.]*)([+-]\d+)")
SAVED = re.compile(r"[cv][+-]\d+")
REGISTER = re.compile(r"r(\d+)(?: \([a-z][\w.]*\))?")
# CFA = sp + 8 + (((pc & 15) >= n) << 3): the entries of the PLT that GNU ld makes
PLT = re.compile(
    r"DW_OP_breg(\d+) \(\w+\): 8; DW_OP_breg(\d+) \(\w+\): 0; DW_OP_lit15; DW_OP_and; DW_OP_lit(\d+); "
    r"DW_OP_ge; DW_OP_lit3; DW_OP_shl; DW_OP_plus"
)
PLT_ENTRY_SIZE = 16

RA_STATE = -2  # beside register numbers and CFA in a Note
UNDEFINED = "undefined"
SIGNED, SIGNED_WITH_PC = "s", "p"
RA_STATES = {"AARCH64_negate_ra_state": SIGNED, "GNU_window_save": SIGNED, "AARCH64_negate_ra_state_with_pc": SIGNED_WITH_PC}
NOTEWORTHY = re.compile(rb"expression|DW_CFA_undefined|negate_ra_state|GNU_window_save")
Note = dict[int, str]  # CFA or register -> the text of its expression, or UNDEFINED; RA_STATE -> values of RA_STATES
NO_NOTE: Note = {}


class Notes(NamedTuple):
    """By (section, offset of the entry): the notes in force after the CIE, and at every row of the FDE."""

    cies: dict[tuple[bytes, int], Note]
    fdes: dict[tuple[bytes, int], dict[int, Note]]


class Kind(NamedTuple):
    ra_column: int
    signal: bool = False
    key: str = "A"


class Cie(NamedTuple):
    """Columns and cells are empty in a CIE that leaves every rule to its FDEs."""

    columns: bytes
    cells: bytes
    kind: Kind


class CfiText(NamedTuple):
    table: Table
    rows: Interner[CfiRow]
    fdes: int
    outside: int  # FDEs that begin outside executable segments: left out


def read(readelf: str, path: str, abi: Abi, executable: list[tuple[int, int]]) -> CfiText:
    """The rules of `.eh_frame`, and of `.debug_frame` where `.eh_frame` is silent."""
    with running(readelf, "-wfN", path) as text:
        notes = read_notes(text)
    reader = Reader(abi, notes, executable)
    with running(readelf, "-wFN", path) as text:
        reader.read(text)
    table = reader.sections[b".eh_frame"].table()
    if len(reader.sections[b".debug_frame"].locs):
        table = overlay(table, reader.sections[b".debug_frame"].table())
    return CfiText(table, reader.rows, reader.fdes, reader.outside)


def entries(text: IO[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """(section, block of lines) for every CIE and FDE that readelf prints."""
    section = b""
    for paragraph in paragraphs(text):
        block = paragraph.lstrip(b"\n")
        if b"ZERO terminator" in block:
            block = TERMINATOR.sub(b"", block)
        if found := SECTION.match(block):
            section = found[1]
        elif section in {b".eh_frame", b".debug_frame"} and block:
            yield section, block


def read_notes(text: IO[bytes]) -> Notes:
    """From `readelf -wf`: the expressions, undefined registers, and signed return addresses."""
    notes = Notes({}, {})
    for section, block in entries(text):
        noteworthy = NOTEWORTHY.search(block)
        if fde := FDE.match(block):
            initial = notes.cies.get((section, int(fde[2], 16)), NO_NOTE)
            if initial or noteworthy:
                notes.fdes[section, int(fde[1], 16)] = follow(block, int(fde[3], 16), initial)
        elif noteworthy and (cie := CIE.match(block)):
            notes.cies[section, int(cie[1], 16)] = follow(block, 0, NO_NOTE)[0]
    return notes


def follow(block: bytes, begin: int, initial: Note) -> dict[int, Note]:
    """Address -> notes in force there, by the operations of one entry that begins at address `begin`."""
    loc, now = begin, dict(initial)
    stack: list[Note] = []
    out: dict[int, Note] = {}
    for line in block.decode().split("\n"):
        if not line.startswith("  DW_CFA_"):
            continue
        operation, _, operands = line.removeprefix("  DW_CFA_").partition(" ")
        operation = operation.rstrip(":")
        register = REGISTER.match(operands)
        expression = operands[register.end() if register else 0 :].strip().removeprefix("(").removesuffix(")")
        if "advance_loc" in operation or operation == "set_loc":
            out[loc] = dict(now)
            loc = int(operands.split()[-1], 16)
        elif operation == "remember_state":
            stack.append(dict(now))
        elif operation == "restore_state":
            now = stack.pop() if stack else now
        elif operation in RA_STATES:
            now[RA_STATE] = "".join(sorted({RA_STATES[operation]} ^ set(now.get(RA_STATE, ""))))
        elif operation.startswith("def_cfa"):
            now.pop(CFA, None)
            if operation == "def_cfa_expression":
                now[CFA] = expression
        elif register:
            number = int(register[1])
            now.pop(number, None)
            if operation == "undefined":
                now[number] = UNDEFINED
            elif operation in {"expression", "val_expression"}:
                now[number] = expression
            elif operation.startswith("restore") and number in initial:
                now[number] = initial[number]
    out[loc] = now
    return out


def split_cells(columns: bytes, cells: bytes) -> dict[str, str]:
    """Column -> cell of a row. A column that is missing has no rule of its own."""
    names = columns.decode().split()[1:]  # the first is LOC
    found = CELL.findall(cells.decode())
    if len(found) != len(names):
        raise OracleError(f"readelf -wF prints {found} under {names}")
    return dict(zip(names, found, strict=True))


def translate(abi: Abi, cells: dict[str, str], note: Note, kind: Kind) -> CfiRow:
    """A row in SFrame's words."""
    if kind.ra_column != abi.ra:
        return CfiRow(None, "RA column")
    if note.get(abi.ra) == UNDEFINED:
        return CfiRow(OUTERMOST, "")
    if "CFA" not in cells:
        return CfiRow(None, "no CFA rule")
    names = {number: name for name, number in abi.registers.items()}
    cfa = spell(abi, cfa_value(abi, cells["CFA"], note.get(CFA, "")))
    ra, fp, sp = (
        register_rule(abi, cells.get(column, "u"), note.get(register, ""))
        for column, register in (("ra", abi.ra), (names[abi.fp], abi.fp), (names[abi.sp], abi.sp))
    )
    reason = unsaid(abi, cfa, ra, fp) or ("" if sp_is_implied(abi, cells.get(names[abi.sp], "u"), sp, cfa) else "SP rule")
    state = note.get(RA_STATE, "")
    if state not in {"", SIGNED} or (state and not abi.ra_is_signed):
        reason = reason or "RA signature"
    if reason:
        return CfiRow(None, reason)
    rule = Rule(cfa, fp, ra, kind.signal, kind.key if state else "")
    return CfiRow(rule, flexible(abi, rule))


def unsaid(abi: Abi, cfa: str, ra: str, fp: str) -> str:
    if not cfa:
        return "CFA expression"
    if not ra or ra.startswith("v") or (ra == "same" and not re.fullmatch(abi.ra_rules, ra)):
        return "RA rule"
    if not fp or fp.startswith("v") or fp == UNDEFINED:
        return "FP rule"
    if any(int(register) >= abi.bases for register in re.findall(r"r(\d+)", f"{cfa} {fp} {ra}")):
        return "base register"
    offsets = [int(offset) for offset in re.findall(r"[+-]\d+", f"{cfa} {fp} {ra}")]
    if any(not -(1 << 31) <= offset < 1 << 31 for offset in offsets):
        return "offset of more than 32 bits"
    return "CFA offset" if (offsets[0] + abi.sp_offset) % abi.cfa_step else ""


def sp_is_implied(abi: Abi, cell: str, sp: str, cfa: str) -> bool:
    """SFrame has the caller's SP be CFA + sp_offset."""
    if cell == "u":
        return sp != UNDEFINED
    if abi.sp_is_saved and (cell.startswith("c") or REGISTER.fullmatch(cell)):
        return True
    implied = {f"v{abi.sp_offset:+d}"}
    if not abi.sp_offset:
        implied.add(cfa)
    elif plain := SUM.fullmatch(cfa):
        implied.add(f"{plain[1]}{int(plain[2]) + abi.sp_offset:+d}")
    return (f"{abi.base(abi.sp)}+0" if sp == "same" else sp) in implied


def flexible(abi: Abi, rule: Rule) -> str:
    """What keeps a default FDE from saying a rule, or ""."""
    if not rule.cfa.startswith(("sp", "fp")):
        return "CFA base"
    if not re.fullmatch(abi.ra_rules, rule.ra):
        return "RA in a register or elsewhere"
    if rule.fp != "same" and not rule.fp.startswith("c"):
        return "FP in a register or elsewhere"
    return "FP without RA" if abi.ra_before_fp and rule.fp != "same" and rule.ra == "same" else ""


def spell(abi: Abi, value: Value | None) -> str:
    """In the words of rules.py; "" for what is no place."""
    if value is None or value.register is None:
        return ""
    if value.register == CFA:
        return f"{'c' if value.stored else 'v'}{value.number:+d}"
    place = f"{abi.base(value.register)}{value.number:+d}"
    return f"({place})" if value.stored else place


def cfa_value(abi: Abi, cell: str, expression: str) -> Value | None:
    """The CFA; None for an expression that is neither register + n nor what is stored there."""
    if cell == "exp":
        return evaluate(expression)
    plain = SUM.fullmatch(cell)
    register = plain and (REGISTER.fullmatch(plain[1]) if plain[1] not in abi.registers else abi.registers[plain[1]])
    if plain is None or register is None:
        raise OracleError(f"readelf -wF prints an unknown CFA rule: {cell!r}")
    return Value(register if isinstance(register, int) else int(register[1]), int(plain[2]))


def register_rule(abi: Abi, cell: str, note: str) -> str:
    """The rule of a register, UNDEFINED, or "" for an expression that no flexible FDE can say either."""
    if cell in {"u", "s"}:
        return note or "same"
    if register := REGISTER.fullmatch(cell):
        return f"{abi.base(int(register[1]))}+0"
    if SAVED.fullmatch(cell):
        return cell
    if cell not in {"exp", "vexp"}:
        raise OracleError(f"readelf -wF prints an unknown register rule: {cell!r}")
    value = evaluate(note, Value(CFA, 0))
    if value and cell == "exp":
        value = None if value.stored else value._replace(stored=True)
    return spell(abi, value)


class CellMemo(dict[bytes, int]):
    """Cells of a row -> id of what they say, for rows under one line of columns and without notes."""

    def __init__(self, reader: Reader, columns: bytes, kind: Kind) -> None:
        self._reader = reader
        self._columns = columns
        self._kind = kind

    def __missing__(self, cells: bytes) -> int:
        row = translate(self._reader.abi, split_cells(self._columns, cells), NO_NOTE, self._kind)
        self[cells] = number = self._reader.rows.id(row)
        return number


class Reader:
    def __init__(self, abi: Abi, notes: Notes, executable: list[tuple[int, int]]) -> None:
        self.abi = abi
        self.rows = Interner(SILENT, AMBIGUOUS)
        self.sections = {b".eh_frame": Ranges(), b".debug_frame": Ranges()}
        self.fdes = self.outside = 0
        self._notes = notes
        self._executable = executable
        self._cies: dict[tuple[bytes, int], Cie] = {}
        self._memos: dict[tuple[bytes, Kind], CellMemo] = {}

    def read(self, text: IO[bytes]) -> None:
        for section, block in entries(text):
            head, *lines = block.split(b"\n")
            if fde := FDE.match(head):
                self.fdes += 1
                begin, end = int(fde[3], 16), int(fde[4], 16)
                if any(low <= begin < high for low, high in self._executable):
                    self._fde(section, int(fde[1], 16), int(fde[2], 16), begin, end, lines)
                else:
                    self.outside += 1
            elif (cie := CIE.fullmatch(head)) and cie[2] is not None and len(lines) in {0, 2}:
                columns, row = lines or (b"", b"")
                kind = Kind(int(cie[3]), b"S" in cie[2], "B" if b"B" in cie[2] else "A")
                self._cies[section, int(cie[1], 16)] = Cie(columns, row[16:], kind)
            else:
                raise OracleError(f"readelf -wF prints an unknown entry: {block[:200]!r}")

    def _fde(self, section: bytes, offset: int, cie_offset: int, begin: int, end: int, lines: list[bytes]) -> None:
        if (section, cie_offset) not in self._cies:
            raise OracleError(f"the FDE at {offset:#x} of {section.decode()} comes before its CIE, or has none")
        cie = self._cies[section, cie_offset]
        # An FDE that adds nothing to its CIE has no lines.
        columns, *rows = lines or (cie.columns, b"%016x" % begin + cie.cells)
        locs = [int(row[:16], 16) for row in rows]
        if notes := self._notes.fdes.get((section, offset)):
            steps = self._steps_with_notes(locs, end, columns, [row[16:] for row in rows], notes, cie.kind)
        else:
            memo = self._memos.get((columns, cie.kind))
            if memo is None:
                memo = self._memos[columns, cie.kind] = CellMemo(self, columns, cie.kind)
            steps = dict(zip(locs, [memo[row[16:]] for row in rows], strict=True))  # of equal addresses the last wins
        ranges = self.sections[section]
        first = len(ranges.locs)
        ranges.locs.extend(steps)
        ranges.ids.extend(steps.values())
        ranges.close(begin, end, first)

    def _steps_with_notes(
        self, locs: list[int], end: int, columns: bytes, cells: list[bytes], notes: dict[int, Note], kind: Kind
    ) -> dict[int, int]:
        steps = dict(zip(locs, cells, strict=True))
        out: dict[int, int] = {}
        for loc, following in zip(steps, [*list(steps)[1:], end], strict=True):
            note = notes[loc]
            row = split_cells(columns, steps[loc])
            plt = PLT.fullmatch(note.get(CFA, ""))
            if plt and (int(plt[1]), int(plt[2])) == (self.abi.sp, self.abi.ra) and int(plt[3]) < PLT_ENTRY_SIZE:
                sp = next(name for name, number in self.abi.registers.items() if number == self.abi.sp)
                entry = [
                    (offset, self.rows.id(translate(self.abi, row | {"CFA": cfa}, note, kind)))
                    for offset, cfa in ((0, f"{sp}+8"), (int(plt[3]), f"{sp}+16"))
                ]
                for address, rule in repeat_block(loc - loc % PLT_ENTRY_SIZE, following, PLT_ENTRY_SIZE, entry):
                    out[max(address, loc)] = rule
            else:
                out[loc] = self.rows.id(translate(self.abi, row, note, kind))
        return out
