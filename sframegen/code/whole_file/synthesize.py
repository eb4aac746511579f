"""Rows for code without call frame information, derived from its instructions. Only proven rows are emitted."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from sframegen.code.context.function_starts import referred_to, starts
from sframegen.code.context.plt import find_plt
from sframegen.code.decoding.pieces import decode
from sframegen.code.function.analysis import rule_of_state, rules
from sframegen.code.isa.effects import Flow
from sframegen.code.isa.machines import machine_of
from sframegen.code.whole_file.passes import survey_silent
from sframegen.conversion.convert import Converted
from sframegen.elf.code_bytes.padding import MAX_PADDING
from sframegen.elf.ranges import without
from sframegen.format.model import OUTERMOST, FunctionTable, Kind, Rule
from sframegen.format.words import FDE_TYPES, EncodedRules, RuleWords
from sframegen.tables.narrow import narrow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from sframegen.code.context.plt import Plt
    from sframegen.code.isa.effects import Point
    from sframegen.code.isa.frame_state import FrameState
    from sframegen.elf.file import ElfFile
    from sframegen.elf.ranges import Range
    from sframegen.format.abi import Abi
    from sframegen.program.workers import Progress

MAX_SIZE = 1 << 30  # bytes of a function
MAX_ENTRY = 256  # bytes of code where a program begins; in C libraries it is shorter than 100


class SynthesizedFunction(NamedTuple):
    """Rows (offset from `start`, rule) of one range of code."""

    start: int
    size: int
    kind: Kind
    rows: list[tuple[int, Rule]]


class Search(NamedTuple):
    """Facts for finders, besides the ranges in which they search."""

    elf: ElfFile
    abi: Abi
    begins: set[int]  #: addresses of functions, there or elsewhere
    plt: Plt
    jobs: int  #: processes
    progress: Progress | None
    proven: list[Range]  #: filled with the code of the functions that are proven


def synthesize(elf: ElfFile, converted: Converted, jobs: int = 1, progress: Progress | None = None) -> Converted:
    """Add functions for code without CFI. Raises FormatError if executable segments overlap.

    `jobs`: processes that share the work; `progress`: called with the bytes of code done, and the current estimate of the total.
    """
    coverage, encoded = converted.coverage, converted.encoded
    words = RuleWords(encoded.abi, encoded.layout)
    edges = [*coverage.pieces.end, *(end for _, end in coverage.ignored_ranges), *(start for start, _ in elf.executable_ranges())]
    silent = coverage.silent(elf)
    begins = _functions_of(converted.table, encoded.abi, starts(elf, encoded.abi))
    begins |= referred_to(elf, encoded.abi, silent) | _first_called(elf, encoded.abi, silent)
    search = Search(elf, encoded.abi, begins, find_plt(elf, encoded.abi), jobs, progress, [])
    silent = _from_begins(silent, search.begins, sorted(edges))
    added: list[SynthesizedFunction] = []
    ranges: list[list[Range]] = []
    for find in FINDERS:
        found = list(find(search, silent))
        said = [one for function in found if (one := _sayable(function, words)) is not None]
        ranges.append([(one.start, one.start + one.size) for one in said])
        added += said
        silent = without(silent, [(one.start, one.start + one.size) for one in found])  # later finders must not guess about these
    if not added:
        return converted
    table = _with(converted.table, sorted(added, key=lambda function: function.start))
    encoded = EncodedRules(table.rules, words)
    table = narrow(table, encoded)
    return Converted(table, replace(coverage, table=table, synthesized=tuple(ranges), proven=search.proven), encoded)


def _functions_of(table: FunctionTable, abi: Abi, begins: set[int]) -> set[int]:
    """Return the addresses where the table has an entry's frame, or nothing: a symbol may name a piece of a function."""
    isa = machine_of(abi).isa
    if isa is None:
        return begins
    at_entry = rule_of_state(isa.entry, abi.sp, abi.fp, abi.fixed_ra_offset)

    def is_one(address: int) -> bool:
        number = bisect_right(table.start, address) - 1
        if number < 0 or address - table.start[number] >= table.size[number] or table.kinds[table.kind[number]].mask:
            return True
        first, end = table.first_row[number : number + 2]
        row = bisect_right(table.row_start, address - table.start[number], first, end) - 1
        return row < first or table.rules[table.row_rule[row]] == at_entry

    return set(filter(is_one, begins))


def _from_begins(silent: list[Range], begins: set[int], edges: list[int]) -> list[Range]:
    """Extend each range back to a function that begins with apparent padding, as AArch64's .init does.

    `edges`: padding does not reach back past these.
    """
    found = []
    after = 0  # the range before
    for start, end in silent:
        low = max(after, start - MAX_PADDING, edges[bisect_right(edges, start) - 1])
        found.append((min([begin for begin in range(low, start) if begin in begins], default=start), end))
        after = end
    return found


