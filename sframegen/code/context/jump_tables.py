"""Finds the targets of an indirect jump, if the code before it shows its jump table in read-only memory.

The machine's `patterns` (JumpTables, isa/instruction_set.py) find the table's address and the form of its entries; the comparison
of the index before the load gives their number. The targets of jumps through a register without a table are the labels that the
function puts into the register.
"""

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

STEPS_PER_INSTRUCTION = 16  # a limit, so that hostile tables do not take quadratic time
MAX_STEPS = 64  # instructions that are examined before a jump
MAX_ENTRIES = 1 << 12
MAX_UNUSED = 3  # entries before the first one that is used, in tables whose entries count from a label
MIN_WIDTH = 4  # bytes: an entry of this width hardly leads into the function by chance


class ReadOnlyMemory:
    """The memory of a file that is read-only after relocation, which does not change distances between addresses of the file."""

    def __init__(self, elf: ElfFile) -> None:
        self.elf = elf
        self.ranges = [
            (load.p_vaddr, load.p_vaddr + load.p_filesz)
            for load in elf.segments
            if (load.p_type == PT.LOAD and not load.p_flags & PF.W) or load.p_type == PT.GNU_RELRO
        ]

    def read(self, address: int, size: int) -> bytes | None:
        """Return the bytes at an address, fewer if the read-only range ends; None if the address is in no such range."""
        for start, end in self.ranges:
            if start <= address < end:
                return bytes(self.elf.at(address, min(size, end - address)))
        return None


