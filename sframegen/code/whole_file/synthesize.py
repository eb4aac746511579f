"""Derives rows for code without call frame information from its instructions. Only proven rows are emitted.

Three finders follow one another, each for the code that is left: PLT entries by their form, the code where the program begins, and
functions whose frames the instructions prove (passes.py).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from sframegen.code.context.function_starts import find_referenced_starts, find_starts
from sframegen.code.context.plt import Plt, find_plt
from sframegen.code.decoding.decoded_code import decode
from sframegen.code.function.rules_of_states import derive_rules, rule_of_state
from sframegen.code.isa.effects import Flow, Point
from sframegen.code.isa.machines import machine_of
from sframegen.code.whole_file.passes import Survey, survey_without_cfi
from sframegen.conversion.convert import Converted
from sframegen.conversion.coverage import SYNTHESIZED
from sframegen.elf.code_bytes.padding import MAX_PADDING
from sframegen.elf.ranges import Range, subtract_ranges
from sframegen.format.model import OUTERMOST, FunctionTable, Kind, Rule, look_up_in
from sframegen.format.words import FDE_TYPES, EncodedRules, RuleWords
from sframegen.tables.narrow import narrow_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from sframegen.elf.file import ElfFile
    from sframegen.format.abi import Abi
    from sframegen.program.workers import Progress

MAX_FUNCTION_SIZE = 1 << 30  # bytes
MAX_ENTRY = 256  # bytes that are read of the code where a program begins; in C libraries it is shorter than 100


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
    ends = [*coverage.fde_ranges.end, *(end for _, end in coverage.ignored_ranges)]
    without_cfi = coverage.ranges_without_cfi(elf)
    starts = _keep_function_entries(converted.table, abi, find_starts(elf, abi))
    starts |= find_referenced_starts(elf, abi, without_cfi) | _find_first_callee(elf, abi, without_cfi)
    edges = sorted([*ends, *(start for start, _ in elf.executable_ranges())])
    without_cfi = _extend_to_starts(without_cfi, starts, edges)
    new_functions: list[SynthesizedFunction] = []
    ranges: dict[str, list[Range]] = {}  # of these functions, by their source

    def add(source: str, found: list[SynthesizedFunction]) -> None:
        nonlocal without_cfi
        expressible = [typed for function in found if (typed := _with_fde_type(function, words)) is not None]
        ranges[source] = [(function.start, function.start + function.size) for function in expressible]
        new_functions.extend(expressible)
        # Inexpressible functions are left out as well, so that later finders do not guess about their code.
        without_cfi = subtract_ranges(without_cfi, [(function.start, function.start + function.size) for function in found])

    plt = find_plt(elf, abi)
    add("PLT", list(_make_plt_functions(plt, without_cfi)))
    add("program entry", list(_find_program_entry(elf, abi, without_cfi)))
    callable_starts = starts - {elf.header.e_entry}  # the entry address has no caller
    proven: Sequence[Range] = ()
    functions: list[SynthesizedFunction] = []
    isa = machine_of(abi).isa
    if isa is not None and without_cfi:
        survey = survey_without_cfi(elf, without_cfi, callable_starts, plt, jobs, progress)
        proven = survey.functions
        functions = list(_make_proven_functions(survey, abi, isa.entry.sp))
    add("instructions", functions)
    if not new_functions:
        return converted
    table = _add_functions(converted.table, sorted(new_functions, key=lambda function: function.start))
    encoded = EncodedRules(table.rules, words)
    table = narrow_table(table, encoded)
    synthesized = tuple(ranges[source] for source in SYNTHESIZED)
    return Converted(table, replace(coverage, table=table, synthesized=synthesized, proven=proven), encoded)


def _keep_function_entries(table: FunctionTable, abi: Abi, starts: set[int]) -> set[int]:
    """Return the addresses where the table has an entry's frame or no rule, because a symbol may name a piece of a function."""
    isa = machine_of(abi).isa
    if isa is None:
        return starts
    at_entry = rule_of_state(isa.entry, abi.sp, abi.fp, abi.fixed_ra_offset)

    def is_entry_or_unknown(address: int) -> bool:
        match = look_up_in(table, address)
        return match is None or match.kind.mask or match.row_offset is None or match.rule == at_entry

    return set(filter(is_entry_or_unknown, starts))


def _extend_to_starts(without_cfi: list[Range], starts: set[int], edges: list[int]) -> list[Range]:
    """Extend each range back to a function that begins with apparent padding, as AArch64's .init does.

    `edges`: padding does not reach back past these.
    """
    extended = []
    previous_end = 0
    for start, end in without_cfi:
        low = max(previous_end, start - MAX_PADDING, edges[bisect_right(edges, start) - 1])
        extended.append((min([address for address in range(low, start) if address in starts], default=start), end))
        previous_end = end
    return extended


