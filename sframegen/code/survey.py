"""The code of a whole file: functions analysed together with the pieces that belong to them, and who never returns found out."""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from multiprocessing import get_context
from typing import TYPE_CHECKING, NamedTuple

from cfi.errors import FormatError
from sframegen.abi import abi_of
from sframegen.code import callees
from sframegen.code.analysis import Surroundings, analyse
from sframegen.code.isa import isa_of
from sframegen.code.jumptables import Tables
from sframegen.code.pieces import decode
from sframegen.code.stubs import LONGEST, slot_of
from sframegen.elf import PF_W, PF_X, PT_LOAD

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from sframegen.code.analysis import Analysis
    from sframegen.code.effects import Point
    from sframegen.code.pieces import Piece
    from sframegen.code.state import State
    from sframegen.elf import ElfFile

MAX_PASSES = 5
TASK_BYTES = 1 << 17  # code that a process gets at a time
MAX_UNIT = 1 << 22  # bytes: instructions of 350 bytes each are kept for all of it; real functions have some hundred kilobytes
SAMPLE = 32  # of so many functions one is looked at first: those that never return and are called everywhere are known then
LAST_CALLS = 50  # of so many calls one that ends a function tells that it never returns
LEA = re.compile(r"\w+, \[rip ([+-]) (0x[0-9a-f]+|\d+)\]$")

Unit = "tuple[int, ...]"  # numbers of ranges


class Found(NamedTuple):
    """What came of one unit."""

    unit: tuple[int, ...]
    rows: list[tuple[int, int, int]]  #: (start, end, state's number in the file's list)
    states: list[State]
    exits: list[tuple[int, int, bool]]  #: (source, target, whether the state is that of an entry)
    calls: Counter[int | str | None]
    last_calls: Counter[int | str | None]
    returns: bool
    taken: set[int]
    tails: set[int | str | None]
    contradiction: int | None
    by_table: frozenset[int] | set[int] = frozenset()  #: other ranges that jump tables lead to


@dataclass
class Survey:
    """What is proven of a file's code: rows by columns, ascending, each with the number of its state."""

    start: array[int] = field(default_factory=lambda: array("Q"))
    end: array[int] = field(default_factory=lambda: array("Q"))
    state: array[int] = field(default_factory=lambda: array("I"))
    states: list[State] = field(default_factory=list)
    never_return: set[int | str] = field(default_factory=set)
    contradictions: list[int] = field(default_factory=list)
    passes: list[int] = field(default_factory=list)
    without_entry: int = 0


class _File:
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
        self.read_only = [
            (load.p_vaddr, load.p_vaddr + load.p_filesz)
            for load in elf.segments
            if load.p_type == PT_LOAD and not load.p_flags & PF_W
        ]

    def number(self, address: int) -> int | None:
        """Of the range that an address is in."""
        number = bisect_right(self.starts, address) - 1
        return number if number >= 0 and address < self.ranges[number][1] else None

    def callee(self, target: int | None, slot: int | None) -> int | str | None:
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

    def _named(self, name: str | None) -> int | str | None:
        return self.defined.get(name, name) if name else None

    def returns(self, target: int | None, slot: int | None) -> bool:
        callee = self.callee(target, slot)
        return callee not in self.never_return and not self.known_by_name(callee)

    def known_by_name(self, callee: int | str | None) -> bool:
        """Whether the name alone tells that it never returns."""
        return callee in self.names or (isinstance(callee, str) and callees.never_returns(callee))

    def read(self, address: int, size: int) -> bytes | None:
        """Bytes of memory that nothing writes."""
        if not any(start <= address and address + size <= end for start, end in self.read_only):
            return None
        return bytes(self.elf.at(address, size))


_file: _File


def _study(task: list[tuple[tuple[int, ...], dict[int, State]]]) -> list[Found]:
    return [_study_unit(unit, entries) for unit, entries in task]


def _study_unit(unit: tuple[int, ...], entries: dict[int, State]) -> Found:
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
            tables[piece.start] = Tables(piece, file.read)
        targets = tables[piece.start].targets(point, begins, lambda target: file.number(target) not in (None, *unit))
        outside.update(target for target in targets if not begins(target))
        return targets

    analysis = analyse(pieces, entries, file.isa, Surroundings(file.returns, table))
    return _found(unit, analysis, pieces)._replace(by_table=outside)


