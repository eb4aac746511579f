"""Reads the CFI that GNU `readelf -wF` prints into a table of rules, each with the reason why SP/FP rules cannot say it.

`-wF` leaves out the text of expressions, and prints DW_CFA_undefined and "never mentioned" alike; `-wf`, the raw
operations, supplies both for the FDEs that have them.
"""

from __future__ import annotations

import re
from typing import IO, TYPE_CHECKING, NamedTuple

from .files import paragraphs, running
from .rules import OUTERMOST, Abi, Interner, OracleError, Ranges, Rule, Table, overlay, repeat_block

if TYPE_CHECKING:
    from collections.abc import Iterator


class CfiRow(NamedTuple):
    """`rule` is None where no SFrame rule is true; `reason` is empty where a default FDE can say the rule."""

    rule: Rule | None
    reason: str


SILENT = CfiRow(None, "")
AMBIGUOUS = CfiRow(None, "FDEs that disagree")

SECTION = re.compile(rb"Contents of the (\S+) section:")
CIE = re.compile(rb'([0-9a-f]{8,}) [0-9a-f]+ [0-9a-f]+ CIE (?:"([^"]*)".*)?')
FDE = re.compile(rb"([0-9a-f]{8,}) [0-9a-f]+ [0-9a-f]+ FDE cie=([0-9a-f]+) pc=([0-9a-f]+)\.\.([0-9a-f]+)")
TERMINATOR = re.compile(rb"[0-9a-f]{8,} ZERO terminator\n*")
CELL = re.compile(r"r\d+ \([^)]*\)|\S+")
SUM = re.compile(r"([a-z]\w*)([+-]\d+)")
SAVED = re.compile(r"[cv][+-]\d+")
REGISTER = re.compile(r"r(\d+)(?: \([^)]*\))?")
PLACE = re.compile(r"DW_OP_breg(\d+) \(\w+\): (-?\d+)(; DW_OP_deref)?")
# CFA = sp + 8 + (((pc & 15) >= n) << 3): the entries of the PLT that GNU ld makes
PLT = re.compile(
    r"DW_OP_breg(\d+) \(\w+\): 8; DW_OP_breg(\d+) \(\w+\): 0; DW_OP_lit15; DW_OP_and; DW_OP_lit(\d+); "
    r"DW_OP_ge; DW_OP_lit3; DW_OP_shl; DW_OP_plus"
)
PLT_ENTRY_SIZE = 16

CFA = -1  # beside register numbers in a Note
UNDEFINED = "undefined"
Note = dict[int, str]  # CFA or register -> the text of its expression, or UNDEFINED
NO_NOTE: Note = {}


class Notes(NamedTuple):
    """By (section, offset of the entry): the notes in force after the CIE, and at every row of the FDE."""

    cies: dict[tuple[bytes, int], Note]
    fdes: dict[tuple[bytes, int], dict[int, Note]]


class Cie(NamedTuple):
    """Columns and cells are empty in a CIE that leaves every rule to its FDEs."""

    columns: bytes
    cells: bytes
    signal: bool


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
    """From `readelf -wf`: the expressions and undefined registers."""
    notes = Notes({}, {})
    for section, block in entries(text):
        noteworthy = b"expression" in block or b"DW_CFA_undefined" in block
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


def translate(abi: Abi, cells: dict[str, str], note: Note, *, signal: bool) -> CfiRow:
    """A row in SFrame's words; the reason is the first that keeps a default FDE from saying it."""
    if "CFA" not in cells:
        return CfiRow(None, "no CFA rule")
    if cells.get("ra", "u") == "u":
        return CfiRow(OUTERMOST, "")
    ra = saved(abi, cells["ra"], note.get(abi.ra, ""))
    names = {number: name for name, number in abi.registers.items()}
    if cells.get(names[abi.sp], "u") not in {"u", "v+0"} or abi.sp in note:
        return CfiRow(None, "SP rule")
    fp = saved(abi, cells.get(names[abi.fp], "u"), note.get(abi.fp, ""))
    cfa = canonical_address(abi, cells["CFA"], note.get(CFA, ""))
    rule = Rule(cfa, fp, ra, signal) if cfa and ra and fp not in {"", UNDEFINED} else None
    if any(not -(1 << 31) <= int(offset) < 1 << 31 for offset in re.findall(r"[+-]\d+", f"{cfa} {fp} {ra}")):
        return CfiRow(None, "offset of more than 32 bits")
    if cells["CFA"] == "exp":
        return CfiRow(rule, "CFA expression")
    if not cfa.startswith(("sp", "fp")):
        return CfiRow(rule, "CFA base register")
    if fp != "same" and not fp.startswith("c"):
        return CfiRow(rule, "FP rule")
    return CfiRow(rule, "" if ra == abi.fixed_ra else "RA rule")


