"""What the instructions say against what the CFI says: by value, at every byte of code."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from sframegen.code.state import CALLERS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sframegen.abi import Abi
    from sframegen.code.state import State
    from sframegen.code.survey import Survey
    from sframegen.model import FunctionTable, Rule, Where

RIGHT, SILENT, INCOMPARABLE = "right", "silent", "not comparable"


class Difference(NamedTuple):
    """Code of which the two say different things. `kind`: what is different."""

    start: int
    end: int
    kind: str
    rule: Rule
    state: State


class Compared(NamedTuple):
    bytes_by_verdict: Counter[str]
    differences: list[Difference]
    silent: list[tuple[int, int]]


@lru_cache(1 << 16)
def verdict(rule: Rule, key_b: bool, state: State, sp: int, fp: int) -> str:
    """Whether a CFI row and a state give equal values to CFA, RA and the caller's FP; else what differs."""
    if rule.cfa is None:
        return "outermost"
    if rule.cfa.deref or rule.cfa.register not in (sp, fp):
        return INCOMPARABLE
    base = state.sp if rule.cfa.register == sp else state.fp
    if base is None or base == CALLERS:
        return INCOMPARABLE
    if base != -rule.cfa.offset:
        return "CFA"
    for name, place, register, at in (("RA", rule.ra, state.ra, state.ra_at), ("FP", rule.fp, state.fp, state.fp_at)):
        found = _agrees(place, register, at)
        if found is None:
            return INCOMPARABLE
        if not found:
            return name
    if rule.ra_signed != state.signed or (rule.ra_signed and key_b != state.key_b):
        return "signature"
    return RIGHT


def _agrees(place: Where | None, register: int | None, at: int | None) -> bool | None:
    if place is None:
        return register == CALLERS
    if place.register is not None or not place.deref:
        return None
    return at == place.offset


def compare(table: FunctionTable, survey: Survey, emits: list[bool], abi: Abi) -> Compared:
    """`emits`: by state, whether it becomes a row."""
    counts: Counter[str] = Counter()
    differences: list[Difference] = []
    silent: list[tuple[int, int]] = []
    place, count = 0, len(survey.start)
    for start, end, rule, key_b in _cfi_rows(table):
        at = start
        while place and survey.end[place - 1] > start:
            place -= 1
        while at < end:
            while place < count and survey.end[place] <= at:
                place += 1
            if place == count or survey.start[place] >= end:
                counts[SILENT] += end - at
                silent.append((at, end))
                break
            if survey.start[place] > at:
                counts[SILENT] += survey.start[place] - at
                silent.append((at, survey.start[place]))
                at = survey.start[place]
            stop = min(end, survey.end[place])
            number = survey.state[place]
            what = verdict(rule, key_b, survey.states[number], abi.sp, abi.fp) if emits[number] else SILENT
            counts[what] += stop - at
            if what == SILENT:
                silent.append((at, stop))
            elif what != RIGHT:
                differences.append(Difference(at, stop, what, rule, survey.states[number]))
            at = stop
    return Compared(counts, differences, silent)


def _cfi_rows(table: FunctionTable) -> Iterator[tuple[int, int, Rule, bool]]:
    for function, (start, size) in enumerate(zip(table.start, table.size, strict=True)):
        kind = table.kinds[table.kind[function]]
        if kind.mask:
            continue
        rows = range(table.first_row[function], table.first_row[function + 1])
        for row in rows:
            begin = table.row_start[row]
            end = table.row_start[row + 1] if row + 1 in rows else size
            yield start + begin, start + end, table.rules[table.row_rule[row]], kind.key_b
