"""Reads call frame information with pyelftools into the rows of each FDE, or the reason why they cannot be read.

An FDE is skipped, and counted by reason, if pyelftools is known to misread its instructions or would need too long for them.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import Counter
from io import BytesIO
from typing import TYPE_CHECKING, NamedTuple

from elftools.dwarf.callframe import CIE, FDE, CallFrameInfo, CFARule, RegisterRule
from elftools.dwarf.structs import DWARFStructs

from sframegen.checks.tracks import Track, new_track

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from elftools.dwarf.callframe import CallFrameInstruction

    from cfi.section import CfiSection
    from sframegen.elf.ranges import Range
    from sframegen.format.abi import Abi

UNKNOWN_ROW = -2  # stands for the number of a row in a track where the row is not known
ADDRESS_MASK = 0xFFFFFFFFFFFFFFFF
ADVANCES = frozenset((0x02, 0x03, 0x04, 0x40))  # opcodes, as below: DW_CFA_advance_loc1, 2, 4 and DW_CFA_advance_loc
REMEMBER, RESTORE, NEGATE_RA_STATE, ARGS_SIZE = 0x0A, 0x0B, 0x2D, 0x2E
DEF_CFA_EXPRESSION = 0x0F
VAL_EXPRESSION = 0x16
EXPRESSIONS = frozenset((DEF_CFA_EXPRESSION, 0x10, VAL_EXPRESSION))
RA_STATES = ([0x30], [0x31])  # the expressions DW_OP_lit0 and DW_OP_lit1: the return address is not signed, or signed
# Instructions whose first operand is not a register: also nop, set_loc and three that define the CFA without naming one.
NO_REGISTER = frozenset((*ADVANCES, 0x00, 0x01, 0x0E, 0x0F, 0x13, REMEMBER, RESTORE, NEGATE_RA_STATE, ARGS_SIZE))
# Instructions that pyelftools misreads without an error. A test shows each fault, and fails once a release corrects it.
MISREAD_OPCODES = {
    0x01: "DW_CFA_set_loc, whose pointer it takes to be a plain address",
    0x12: "DW_CFA_def_cfa_sf, whose offset it scales by the wrong factor",
}
WIDE_FORMAT = "64-bit DWARF, whose CIE it looks for in the wrong place"
LAST_ROW = "a last row whose CFA is an expression, which it drops"
CFA_LOST = "a CFA register or offset after an expression, which made it forget the other one"
RA_STATE = "a rule for RA_SIGN_STATE other than a constant, or beside instructions that negate it"
DAMAGED = "what it fails to read"
COSTLY = "more work than their size warrants"

# pyelftools makes an object of each instruction, copies the rules of all registers for each row, and copies expressions byte by
# byte for each remembered state. Real FDEs need up to 40 such steps, of about a microsecond, for a byte of CFI; whole files 5.
MAX_STEPS_A_BYTE, MAX_STEPS_A_BYTE_OF_SECTION, MAX_STEPS = 64, 10, 1 << 20
MAX_READ_A_BYTE, MIN_READ = 4, 128
MAX_ENTRY_BYTES, MAX_CIE_BYTES = 1 << 18, 1 << 19


class RegisterRow(NamedTuple):
    """A row's rule for one register or for the CFA. `kind`: pyelftools' name, "" for no rule, "CFA" for register + offset."""

    kind: str
    number: int = 0
    offset: int = 0
    code: bytes = b""


class CfiRow(NamedTuple):
    """The rules of one row that matter to a stack trace."""

    ra_column: int
    cfa: RegisterRow
    ra: RegisterRow
    fp: RegisterRow
    sp: RegisterRow
    signed: bool
    signal: bool
    key_b: bool


class FdeColumns:
    """FDEs as columns, in the order read. FDE i has the rows first_row[i] .. first_row[i + 1] - 1; `row_state` -1: unknown."""

    def __init__(self) -> None:
        self.start = array("Q")
        self.end = array("Q")
        self.section = array("B")  # number of the list of FDEs that it belongs to; earlier lists take precedence
        self.first_row = array("I", [0])
        self.row_start = array("Q")  # addresses
        self.row_state = array("i")
        self.states: dict[CfiRow, int] = {}  # numbers of distinct rows, which `row_state` has
        self.unread: Counter[str] = Counter()  # number of FDEs by the reason why they cannot be read

    def add(self, section: int, start: int, end: int, rows: list[tuple[int, CfiRow | None]]) -> None:
        """Add an FDE. `rows`: (address, row), None for an unknown row; empty if only the FDE's range of code is known."""
        self.section.append(section)
        self.start.append(start)
        self.end.append(end)
        for at, row in rows or [(start, None)]:
            self.row_start.append(at)
            self.row_state.append(-1 if row is None else self.states.setdefault(row, len(self.states)))
        self.first_row.append(len(self.row_start))

    def make_track(self, executable: Sequence[Range]) -> Track:
        """Return the track of row numbers in executable code: UNKNOWN_ROW where the row is unknown, or overlapping FDEs differ."""
        found = new_track()
        starts = [low for low, _ in executable]
        order = sorted(range(len(self.start)), key=self.start.__getitem__)
        at = 0
        while at < len(order):
            start, end = self.start[order[at]], self.end[order[at]]
            following = at + 1
            while following < len(order) and self.start[order[following]] < end:
                end = max(end, self.end[order[following]])
                following += 1
            number = bisect_right(starts, start) - 1
            if number >= 0 and start < executable[number][1]:
                self._add_overlapping(found, order[at:following], min(end, executable[number][1]))
            at = following
        return found

    def _add_overlapping(self, track: Track, group: list[int], end: int) -> None:
        """Add a group of FDEs that overlap. If they are of several lists, only those of the earliest count."""
        start = self.start[group[0]]
        earliest = min(self.section[fde] for fde in group)
        group = [fde for fde in group if self.section[fde] == earliest]
        if len({self._comparable_rows(fde) for fde in group}) > 1:
            track.add(start, end, UNKNOWN_ROW)
            return
        rows = range(self.first_row[group[0]], self.first_row[group[0] + 1])
        end = min(end, self.end[group[0]])
        for row in rows:
            following = self.row_start[row + 1] if row + 1 < rows.stop else end
            state = self.row_state[row]
            track.add(min(self.row_start[row], end), min(following, end), UNKNOWN_ROW if state < 0 else state)

    def _comparable_rows(self, fde: int) -> tuple[int, int, bytes, bytes]:
        """Return the range and the rows of an FDE in a form that is equal for equal ones."""
        rows = slice(self.first_row[fde], self.first_row[fde + 1])
        return self.start[fde], self.end[fde], self.row_start[rows].tobytes(), self.row_state[rows].tobytes()


