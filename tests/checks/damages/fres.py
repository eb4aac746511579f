"""Damage to the bytes of FREs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sframegen.checks.finding import Severity
from sframegen.format.model import FdeType
from tests.checks.damages.kinds import Kinds, Place
from tests.checks.damages.subject import NotHereError, NowhereError

if TYPE_CHECKING:
    from random import Random

    from tests.checks.damages.kinds import Copy, Fre

KINDS = Kinds()
WARNING = Severity.WARNING


def _fre(copy: Copy, random: Random, first: int = 0) -> tuple[int, int, list[Fre]]:
    """A function that has its FREs to itself, and of these one, not below number `first`."""
    data = copy.section
    one = copy.functions(random, lambda f: data.count(f) > first and data.alone(f))
    rows = data.fres(one)
    return one, random.randrange(first, len(rows)), rows


@KINDS("first-row")
def first_fre_not_at_the_start(copy: Copy, random: Random) -> Place:
    data = copy.section
    one, _, rows = _fre(copy, random)
    data.put(rows[0].at, data.width(one), random.randrange(1, 256))
    return Place(copy.subject.table.start[one], rows[0].at)


@KINDS("row-order")
def fres_out_of_order(copy: Copy, random: Random) -> Place:
    data = copy.section
    one, number, rows = _fre(copy, random, 1)
    data.put(rows[number].at, data.width(one), random.randrange(data.read(rows[number - 1].at, data.width(one)) + 1))
    return Place(offset=rows[number].at)


@KINDS("row-beyond-function")
def fre_after_its_function(copy: Copy, random: Random) -> Place:
    data, table = copy.section, copy.subject.table
    one, _, rows = _fre(copy, random, 1)
    if table.size[one] >= (1 << 8 * data.width(one)) - 1 or not copy.has_plain_rows(one):
        raise NotHereError
    start = random.randrange(table.size[one] + 1, 1 << 8 * data.width(one))
    data.put(rows[-1].at, data.width(one), start)
    return Place(table.start[one] + start, rows[-1].at)


@KINDS("row-at-end", severity=WARNING)
def fre_at_the_end_of_its_function(copy: Copy, random: Random) -> Place:
    data, table = copy.section, copy.subject.table
    one, _, rows = _fre(copy, random, 1)
    if table.size[one] >= 1 << 8 * data.width(one) or not copy.has_plain_rows(one):
        raise NotHereError
    data.put(rows[-1].at, data.width(one), table.size[one])
    return Place(table.start[one] + table.size[one], rows[-1].at)


@KINDS("word-size")
def unknown_word_size(copy: Copy, random: Random) -> Place:
    _, number, rows = _fre(copy, random)
    copy.section.data[rows[number].info] |= 0x60
    return Place(offset=rows[number].info)


@KINDS("words")
def more_words_than_a_rule_has(copy: Copy, random: Random) -> Place:
    data = copy.section
    _, number, rows = _fre(copy, random)
    row = rows[number]
    if row.info + 1 + 15 * data.word_width(row) > copy.subject.section.fres_end:
        raise NotHereError
    data.data[row.info] |= 15 << 1
    return Place(offset=row.info)


@KINDS("signed-address", severity=WARNING)
def signed_return_address_on_another_abi(copy: Copy, random: Random) -> Place:
    if copy.abi.ra_is_signed:
        raise NowhereError
    _, number, rows = _fre(copy, random)
    row = rows[number]
    if row.end == row.info + 1:
        raise NotHereError
    copy.section.data[row.info] |= 0x80
    return Place(offset=row.info)


def _flexible(copy: Copy, random: Random) -> tuple[int, Fre, int]:
    """A function, one of its FREs, and the bytes of its data words."""
    data, table = copy.section, copy.subject.table
    one = copy.functions(random, lambda f: table.kinds[table.kind[f]].fde_type is FdeType.FLEX and data.alone(f))
    row = random.choice(data.fres(one))
    if row.end == row.info + 1:
        raise NotHereError
    return one, row, data.word_width(row)


@KINDS("cfa-base", versions=(3,))
def flexible_cfa_without_register(copy: Copy, random: Random) -> Place:
    data = copy.section
    _, row, width = _flexible(copy, random)
    data.put(row.info + 1, width, data.read(row.info + 1, width) & ~1)
    return Place(offset=row.info)


@KINDS("unused-bits", severity=WARNING, versions=(3,))
def unused_bit_of_a_control_word(copy: Copy, random: Random) -> Place:
    data = copy.section
    _, row, width = _flexible(copy, random)
    data.put(row.info + 1, width, data.read(row.info + 1, width) | 4)
    return Place(offset=row.info)


@KINDS("register", severity=WARNING, versions=(3,))
def register_that_no_stack_tracer_has(copy: Copy, random: Random) -> Place:
    data = copy.section
    _, row, width = _flexible(copy, random)
    unknown = sorted(set(range(32)) - set(copy.abi.base_registers))
    if not unknown:
        raise NowhereError
    data.put(row.info + 1, width, data.read(row.info + 1, width) & 7 | random.choice(unknown) << 3)
    return Place(offset=row.info)
