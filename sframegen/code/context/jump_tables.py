"""Jump tables: the targets of an indirect jump, where the code before it shows a table in read-only memory and how long it is."""

from __future__ import annotations

import re
from itertools import takewhile
from typing import TYPE_CHECKING, NamedTuple

from sframegen.code.decoding.instruction_columns import DIRECT
from sframegen.code.isa.effects import Flow
from sframegen.elf.file import PF_W, PT_LOAD

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from sframegen.code.decoding.pieces import Piece
    from sframegen.code.isa.disassembly import Instruction
    from sframegen.code.isa.effects import Point
    from sframegen.elf.file import ElfFile

STEPS = 16  # that are taken for each instruction of a piece, lest tables made to be costly cost their square
MAX_STEPS = 64  # instructions that are looked at before a jump
MAX_ENTRIES = 1 << 12
MIN_WIDTH = 4  # bytes of an entry that would hardly lead into the function by chance
ENDS = {"jmp", "ret", "ud2", "hlt", "b", "br", "brk", "udf"}


class Table(NamedTuple):
    """Entries of `width` bytes at `address`, each `base + (entry << shift)`."""

    address: int
    width: int
    signed: bool
    base: int
    shift: int
    counter: str  #: the register that counts, as a text
    before: int  #: the place of the instruction that reads the table


class ReadOnly:
    """The memory of a file that nothing writes."""

    def __init__(self, elf: ElfFile) -> None:
        self.elf = elf
        self.ranges = [
            (load.p_vaddr, load.p_vaddr + load.p_filesz)
            for load in elf.segments
            if load.p_type == PT_LOAD and not load.p_flags & PF_W
        ]

    def read(self, address: int, size: int) -> bytes | None:
        """The bytes there, fewer where the range ends; None without any."""
        for start, end in self.ranges:
            if start <= address < end:
                return bytes(self.elf.at(address, min(size, end - address)))
        return None