class UnreadError(Exception):
    """Raised for a CIE or FDE that cannot be read; the message gives the reason."""


class _Metered(BytesIO):
    """A stream with a limit on the bytes that are read for one entry, which may claim to reach to the end of the section."""

    allowance = 0

    def read(self, size: int | None = -1, /) -> bytes:
        self.allowance -= 1 if size is None or size < 0 else 1 + size
        if self.allowance < 0:
            raise UnreadError(COSTLY)
        return super().read(size)


class _Cie(NamedTuple):
    ra_column: int
    signal: bool
    key_b: bool
    instructions: list[CallFrameInstruction]


def read_fdes(section: CfiSection, number: int, abi: Abi, fdes: FdeColumns) -> Iterator[int]:
    """Add the FDEs of a section, which belongs to list `number`, to `fdes`; yield the number of bytes read so far."""
    little = section.byte_order == "little"
    stream = _Metered(section.data)
    structs = DWARFStructs(little_endian=little, dwarf_format=32, address_size=8)
    reader = _Reader(CallFrameInfo(stream, len(section.data), section.address, structs, section.eh), stream, abi)
    cie_bytes = 0
    for offset, end, cie_offset in _find_entries(section):
        if cie_offset is None and cie_bytes + end - offset <= MAX_CIE_BYTES:
            cie_bytes += end - offset
            reader.read_cie(offset, end)
    for offset, end, cie_offset in _find_entries(section):
        if cie_offset is not None:
            try:
                fdes.add(number, *reader.read_fde(offset, end, cie_offset, fdes.unread))
            except UnreadError as error:
                fdes.unread[str(error)] += 1
            yield end


