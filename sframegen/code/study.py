"""One function of a file, with the pieces that belong to it: decoded, analysed, and what it tells of others."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from cfi.errors import FormatError
from sframegen.abi import abi_of
from sframegen.code import callees
from sframegen.code.analysis import Surroundings, analyse
from sframegen.code.isa import isa_of
from sframegen.code.jumptables import ReadOnly, Tables
from sframegen.code.pieces import decode
from sframegen.code.stubs import LONGEST, slot_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from sframegen.code.analysis import Analysis
    from sframegen.code.effects import Point
    from sframegen.code.pieces import Piece
    from sframegen.code.state import State
    from sframegen.elf import ElfFile

MAX_UNIT = 1 << 20  # bytes: half a million blocks of a kilobyte each are kept at worst; real functions have some hundred kilobytes
NUMBER = r"(0x[0-9a-f]+|\d+)$"
TAKES = {
    "lea": re.compile(r"\w+, \[rip ([+-]) (0x[0-9a-f]+|\d+)\]$"),
    "mov": re.compile(rf"\w+, {NUMBER}"),
    "adr": re.compile(rf"(x\d+), #{NUMBER}"),
    "adrp": re.compile(rf"(x\d+), #{NUMBER}"),
    "add": re.compile(rf"x\d+, (x\d+), #{NUMBER}"),
}


Unit: TypeAlias = tuple[int, ...]  # numbers of ranges
Entries: TypeAlias = "dict[int, State]"  # where a unit is entered, with which state
Callee: TypeAlias = "int | str | None"  # an address, or a name where that is all that is known; None: anyone


class Found(NamedTuple):
    """What came of one unit."""

    unit: Unit
    rows: list[tuple[int, int, int]]  #: (start, end, state's number in the file's list)
    states: list[State]
    exits: list[tuple[int, int, bool]]  #: (source, target, whether the state is that of an entry)
    calls: Counter[Callee]
    last_calls: Counter[Callee]
    returns: bool
    taken: set[int]
    tails: set[Callee]
    contradiction: int | None
    by_table: frozenset[int] | set[int] = frozenset()  #: other ranges that jump tables lead to


class File:
    """What workers share: they are forked from the process that made it."""

    def __init__(self, elf: ElfFile, ranges: Sequence[tuple[int, int]]) -> None:
        self.elf = elf
        self.abi = abi_of(elf)
        self.isa = isa_of(self.abi)
        self.ranges = ranges
        self.starts = [start for start, _ in ranges]
        self.imports = callees.imports(elf)
        self.defined = {symbol.name: symbol.address for symbol in elf.functions()}
        self.names = {address: name for name, address in self.defined.items() if callees.never_returns(name)}
        self.never_return: set[int | str] = set()
        self.stubs: dict[int, int | str | None] = {}
        self.read_only = ReadOnly(elf)

    def number(self, address: int) -> int | None:
        """Of the range that an address is in."""
        number = bisect_right(self.starts, address) - 1
        return number if number >= 0 and address < self.ranges[number][1] else None

    def callee(self, target: int | None, slot: int | None) -> Callee:
        """An address, or a name where that is all that is known; None: anyone."""
        if target is None:
            return self._named(self.imports.get(slot)) if slot is not None else None
        if self.number(target) is None or self.ranges[self.number(target) or 0][0] != target:
            if target not in self.stubs:
                self.stubs[target] = self._stub(target)
            return self.stubs[target]
        return target

    def _stub(self, target: int) -> int | str:
        for size in (LONGEST, 16):
            try:
                slot = slot_of(decode(self.elf.at(target, size), target, self.isa))
            except FormatError:
                continue
            name = self.imports.get(slot) if slot is not None else None
            return self._named(name) or target
        return target

    def _named(self, name: str | None) -> Callee:
        return self.defined.get(name, name) if name else None

    def returns(self, target: int | None, slot: int | None) -> bool:
        callee = self.callee(target, slot)
        return callee not in self.never_return and not self.known_by_name(callee)

    def known_by_name(self, callee: Callee) -> bool:
        """Whether the name alone tells that it never returns."""
        return callee in self.names or (isinstance(callee, str) and callees.never_returns(callee))


_file: File  # the one that forked workers inherit


def share(file: File) -> None:
    """Makes the file the one that `study` works on, here and in processes forked from now on."""
    global _file  # noqa: PLW0603 - too large to be sent with each task
    _file = file


def study(task: list[tuple[Unit, Entries]]) -> list[Found]:
    return [study_unit(unit, entries) for unit, entries in task]


def study_unit(unit: Unit, entries: Entries) -> Found:
    file = _file
    if sum(end - start for start, end in (file.ranges[number] for number in unit)) > MAX_UNIT:
        return Found(unit, [], [], [], Counter(), Counter(), True, set(), set(), None)
    pieces = []
    for number in unit:
        start, end = file.ranges[number]
        pieces.append(decode(file.elf.at(start, end - start), start, file.isa))
    tables: dict[int, Tables] = {}

    outside: set[int] = set()

    def table(piece: Piece, point: Point, begins: Callable[[int], bool]) -> Sequence[int]:
        if piece.start not in tables:
            tables[piece.start] = Tables(piece, file.read_only.read)
        targets = tables[piece.start].targets(point, begins, lambda target: file.number(target) not in (None, *unit))
        outside.update(target for target in targets if not begins(target))
        return targets

    analysis = analyse(pieces, entries, file.isa, Surroundings(file.returns, table))
    return _found(unit, analysis, pieces)._replace(by_table=outside)


def _found(unit: Unit, analysis: Analysis, pieces: list[Piece]) -> Found:
    file = _file
    numbers: dict[State, int] = {}
    rows = [(start, end, numbers.setdefault(state, len(numbers))) for start, end, state in analysis.rows]
    entry = file.isa.entry
    exits = [(one.source, one.target, (one.state.sp, one.state.fp) == (entry.sp, entry.fp)) for one in analysis.exits]
    taken = {address for piece in pieces for address in _taken(piece) if file.number(address) is not None}
    calls = Counter(file.callee(*call) for call in analysis.calls)
    last = Counter(file.callee(*call) for call in analysis.last_calls)
    tails = {file.callee(target, None) for _, target, _ in exits}
    return Found(
        unit,
        rows,
        list(numbers),
        exits,
        calls,
        last,
        analysis.returns or bool(analysis.jumps),
        taken,
        tails,
        analysis.contradiction,
    )


def _taken(piece: Piece) -> Iterator[int]:
    """Addresses that instructions put into registers."""
    pages: dict[str, int] = {}
    for address, size, mnemonic, operands in piece.instructions:
        shape = TAKES.get(mnemonic)
        match = shape.match(operands) if shape else None
        if match is None:
            continue
        if mnemonic == "lea":
            yield address + size + int(match[1] + match[2], 0)
        elif mnemonic == "mov":
            yield int(match[1], 0)
        elif mnemonic == "add":
            yield pages.get(match[1], 0) + int(match[2], 0)
        else:
            pages[match[1]] = int(match[2], 0)
            yield pages[match[1]]
