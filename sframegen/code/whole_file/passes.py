"""Analyses the code of a whole file in passes, until no function gives new facts about others.

A range that is not a function by itself, such as a `.cold` part, is analysed together with the ranges that jump into it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from contextlib import ExitStack, closing
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from sframegen.code.context.file_context import Assumptions, FileContext
from sframegen.code.context.function_starts import find_pointed_at, find_relocated_pointers
from sframegen.code.context.plt import find_plt
from sframegen.code.function.analysis import Entries, Unit, UnitAnalyser
from sframegen.code.function.marks import FunctionMark
from sframegen.code.isa.effects import FrameState, is_entry
from sframegen.code.whole_file.boundaries import called, chunks, sweep
from sframegen.code.whole_file.evidence import Evidence, Results
from sframegen.code.whole_file.function_ranges import FunctionRanges
from sframegen.code.whole_file.interprocedural import (
    KnownStarts,
    calls_into,
    credible_of,
    left_to,
    never_returning,
    newly_cut,
    often_called,
    within,
)
from sframegen.code.whole_file.proof import Proof, certain, function_code, owners, rows_of
from sframegen.elf.columns import Spans, build_spans
from sframegen.elf.ranges import Range, sum_sizes
from sframegen.format.abi import abi_of
from sframegen.program.workers import run_all

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
    from typing import TypeVar

    from sframegen.code.function.findings import FindingColumns
    from sframegen.elf.file import ElfFile
    from sframegen.program.workers import Progress

    Cutter = Callable[[FileContext, list[Range]], FindingColumns]
    T = TypeVar("T")
    U = TypeVar("U")

MAX_PASSES = 5
MAX_CUTS = 8  # rounds: so deep may functions never return because their callees do not
SAMPLE = 32  # one in this many functions is analysed first
OFTEN = 8  # calls from the functions that are analysed first


class Jump(NamedTuple):
    """A jump, or a fall, out of a function."""

    function: int  #: start of the range that it leaves
    source: int
    target: int
    as_entered: bool  #: with the frame that an entry has


class Survey(NamedTuple):
    """The result for a file: rows as columns, ascending, each with the number of its state."""

    start: array[int]
    end: array[int]
    state: array[int]
    states: list[FrameState]
    never_returning: set[int]
    certain: set[int]  #: starts of the ranges of functions that are called, or return with the entry's frame
    functions: list[Range]  #: the code of the functions that have rows, ascending; one that lies in pieces has one for each
    decoded_bytes: int  #: in all passes
    jumps: list[Jump]  #: with assumptions only, and so are these:
    referred: set[int]  #: what calls lead to, and starts of ranges of which code or data has the address
    contradicting: set[int]  #: starts of functions that return with another frame than their entry's


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
    stubs = find_plt(elf, abi_of(elf)).entry_addresses()
    return _Passes(FileContext(elf, ranges, stubs, assumptions), set(entries), ParallelTasks(jobs, progress), _survey, ranges).run()


def survey_silent(
    elf: ElfFile, silent: Sequence[Range], begins: set[int], stubs: set[int], jobs: int = 1, progress: Progress | None = None
) -> Survey:
    """Analyse code without known ends of functions, and return the rows of the proven functions, as proof.py defines them.

    `begins`: where functions are known to begin, there or elsewhere; `stubs`: the entries of the PLT.
    """
    tasks = ParallelTasks(jobs, progress)
    context = FileContext(elf, silent, stubs)
    hints = begins | find_relocated_pointers(elf)
    windows = [(at, min(end, at + TASK_BYTES)) for start, end in silent for at in range(start, end, TASK_BYTES)]
    for found in tasks.share(partial(_called, context), windows, _size):
        hints |= found
    return _Passes(context, begins | stubs, tasks, _survey_swept, list(chunks(silent, hints)), proving=True).run()


# -- the work of a process


def _survey(context: FileContext, ranges: list[Range]) -> FindingColumns:
    units = UnitAnalyser(context)
    for one in ranges:
        units.analyse((one,), (one[0],))
    return units.findings.columns()


def _survey_swept(context: FileContext, parts: list[Range]) -> FindingColumns:
    units = UnitAnalyser(context)
    for start, end in parts:
        for piece, at in sweep(context, start, end):
            units.analyse_decoded([piece], ((piece.start, piece.end),), (piece.start,))
            if at is not None and units.findings.add_overrun(end, at):
                break  # the rest is in that instruction
    return units.findings.columns()


def _survey_units(context: FileContext, units: list[tuple[Unit, Entries]]) -> FindingColumns:
    these = UnitAnalyser(context)
    for unit in units:
        these.analyse(*unit)
    return these.findings.columns()


def _called(context: FileContext, ranges: list[Range]) -> set[int]:
    return {target for one in ranges for target in called(context, *one)}


def _size(one: Range) -> int:
    return one[1] - one[0]


class _Passes:
    """The passes. `cutter`: cuts `parts` of the code into ranges; `proving`: a function counts only if it proves itself."""

    def __init__(
        self,
        context: FileContext,
        known: set[int],
        tasks: ParallelTasks,
        cutter: Cutter,
        parts: Sequence[Range],
        *,
        proving: bool = False,
    ) -> None:
        self.context = context
        self.tasks = tasks
        self.cutter = cutter
        self.parts = parts
        self.part_places = build_spans(parts)
        self.proving = proving
        self.pointers: Sequence[int] | None = None  # into the code, from data and relocations; ascending
        self.entries = known  # starts of functions, wherever they are
        self.certain = frozenset(known)
        self.starts = KnownStarts(known, set(), set())
        self.false_begins: set[int] = set()  # inside instructions of other functions
        self.doubtful: set[int] = set()  # inside instructions of what may not be code
        self.results = Results()
        self.cut: dict[int, int] = {}  # starts of ranges, with their functions when they were cut

    def run(self) -> Survey:
        self._sample()
        sampled = {self.part_places.number(start) for start in self.results.functions}
        self.entries = self.starts.known
        self._cut([part for number, part in enumerate(self.parts) if number not in sampled])
        if self.proving:
            self._cut_again()
        else:
            self._settle()
        return self._result()

    def _evidence(self) -> Evidence:
        return self.results.evidence(self.entries, proving=self.proving)

    def _cut(self, parts: Sequence[Range]) -> None:
        self._run(self.cutter, parts, _size)
        evidence = self._evidence()
        columns = self.results.columns
        for number in newly_cut(evidence, self.cut):
            is_false = columns.marks[number] & FunctionMark.OVERRUN_IS_REACHED and evidence.is_credible(number)
            (self.false_begins if is_false else self.doubtful).add(columns.overrun[number])
        self.false_begins -= self.certain
        starts = array("Q", sorted(self.cut))
        self.ranges = Spans(starts, array("Q", [columns.piece_end[columns.end_piece[self.cut[start]]] for start in starts]))
        if self.pointers is None and starts:
            self.pointers = find_pointed_at(self.context.elf, (self.parts[0][0], self.parts[-1][1]))
        self.starts.pointed_at = set(starts).intersection(self.pointers or ())

    def _cut_again(self) -> None:
        """Cut parts again that are wrongly cut, until there are none."""
        for _ in range(MAX_CUTS):
            self._learn()
            self.context.add_never_returning(self._never_return())
            stale = self._wrongly_cut(self.cut.values())
            if not stale:
                self._settle()
                stale = self._wrongly_cut(self.cut.values())
            if not stale:
                return
            self._forget(stale)
            self.cut = {start: number for start, number in self.cut.items() if self.part_places.number(start) not in stale}
            self._cut([self.parts[number] for number in sorted(stale)])
        self._settle()
        self._forget(self._wrongly_cut(self.cut.values()))

    def _wrongly_cut(self, functions: Iterable[int]) -> set[int]:
        """Return the parts with those of the functions whose code goes on after calls that turn out not to return."""
        evidence = self._evidence()
        found = calls_into(evidence, functions, self.context.never_returning)
        return {self.part_places.number(evidence.start(number)) for number in found}

    def _settle(self) -> None:
        """Analyse units again that depend on others, until nothing changes."""
        for _ in range(MAX_PASSES):
            self._learn()
            evidence = self._evidence()
            ranges = FunctionRanges(self.ranges)
            ranges.join(evidence, self.context.continues if self.context.assumptions else None)
            self.results.forget(ranges.changed(evidence))
            self.context.add_never_returning(self._never_return())
            stale = ranges.stale(evidence, self.results.functions, self.context.never_returning)
            del evidence
            if not stale:
                break
            self._run(_survey_units, stale, lambda one: sum_sizes(one[0]))
        else:
            functions = self.results.functions
            self.results.forget([functions[pieces[0][0]] for pieces, _ in stale])

    def _sample(self) -> None:
        """Analyse a few functions, and those that they call often, or last: this finds many functions that never return.

        Parts that call these are analysed again, because they may never return either. Programs in Go call a few of them from
        nearly every function: if they were found late, all code would be analysed twice.
        """
        often: set[int] = set()  # called everywhere, or from such functions
        looked: set[int] = set()
        wanted = set(range(0, len(self.parts), SAMPLE))
        for _ in range(MAX_CUTS):
            if not wanted:
                return
            self._run(self.cutter, [self.parts[number] for number in sorted(wanted)], _size)
            looked |= wanted
            evidence = self._evidence()
            credible = credible_of(evidence)
            called = {callee for number in credible for callee in evidence.callees_of(number)}
            self.entries = self.starts.known | called | left_to(evidence, credible, None)
            self.context.add_never_returning(self._never_return())
            wanted = {self.part_places.number(callee) for callee in often_called(evidence, often, OFTEN)} - looked - {-1}
            stale = self._wrongly_cut(self.results.functions.values())
            del evidence
            self._forget(stale)
            wanted |= stale

    def _forget(self, parts: set[int]) -> None:
        wanted = bytearray(len(self.parts))
        for number in parts:
            wanted[number] = 1
        self.results.forget(within(self._evidence(), self.part_places, wanted))

    def _run(self, work: Callable[[FileContext, list[T]], FindingColumns], items: Iterable[T], size: Callable[[T], int]) -> None:
        for found in self.tasks.share(partial(work, self.context), items, size):
            self.results.extend(found)

    def _never_return(self) -> set[int]:
        return never_returning(self._evidence(), self.context)

    def _learn(self) -> None:
        """Learn where functions begin: at targets of calls, of pointers outside jump tables, and of jumps with an entry's frame."""
        starts = self.starts
        self.entries = starts.known | starts.pointed_at
        for _ in range(MAX_PASSES):  # functions that are left to may take the addresses of others
            left = starts.learn(self._evidence(), self.ranges)
            before, self.entries = self.entries, starts.known | starts.pointed_at | left
            if self.context.assumptions is not None:
                self.entries = set(filter(self.context.assumptions.enters, self.entries))
            if not self.proving or self.entries <= before:
                return

    def _result(self) -> Survey:
        self.cut.clear()  # for the passes only; of a browser they are large
        self.pointers = None
        columns = self.results.columns
        evidence = self._evidence()
        entered = [
            number for number in self.results.functions.values() if columns.end_entry[number] < columns.end_entry[number + 1]
        ]
        sure, states = certain(evidence, entered, self.context), self.results.columns.states
        owner = owners(evidence, self.ranges)
        if self.proving:
            false = self.false_begins | (self.doubtful - self.entries)
            false_parts = bytearray(start in false for start, _ in self.parts)
            wrong = set(within(evidence, self.part_places, false_parts))
            every = [number for number in entered if number not in wrong]
            as_entered = bytes(is_entry(state, self.context.isa.entry) for state in states)
            pushes_ra = self.context.isa.copying.ra is None
            proof = Proof(self.ranges, owner, as_entered, pushes_ra=pushes_ra)
            entered = proof.proven(evidence, every, self.starts.called, self.context.contains)
        chosen = bytearray(evidence.count)
        for number in entered:
            chosen[number] = 1
        rows = rows_of(evidence, self.ranges, owner, chosen)
        facts = ([], set(), set()) if self.context.assumptions is None else self._between_functions()
        functions = function_code(self.ranges, owner, chosen)
        return Survey(*rows, states, self.context.never_returning, sure, functions, self.tasks.done, *facts)

    def _between_functions(self) -> tuple[list[Jump], set[int], set[int]]:
        """Return the last three fields of a Survey: jumps, referred, contradicting."""
        columns = self.results.columns
        jumps: list[Jump] = []
        referred = self.starts.called | self.starts.pointed_at
        contradicting = set()
        for start, number in self.results.functions.items():
            for place in range(columns.end_exit[number], columns.end_exit[number + 1]):
                source, target = columns.exit_source[place], columns.exit_target[place]
                piece = bisect_right(columns.piece_start, source, columns.end_piece[number], columns.end_piece[number + 1]) - 1
                jumps.append(Jump(columns.piece_start[piece], source, target, columns.exit_as_entered[place] == 1))
            referred.update(columns.taken[columns.end_taken[number] : columns.end_taken[number + 1]])
            if columns.marks[number] & FunctionMark.CONTRADICTS:
                contradicting.add(start)
        return jumps, referred, contradicting