def _find_entries(section: CfiSection) -> Iterator[tuple[int, int, int | None]]:
    """Yield (offset, end, the CIE's offset) for each entry: None for a CIE, -1 if pyelftools does not find the CIE."""
    data, order = section.data, section.byte_order
    at = fdes = 0
    while at + 8 <= len(data):
        length, body = int.from_bytes(data[at : at + 4], order), at + 4
        is_wide = length == 0xFFFFFFFF  # 64-bit DWARF
        if is_wide:
            length, body = int.from_bytes(data[at + 4 : at + 12], order), at + 12
        end = body + length
        if length == 0:
            if 0 <= section.fde_count <= fdes:
                return
            at += 4
            continue
        if end > len(data):
            return
        cie_pointer = int.from_bytes(data[body : body + 4], order)
        if cie_pointer == (0 if section.eh else 0xFFFFFFFF):
            yield at, end, None
        else:
            fdes += 1
            yield at, end, -1 if is_wide else body - cie_pointer if section.eh else cie_pointer
        at = end


class _Reader:
    """The reader of one section. Any exception of pyelftools skips an entry, because its errors have no common base class."""

    def __init__(self, info: CallFrameInfo, stream: _Metered, abi: Abi) -> None:
        self.info = info
        self.stream = stream
        self.abi = abi
        self.cies: dict[int, _Cie | UnreadError] = {}
        self.steps_left = MAX_STEPS + MAX_STEPS_A_BYTE_OF_SECTION * info.size

    def read_cie(self, offset: int, end: int) -> None:
        """Read the CIE at an offset into `cies`, or the reason why it cannot be read."""
        try:
            cie = self._parse_entry(offset, end)
            if not isinstance(cie, CIE):
                raise UnreadError(DAMAGED)  # noqa: TRY301 - as what pyelftools raises
            cie.instructions = _remove_args_size(cie.instructions)
            self._spend_steps(_count_steps(cie.instructions), end - offset)
            table = cie.get_decoded().table
            opcodes = [instruction.opcode for instruction in cie.instructions]
            if len(table) <= sum(opcode in ADVANCES for opcode in opcodes) and DEF_CFA_EXPRESSION in opcodes:
                raise UnreadError(LAST_ROW)  # noqa: TRY301
            letters = cie.header.augmentation  # S: signal frames; B: key B
            self.cies[offset] = _Cie(cie.header.return_address_register, b"S" in letters, b"B" in letters, cie.instructions)
        except UnreadError as error:
            self.cies[offset] = error
        except Exception:  # noqa: BLE001
            self.cies[offset] = UnreadError(DAMAGED)

    def read_fde(
        self, offset: int, end: int, cie_offset: int, unread: Counter[str]
    ) -> tuple[int, int, list[tuple[int, CfiRow | None]]]:
        """Return (start, end, rows) of an FDE. Raises UnreadError if not even its range of code is known."""
        if cie_offset < 0:
            raise UnreadError(WIDE_FORMAT)
        cie = self.cies.get(cie_offset)
        if not isinstance(cie, _Cie):
            raise cie or UnreadError(DAMAGED)
        try:
            fde = self._parse_entry(offset, end)
            assert isinstance(fde, FDE)
            start, size = fde.header.initial_location & ADDRESS_MASK, fde.header.address_range
        except UnreadError:
            raise
        except Exception as error:
            raise UnreadError(DAMAGED) from error
        finally:
            self.info._entry_cache.pop(offset, None)  # noqa: SLF001 - because all entries together may fill the memory
        end_address = min(start + max(size, 0), ADDRESS_MASK)
        rows: list[tuple[int, CfiRow | None]] = []
        try:
            rows = self._make_rows(fde, cie, start, end - offset)
        except UnreadError as error:
            unread[str(error)] += 1
        except Exception:  # noqa: BLE001
            unread[DAMAGED] += 1
        if any(state is None for _, state in rows):
            unread[CFA_LOST] += 1
        return start, end_address, rows

    def _parse_entry(self, offset: int, end: int) -> object:
        if end - offset > MAX_ENTRY_BYTES:
            raise UnreadError(COSTLY)
        self.stream.allowance = MIN_READ + MAX_READ_A_BYTE * (end - offset)
        return self.info._parse_entry_at(offset)  # noqa: SLF001 - get_entries() fails as a whole where one entry is bad

    def _spend_steps(self, steps: int, size: int) -> None:
        if steps > min(MAX_STEPS_A_BYTE * size, MAX_STEPS, self.steps_left):
            raise UnreadError(COSTLY)
        self.steps_left -= steps

    def _make_rows(self, fde: FDE, cie: _Cie, start: int, size: int) -> list[tuple[int, CfiRow | None]]:
        """Return (address, row) for each row of an FDE, None for a row that pyelftools has lost a part of. Raises UnreadError."""
        fde.instructions = _remove_args_size(fde.instructions)
        instructions = [*cie.instructions, *fde.instructions]
        self._spend_steps(_count_steps(instructions), size)
        ra_state_rules = [rule for rule in instructions if rule.opcode not in NO_REGISTER and rule.args[0] == self.abi.ra_state]
        is_constant = all(rule.opcode == VAL_EXPRESSION and rule.args[1] in RA_STATES for rule in ra_state_rules)
        if not is_constant or (ra_state_rules and any(instruction.opcode == NEGATE_RA_STATE for instruction in instructions)):
            raise UnreadError(RA_STATE)
        table = fde.get_decoded().table
        signed = _find_signed_rows(cie.instructions, fde.instructions)
        if len(table) != len(signed):
            raise UnreadError(LAST_ROW)
        table_start = table[0]["pc"]
        rows: list[tuple[int, CfiRow | None]] = []
        for table_row, is_signed in zip(table, signed, strict=True):
            at = start + table_row["pc"] - table_start
            if at > ADDRESS_MASK:
                break
            if rows and rows[-1][0] == at:
                rows.pop()
            rows.append((at, self._make_row(table_row, cie, signed=is_signed)))
        return rows

    def _make_row(self, table_row: dict[object, object], cie: _Cie, *, signed: bool) -> CfiRow | None:
        """Return a row of pyelftools' table; None if pyelftools has lost a part of it."""
        cfa = table_row["cfa"]
        if isinstance(cfa, CFARule) and cfa.expr is None and (cfa.reg is None or cfa.offset is None):
            return None
        ra, fp, sp = (_make_register_row(table_row.get(number)) for number in (cie.ra_column, self.abi.fp, self.abi.sp))
        signed = signed or _make_register_row(table_row.get(self.abi.ra_state)).code == bytes(RA_STATES[1])
        return CfiRow(cie.ra_column, _make_register_row(cfa), ra, fp, sp, signed, cie.signal, cie.key_b)