class Tables:
    """The jump tables of one piece. `read`: (address, size) -> bytes of read-only memory, or None."""

    def __init__(self, piece: Piece, read: Callable[[int, int], bytes | None]) -> None:
        self.piece = piece
        self.read = read
        self.steps = STEPS * (len(piece) + MAX_ENTRIES)
        self.sources: dict[int, int] = {}
        for branch in piece.numbers_of(Flow.BRANCH | 1 << DIRECT):
            self.sources.setdefault(piece.addresses[branch], piece.start + piece.at[branch])

    def targets(self, point: Point, begins: Callable[[int], bool], is_code: Callable[[int], bool]) -> Sequence[int]:
        """All targets of an indirect jump; none where there is no table, or an entry leads to where no code is.

        `begins`: whether an instruction of the function begins there; `is_code`: whether any function or piece of one is there.
        Where no bound is seen, a table of wide entries ends before the first that does not lead into the function.
        """
        number = self.piece.number(point.address)
        operands = self.piece.instruction(number)[3]
        self.steps -= 1
        table = (
            self._x86_memory(number, operands)
            if "[" in operands
            else self._x86(number, operands) or self._aarch64(number, operands)
        )
        if table is None:
            return ()
        count = self._bound(table)
        if count:
            found = sorted(set(self._entries(table, count))) if count <= MAX_ENTRIES else ()
            return found if self.steps >= 0 and all(begins(target) or is_code(target) for target in found) else ()
        if table.width < MIN_WIDTH:
            return ()
        targets = list(takewhile(begins, self._entries(table)))
        return sorted(set(targets)) if len(targets) > 1 else ()

    def _entries(self, table: Table, count: int = 0) -> Iterator[int]:
        """Where entries lead: so many, or none if there are fewer in read-only memory; without a number all that may be."""
        data = self.read(table.address, table.width * (count or MAX_ENTRIES)) or b""
        there = len(data) // table.width
        for number in range(there if there >= count else 0):
            self.steps -= 1
            if self.steps < 0:
                return
            entry = int.from_bytes(data[number * table.width : (number + 1) * table.width], "little", signed=table.signed)
            yield (table.base + (entry << table.shift)) & 0xFFFFFFFFFFFFFFFF

    def _before(self, number: int) -> Iterator[tuple[int, Instruction]]:
        """The instructions that run before one, the last first, along a path that leads there."""
        for _ in range(MAX_STEPS):
            number -= 1
            self.steps -= 1
            if number < 0 or self.steps < 0:
                return
            instruction = self.piece.instruction(number)
            if instruction[2].rpartition(" ")[2] in ENDS:
                source = self.sources.get(instruction[0] + instruction[1])
                if source is None:
                    return
                number = self.piece.number(source)
                instruction = self.piece.instruction(number)
            yield number, instruction

    def _constant(self, number: int, register: str, shape: re.Pattern[str]) -> int | None:
        """The address that `lea` or `adr` puts into a register, last before an instruction."""
        for instruction in self._all_before(number):
            if instruction[2] in ("lea", "adr", "add") and (match := shape.match(instruction[3])) and match[1] == register:
                return _address(instruction, match)
        return None

    def _all_before(self, number: int) -> Iterator[Instruction]:
        """The instructions that stand before one, the last first."""
        for place in range(number - 1, -1, -1):
            self.steps -= 1
            if self.steps < 0:
                return
            yield self.piece.instruction(place)

    # -- x86-64

    def _x86_memory(self, number: int, operands: str) -> Table | None:
        match = X86_ABSOLUTE.match(operands)
        return Table(int(match[2], 0), 8, False, 0, 0, match[1], number) if match else None

    def _x86(self, number: int, register: str) -> Table | None:
        """`movsxd r, [table + index*4]; add r, base; jmp r`, in which the two may also be added the other way round."""
        sum_of: tuple[str, ...] = ()
        added = number
        for place, (_, _, mnemonic, operands) in self._before(number):
            parts = operands.split(", ")
            if not sum_of:
                if mnemonic == "add" and parts[0] == register:
                    sum_of, added = (register, parts[1]), place
                elif mnemonic == "lea" and parts[0] == register and (match := X86_SUM.match(parts[1])):
                    sum_of, added = (match[1], match[2]), place
                elif mnemonic == "mov" and parts[0] == register:
                    return self._x86_memory(place, parts[1])
            elif mnemonic == "movsxd" and parts[0] in sum_of:
                match = X86_ENTRY.match(parts[1])
                other = sum_of[1] if parts[0] == sum_of[0] else sum_of[0]
                if match is None:
                    return None
                address = self._constant(place, match[1], X86_LEA)
                base = self._constant(added, other, X86_LEA)
                if address is None or base is None:
                    return None
                return Table(address, 4, True, base, 0, match[2], place)
            elif mnemonic == "mov" and _family(parts[0]) == sum_of[0] and X86_UNSCALED.match(parts[1]):  # at -O0, and `cdqe`
                base = self._constant(added, sum_of[1], X86_LEA)
                return Table(base, 4, True, base, 0, "", place) if base is not None else None
        return None

    # -- AArch64

    def _aarch64(self, number: int, register: str) -> Table | None:
        """`ldrb w, [table, index]; adr r, base; add r, r, w, sxtb #2; br r`."""
        base, entry, extension, shift = None, "", "", 0
        for place, (_, _, mnemonic, operands) in self._before(number):
            if not base:
                match = A64_ADD.match(operands) if mnemonic == "add" else None
                if match and match[1] == register:
                    base, entry, extension, shift = match[2], match[3][1:], match[4] or "", int(match[5] or 0)
            elif mnemonic in A64_LOADS:
                match = A64_ENTRY.match(operands)
                if match and match[1][1:] == entry:
                    width, signed = A64_LOADS[mnemonic]
                    address = self._page(place, match[2])
                    start = self._constant(number, base, A64_ADR)
                    start = address if start is None and base == match[2] else start
                    if address is None or start is None:
                        return None
                    return Table(address, width, signed or extension.startswith("sx"), start, shift, match[3], place)
        return None

    def _page(self, number: int, register: str) -> int | None:
        """What `adrp` and `add`, or `adr`, put into a register."""
        offset = None
        for _, _, mnemonic, operands in self._all_before(number):
            if mnemonic == "add" and offset is None and (match := A64_PAGE_OFFSET.match(operands)):
                if match[1] == register:
                    offset, register = int(match[3], 0), match[2]
            elif mnemonic in ("adrp", "adr") and (match := A64_ADR.match(operands)) and match[1] == register:
                return int(match[2], 0) + (offset or 0)
        return None

    # -- how long it is

    def _bound(self, table: Table) -> int:
        """The number of entries, by the comparison before the table is read; 0 where none is seen."""
        index, more = _family(table.counter), None
        for _, (_, _, mnemonic, operands) in self._before(table.before):
            parts = operands.split(", ")
            if mnemonic in LIMITS:
                more = LIMITS[mnemonic]
            elif mnemonic in ("cmp", "subs") and len(parts) == 2 and more is not None and _family(parts[0]) == index:
                number = parts[1].lstrip("#")
                return int(number, 0) + more if number[:1].isdigit() else 0
            elif mnemonic == "and" and _family(parts[0]) == index and parts[-1].lstrip("#")[:1].isdigit():
                return int(parts[-1].lstrip("#"), 0) + 1
            elif mnemonic in COPIES and _family(parts[0]) == index:
                index = _family(parts[1])
        return 0