TASK_BYTES = 1 << 17  # code that a process gets at a time
# Times that one task is done here first: processes that are forked then know of instructions what this one knows.
LEARNING = 3


class ParallelTasks:
    """Tasks of several processes, and their progress."""

    def __init__(self, jobs: int, progress: Progress | None) -> None:
        self.jobs = jobs
        self.progress = progress
        self.done = self.total = 0  # bytes of code
        self.shares = 0

    def share(self, work: Callable[[list[T]], U], items: Iterable[T], size: Callable[[T], int]) -> Iterator[U]:
        """Return the results of `work` for the items, several at a time, in any order."""
        tasks: list[list[T]] = [[]]
        sizes = [0]
        for item in items:
            if sizes[-1] > TASK_BYTES:
                tasks.append([])
                sizes.append(0)
            tasks[-1].append(item)
            sizes[-1] += size(item)
        self.total += sum(sizes)
        alone = 1 if self.shares < LEARNING else 0  # tasks
        self.shares += 1
        some = min(self.jobs, len(tasks) - alone)
        here = ((number, work(task)) for number, task in enumerate(tasks[: alone if some > 1 else None]))
        with ExitStack() as stack:
            there = stack.enter_context(closing(run_all(work, tasks, some, range(alone, len(tasks))))) if some > 1 else ()
            for number, outcome in chain(here, there):
                if isinstance(outcome, Exception):
                    raise outcome
                self.done += sizes[number]
                if self.progress is not None:
                    self.progress(self.done, self.total)
                yield outcome
