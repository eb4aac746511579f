"""Finds the targets of an indirect jump, if the code before it shows a jump table in read-only memory and its length."""

from __future__ import annotations

from bisect import bisect_right
from itertools import islice, takewhile
from typing import TYPE_CHECKING

from sframegen.code.isa.effects import DIRECT, Flow, Point
from sframegen.elf.records import PF, PT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from sframegen.code.decoding.decoded_code import DecodedCode
    from sframegen.code.isa.disassembly import Instruction
    from sframegen.code.isa.instruction_set import JumpTable
    from sframegen.elf.file import ElfFile

STEPS = 16  # limit for each instruction of a piece, so that hostile tables do not take quadratic time
MAX_STEPS = 64  # instructions that are examined before a jump
MAX_ENTRIES = 1 << 12
MAX_UNUSED = 3  # entries before the first that is used, where they count from a label
MIN_WIDTH = 4  # bytes of an entry that would hardly lead into the function by chance


class ReadOnly:
    """The read-only memory of a file, also what is read-only when it is relocated: offsets between places in the file stay."""

    def __init__(self, elf: ElfFile) -> None:
        self.elf = elf
        self.ranges = [
            (load.p_vaddr, load.p_vaddr + load.p_filesz)
            for load in elf.segments
            if (load.p_type == PT.LOAD and not load.p_flags & PF.W) or load.p_type == PT.GNU_RELRO
        ]

    def read(self, address: int, size: int) -> bytes | None:
        """Return the bytes at an address, fewer if the range ends; None if there are none."""
        for start, end in self.ranges:
            if start <= address < end:
                return bytes(self.elf.at(address, min(size, end - address)))
        return None


