"""The code of a whole file, analysed in passes until no function shows anything new about others.

A range that is not a function by itself, such as a `.cold` part, is analysed together with the ranges that jump into it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING

from sframegen.code.context import callees
from sframegen.code.context.file_context import FileContext
from sframegen.code.context.function_starts import pointed_at
from sframegen.code.context.plt import find_plt
from sframegen.code.function.function import analyse_pieces, analyse_unit
from sframegen.code.whole_file.boundaries import called, chunks, sweep
from sframegen.code.whole_file.crew import TASK_BYTES, Crew
from sframegen.code.whole_file.proof import is_credible, never_returning, proven
from sframegen.elf.ranges import Range, size_of
from sframegen.format.abi import abi_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
    from typing import TypeVar

    from sframegen.code.context.assumptions import Assumptions
    from sframegen.code.context.file_context import Callee
    from sframegen.code.function.function import Entries, Found, Unit
    from sframegen.code.isa.frame_state import State
    from sframegen.elf.file import ElfFile
    from sframegen.program.workers import Progress

    T = TypeVar("T")
    U = TypeVar("U")

MAX_PASSES = 5
MAX_CUTS = 8  # rounds: so deep may functions never return because their callees do not
SAMPLE = 32  # one in this many functions is analysed first
OFTEN = 8  # calls from the functions that are analysed first


@dataclass
class Survey:
    """The result for a file: rows as columns, ascending, each with the number of its state."""

    start: array[int] = field(default_factory=lambda: array("Q"))
    end: array[int] = field(default_factory=lambda: array("Q"))
    state: array[int] = field(default_factory=lambda: array("I"))
    states: list[State] = field(default_factory=list)
    never_return: set[int] = field(default_factory=set)
    certain: set[int] = field(
        default_factory=set
    )  #: starts of the ranges of functions that are called, or return with the entry's frame
    contradictions: list[int] = field(default_factory=list)  #: instructions that return with another frame than the entry's
    decoded_bytes: int = 0  #: in all passes


def survey(
    elf: ElfFile,
    ranges: Sequence[Range],
    entries: Collection[int],
    jobs: int = 1,
    progress: Progress | None = None,
    assumptions: Assumptions | None = None,
) -> Survey:
    """Analyse the code in `ranges` ((start, end), ascending, without overlaps; each a function or a piece of one).

    `entries`: where functions are known to begin. More are found: the targets of calls, and of pointers in code or data.
    `jobs`: processes that share the work.
    """
    stubs = find_plt(elf, abi_of(elf)).entries()
    passes = _Passes(FileContext(elf, ranges, stubs, assumptions), set(entries), Crew(jobs, progress))
    return passes.run(_alone, ranges)


def survey_silent(
    elf: ElfFile, silent: Sequence[Range], begins: set[int], stubs: set[int], jobs: int = 1, progress: Progress | None = None
) -> Survey:
    """Analyse code without known ends of functions, and return the rows of the proven functions, as proof.py defines them.

    `begins`: where functions are known to begin, there or elsewhere; `stubs`: the entries of the PLT.
    """
    crew = Crew(jobs, progress)
    context = FileContext(elf, silent, stubs)
    hints = begins | callees.pointed_at(elf)
    windows = [(at, min(end, at + TASK_BYTES)) for start, end in silent for at in range(start, end, TASK_BYTES)]
    for found in crew.share(partial(_called, context), windows, _size):
        hints |= found
    passes = _Passes(context, begins | stubs, crew, proving=True)
    return passes.run(_swept, list(chunks(silent, hints)))


# -- the work of a process


def _alone(context: FileContext, ranges: list[Range]) -> list[Found]:
    return [analyse_unit(context, (one,), (one[0],)) for one in ranges]


def _swept(context: FileContext, parts: list[Range]) -> list[Found]:
    found = []
    for start, end in parts:
        for piece, at in sweep(context, start, end):
            one = analyse_pieces(context, [piece], (piece.start,))
            reached = at is not None and one.state_at(at) is not None
            found.append(one if at is None else one._replace(overruns=(end, reached)))
            if reached:
                break  # the rest is in that instruction
    return found


def _together(context: FileContext, units: list[tuple[Unit, Entries]]) -> list[Found]:
    return [analyse_unit(context, *unit) for unit in units]


def _called(context: FileContext, ranges: list[Range]) -> set[int]:
    return {target for one in ranges for target in called(context, *one)}


def _size(one: Range) -> int:
    return one[1] - one[0]


def _left_to(found: Iterable[Found]) -> set[int]:
    """Return the addresses that these units leave to, always with an entry's frame."""
    left_to: dict[int, bool] = {}
    for one in found:
        for exit_ in one.exits:
            left_to[exit_.target] = left_to.get(exit_.target, True) and exit_.as_entered
    return {target for target, as_entered in left_to.items() if as_entered}


