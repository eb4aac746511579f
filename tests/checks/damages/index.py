"""Damage to the index of functions, and to their attributes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sframegen.checks.finding import Severity
from sframegen.format.model import FdeType
from tests.checks.damages.kinds import Kinds, Place
from tests.checks.damages.subject import NotHereError

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from tests.checks.damages.kinds import Bytes, Copy, Fre

KINDS = Kinds()
WARNING = Severity.WARNING


def _neighbours(copy: Copy, random: Random, gap: int = 0) -> int:
    """A function with one after it, `gap` bytes or more after its end."""
    table = copy.subject.table

    def fits(function: int) -> bool:
        return function + 1 < len(table) and table.start[function + 1] - table.start[function] - table.size[function] >= gap

    return copy.functions(random, fits)


@KINDS("start-order")
def two_fdes_exchanged(copy: Copy, random: Random) -> Place:
    """Each keeps its address."""
    data, table = copy.section, copy.subject.table
    one = _neighbours(copy, random)
    other = random.randrange(one + 1, len(table))
    here, there, size = data.entry(one), data.entry(other), data.layout.index_size
    data.data[here : here + size], data.data[there : there + size] = data.data[there : there + size], data.data[here : here + size]
    data.start(one, there - here)
    data.start(other, here - there)
    behind = one + 1
    return Place(table.start[behind] if behind != other else table.start[one], data.entry(behind))


@KINDS("same-start")
def start_moved_to_the_neighbours(copy: Copy, random: Random) -> Place:
    data, table, one = copy.section, copy.subject.table, _neighbours(copy, random)
    data.start(one + 1, table.start[one] - table.start[one + 1])
    return Place(table.start[one], data.entry(one + 1))


@KINDS("overlap")
def start_moved_into_the_neighbour(copy: Copy, random: Random) -> Place:
    data, table, one = copy.section, copy.subject.table, _neighbours(copy, random)
    if table.size[one] < 2:
        raise NotHereError
    start = table.start[one] + random.randrange(1, table.size[one])
    data.start(one + 1, start - table.start[one + 1])
    return Place(start, data.entry(one + 1))


@KINDS("start-outside-code")
def start_moved_out_of_the_code(copy: Copy, random: Random) -> Place:
    data, table, one = copy.section, copy.subject.table, copy.functions(random, lambda _: True)
    code = copy.subject.elf.executable_ranges()
    start = random.choice((code[0][0] - random.randrange(1, 4096), code[-1][1] + random.randrange(4096)))
    data.start(one, start - table.start[one])
    return Place(start % (1 << 64), data.entry(one))


@KINDS("overlap")
def function_reaches_into_the_next(copy: Copy, random: Random) -> Place:
    data, table, one = copy.section, copy.subject.table, _neighbours(copy, random)
    data.size(one, table.start[one + 1] - table.start[one] + random.randrange(1, 100))
    return Place(table.start[one + 1], data.entry(one + 1))


@KINDS("overlap")
def function_one_byte_longer(copy: Copy, random: Random) -> Place:
    """Where the next one begins at its end; of padding the CFI says nothing."""
    data, table = copy.section, copy.subject.table
    last = len(table) - 1
    one = copy.functions(random, lambda f: f < last and table.start[f] + table.size[f] == table.start[f + 1])
    data.size(one, table.size[one] + 1)
    return Place(table.start[one + 1], data.entry(one + 1))


@KINDS("end-outside-code")
def function_reaches_past_the_code(copy: Copy, random: Random) -> Place:
    data, table, one = copy.section, copy.subject.table, copy.functions(random, lambda _: True)
    data.size(one, 0xFFFFFFFF - random.randrange(1 << 16))
    return Place(table.start[one], data.entry(one))


@KINDS("empty-function", severity=WARNING)
def function_without_bytes(copy: Copy, random: Random) -> Place:
    data, one = copy.section, copy.functions(random, lambda _: True)
    data.size(one, 0)
    return Place(copy.subject.table.start[one], data.entry(one))


@KINDS("row-beyond-function")
def function_ends_before_its_last_fre(copy: Copy, random: Random) -> Place:
    data, table = copy.section, copy.subject.table
    one = copy.functions(random, lambda f: copy.has_plain_rows(f) and table.row_start[table.first_row[f + 1] - 1] > 1)
    start = table.row_start[table.first_row[one + 1] - 1]
    rows = [offset for offset, _ in table.rows(one)]
    data.size(one, random.randrange(max(rows[-2], 1), start))
    return Place(table.start[one] + start)


@KINDS("block-outside")
def fres_elsewhere(copy: Copy, random: Random) -> Place:
    data, one = copy.section, copy.functions(random, lambda _: True)
    data.put(data.entry(one) + data.layout.fre_offset_at, 4, data.header.fre_len + random.randrange(1 << 24))
    return Place(copy.subject.table.start[one], data.entry(one))


@KINDS("unused-bytes", severity=WARNING)
def fres_one_byte_later(copy: Copy, random: Random) -> Place:
    data, one = copy.section, copy.functions(random, copy.section.alone)
    place = data.block(one)
    data.add(data.entry(one) + data.layout.fre_offset_at, 4, 1)
    return Place(offset=place)


@KINDS("unused-bits", severity=WARNING, versions=(2,))
def padding_of_the_index_set(copy: Copy, random: Random) -> Place:
    data, one = copy.section, copy.functions(random, lambda _: True)
    place = data.entry(one) + data.layout.padding_at
    data.data[place + random.randrange(2)] = random.randrange(1, 256)
    return Place(copy.subject.table.start[one], place)


# -- attributes


@KINDS("fre-type")
def unknown_fre_type(copy: Copy, random: Random) -> Place:
    data, one = copy.section, copy.functions(random, copy.section.count)
    data.data[data.info(one)] |= random.choice((3, 7, 15))
    return Place(offset=data.info(one))


@KINDS("first-row")
def other_fre_type(copy: Copy, random: Random) -> Place:
    data = copy.section
    one = copy.functions(random, lambda f: data.count(f) and data.width(f) == 1 and data.data[data.rows(f) + 1])
    data.data[data.info(one)] |= 1
    return Place(offset=data.rows(one))


@KINDS("fde-type", versions=(3,))
def unknown_fde_type(copy: Copy, random: Random) -> Place:
    data, one = copy.section, copy.functions(random, copy.section.count)
    data.data[data.info(one) + 1] = random.randrange(2, 32)
    return Place(offset=data.info(one) + 1)


@KINDS("cfa-base", versions=(3,))
def default_fde_marked_flexible(copy: Copy, random: Random) -> Place:
    data = copy.section

    def fits(function: int) -> bool:
        kind = copy.subject.table.kinds[copy.subject.table.kind[function]]
        if kind.fde_type is FdeType.FLEX or not data.count(function) or not data.alone(function):
            return False
        row = data.fres(function)[0]
        return row.end > row.info + 1 and not data.read(row.info + 1, data.word_width(row)) & 1

    one = copy.functions(random, fits)
    data.data[data.info(one) + 1] |= FdeType.FLEX
    return Place(copy.subject.table.start[one], data.fres(one)[0].info)


@KINDS("words", versions=(3,))
def flexible_fde_marked_default(copy: Copy, random: Random) -> Place:
    data = copy.section
    table = copy.subject.table
    one = copy.functions(
        random, lambda f: table.kinds[table.kind[f]].fde_type is FdeType.FLEX and any(map(_long(data), data.fres(f)))
    )
    data.data[data.info(one) + 1] &= ~1
    row = next(filter(_long(data), data.fres(one)))
    return Place(offset=row.info)


def _long(data: Bytes) -> Callable[[Fre], bool]:
    """FREs of more words than a default rule has in any ABI."""
    return lambda row: data.data[row.info] >> 1 & 0x0F > 3


@KINDS("unused-bits", severity=WARNING)
def unused_bit_of_the_attribute(copy: Copy, random: Random) -> Place:
    data, one = copy.section, copy.functions(random, lambda _: True)
    data.data[data.info(one)] |= 0x40
    return Place(offset=data.info(one))


@KINDS("blocks-overlap", versions=(3,))
def one_fre_too_many(copy: Copy, random: Random) -> Place:
    """It is read from the next function's attribute."""
    data = copy.section
    blocks = {data.block(function): function for function in range(data.header.num_fdes)}

    def fits(function: int) -> bool:
        behind = data.fres(function)[-1].end if data.count(function) else 0
        return behind in blocks and 0 < data.count(blocks[behind]) < 256 and data.width(function) == 1

    one = copy.functions(random, fits)
    behind = data.fres(one)[-1].end
    data.add(data.attribute(one) + data.layout.num_fres_at, data.layout.num_fres_width, 1)
    return Place(offset=behind)