X86_ABSOLUTE = re.compile(r"qword ptr \[(\w+)\*8 \+ (0x[0-9a-f]+)\]$")
X86_ENTRY = re.compile(r"dword ptr \[(\w+) \+ (\w+)\*4\]$")
X86_UNSCALED = re.compile(r"dword ptr \[\w+ \+ \w+\]$")
X86_SUM = re.compile(r"\[(\w+) \+ (\w+)\]$")
X86_LEA = re.compile(r"(\w+), \[rip (?P<sign>[+-]) (?P<offset>0x[0-9a-f]+|\d+)\]$")
A64_ADD = re.compile(r"(x\d+), (x\d+), ([xw]\d+)(?:, (\w+)(?: #(\d+))?)?$")
A64_ENTRY = re.compile(r"([xw]\d+), \[(x\d+), ([xw]\d+)(?:, \w+(?: #\d+)?)?\]$")
A64_ADR = re.compile(r"(x\d+), #(0x[0-9a-f]+|\d+)$")
A64_PAGE_OFFSET = re.compile(r"(x\d+), (x\d+), #(0x[0-9a-f]+|\d+)$")
A64_LOADS = {"ldrb": (1, False), "ldrh": (2, False), "ldrsb": (1, True), "ldrsh": (2, True), "ldrsw": (4, True), "ldr": (4, False)}
COPIES = {"mov", "movzx", "movsx", "movsxd", "uxtb", "uxth", "sxtw"}
# What follows the comparison of an index with n: entries beyond n.
LIMITS = {"ja": 1, "jbe": 1, "jae": 0, "jb": 0, "b.hi": 1, "b.ls": 1, "b.hs": 0, "b.lo": 0}

_X86 = {"a": "ax", "b": "bx", "c": "cx", "d": "dx"}
FAMILIES = {
    **{name: f"r{pair}" for letter, pair in _X86.items() for name in (f"r{pair}", f"e{pair}", pair, f"{letter}l")},
    **{name: f"r{pair}" for pair in ("si", "di", "bp") for name in (f"r{pair}", f"e{pair}", pair, f"{pair}l")},
    **{f"r{n}{suffix}": f"r{n}" for n in range(8, 16) for suffix in ("", "d", "w", "b")},
    **{f"{letter}{n}": f"x{n}" for n in range(31) for letter in "xw"},
}


def _family(register: str) -> str:
    """The whole register of a part; a place in memory is its text without its size."""
    return FAMILIES.get(register) or register.rpartition(" ptr ")[2]


def _address(instruction: Instruction, match: re.Match[str]) -> int:
    if "sign" in match.groupdict():
        return instruction[0] + instruction[1] + int(match["sign"] + match["offset"], 0)
    return int(match[2], 0)
