"""Analyses the code of a whole file in passes, until no function shows anything new about others.

1. A sample of the code is analysed first, to find the functions that are called often and never return.
2. The rest follows: a `cutter` cuts each part of the code into ranges, one for each function. With FDEs, a part is such a range;
   without CFI, the cutter finds the functions' ends (boundaries.py). Each range is analysed as a function that is entered.
3. The results show where functions begin (entries), which ranges belong together, and which callees never return. What depends on
   these is analysed again. A range that is not a function by itself, such as a `.cold` part, is then analysed together with the
   ranges that jump into it: they are the pieces of one unit. Code without CFI after a call that does not return is cut again.
4. Once nothing changes, the rows of all functions are collected: without CFI, only those of proven functions (proof.py).
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from sframegen.code.context.file_context import Assumptions, FileContext
from sframegen.code.context.function_starts import find_pointed_at, find_relocated_pointers
from sframegen.code.context.plt import find_plt
from sframegen.code.function.analysis import Entries, Unit, UnitAnalyser
from sframegen.code.function.marks import FunctionMark
from sframegen.code.isa.effects import FrameState, is_entry
from sframegen.code.whole_file import interprocedural, parallel_tasks
from sframegen.code.whole_file.boundaries import cut_at_starts, find_call_targets, sweep_functions
from sframegen.code.whole_file.evidence import Evidence, Results
from sframegen.code.whole_file.function_ranges import FunctionRanges
from sframegen.code.whole_file.parallel_tasks import ParallelTasks
from sframegen.code.whole_file.proof import Proof, collect_code, collect_rows, find_certain_starts, map_ranges_to_functions
from sframegen.elf.columns import Spans, build_spans
from sframegen.elf.ranges import Range, sum_sizes
from sframegen.format.abi import abi_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence
    from typing import TypeVar

    from sframegen.code.context.plt import Plt
    from sframegen.code.function.findings import FindingColumns
    from sframegen.elf.file import ElfFile
    from sframegen.program.workers import Progress

    Cutter = Callable[[FileContext, list[Range]], FindingColumns]
    T = TypeVar("T")

MAX_PASSES = 5
MAX_CUTS = 8  # rounds, each of which finds functions that never return because a callee, found before, does not
SAMPLE = 32  # one in this many parts of the code is analysed first
OFTEN_CALLED = 8  # functions of the sample that call a function which counts as often called


class Jump(NamedTuple):
    """A jump out of a function, or its end if control continues after it."""

    function: int  #: start of the range that it leaves
    source: int
    target: int
    as_entered: bool  #: with the frame that functions are entered with


class Survey(NamedTuple):
    """The result for a file. Its rows are columns, ascending; `state` has numbers of `states`."""

    start: array[int]
    end: array[int]
    state: array[int]
    states: list[FrameState]
    never_returning: set[int]
    certain: set[int]  #: starts of the ranges of functions that are called, or return with the entry's frame
    functions: list[Range]  #: the code of the functions that have rows, ascending, with a range for each piece
    decoded_bytes: int  #: in all passes
    # The following are filled only if there are assumptions.
    jumps: list[Jump]
    referred: set[int]  #: targets of calls, and starts of ranges whose address code or data has
    contradicting: set[int]  #: starts of functions that return with another frame than their entry's


def survey(
    elf: ElfFile, ranges: Sequence[Range], entries: Collection[int], jobs: int = 1, progress: Progress | None = None,
    assumptions: Assumptions | None = None,
) -> Survey:  # fmt: skip
    """Analyse the code in `ranges`, which ascend without overlaps; each is a function or a piece of one.

    `entries`: where functions are known to begin. More are found: the targets of calls, and of pointers in code or data.
    `jobs`: processes that share the work.
    """
    context = FileContext(elf, ranges, find_plt(elf, abi_of(elf)), assumptions)
    return _Passes(context, set(entries), ParallelTasks(jobs, progress), _survey_ranges, ranges).run()


def survey_without_cfi(
    elf: ElfFile, without_cfi: Sequence[Range], starts: set[int], plt: Plt, jobs: int = 1, progress: Progress | None = None
) -> Survey:
    """Analyse code whose functions have no known ends, and return the rows of the proven functions, as proof.py defines them.

    `starts`: where functions are known to begin, in this code or elsewhere.
    """
    tasks = ParallelTasks(jobs, progress)
    context = FileContext(elf, without_cfi, plt)
    likely_starts = starts | find_relocated_pointers(elf)
    size = parallel_tasks.TASK_BYTES
    windows = [(at, min(end, at + size)) for start, end in without_cfi for at in range(start, end, size)]
    for found in tasks.run(partial(_find_call_targets, context), windows, _range_size):
        likely_starts |= found
    parts = list(cut_at_starts(without_cfi, likely_starts))
    return _Passes(context, starts | plt.entry_addresses(), tasks, _survey_swept, parts, proving=True).run()


# -- the work of a process


def _survey_ranges(context: FileContext, ranges: list[Range]) -> FindingColumns:
    return _survey_units(context, [((code,), (code[0],)) for code in ranges])


def _survey_swept(context: FileContext, parts: list[Range]) -> FindingColumns:
    analyser = UnitAnalyser(context)
    for start, end in parts:
        for piece, crossing_instruction in sweep_functions(context, start, end):
            analyser.analyse_decoded([piece], ((piece.start, piece.end),), (piece.start,))
            if crossing_instruction is not None and analyser.findings.add_overrun(end, crossing_instruction):
                break  # the instruction is reached, so that no function begins at the end of this part
    return analyser.findings.columns()


def _survey_units(context: FileContext, units: list[tuple[Unit, Entries]]) -> FindingColumns:
    analyser = UnitAnalyser(context)
    for unit, entries in units:
        analyser.analyse(unit, entries)
    return analyser.findings.columns()


def _find_call_targets(context: FileContext, ranges: list[Range]) -> set[int]:
    return {target for start, end in ranges for target in find_call_targets(context, start, end)}


def _range_size(code: Range) -> int:
    return code[1] - code[0]


class _Passes:
    """Runs the passes. `cutter`: cuts `parts` of the code into ranges; `proving`: as in Evidence."""

    def __init__(
        self, context: FileContext, known_starts: set[int], tasks: ParallelTasks, cutter: Cutter, parts: Sequence[Range], *,
        proving: bool = False,
    ) -> None:  # fmt: skip
        self.context = context
        self.tasks = tasks
        self.cutter = cutter
        self.parts = parts
        self.part_spans = build_spans(parts)
        self.proving = proving
        self.pointers: Sequence[int] | None = None  # into the code, from data and relocations; ascending
        self.entries = known_starts  # starts of functions, wherever they are
        self.certain = frozenset(known_starts)
        self.starts = interprocedural.KnownStarts(known_starts, pointed_at=set(), called=set())
        self.false_starts: set[int] = set()  # starts of parts that are inside instructions of other functions
        self.doubtful_starts: set[int] = set()  # starts of parts that are inside instructions of what may not be code
        self.results = Results()
        self.first_cut: dict[int, int] = {}  # start of each range -> number of its function when it was cut

    def run(self) -> Survey:
        self._analyse_sample()
        sampled = {self.part_spans.number(start) for start in self.results.functions}
        self.entries = self.starts.known
        self._cut_parts([part for number, part in enumerate(self.parts) if number not in sampled])
        if self.proving:
            self._cut_wrong_parts_again()
        else:
            self._analyse_until_stable()
        return self._make_survey()

    def _evidence(self) -> Evidence:
        return self.results.make_evidence(self.entries, proving=self.proving)

    def _cut_parts(self, parts: Sequence[Range]) -> None:
        """Cut parts into functions and analyse them. Sets `ranges`; adds to `first_cut`, `false_starts` and `doubtful_starts`."""
        self._run_tasks(self.cutter, parts, _range_size)
        evidence = self._evidence()
        columns = self.results.columns
        for number in interprocedural.add_cut_functions(evidence, self.first_cut):
            is_false = columns.marks[number] & FunctionMark.OVERRUN_IS_REACHED and evidence.is_credible(number)
            (self.false_starts if is_false else self.doubtful_starts).add(columns.overrun[number])
        self.false_starts -= self.certain
        starts = array("Q", sorted(self.first_cut))
        self.ranges = Spans(starts, array("Q", [columns.piece_end[columns.end_piece[self.first_cut[start]]] for start in starts]))
        if self.pointers is None and starts:
            self.pointers = find_pointed_at(self.context.elf, (self.parts[0][0], self.parts[-1][1]))
        self.starts.pointed_at = set(starts).intersection(self.pointers or ())

    def _cut_wrong_parts_again(self) -> None:
        """Cut parts again whose code continues after a call that turns out not to return, until there are none."""
        for _ in range(MAX_CUTS):
            self._update_entries()
            self.context.add_never_returning(self._find_never_returning())
            stale = self._find_wrongly_cut(self.first_cut.values())
            if not stale:
                self._analyse_until_stable()
                stale = self._find_wrongly_cut(self.first_cut.values())
            if not stale:
                return
            self._remove_parts(stale)
            self.first_cut = {
                start: number for start, number in self.first_cut.items() if self.part_spans.number(start) not in stale
            }
            self._cut_parts([self.parts[number] for number in sorted(stale)])
        self._analyse_until_stable()
        self._remove_parts(self._find_wrongly_cut(self.first_cut.values()))

    def _find_wrongly_cut(self, functions: Iterable[int]) -> set[int]:
        """Return the parts that have one of the functions, if its code continues after a call that turns out not to return."""
        evidence = self._evidence()
        found = interprocedural.select_callers(evidence, functions, self.context.never_returning)
        return {self.part_spans.number(evidence.start(number)) for number in found}

    def _analyse_until_stable(self) -> None:
        """Analyse units again if their entries, pieces or callees turn out to be others, until nothing changes."""
        for _ in range(MAX_PASSES):
            self._update_entries()
            evidence = self._evidence()
            ranges = FunctionRanges(self.ranges)
            ranges.join(evidence, self.context.continues if self.context.assumptions else None)
            self.results.remove(ranges.find_changed(evidence))
            self.context.add_never_returning(self._find_never_returning())
            stale = ranges.find_stale(evidence, self.results.functions, self.context.never_returning)
            del evidence  # while it exists, the columns of the results cannot grow
            if not stale:
                break
            self._run_tasks(_survey_units, stale, lambda unit_and_entries: sum_sizes(unit_and_entries[0]))
        else:
            functions = self.results.functions
            self.results.remove([functions[pieces[0][0]] for pieces, _ in stale])

    def _analyse_sample(self) -> None:
        """Analyse a sample of the parts, and functions that it calls often or last, to find most functions that never return.

        Parts that call these are analysed again, because they may never return either. Programs in Go call a few of them from
        nearly every function, so that all code would be analysed twice if they were found late.
        """
        often_called: set[int] = set()
        sampled: set[int] = set()
        next_parts = set(range(0, len(self.parts), SAMPLE))
        for _ in range(MAX_CUTS):
            if not next_parts:
                return
            self._run_tasks(self.cutter, [self.parts[number] for number in sorted(next_parts)], _range_size)
            sampled |= next_parts
            evidence = self._evidence()
            credible = interprocedural.select_credible(evidence)
            callees = {callee for number in credible for callee in evidence.callees_of(number)}
            self.entries = self.starts.known | callees | interprocedural.find_exit_targets(evidence, credible, None)
            self.context.add_never_returning(self._find_never_returning())
            often_callees = interprocedural.find_often_called(evidence, often_called, OFTEN_CALLED)
            next_parts = set(map(self.part_spans.number, often_callees)) - sampled - {-1}
            stale = self._find_wrongly_cut(self.results.functions.values())
            del evidence  # while it exists, the columns of the results cannot grow
            self._remove_parts(stale)
            next_parts |= stale

    def _remove_parts(self, parts: set[int]) -> None:
        """Remove the results of all functions with code in these parts."""
        is_removed = bytes(number in parts for number in range(len(self.parts)))
        self.results.remove(interprocedural.functions_in_parts(self._evidence(), self.part_spans, is_removed))

    def _run_tasks(
        self, work: Callable[[FileContext, list[T]], FindingColumns], items: Iterable[T], size: Callable[[T], int]
    ) -> None:
        """Add the results of `work` for all items to `results`. `size`: bytes of code of an item."""
        for found in self.tasks.run(partial(work, self.context), items, size):
            self.results.extend(found)

    def _find_never_returning(self) -> set[int]:
        return interprocedural.find_never_returning(self._evidence(), self.context)

    def _update_entries(self) -> None:
        """Find where functions begin: at targets of calls, of pointers outside jump tables, and of jumps with an entry's frame."""
        starts = self.starts
        self.entries = starts.known | starts.pointed_at
        for _ in range(MAX_PASSES):  # functions that jumps lead to may take the addresses of others
            jumped_to = starts.add_shown_starts(self._evidence(), self.ranges)
            before, self.entries = self.entries, starts.known | starts.pointed_at | jumped_to
            if self.context.assumptions is not None:
                self.entries = set(filter(self.context.assumptions.enters, self.entries))
            if not self.proving or self.entries <= before:
                return

    def _make_survey(self) -> Survey:
        self.first_cut.clear()  # needed by the passes only, and large for a browser, as are the pointers
        self.pointers = None
        columns = self.results.columns
        evidence = self._evidence()
        entered = [
            number for number in self.results.functions.values() if columns.end_entry[number] < columns.end_entry[number + 1]
        ]
        certain, states = find_certain_starts(evidence, entered, self.context), self.results.columns.states
        owner = map_ranges_to_functions(evidence, self.ranges)
        if self.proving:
            false_starts = self.false_starts | (self.doubtful_starts - self.entries)
            is_false_part = bytearray(start in false_starts for start, _ in self.parts)
            in_false_parts = set(interprocedural.functions_in_parts(evidence, self.part_spans, is_false_part))
            candidates = [number for number in entered if number not in in_false_parts]
            as_entered = bytes(is_entry(state, self.context.isa.entry) for state in states)
            pushes_ra = self.context.isa.copying.ra is None
            proof = Proof(self.ranges, owner, as_entered, pushes_ra=pushes_ra)
            entered = proof.select_proven(evidence, candidates, self.starts.called, self.context.contains)
        chosen = bytearray(evidence.count)
        for number in entered:
            chosen[number] = 1
        rows = collect_rows(evidence, self.ranges, owner, chosen)
        jumps, referred, contradicting = ([], set(), set()) if self.context.assumptions is None else self._collect_jumps()
        functions = collect_code(self.ranges, owner, chosen)
        return Survey(
            *rows, states=states, never_returning=self.context.never_returning, certain=certain, functions=functions,
            decoded_bytes=self.tasks.done, jumps=jumps, referred=referred, contradicting=contradicting,
        )  # fmt: skip

    def _collect_jumps(self) -> tuple[list[Jump], set[int], set[int]]:
        """Return the last three fields of a Survey: jumps, referred, contradicting."""
        columns = self.results.columns
        jumps: list[Jump] = []
        referred = self.starts.called | self.starts.pointed_at
        contradicting = set()
        for start, number in self.results.functions.items():
            for index in range(columns.end_exit[number], columns.end_exit[number + 1]):
                source, target = columns.exit_source[index], columns.exit_target[index]
                piece = bisect_right(columns.piece_start, source, columns.end_piece[number], columns.end_piece[number + 1]) - 1
                jumps.append(Jump(columns.piece_start[piece], source, target, columns.exit_as_entered[index] == 1))
            referred.update(columns.taken[columns.end_taken[number] : columns.end_taken[number + 1]])
            if columns.marks[number] & FunctionMark.CONTRADICTS:
                contradicting.add(start)
        return jumps, referred, contradicting