def canonical_address(abi: Abi, cell: str, expression: str) -> str:
    """The CFA rule, or "" for an expression that is neither register + offset nor what is stored there."""
    if plain := SUM.fullmatch(cell):
        base = abi.base(abi.registers[plain[1]]) if plain[1] in abi.registers else plain[1]
        return f"{base}{plain[2]}"
    if cell != "exp":
        raise OracleError(f"readelf -wF prints an unknown CFA rule: {cell!r}")
    place = PLACE.fullmatch(expression)
    if not place:
        return ""
    address = f"{abi.base(int(place[1]))}{int(place[2]):+d}"
    return f"({address})" if place[3] else address


def saved(abi: Abi, cell: str, note: str) -> str:
    """The rule of a register, or "" for an expression that no flexible FDE can say either."""
    if cell in {"u", "s"}:
        return note or "same"
    if register := REGISTER.fullmatch(cell):
        return f"{abi.base(int(register[1]))}+0"
    if SAVED.fullmatch(cell):
        return cell
    if cell not in {"exp", "vexp"}:
        raise OracleError(f"readelf -wF prints an unknown register rule: {cell!r}")
    place = PLACE.fullmatch(note)
    if not place or (cell == "exp" and place[3]):
        return ""
    value = f"{abi.base(int(place[1]))}{int(place[2]):+d}"
    return f"({value})" if cell == "exp" or place[3] else value


class CellMemo(dict[bytes, int]):
    """Cells of a row -> id of what they say, for rows under one line of columns and without notes."""

    def __init__(self, reader: Reader, columns: bytes, *, signal: bool) -> None:
        self._reader = reader
        self._columns = columns
        self._signal = signal

    def __missing__(self, cells: bytes) -> int:
        row = translate(self._reader.abi, split_cells(self._columns, cells), NO_NOTE, signal=self._signal)
        self[cells] = number = self._reader.rows.id(row)
        return number


class Reader:
    """One pass over `readelf -wF`."""

    def __init__(self, abi: Abi, notes: Notes, executable: list[tuple[int, int]]) -> None:
        self.abi = abi
        self.rows = Interner(SILENT, AMBIGUOUS)
        self.sections = {b".eh_frame": Ranges(), b".debug_frame": Ranges()}
        self.fdes = self.outside = 0
        self._notes = notes
        self._executable = executable
        self._cies: dict[tuple[bytes, int], Cie] = {}
        self._memos: dict[tuple[bytes, bool], CellMemo] = {}

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
                self._cies[section, int(cie[1], 16)] = Cie(columns, row[16:], b"S" in cie[2])
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
            steps = self._steps_with_notes(locs, end, columns, [row[16:] for row in rows], notes, signal=cie.signal)
        else:
            memo = self._memos.get((columns, cie.signal))
            if memo is None:
                memo = self._memos[columns, cie.signal] = CellMemo(self, columns, signal=cie.signal)
            steps = dict(zip(locs, [memo[row[16:]] for row in rows], strict=True))  # of equal addresses the last wins
        ranges = self.sections[section]
        first = len(ranges.locs)
        ranges.locs.extend(steps)
        ranges.ids.extend(steps.values())
        ranges.close(begin, end, first)

    def _steps_with_notes(
        self, locs: list[int], end: int, columns: bytes, cells: list[bytes], notes: dict[int, Note], *, signal: bool
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
                    (offset, self.rows.id(translate(self.abi, row | {"CFA": cfa}, note, signal=signal)))
                    for offset, cfa in ((0, f"{sp}+8"), (int(plt[3]), f"{sp}+16"))
                ]
                for address, rule in repeat_block(loc - loc % PLT_ENTRY_SIZE, following, PLT_ENTRY_SIZE, entry):
                    out[max(address, loc)] = rule
            else:
                out[loc] = self.rows.id(translate(self.abi, row, note, signal=signal))
        return out