def _remove_args_size(instructions: list[CallFrameInstruction]) -> list[CallFrameInstruction]:
    """Return the instructions without DW_CFA_GNU_args_size, which pyelftools cannot execute and unwinding does not need.

    Raises UnreadError for an instruction that pyelftools reads wrongly.
    """
    for instruction in instructions:
        if instruction.opcode in MISREAD_OPCODES:
            raise UnreadError(MISREAD_OPCODES[instruction.opcode])
    return [instruction for instruction in instructions if instruction.opcode != ARGS_SIZE]


def _count_steps(instructions: list[CallFrameInstruction]) -> int:
    """Return an estimate of the steps that pyelftools takes to turn these instructions into rows."""
    registers = len({instruction.args[0] for instruction in instructions if instruction.opcode not in NO_REGISTER})
    code = sum(len(instruction.args[-1]) for instruction in instructions if instruction.opcode in EXPRESSIONS)
    rows = sum(instruction.opcode in ADVANCES for instruction in instructions)
    remembered = sum(instruction.opcode == REMEMBER for instruction in instructions)
    return len(instructions) + rows * registers + 32 * remembered * (1 + registers + code)


def _find_signed_rows(cie_instructions: list[CallFrameInstruction], fde_instructions: list[CallFrameInstruction]) -> list[bool]:
    """Return whether each row's return address is signed, which pyelftools ignores. The CIE's instructions run first."""
    signed = sum(instruction.opcode == NEGATE_RA_STATE for instruction in cie_instructions) % 2 == 1
    remembered, signed_rows = [], []
    for instruction in fde_instructions:
        if instruction.opcode in ADVANCES:
            signed_rows.append(signed)
        elif instruction.opcode == NEGATE_RA_STATE:
            signed = not signed
        elif instruction.opcode == REMEMBER:
            remembered.append(signed)
        elif instruction.opcode == RESTORE:
            signed = remembered.pop()
    return [*signed_rows, signed]


def _make_register_row(rule: object) -> RegisterRow:
    if rule is None:
        return RegisterRow("")
    if isinstance(rule, CFARule):
        if rule.expr is not None:
            return RegisterRow(RegisterRule.VAL_EXPRESSION, code=bytes(rule.expr))
        assert rule.reg is not None
        assert rule.offset is not None
        return RegisterRow("CFA", rule.reg, rule.offset)
    assert isinstance(rule, RegisterRule)
    if isinstance(rule.arg, list):
        return RegisterRow(rule.type, code=bytes(rule.arg))
    return RegisterRow(rule.type, rule.arg or 0)