class _Passes:
    """The passes. `proving`: a function counts only if it proves itself."""

    def __init__(self, context: FileContext, known: set[int], crew: Crew, *, proving: bool = False) -> None:
        self.context = context
        self.known = known
        self.crew = crew
        self.proving = proving
        self.pointers: Sequence[int] | None = None  # into the code, from data and relocations; ascending
        self.pointed_at: set[int] = set()
        self.entries = known  # starts of functions, wherever they are
        self.certain = frozenset(known)
        self.false_begins: set[int] = set()  # inside instructions of other functions
        self.doubtful: set[int] = set()  # inside instructions of what may not be code
        self.called: set[int] = set()
        self.found: dict[Unit, Found] = {}
        self.learned: dict[Unit, Found] = {}  # those of which `_learn` has nothing more to learn
        self.states: dict[State, State] = {}
        self.at_calls: dict[frozenset[int], frozenset[int]] = {}
        self.cut: dict[Range, tuple[Callee, ...]] = {}  # ranges, with the calls after which code went on when they were cut
        self.parts: Sequence[Range] = ()  # of the code: ranges are cut from them
        self.ranges: list[Range] = []
        self.starts: list[int] = []

    def run(self, look: Callable[[FileContext, list[Range]], list[Found]], parts: Sequence[Range]) -> Survey:
        self.parts = parts
        self._sample(look)
        sampled = {self._part(unit[0]) for unit in self.found}
        self.entries = self.known
        self._cut(look, [part for part in parts if part not in sampled])
        if self.proving:
            self._cut_again(look)
        else:
            self._settle()
        return self._result()

    def _cut(self, look: Callable[[FileContext, list[Range]], list[Found]], parts: Sequence[Range]) -> None:
        """Cut parts of the code into ranges."""
        self._look(look, parts, _size)
        for unit, found in self.found.items():
            if unit[0] in self.cut:
                continue
            self.cut[unit[0]] = found.goes_on
            if found.overruns is not None:
                begin, reached = found.overruns
                doubt = self.false_begins if reached and is_credible(found, self.entries) else self.doubtful
                doubt.add(begin)
        self.false_begins -= self.certain
        self.ranges = sorted(self.cut)
        self.starts = [start for start, _ in self.ranges]
        if self.pointers is None and self.starts:
            self.pointers = pointed_at(self.context.elf, (self.parts[0][0], self.parts[-1][1]))
        self.pointed_at = set(self.starts).intersection(self.pointers or ())

    def _cut_again(self, look: Callable[[FileContext, list[Range]], list[Found]]) -> None:
        """Cut parts again whose code goes on after calls that turn out not to return, until there are none."""

        def wrong() -> set[Range]:
            never_return = self.context.never_return
            return {self._part(one) for one, goes_on in self.cut.items() if not never_return.isdisjoint(goes_on)}

        for _ in range(MAX_CUTS):
            self._learn()
            self.context.learn(self._never_return())
            stale = wrong()
            if not stale:
                self._settle()
                stale = wrong()
            if not stale:
                return
            self._forget(stale)
            self.cut = {one: goes_on for one, goes_on in self.cut.items() if self._part(one) not in stale}
            self._cut(look, sorted(stale))
        self._settle()
        self._forget(wrong())

    def _part(self, one: Range) -> Range:
        """Return the part that a range was cut from."""
        return self.parts[bisect_right(self.parts, one[0], key=itemgetter(0)) - 1]

    def _part_at(self, address: int) -> Range | None:
        """Return the part that holds an address."""
        number = bisect_right(self.parts, address, key=itemgetter(0)) - 1
        return self.parts[number] if number >= 0 and address < self.parts[number][1] else None

    def _settle(self) -> None:
        """Analyse units again that depend on others, until nothing changes."""
        for _ in range(MAX_PASSES):
            self._learn()
            units = self._units()
            self.found = {unit: found for unit, found in self.found.items() if unit in units}
            self.context.learn(self._never_return())
            stale = {unit: entries for unit, entries in units.items() if self._is_stale(unit, entries)}
            if not stale:
                break
            self._look(_together, stale.items(), lambda one: size_of(one[0]))
        else:
            for unit in stale:
                self.found.pop(unit, None)

    def _sample(self, look: Callable[[FileContext, list[Range]], list[Found]]) -> None:
        """Analyse a few functions, and those that they call often, or last: this finds many functions that never return.

        Parts that call these are analysed again, because they may never return either. Programs in Go call a few of them from
        nearly every function: if they were found late, all code would be analysed twice.
        """
        often: set[Callee] = set()  # called everywhere, or from such functions
        looked: set[Range] = set()
        wanted = set(self.parts[::SAMPLE])
        for _ in range(MAX_CUTS):
            if not wanted:
                return
            self._look(look, sorted(wanted), _size)
            looked |= wanted
            credible = list(self._credible())
            called = {callee for found in credible for callee in found.calls if isinstance(callee, int)}
            self.entries = self.known | called | _left_to(credible)
            self.context.learn(self._never_return())
            calls = Counter(callee for found in self.found.values() for callee in found.calls)
            often.update(callee for callee, count in calls.items() if count >= OFTEN)
            callees = {callee for callee, count in calls.items() if count > 1}
            for found in self.found.values():
                callees.update(found.last_calls, (one.target for one in found.exits))
                if found.unit[0][0] in often:
                    callees.update(found.calls)
                    often.update(found.calls)
            wanted = {part for callee in callees if isinstance(callee, int) and (part := self._part_at(callee))} - looked
            stale = self._stale_parts()
            self._forget(stale)
            wanted |= stale

    def _stale_parts(self) -> set[Range]:
        """Return the parts in which code is reached after calls that are known not to return."""
        never_return = self.context.never_return
        return {self._part(unit[0]) for unit, found in self.found.items() if not never_return.isdisjoint(found.goes_on)}

    def _forget(self, parts: set[Range]) -> None:
        """Forget all results for these parts."""
        self.found = {unit: found for unit, found in self.found.items() if parts.isdisjoint(map(self._part, unit))}

    def _is_stale(self, unit: Unit, entries: Entries) -> bool:
        """Return True if the unit was not analysed with what is known now."""
        found = self.found.get(unit)
        return found is None or found.entries != entries or not self.context.never_return.isdisjoint(found.goes_on)

    def _look(self, work: Callable[[FileContext, list[T]], list[Found]], items: Iterable[T], size: Callable[[T], int]) -> None:
        for batch in self.crew.share(partial(work, self.context), items, size):
            for found in batch:
                states = tuple(self.states.setdefault(state, state) for state in found.states)  # each process sends its own
                at_calls = self.at_calls.setdefault(found.at_calls, found.at_calls)
                self.found[found.unit] = found._replace(states=states, at_calls=at_calls)

    def _number(self, address: int) -> int | None:
        """Return the number of the range that holds an address."""
        number = bisect_right(self.starts, address) - 1
        return number if number >= 0 and address < self.ranges[number][1] else None

    def _is_start(self, address: int) -> bool:
        number = self._number(address)
        return number is not None and self.starts[number] == address

    def _credible(self) -> Iterator[Found]:
        """Return the results that are trusted about other functions."""
        return filter(self._is_credible, self.found.values())

    def _is_credible(self, found: Found) -> bool:
        return not self.proving or is_credible(found, self.entries)

    def _never_return(self) -> set[int]:
        return never_returning(self.found.values(), self._is_credible, self.context)

    def _learn(self) -> None:
        """Learn where functions begin: at targets of calls, of pointers outside jump tables, and of jumps with an entry's frame.

        Callees of functions that become credible count too, to any depth: the order of analysis makes no difference.
        """
        self.entries = self.known | self.pointed_at
        credible: list[Found] = []
        waiting: dict[int, Found] = {}  # for one of their entries to be known
        for found in self.found.values():
            if self._is_credible(found):
                credible.append(found)
            elif found.contradiction is None:
                waiting.update(dict.fromkeys(found.entries, found))
        for found in credible:  # grows in the loop
            if self.learned.get(found.unit) is found:
                continue
            if not found.taken and not found.by_table:  # these say other things of other ranges
                self.learned[found.unit] = found
            callees = [callee for callee in found.calls if isinstance(callee, int)]
            begins = [*callees, *filter(self._is_start, found.taken)]
            self.called.update(callees)
            self.known.update(begins)
            self.pointed_at.difference_update(found.by_table)
            credible += [waiting.pop(begin) for begin in begins if begin in waiting]
        self.entries = self.known | self.pointed_at | set(filter(self._is_start, _left_to(credible)))
        if self.context.assumptions is not None:
            self.entries = set(filter(self.context.assumptions.enters, self.entries))

    def _units(self) -> dict[Unit, Entries]:
        """Return ranges that belong together, because one jumps into another where no function begins, with their entries."""
        parent = list(range(len(self.ranges)))

        def root(number: int) -> int:
            while parent[number] != number:
                parent[number] = parent[parent[number]]
                number = parent[number]
            return number

        def together(one: int, other: int) -> None:
            numbers = self._number(one), self._number(other)
            if numbers[0] is not None and numbers[1] is not None:
                parent[root(numbers[1])] = root(numbers[0])

        for found in self.found.values():
            for start, _ in found.unit[1:]:
                together(found.unit[0][0], start)
        for found in self._credible():
            if self.proving and self.entries.isdisjoint(found.entries):
                continue
            for one in found.exits:
                if one.target not in self.entries and self.context.continues(one.source, one.target):
                    together(one.source, one.target)
        joined: dict[int, list[int]] = {}  # most ranges are units by themselves
        for number in range(len(parent)):
            if parent[number] != number:
                joined.setdefault(root(number), []).append(number)
        ordered = sorted(self.entries)
        units = {}
        for number, own in enumerate(self.ranges):
            if parent[number] != number:
                continue
            unit: Unit = (own,)
            if number in joined:
                unit = tuple([self.ranges[member] for member in sorted([number, *joined[number]])])
            entries = tuple([at for start, end in unit for at in ordered[bisect_left(ordered, start) : bisect_left(ordered, end)]])
            units[unit] = entries or ((unit[0][0],) if self.proving else ())
        return units

    def _result(self) -> Survey:
        for kept in (self.learned, self.cut):  # for the passes only; of a browser they are large
            kept.clear()
        self.pointers = None
        result = Survey(never_return=self.context.never_return, decoded_bytes=self.crew.done)
        every = [found for found in self.found.values() if found.entries]
        called = {callee for found in every for callee in found.calls}
        result.certain = {start for found in every if self._is_certain(found, called) for start, _ in found.unit}
        result.contradictions = [found.contradiction for found in every if found.contradiction is not None]
        if self.proving:
            false = self.false_begins | (self.doubtful - self.entries)
            every = [found for found in every if not any(self._part(one)[0] in false for one in found.unit)]
            every = proven(every, self.entries, self.called, self.context, self._owner())
        parts = sorted(((one, owner) for owner in every for one in owner.unit), key=itemgetter(0), reverse=True)
        every.clear()
        self.found.clear()  # of a browser: each result is kept only until its rows are in the columns
        numbers: dict[State, int] = {}
        while parts:
            (start, end), found = parts.pop()
            rows = found.rows if len(found.unit) == 1 else found.rows[3 * found.row_at(start) : 3 * found.row_at(end)]
            base = found.unit[0][0]
            result.start.extend([base + offset for offset in rows[::3]])
            result.end.extend([base + offset for offset in rows[1::3]])
            own = [numbers.setdefault(state, len(numbers)) for state in found.states]
            result.state.extend([own[number] for number in rows[2::3]])
        result.states = list(numbers)
        return result

    def _is_certain(self, found: Found, called: set[Callee]) -> bool:
        """Return True if it is called, or returns or jumps to a called function with an entry's frame."""
        left_to = (self.context.callee(one.target, None) for one in found.exits if one.as_entered)
        return found.returns_as_entered or not called.isdisjoint(found.entries) or not called.isdisjoint(left_to)

    def _owner(self) -> Callable[[int], Found | None]:
        """Return the function that finds the unit of an address."""
        owner = {one: found for found in self.found.values() for one in found.unit}

        def at(address: int) -> Found | None:
            number = self._number(address)
            return None if number is None else owner.get(self.ranges[number])

        return at
