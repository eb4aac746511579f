"""Derives rows for code without call frame information from its instructions. Only proven rows are emitted."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from sframegen.code.context.function_starts import find_referenced_starts, find_starts
from sframegen.code.context.plt import Plt, find_plt
from sframegen.code.decoding.decoded_code import decode
from sframegen.code.function.analysis import derive_rules, rule_of_state
from sframegen.code.isa.effects import Flow, Point
from sframegen.code.isa.machines import machine_of
from sframegen.code.whole_file.passes import survey_silent
from sframegen.conversion.convert import Converted
from sframegen.elf.code_bytes.padding import MAX_PADDING
from sframegen.elf.ranges import Range, subtract_ranges
from sframegen.format.model import OUTERMOST, FunctionTable, Kind, Rule, look_up_in
from sframegen.format.words import FDE_TYPES, EncodedRules, RuleWords
from sframegen.tables.narrow import narrow

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from sframegen.elf.file import ElfFile
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


def synthesize(elf: ElfFile, converted: Converted, jobs: int = 1, progress: Progress | None = None) -> Converted:
    """Add functions for code without CFI. Raises FormatError if executable segments overlap.

    `jobs`: processes that share the work; `progress`: called with the bytes of code done, and the current estimate of the total.
    """
    coverage, encoded = converted.coverage, converted.encoded
    abi, words = encoded.abi, RuleWords(encoded.abi, encoded.layout)
    edges = [
        *coverage.fde_ranges.end,
        *(end for _, end in coverage.ignored_ranges),
        *(start for start, _ in elf.executable_ranges()),
    ]
    silent = coverage.ranges_without_cfi(elf)
    begins = _functions_of(converted.table, abi, find_starts(elf, abi))
    begins |= find_referenced_starts(elf, abi, silent) | _first_called(elf, abi, silent)
    silent = _from_begins(silent, begins, sorted(edges))
    plt = find_plt(elf, abi)
    proven: list[Range] = []
    added: list[SynthesizedFunction] = []
    ranges: list[list[Range]] = []
    for find in (  # in the order of SYNTHESIZED
        partial(_plt, plt),
        partial(_entry, elf, abi),
        partial(_functions, elf, abi, begins, plt, jobs, progress, proven),
    ):
        found = list(find(silent))
        expressible = [one for function in found if (one := _with_fde_type(function, words)) is not None]
        ranges.append([(one.start, one.start + one.size) for one in expressible])
        added += expressible
        silent = subtract_ranges(
            silent, [(one.start, one.start + one.size) for one in found]
        )  # later finders must not guess about these
    if not added:
        return converted
    table = _add_functions(converted.table, sorted(added, key=lambda function: function.start))
    encoded = EncodedRules(table.rules, words)
    table = narrow(table, encoded)
    return Converted(table, replace(coverage, table=table, synthesized=tuple(ranges), proven=proven), encoded)


def _functions_of(table: FunctionTable, abi: Abi, begins: set[int]) -> set[int]:
    """Return the addresses where the table has an entry's frame, or nothing: a symbol may name a piece of a function."""
    isa = machine_of(abi).isa
    if isa is None:
        return begins
    at_entry = rule_of_state(isa.entry, abi.sp, abi.fp, abi.fixed_ra_offset)

    def is_one(address: int) -> bool:
        match = look_up_in(table, address)
        return match is None or match.kind.mask or match.row_offset is None or match.rule == at_entry

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


def _plt(plt: Plt, silent: list[Range]) -> Iterator[SynthesizedFunction]:
    table = plt.make_functions(silent)
    for number, (start, size, kind) in enumerate(zip(table.start, table.size, table.kind, strict=True)):
        yield SynthesizedFunction(start, size, table.kinds[kind], table.rows(number))


def _entry(elf: ElfFile, abi: Abi, silent: list[Range]) -> Iterator[SynthesizedFunction]:
    """Return the code that runs first in a process, and so has no caller, recognised at the entry address of the ELF header.

    It ends with its first call or jump, which does not return; a trap or another call may follow a call.
    """
    points = _entry_points(elf, abi, silent)
    if not points or points[0].flow not in (Flow.CALL, Flow.JUMP):
        return
    start, end = elf.header.e_entry, points[0].end
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


def _functions(
    elf: ElfFile,
    abi: Abi,
    begins: set[int],
    plt: Plt,
    jobs: int,
    progress: Progress | None,
    proven: list[Range],
    silent: list[Range],
) -> Iterator[SynthesizedFunction]:
    """Return a function for each stretch of proven rows; the FDE type that its rules need is found later. Add them to `proven`."""
    isa = machine_of(abi).isa
    if isa is None or not silent:
        return
    begins = begins - {elf.header.e_entry}  # its code does not have a caller
    found = survey_silent(elf, silent, begins, plt.entry_addresses(), jobs, progress)
    proven.extend(found.functions)
    at_entry = isa.entry.sp
    # Not where the return address, at its place on entry, would be below SP.
    emits = [state.sp is None or at_entry is None or state.sp <= at_entry for state in found.states]
    columns = zip(found.start, found.end, found.state, strict=True)
    rows = derive_rules(((start, end, found.states[number]) for start, end, number in columns if emits[number]), abi)
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


def _with_fde_type(function: SynthesizedFunction, words: RuleWords) -> SynthesizedFunction | None:
    """Return the function with an FDE type that can express all its rules; None if there is none."""
    for fde_type in FDE_TYPES:
        if all(words.of(rule)[fde_type] for _, rule in function.rows):
            return function._replace(kind=function.kind._replace(fde_type=fde_type))
    return None


def _add_functions(table: FunctionTable, added: list[SynthesizedFunction]) -> FunctionTable:
    """Return a table with the added functions, ordered by address."""
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