def _found(unit: tuple[int, ...], analysis: Analysis, pieces: list[Piece]) -> Found:
    file = _file
    numbers: dict[State, int] = {}
    rows = [(start, end, numbers.setdefault(state, len(numbers))) for start, end, state in analysis.rows]
    entry = file.isa.entry
    exits = [(one.source, one.target, (one.state.sp, one.state.fp) == (entry.sp, entry.fp)) for one in analysis.exits]
    taken = {address for piece in pieces for address in _taken(piece) if (number := file.number(address)) is not None}
    calls = Counter(file.callee(*call) for call in analysis.calls)
    last = Counter(file.callee(*call) for call in analysis.last_calls)
    tails = {file.callee(target, None) for _, target, _ in exits}
    return Found(
        unit, rows, list(numbers), exits, calls, last, analysis.returns or bool(analysis.jumps), taken, tails, analysis.contradiction
    )


def _taken(piece: Piece) -> Iterator[int]:
    """Addresses that instructions put into registers."""
    pages: dict[str, int] = {}
    for address, size, mnemonic, operands in piece.instructions:
        if mnemonic == "lea":
            match = LEA.match(operands)
            if match:
                yield address + size + int(match[1] + match[2], 0)
        elif mnemonic == "adrp" or mnemonic == "adr":
            register, _, number = operands.partition(", #")
            pages[register] = int(number, 0)
            if mnemonic == "adr":
                yield int(number, 0)
        elif mnemonic == "add" and ", #" in operands:
            _, source, number = (*operands.split(", ", 2), "")[:3]
            if source in pages and number[1:].replace("x", "0").isalnum() and "," not in number:
                yield pages[source] + int(number[1:], 0)
        elif mnemonic == "mov" and ", 0x" in operands:
            number = operands.rpartition(", ")[2]
            if "[" not in operands:
                yield int(number, 0)


def survey(elf: ElfFile, ranges: Sequence[tuple[int, int]], entries: Collection[int], jobs: int = 1) -> Survey:
    """Analyses the code in `ranges` ((start, end), ascending, without overlaps; each a function or a piece of one).

    `entries`: where functions are known to begin. More are found: what is called, and what pointers in code or data lead to. A
    range that is no function of its own, as compilers' `.cold` parts, is analysed together with those that jump into it.
    """
    global _file  # noqa: PLW0603 - what forked workers inherit
    _file = _File(elf, ranges)
    return _Passes(_file, set(entries), _pointers(elf, set(_file.starts)), jobs).run()