class JumpTableFinder:
    """Finds the jump tables of one piece of code. `read`: (address, size) -> bytes of read-only memory, or None."""

    def __init__(self, piece: DecodedCode, read: Callable[[int, int], bytes | None]) -> None:
        self.piece = piece
        self.patterns = piece.frames.isa.jump_tables
        self.read = read
        self.steps_left = STEPS_PER_INSTRUCTION * (len(piece) + MAX_ENTRIES)
        self.labels: dict[str, Sequence[int]] = {}
        self.sources: dict[int, int] = {}
        self.table_addresses: list[int] | None = None  # addresses of all tables; None before they are needed
        for branch in piece.point_numbers(Flow.BRANCH | DIRECT):
            self.sources.setdefault(piece.addresses[branch], piece.start + piece.at[branch])

    def find_targets(self, point: Point, begins: Callable[[int], bool], is_code: Callable[[int], bool]) -> Sequence[int]:
        """Return all targets of an indirect jump; none if there is no table, or an entry does not lead to code.

        `begins`: true if an instruction of the function begins at an address; `is_code`: true if another function has it.
        If the code does not show its length, a table ends before the first entry that does not lead into the function, or where
        the function's next table begins. Assembly may address a table by an entry before the first used one: those are left out.
        """
        number = self.piece.number_at(point.address)
        operands = self.piece.instruction(number)[3]
        self.steps_left -= 1
        table = self.patterns.find(self, number, operands)
        if table is None:
            return self._find_labels(operands, begins)
        count = self._find_entry_count(table)
        if count:
            found = sorted(set(self._read_entries(table, count))) if count <= MAX_ENTRIES else ()
            return found if self.steps_left >= 0 and all(begins(target) or is_code(target) for target in found) else ()
        if table.width < MIN_WIDTH and not table.certain:
            return ()
        entries = islice(self._read_entries(table), self._max_entry_count(table))
        first = next(filter(begins, islice(entries, 1 + (MAX_UNUSED if table.base else 0))), None)
        found = [] if first is None else [first, *takewhile(begins, entries)]
        return sorted(set(found)) if len(found) > 1 else ()

    def _max_entry_count(self, table: JumpTable) -> int:
        """Return the most entries of a table of unknown length: those before the next table of the piece."""
        if table.width >= MIN_WIDTH:
            return MAX_ENTRIES
        if self.table_addresses is None:
            jumps = self.piece.point_numbers(Flow.INDIRECT)
            numbers = [self.piece.number_at(self.piece.start + self.piece.at[jump]) for jump in jumps]
            found = [self.patterns.find(self, number, self.piece.instruction(number)[3]) for number in numbers]
            self.table_addresses = sorted(one.address for one in found if one is not None)
        after = bisect_right(self.table_addresses, table.address)
        return (self.table_addresses[after] - table.address) // table.width if after < len(self.table_addresses) else MAX_ENTRIES

    def _find_labels(self, register: str, begins: Callable[[int], bool]) -> Sequence[int]:
        """Return the labels of the function that it puts into a register; none if it ever puts anything else there."""
        patterns = self.patterns
        if patterns.label is None or register not in patterns.label_registers:
            return ()
        if register not in self.labels:
            found = set(self._written_labels(register))
            known = sorted(one for one in found if one is not None and begins(one))
            self.labels[register] = known if len(known) == len(found) and self.steps_left >= 0 else ()
        return self.labels[register]

    def _written_labels(self, register: str) -> Iterator[int | None]:
        """Yield the labels that instructions write into a register, None for anything else."""
        patterns = self.patterns
        for number in range(len(self.piece)):
            self.steps_left -= 1
            instruction = self.piece.instruction(number)
            mnemonic, parts = instruction[2], [patterns.whole_register(one) for one in instruction[3].split(", ")]
            if register in parts[1:2] and mnemonic.startswith(patterns.write_second):
                yield None
            elif parts[0] == register and mnemonic not in patterns.keep_first:
                yield patterns.label(instruction) if patterns.label else None

    def _read_entries(self, table: JumpTable, count: int = 0) -> Iterator[int]:
        """Return the targets of `count` entries, none if read-only memory has fewer; without a count, of all possible entries."""
        data = self.read(table.address, table.width * (count or MAX_ENTRIES)) or b""
        available = len(data) // table.width
        for number in range(available if available >= count else 0):
            self.steps_left -= 1
            if self.steps_left < 0:
                return
            entry = int.from_bytes(data[number * table.width : (number + 1) * table.width], "little", signed=table.signed)
            yield (table.base + (entry << table.shift)) & 0xFFFFFFFFFFFFFFFF

    def walk_back(self, number: int) -> Iterator[tuple[int, Instruction]]:
        for _ in range(MAX_STEPS):
            number -= 1
            self.steps_left -= 1
            if number < 0 or self.steps_left < 0:
                return
            instruction = self.piece.instruction(number)
            if instruction[2].rpartition(" ")[2] in self.patterns.flow_ends:
                source = self.sources.get(instruction[0] + instruction[1])
                if source is None:
                    return
                number = self.piece.number_at(source)
                instruction = self.piece.instruction(number)
            yield number, instruction

    def scan_back(self, number: int) -> Iterator[Instruction]:
        for index in range(number - 1, -1, -1):
            self.steps_left -= 1
            if self.steps_left < 0:
                return
            yield self.piece.instruction(index)

    # -- how the length of a table is found

    def _find_entry_count(self, table: JumpTable) -> int:
        """Return the number of entries, from the comparison before the load from the table; 0 if none is found."""
        whole_register = self.patterns.whole_register
        index, entries_beyond = whole_register(table.counter), None
        for _, (_, _, mnemonic, operands) in self.walk_back(table.load):
            parts = operands.split(", ")
            if mnemonic in self.patterns.limit_branches:
                entries_beyond = self.patterns.limit_branches[mnemonic]
            elif (
                mnemonic in self.patterns.compares
                and len(parts) == 2
                and entries_beyond is not None
                and whole_register(parts[0]) == index
            ):
                number = parts[1].lstrip("#")
                return int(number, 0) + entries_beyond if number[:1].isdigit() else 0
            elif mnemonic == "and" and whole_register(parts[0]) == index and parts[-1].lstrip("#")[:1].isdigit():
                return int(parts[-1].lstrip("#"), 0) + 1
            elif mnemonic.startswith(self.patterns.selects) and whole_register(parts[0]) == index:
                return 0
            elif mnemonic in self.patterns.copies and whole_register(parts[0]) == index:
                index = whole_register(parts[1])
        return 0