@KINDS("unused-bytes", severity=WARNING)
def one_fre_too_few(copy: Copy, random: Random) -> Place:
    data = copy.section
    one = copy.functions(random, lambda f: data.count(f) > 1 and data.alone(f))
    row = data.fres(one)[-1]
    data.add(data.attribute(one) + data.layout.num_fres_at, data.layout.num_fres_width, -1)
    return Place(offset=row.at)


@KINDS("no-rows", severity=WARNING)
def no_fres(copy: Copy, random: Random) -> Place:
    """Which a default FDE of version 3 may have: a wrong rule then, not a broken one."""
    data, table = copy.section, copy.subject.table
    flexible_only = data.layout.outermost_without_rows
    one = copy.functions(random, lambda f: not flexible_only or table.kinds[table.kind[f]].fde_type is FdeType.FLEX)
    data.put(data.attribute(one) + data.layout.num_fres_at, data.layout.num_fres_width, 0)
    return Place(offset=None if data.layout.attribute_in_block else data.entry(one))


@KINDS("mask-without-period")
def repeated_block_of_no_bytes(copy: Copy, random: Random) -> Place:
    data, one = copy.section, copy.functions(random, lambda _: True)
    data.data[data.info(one)] |= 0x10
    data.data[data.period(one)] = 0
    return Place(offset=data.info(one))


@KINDS("period-without-mask", severity=WARNING)
def period_of_what_is_not_repeated(copy: Copy, random: Random) -> Place:
    table = copy.subject.table
    data, one = copy.section, copy.functions(random, lambda f: not table.kinds[table.kind[f]].mask)
    data.data[data.period(one)] = random.randrange(1, 256)
    return Place(offset=data.info(one))