def _pointers(elf: ElfFile, starts: set[int]) -> set[int]:
    """Starts that words of data have as their values."""
    found = callees.pointed_at(elf) & starts
    for load in elf.segments:
        if load.p_type == PT_LOAD and not load.p_flags & PF_X:
            raw = elf.slice(load.p_offset, load.p_filesz, "PT_LOAD")
            skip = -load.p_vaddr % 8
            words = array("Q")
            words.frombytes(raw[skip : skip + (len(raw) - skip) // 8 * 8] if len(raw) > skip else b"")
            found |= starts.intersection(words)
    return found


class _Passes:
    def __init__(self, file: _File, known: set[int], pointed_at: set[int], jobs: int) -> None:
        self.file = file
        self.known = known
        self.pointed_at = pointed_at
        self.entries: set[int] = set()
        self.jobs = jobs
        self.found: dict[tuple[int, ...], Found] = {}
        self.result = Survey()

    def run(self) -> Survey:
        entry = self.file.isa.entry
        alone = {(number,): {start: entry} for number, start in enumerate(self.file.starts)}
        self._study(dict(islice(alone.items(), 0, None, SAMPLE)))
        self.file.never_return |= self._never_return()
        self._study(alone)
        self._entries()
        done = alone
        changed: set[int | str] = set()
        for _ in range(MAX_PASSES):
            units = self._units()
            self.found = {unit: found for unit, found in self.found.items() if unit in units}
            changed = self._never_return() - self.file.never_return
            self.file.never_return |= changed
            stale = {
                unit: entries
                for unit, entries in units.items()
                if done.get(unit) != entries or self._goes_on(self.found[unit], changed)
            }
            if not stale:
                break
            self._study(stale)
            done.update(stale)
            self._entries()
        else:
            for unit in stale:
                self.found.pop(unit, None)
        return self._result(units)

    @staticmethod
    def _goes_on(found: Found, never_return: set[int | str]) -> bool:
        """Whether code behind a call of one of these was taken to be reached."""
        return any(found.calls[callee] > found.last_calls[callee] for callee in never_return.intersection(found.calls))

    def _study(self, units: dict[tuple[int, ...], dict[int, State]]) -> None:
        self.result.passes.append(sum(self._size(unit) for unit in units))
        tasks = list(self._tasks(units))
        if self.jobs == 1 or len(tasks) == 1:
            batches: Iterable[list[Found]] = map(_study, tasks)
            self.found.update((found.unit, found) for batch in batches for found in batch)
            return
        with ProcessPoolExecutor(self.jobs, get_context("fork")) as pool:
            self.found.update((found.unit, found) for batch in pool.map(_study, tasks) for found in batch)

    def _size(self, unit: tuple[int, ...]) -> int:
        return sum(end - start for start, end in (self.file.ranges[number] for number in unit))

    def _tasks(self, units: dict[tuple[int, ...], dict[int, State]]) -> Iterator[list[tuple[tuple[int, ...], dict[int, State]]]]:
        task: list[tuple[tuple[int, ...], dict[int, State]]] = []
        size = 0
        for unit, entries in units.items():
            task.append((unit, entries))
            size += self._size(unit)
            if size > TASK_BYTES:
                yield task
                task, size = [], 0
        if task:
            yield task

    def _entries(self) -> None:
        """Where functions begin: what is called, and what pointers lead to, but for those that are a jump table."""
        for found in self.found.values():
            self.known.update(callee for callee in found.calls if isinstance(callee, int))
            self.known.update(filter(self._starts, found.taken))
            self.pointed_at -= found.by_table
        self.entries = self.known | self.pointed_at

    def _starts(self, address: int) -> bool:
        number = self.file.number(address)
        return number is not None and self.file.starts[number] == address

    def _units(self) -> dict[tuple[int, ...], dict[int, State]]:
        """Ranges that belong together, because one jumps into another where no function begins; with where they are entered."""
        parent = list(range(len(self.file.starts)))

        def root(number: int) -> int:
            while parent[number] != number:
                parent[number] = parent[parent[number]]
                number = parent[number]
            return number

        for found in self.found.values():
            for source, target, _ in found.exits:
                number = self.file.number(target)
                if number is not None and target not in self.entries:
                    parent[root(number)] = root(self.file.number(source) or 0)
            for number in found.unit[1:]:
                parent[root(number)] = root(found.unit[0])
        members: dict[int, list[int]] = {}
        for number in range(len(parent)):
            members.setdefault(root(number), []).append(number)
        inside: dict[int, list[int]] = {}
        for address in self.entries:
            number = self.file.number(address)
            if number is not None:
                inside.setdefault(number, []).append(address)
        entry = self.file.isa.entry
        return {
            tuple(numbers): {address: entry for number in numbers for address in inside.get(number, ())}
            for numbers in members.values()
        }

    def _never_return(self) -> set[int | str]:
        """Functions no path of which returns; and those that are called as the last thing of a function."""
        calls: Counter[int | str | None] = Counter()
        last: Counter[int | str | None] = Counter()
        owner: dict[int, Found] = {}
        for found in self.found.values():
            calls.update(found.calls)
            last.update(found.last_calls)
            owner.update((self.file.starts[number], found) for number in found.unit)
        returning = {id(found) for found in self.found.values() if found.returns or found.contradiction is not None}
        callers: dict[int, list[Found]] = {}
        work = []
        for found in self.found.values():
            for tail in found.tails:
                if isinstance(tail, int) and tail in owner:
                    callers.setdefault(id(owner[tail]), []).append(found)
                elif not self.file.known_by_name(tail):
                    returning.add(id(found))
        work = [found for found in self.found.values() if id(found) in returning]
        while work:
            for caller in callers.get(id(work.pop()), ()):
                if id(caller) not in returning:
                    returning.add(id(caller))
                    work.append(caller)
        never: set[int | str] = {start for start, found in owner.items() if id(found) not in returning}
        never.update(callee for callee, count in last.items() if callee is not None and count * LAST_CALLS >= calls[callee])
        return {callee for callee in never if not self.file.known_by_name(callee)}

    def _result(self, units: dict[tuple[int, ...], dict[int, State]]) -> Survey:
        result = self.result
        numbers: dict[State, int] = {}
        rows: list[tuple[int, int, int]] = []
        for found in self.found.values():
            if not units[found.unit]:
                result.without_entry += self._size(found.unit)
                continue
            own = [numbers.setdefault(state, len(numbers)) for state in found.states]
            rows.extend((start, end, own[number]) for start, end, number in found.rows)
            if found.contradiction is not None:
                result.contradictions.append(found.contradiction)
        rows.sort()
        for start, end, number in rows:
            result.start.append(start)
            result.end.append(end)
            result.state.append(number)
        result.states = list(numbers)
        result.never_return = self.file.never_return
        return result
