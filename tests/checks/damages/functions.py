"""Damage that leaves a section perfectly well formed, and wrong: its functions lie elsewhere, or are of another kind."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from sframegen.checks.against_cfi import REASONS
from sframegen.format.model import Kind, Rule
from sframegen.format.words import Reason
from tests.checks.damages.kinds import Copy, Kinds, draw
from tests.checks.damages.subject import Site

KINDS = Kinds()


def _insert(copy: Copy, start: int, size: int, kind: Kind, rules: list[tuple[int, Rule]]) -> None:
    """A function more."""
    table = copy.table
    place = next((number for number, other in enumerate(table.start) if other > start), len(table))
    table.start.insert(place, start)
    table.size.insert(place, size)
    table.kind.insert(place, 0)
    table.first_row.insert(place, table.first_row[place])
    copy.set_kind(place, kind)
    copy.set_rows(place, rules)


def _remove(copy: Copy, function: int) -> None:
    table = copy.table
    first, end = table.first_row[function], table.first_row[function + 1]
    for column in (table.start, table.size, table.kind):
        del column[function]
    del table.row_start[first:end], table.row_rule[first:end], table.first_row[function]
    for number in range(function, len(table.first_row)):
        table.first_row[number] -= end - first


def _first_absent(copy: Copy) -> int:
    return min((f.address for f in copy.subject.known if f.rule == "cfi-absent" and f.address is not None), default=1 << 64)


@KINDS("cfi-absent")
def function_missing(copy: Copy, random: Random) -> int:
    site = copy.site(random, lambda site: site.row == 0 and site.start < _first_absent(copy))
    _remove(copy, site.function)
    return site.start


@KINDS("cfi-absent")
def function_one_byte_shorter(copy: Copy, random: Random) -> int:
    table = copy.subject.table

    def fits(function: int) -> bool:
        end = table.start[function] + table.size[function]
        last = table.row_start[table.first_row[function + 1] - 1]
        return last + 1 < table.size[function] and copy.subject.described(end - 1) and end < _first_absent(copy)

    function = copy.functions(random, fits)
    copy.table.size[function] -= 1
    return table.start[function] + table.size[function] - 1


@KINDS("cfi-rule")
def function_begins_one_byte_later(copy: Copy, random: Random) -> int:
    """And ends where it did, so that all rows but the first are late, too."""
    table = copy.subject.table

    def fits(site: Site) -> bool:
        last = table.row_start[table.first_row[site.function + 1] - 1]
        return site.row == 1 and copy.differ(site.before, site.rule) and last + 1 < table.size[site.function]

    site = copy.site(random, fits)
    copy.table.start[site.function] += 1
    copy.table.size[site.function] -= 1
    return site.start


@KINDS("cfi-rule")
def function_begins_one_byte_earlier(copy: Copy, random: Random) -> int:
    """In padding. All rows but the first are early, too."""
    table = copy.subject.table

    def fits(site: Site) -> bool:
        function = site.function
        if site.row != 1 or not function or not copy.differ(site.before, site.rule) or site.start - table.start[function] < 2:
            return False
        gap = table.start[function] - table.start[function - 1] - table.size[function - 1]
        start = table.start[function] - 1
        return gap > 0 and not copy.subject.described(start) and copy.subject.described(site.start - 1)

    site = copy.site(random, fits)
    copy.table.start[site.function] -= 1
    return site.start - 1


def _claimed(copy: Copy, random: Random, fits: Callable[[Reason], object]) -> int:
    """Covers code of which SFrame has no words for what the CFI says, by the usual rule."""
    table = copy.subject.table

    def bare(place: tuple[int, int, int]) -> bool:
        """GNU as covers some."""
        start, end, reason = place
        return bool(fits(REASONS[reason])) and not any(
            other < end and start < other + size for other, size in zip(table.start, table.size, strict=True)
        )

    start, end, _ = draw(random, copy.subject.code[1], bare)
    _insert(copy, start, random.randrange(1, end - start + 1), Kind(), [(0, copy.usual_rule())])
    return start


def _claims(name: str, fits: Callable[[Reason], object]) -> None:
    KINDS.add(name, lambda copy, random: _claimed(copy, random, fits), "cfi-inexpressible")


_claims("code claimed that cannot be said", lambda reason: reason is not Reason.SP_RULE)
_claims("code claimed whose sp is not the cfa", lambda reason: reason is Reason.SP_RULE)


# -- what all rows of a function have in common


def _other_kind(copy: Copy, function: int, **fields: Any) -> None:
    kind = copy.table.kinds[copy.table.kind[function]]
    copy.set_kind(function, kind._replace(**fields))


def _mark(name: str, *, signal: bool) -> None:
    def do(copy: Copy, random: Random) -> int:
        table = copy.subject.table
        site = copy.site(random, lambda site: site.row == 0 and table.kinds[table.kind[site.function]].signal == signal)
        _other_kind(copy, site.function, signal=not signal)
        return site.start

    KINDS.add(name, do, "cfi-signal", versions=(3,))


_mark("signal mark lost", signal=True)
_mark("signal mark invented", signal=False)


@KINDS("cfi-key")
def other_key_of_signed_return_addresses(copy: Copy, random: Random) -> int:
    table = copy.subject.table
    site = copy.site(random, lambda site: site.rule.ra_signed and not (site.before and site.before.ra_signed))
    first = next(other for other in copy.subject.sites if other.function == site.function and other.rule.ra_signed)
    _other_kind(copy, site.function, key_b=not table.kinds[table.kind[site.function]].key_b)
    return first.start


def _masked(copy: Copy, random: Random) -> tuple[int, int, int]:
    """A repeated function: number, period, address of the second period, where the rule is another than at the end of the first."""
    table = copy.subject.table

    def fits(function: int) -> bool:
        kind, rows = table.kinds[table.kind[function]], table.rows(function)
        if not kind.mask or not rows or table.size[function] <= kind.rep_size or not copy.differ(rows[0][1], rows[-1][1]):
            return False
        return copy.subject.described(table.start[function] + kind.rep_size)

    function = copy.functions(random, fits)
    period = table.kinds[table.kind[function]].rep_size
    return function, period, table.start[function] + period


@KINDS("cfi-rule")
def repetition_lost(copy: Copy, random: Random) -> int:
    function, _, second = _masked(copy, random)
    _other_kind(copy, function, mask=False, rep_size=0)
    return second


@KINDS("cfi-rule")
def longer_period(copy: Copy, random: Random) -> int:
    function, period, second = _masked(copy, random)
    _other_kind(copy, function, rep_size=random.randrange(period + 1, 256))
    return second


@KINDS("cfi-rule")
def repetition_invented(copy: Copy, random: Random) -> int:
    """By a period that all rows fit into."""
    table = copy.subject.table

    def fits(site: Site) -> bool:
        last = site.row + 1 == table.first_row[site.function + 1] - table.first_row[site.function]
        first = table.rules[table.row_rule[table.first_row[site.function]]]
        rest = min(table.size[site.function], 256) - (site.start - table.start[site.function])
        return last and copy.differ(first, site.rule) and rest > 1 and copy.subject.described(site.start + 1)

    site = copy.site(random, fits)
    period = site.start - table.start[site.function] + 1
    _other_kind(copy, site.function, mask=True, rep_size=period)
    return site.start + 1