def _make_plt_functions(plt: Plt, without_cfi: list[Range]) -> Iterator[SynthesizedFunction]:
    table = plt.make_functions(without_cfi)
    for number, (start, size, kind) in enumerate(zip(table.start, table.size, table.kind, strict=True)):
        yield SynthesizedFunction(start, size, table.kinds[kind], table.rows(number))


def _find_program_entry(elf: ElfFile, abi: Abi, without_cfi: list[Range]) -> Iterator[SynthesizedFunction]:
    """Yield the function at the entry address of the ELF header, which has no caller, if its code is that of a C library.

    It ends with its first call or jump, which does not return; a trap or another call may follow a call.
    """
    points = _program_entry_points(elf, abi, without_cfi)
    if not points or points[0].flow not in (Flow.CALL, Flow.JUMP):
        return
    start, end = elf.header.e_entry, points[0].end
    if points[0].flow is Flow.CALL and len(points) > 1 and points[1].address == end and points[1].flow in (Flow.CALL, Flow.STOP):
        end = points[1].end
    yield SynthesizedFunction(start, end - start, Kind(), [(0, OUTERMOST)])


def _program_entry_points(elf: ElfFile, abi: Abi, without_cfi: list[Range]) -> list[Point]:
    """Return the points that change the flow of control at the entry address, if the code is that of a C library."""
    start = elf.header.e_entry
    limit = next((high for low, high in without_cfi if low <= start < high), None)
    isa = machine_of(abi).isa
    if limit is None or isa is None:
        return []
    code = bytes(elf.at(start, min(MAX_ENTRY, limit - start)))
    return list(decode(code, start, isa).flow_points()) if isa.program_entry.match(code) else []


def _find_first_callee(elf: ElfFile, abi: Abi, without_cfi: list[Range]) -> set[int]:
    """Return the target of the call that the code at the entry address ends with, if the instruction contains it."""
    points = _program_entry_points(elf, abi, without_cfi)
    return {point.target for point in points[:1] if point.flow is Flow.CALL and point.target is not None}


def _make_proven_functions(survey: Survey, abi: Abi, sp_at_entry: int | None) -> Iterator[SynthesizedFunction]:
    """Yield a function for each group of adjacent proven rows, still without FDE type."""
    # States are left out whose SP is above where the return address was on entry.
    is_emitted = [state.sp is None or sp_at_entry is None or state.sp <= sp_at_entry for state in survey.states]
    columns = zip(survey.start, survey.end, survey.state, strict=True)
    rows = derive_rules(((start, end, survey.states[number]) for start, end, number in columns if is_emitted[number]), abi)
    signed_with_a, signed_with_b = array("Q"), array("Q")  # starts of rows whose return address is signed with this key
    for row_start, number in zip(survey.start, survey.state, strict=True):
        state = survey.states[number]
        if state.signed and state.key_b is not None:
            (signed_with_b if state.key_b else signed_with_a).append(row_start)
    for group in _group_adjacent_rows(rows):
        start, end = group[0][0], group[-1][1]
        has_a = bisect_left(signed_with_a, start) < bisect_left(signed_with_a, end)
        has_b = bisect_left(signed_with_b, start) < bisect_left(signed_with_b, end)
        if not (has_a and has_b):  # an FDE has one key
            yield SynthesizedFunction(start, end - start, Kind(key_b=has_b), [(begin - start, rule) for begin, _, rule in group])


def _group_adjacent_rows(rows: Iterable[tuple[int, int, Rule]]) -> Iterator[list[tuple[int, int, Rule]]]:
    """Group rows that follow one another without a gap, up to the largest size of a function."""
    group: list[tuple[int, int, Rule]] = []
    for row in rows:
        if group and (group[-1][1] != row[0] or row[1] - group[0][0] > MAX_FUNCTION_SIZE):
            yield group
            group = []
        group.append(row)
    if group:
        yield group


def _with_fde_type(function: SynthesizedFunction, words: RuleWords) -> SynthesizedFunction | None:
    """Return the function with an FDE type that can express all its rules; None if there is none."""
    for fde_type in FDE_TYPES:
        if all(words.encode(rule)[fde_type] for _, rule in function.rows):
            return function._replace(kind=function.kind._replace(fde_type=fde_type))
    return None


def _add_functions(table: FunctionTable, new_functions: list[SynthesizedFunction]) -> FunctionTable:
    kinds = {kind: number for number, kind in enumerate(table.kinds)}
    rules = {rule: number for number, rule in enumerate(table.rules)}
    merged = FunctionTable()
    copied = 0
    for function in new_functions:
        number = bisect_left(table.start, function.start)
        merged.extend(table, copied, number)
        copied = number
        rows = [(offset, rules.setdefault(rule, len(rules))) for offset, rule in function.rows]
        merged.append(function.start, function.size, kinds.setdefault(function.kind, len(kinds)), rows)
    merged.extend(table, copied)
    merged.kinds, merged.rules = list(kinds), list(rules)
    return merged
