"""The code of a whole file: functions analysed together with the pieces that belong to them, and who never returns found out."""

from __future__ import annotations

from array import array
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from multiprocessing import get_context
from typing import TYPE_CHECKING

from sframegen.code import callees
from sframegen.code.study import File, share, study
from sframegen.elf import PF_X, PT_LOAD

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from sframegen.code.state import State
    from sframegen.code.study import Callee, Entries, Found, Unit
    from sframegen.elf import ElfFile

MAX_PASSES = 5
TASK_BYTES = 1 << 17  # code that a process gets at a time
SAMPLE = 32  # of so many functions one is looked at first: those that never return and are called everywhere are known then
LAST_CALLS = 50  # of so many calls one that ends a function tells that it never returns


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


def survey(elf: ElfFile, ranges: Sequence[tuple[int, int]], entries: Collection[int], jobs: int = 1) -> Survey:
    """Analyses the code in `ranges` ((start, end), ascending, without overlaps; each a function or a piece of one).

    `entries`: where functions are known to begin. More are found: what is called, and what pointers in code or data lead to. A
    range that is no function of its own, as compilers' `.cold` parts, is analysed together with those that jump into it.
    """
    file = File(elf, ranges)
    share(file)
    return _Passes(file, set(entries), _pointers(elf, set(file.starts)), jobs).run()


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
    def __init__(self, file: File, known: set[int], pointed_at: set[int], jobs: int) -> None:
        self.file = file
        self.known = known
        self.pointed_at = pointed_at
        self.entries: set[int] = set()
        self.jobs = jobs
        self.found: dict[Unit, Found] = {}
        self.result = Survey()

    def run(self) -> Survey:
        entry = self.file.isa.entry
        alone: dict[Unit, Entries] = {(number,): {start: entry} for number, start in enumerate(self.file.starts)}
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

    def _study(self, units: dict[Unit, Entries]) -> None:
        self.result.passes.append(sum(self._size(unit) for unit in units))
        tasks = list(self._tasks(units))
        if self.jobs == 1 or len(tasks) == 1:
            batches: Iterable[list[Found]] = map(study, tasks)
            self.found.update((found.unit, found) for batch in batches for found in batch)
            return
        with ProcessPoolExecutor(self.jobs, get_context("fork")) as pool:
            self.found.update((found.unit, found) for batch in pool.map(study, tasks) for found in batch)

    def _size(self, unit: Unit) -> int:
        return sum(end - start for start, end in (self.file.ranges[number] for number in unit))

    def _tasks(self, units: dict[Unit, Entries]) -> Iterator[list[tuple[Unit, Entries]]]:
        task: list[tuple[Unit, Entries]] = []
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

    def _units(self) -> dict[Unit, Entries]:
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
        calls: Counter[Callee] = Counter()
        last: Counter[Callee] = Counter()
        owner: dict[int, Found] = {}
        for found in self.found.values():
            calls.update(found.calls)
            last.update(found.last_calls)
            owner.update((self.file.starts[number], found) for number in found.unit)
        returning = {id(found) for found in self.found.values() if found.returns or found.contradiction is not None}
        callers: dict[int, list[Found]] = {}
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

    def _result(self, units: dict[Unit, Entries]) -> Survey:
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