class Tables:
    """The jump tables of one piece. `read`: (address, size) -> bytes of read-only memory, or None."""

    def __init__(self, piece: DecodedCode, read: Callable[[int, int], bytes | None]) -> None:
        self.piece = piece
        self.form = piece.frames.isa.jump_tables
        self.read = read
        self.steps = STEPS * (len(piece) + MAX_ENTRIES)
        self.labels: dict[str, Sequence[int]] = {}
        self.sources: dict[int, int] = {}
        self.addresses: list[int] | None = None  # addresses of all tables; None before they are needed
        for branch in piece.numbers_of(Flow.BRANCH | DIRECT):
            self.sources.setdefault(piece.addresses[branch], piece.start + piece.at[branch])

    def targets(self, point: Point, begins: Callable[[int], bool], is_code: Callable[[int], bool]) -> Sequence[int]:
        """Return all targets of an indirect jump; none if there is no table, or an entry does not lead to code.

        `begins`: true if an instruction of the function begins at an address; `is_code`: true if any function has it.
        Without a visible bound, a table ends before the first entry that does not lead into the function, or where the next one of
        the function begins. Assembly counts from an entry before the first, where that is never used: those are left out.
        """
        number = self.piece.number(point.address)
        operands = self.piece.instruction(number)[3]
        self.steps -= 1
        table = self.form.find(self, number, operands)
        if table is None:
            return self._labels(operands, begins)
        count = self._bound(table)
        if count:
            found = sorted(set(self._entries(table, count))) if count <= MAX_ENTRIES else ()
            return found if self.steps >= 0 and all(begins(target) or is_code(target) for target in found) else ()
        if table.width < MIN_WIDTH and not table.certain:
            return ()
        entries = islice(self._entries(table), self._room(table))
        first = next(filter(begins, islice(entries, 1 + (MAX_UNUSED if table.base else 0))), None)
        found = [] if first is None else [first, *takewhile(begins, entries)]
        return sorted(set(found)) if len(found) > 1 else ()

    def _room(self, table: JumpTable) -> int:
        """Return the most entries of a table without a visible bound: up to the next one of the piece."""
        if table.width >= MIN_WIDTH:
            return MAX_ENTRIES
        if self.addresses is None:
            jumps = self.piece.numbers_of(Flow.INDIRECT)
            numbers = [self.piece.number(self.piece.start + self.piece.at[jump]) for jump in jumps]
            found = [self.form.find(self, number, self.piece.instruction(number)[3]) for number in numbers]
            self.addresses = sorted(one.address for one in found if one is not None)
        after = bisect_right(self.addresses, table.address)
        return (self.addresses[after] - table.address) // table.width if after < len(self.addresses) else MAX_ENTRIES

    def _labels(self, register: str, begins: Callable[[int], bool]) -> Sequence[int]:
        """Return the places of the function that are all that it ever puts into a register; none if it puts anything else there."""
        form = self.form
        if form.label is None or register not in form.explicit:
            return ()
        if register not in self.labels:
            found = set(self._written(register))
            known = sorted(one for one in found if one is not None and begins(one))
            self.labels[register] = known if len(known) == len(found) and self.steps >= 0 else ()
        return self.labels[register]

    def _written(self, register: str) -> Iterator[int | None]:
        """Yield the places that instructions write into a register, None for anything else."""
        form = self.form
        for number in range(len(self.piece)):
            self.steps -= 1
            instruction = self.piece.instruction(number)
            mnemonic, parts = instruction[2], [form.whole(one) for one in instruction[3].split(", ")]
            if register in parts[1:2] and mnemonic.startswith(form.second):
                yield None
            elif parts[0] == register and mnemonic not in form.reads:
                yield form.label(instruction) if form.label else None

    def _entries(self, table: JumpTable, count: int = 0) -> Iterator[int]:
        """Return the targets of `count` entries, none if read-only memory has fewer; without a count, of all possible entries."""
        data = self.read(table.address, table.width * (count or MAX_ENTRIES)) or b""
        there = len(data) // table.width
        for number in range(there if there >= count else 0):
            self.steps -= 1
            if self.steps < 0:
                return
            entry = int.from_bytes(data[number * table.width : (number + 1) * table.width], "little", signed=table.signed)
            yield (table.base + (entry << table.shift)) & 0xFFFFFFFFFFFFFFFF

    def before(self, number: int) -> Iterator[tuple[int, Instruction]]:
        """Return the instructions that run before one, the last first, along a path that leads there."""
        for _ in range(MAX_STEPS):
            number -= 1
            self.steps -= 1
            if number < 0 or self.steps < 0:
                return
            instruction = self.piece.instruction(number)
            if instruction[2].rpartition(" ")[2] in self.form.ends:
                source = self.sources.get(instruction[0] + instruction[1])
                if source is None:
                    return
                number = self.piece.number(source)
                instruction = self.piece.instruction(number)
            yield number, instruction

    def all_before(self, number: int) -> Iterator[Instruction]:
        """Return the instructions that stand before one, the last first."""
        for place in range(number - 1, -1, -1):
            self.steps -= 1
            if self.steps < 0:
                return
            yield self.piece.instruction(place)

    # -- how the length of a table is found

    def _bound(self, table: JumpTable) -> int:
        """Return the number of entries, from the comparison before the load from the table; 0 if none is found."""
        index, more = self.form.whole(table.counter), None
        for _, (_, _, mnemonic, operands) in self.before(table.before):
            parts = operands.split(", ")
            if mnemonic in self.form.limits:
                more = self.form.limits[mnemonic]
            elif mnemonic in self.form.compares and len(parts) == 2 and more is not None and self.form.whole(parts[0]) == index:
                number = parts[1].lstrip("#")
                return int(number, 0) + more if number[:1].isdigit() else 0
            elif mnemonic == "and" and self.form.whole(parts[0]) == index and parts[-1].lstrip("#")[:1].isdigit():
                return int(parts[-1].lstrip("#"), 0) + 1
            elif mnemonic.startswith(self.form.chooses) and self.form.whole(parts[0]) == index:
                return 0
            elif mnemonic in self.form.copies and self.form.whole(parts[0]) == index:
                index = self.form.whole(parts[1])
        return 0