def _plt(search: Search, silent: list[Range]) -> Iterator[SynthesizedFunction]:
    table = search.plt.functions(silent)
    for number, (start, size, kind) in enumerate(zip(table.start, table.size, table.kind, strict=True)):
        yield SynthesizedFunction(start, size, table.kinds[kind], table.rows(number))


def _entry(search: Search, silent: list[Range]) -> Iterator[SynthesizedFunction]:
    """Return the code that runs first in a process, and so has no caller, recognised at the entry address of the ELF header.

    It ends with its first call or jump, which does not return; a trap or another call may follow a call.
    """
    points = _entry_points(search.elf, search.abi, silent)
    if not points or points[0].flow not in (Flow.CALL, Flow.JUMP):
        return
    start, end = search.elf.header.e_entry, points[0].end
    if points[0].flow is Flow.CALL and len(points) > 1 and points[1].address == end and points[1].flow in (Flow.CALL, Flow.STOP):
        end = points[1].end
    yield SynthesizedFunction(start, end - start, Kind(), [(0, OUTERMOST)])


def _entry_points(elf: ElfFile, abi: Abi, silent: list[Range]) -> list[Point]:
    """Return where control leaves the code at the entry address, if it is that of a C library."""
    start = elf.header.e_entry
    limit = next((high for low, high in silent if low <= start < high), None)
    isa = machine_of(abi).isa
    if limit is None or isa is None:
        return []
    code = bytes(elf.at(start, min(MAX_ENTRY, limit - start)))
    return list(decode(code, start, isa).flow_points()) if isa.program_entry.match(code) else []


def _first_called(elf: ElfFile, abi: Abi, silent: list[Range]) -> set[int]:
    """Return the address that the code at the entry address calls, if its instruction has it."""
    points = _entry_points(elf, abi, silent)
    return {point.target for point in points[:1] if point.flow is Flow.CALL and point.target is not None}


def _functions(search: Search, silent: list[Range]) -> Iterator[SynthesizedFunction]:
    """Return a function for each stretch of proven rows; the FDE type that its rules need is found later."""
    abi = search.abi
    isa = machine_of(abi).isa
    if isa is None or not silent:
        return
    begins = search.begins - {search.elf.header.e_entry}  # which has no caller
    found = survey_silent(search.elf, silent, begins, search.plt.entries(), search.jobs, search.progress)
    search.proven.extend(found.functions)
    at_entry = isa.entry.sp
    emits = [_in_frame(state, at_entry) for state in found.states]
    columns = zip(found.start, found.end, found.state, strict=True)
    rows = rules(((start, end, found.states[number]) for start, end, number in columns if emits[number]), abi)
    signed = [
        [start for start, number in zip(found.start, found.state, strict=True) if found.states[number][-2:] == (True, key_b)]
        for key_b in (False, True)
    ]
    for stretch in _stretches(rows):
        start, end = stretch[0][0], stretch[-1][1]
        with_a, with_b = (bisect_left(places, start) < bisect_left(places, end) for places in signed)
        if not (with_a and with_b):  # an FDE has one key
            kind = Kind(key_b=with_b)
            yield SynthesizedFunction(start, end - start, kind, [(begin - start, rule) for begin, _, rule in stretch])


def _stretches(rows: Iterable[tuple[int, int, Rule]]) -> Iterator[list[tuple[int, int, Rule]]]:
    """Group rows that follow one another without a gap."""
    stretch: list[tuple[int, int, Rule]] = []
    for row in rows:
        if stretch and (stretch[-1][1] != row[0] or row[1] - stretch[0][0] > MAX_SIZE):
            yield stretch
            stretch = []
        stretch.append(row)
    if stretch:
        yield stretch


def _in_frame(state: FrameState, at_entry: int | None) -> bool:
    """Return True if the return address, where calls put it, is not below SP."""
    return state.sp is None or at_entry is None or state.sp <= at_entry


# In the order of SYNTHESIZED.
FINDERS: tuple[Callable[[Search, list[Range]], Iterable[SynthesizedFunction]], ...] = (_plt, _entry, _functions)


def _sayable(function: SynthesizedFunction, words: RuleWords) -> SynthesizedFunction | None:
    """Return the function with an FDE type that can express all its rules; None if there is none."""
    for fde_type in FDE_TYPES:
        if all(words.of(rule)[fde_type] for _, rule in function.rows):
            return function._replace(kind=function.kind._replace(fde_type=fde_type))
    return None


def _with(table: FunctionTable, added: list[SynthesizedFunction]) -> FunctionTable:
    """Return both, ordered by address."""
    kinds = {kind: number for number, kind in enumerate(table.kinds)}
    rules = {rule: number for number, rule in enumerate(table.rules)}
    out = FunctionTable()
    done = 0
    for function in added:
        place = bisect_left(table.start, function.start)
        out.extend(table, done, place)
        done = place
        rows = [(offset, rules.setdefault(rule, len(rules))) for offset, rule in function.rows]
        out.append(function.start, function.size, kinds.setdefault(function.kind, len(kinds)), rows)
    out.extend(table, done)
    out.kinds, out.rules = list(kinds), list(rules)
    return out
