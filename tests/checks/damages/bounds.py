"""Damage to the header of a section, and to its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sframegen.checks.finding import Severity
from sframegen.format.layouts import F_FDE_FUNC_START_PCREL, F_FDE_SORTED, HEADER_SIZE
from tests.checks.damages.kinds import Kinds, Place
from tests.checks.damages.subject import NotHereError

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random
    from typing import Any

    from sframegen.format.decode import SframeSection
    from tests.checks.damages.kinds import Bytes, Copy, Fre

KINDS = Kinds()
WARNING = Severity.WARNING


def _field(name: str, offset: int | None, field: str, value: Callable[[Copy, Random], int], *rules: str, **more: Any) -> None:
    """Another number in a field of the header, which is found at that offset."""

    def do(copy: Copy, random: Random) -> Place:
        copy.section.set_header(**{field: value(copy, random)})
        return Place(offset=offset)

    KINDS.add(name, do, *rules, **more)


def _lost_flag(name: str, flag: int, rule: str) -> None:
    _field(name, None, "flags", lambda copy, _: copy.section.header.flags & ~flag, rule, severity=WARNING)


@KINDS("magic")
def other_magic_number(copy: Copy, random: Random) -> Place:
    copy.section.data[random.randrange(2)] ^= 1 << random.randrange(8)
    return Place(offset=0)


_field("unknown version", 2, "version", lambda _, random: random.randrange(4, 256), "version")
_field("version 2 instead of 3", 24, "version", lambda *_: 2, "sub-section-order", versions=(3,))
_field("version 3 instead of 2", 20, "version", lambda *_: 3, "sub-section-gap", severity=WARNING, versions=(2,))
_field("unknown flag", 3, "flags", lambda copy, random: copy.section.header.flags | 1 << random.randrange(3, 8), "flags")
_lost_flag("flag of order lost", F_FDE_SORTED, "gnu-sorted")
_lost_flag("flag of relative starts lost", F_FDE_FUNC_START_PCREL, "gnu-pc-relative")
_field("unknown abi", 4, "abi_arch", lambda _, random: random.randrange(5, 256), "abi", "machine")


@KINDS("machine")
def abi_of_another_machine(copy: Copy, random: Random) -> Place:
    copy.section.set_header(abi_arch=random.choice([n for n in range(1, 5) if n != copy.abi.sframe_id]))
    return Place()


@KINDS("fixed-offsets")
def other_fixed_offset_of_ra(copy: Copy, random: Random) -> Place:
    copy.section.set_header(cfa_fixed_ra_offset=copy.abi.fixed_ra_offset - 8 * random.randrange(1, 9))
    return Place(offset=5)


_field("other fixed offset of fp", 5, "cfa_fixed_fp_offset", lambda _, random: -8 * random.randrange(1, 9), "fixed-offsets")


@KINDS("auxiliary-header", severity=WARNING)
def auxiliary_header_inserted(copy: Copy, random: Random) -> Place:
    """The functions stay where they are in memory."""
    data, count = copy.section, random.randrange(1, 64)
    for function in range(data.header.num_fdes):
        data.start(function, -count)
    if not any(data.data[-count:]):
        del data.data[-count:]
    data.data[HEADER_SIZE:HEADER_SIZE] = bytes(count)
    data.data[7] = count
    return Place(offset=7)


@KINDS("index-bounds")
def more_functions_than_fit(copy: Copy, random: Random) -> Place:
    copy.section.set_header(num_fdes=len(copy.section.data) // copy.subject.layout.index_size + random.randrange(1, 1 << 24))
    return Place(offset=8)


_field("one function more", 24, "num_fdes", lambda copy, _: copy.section.header.num_fdes + 1, "sub-section-order")
_field("one function fewer", 20, "num_fdes", lambda copy, _: copy.section.header.num_fdes - 1, "sub-section-gap", severity=WARNING)


@KINDS("row-total", alone=True)
def other_number_of_fres(copy: Copy, random: Random) -> Place:
    header = copy.section.header
    number = header.num_fres + random.choice((-1, 1, 1000))
    if number == sum(copy.section.count(function) for function in range(header.num_fdes)):
        raise NotHereError
    copy.section.set_header(num_fres=number)
    return Place(offset=12)


@KINDS("rows-bounds")
def fres_reach_past_the_section(copy: Copy, random: Random) -> Place:
    copy.section.set_header(fre_len=len(copy.section.data) + random.randrange(1 << 24))
    return Place(offset=16)


@KINDS("row-cut-off")
def last_fre_outside_of_its_sub_section(copy: Copy, _: Random) -> Place:
    data = copy.section
    row = max(_last_rows(data))
    data.set_header(fre_len=row.end - 1 - copy.subject.section.fres_at)
    return Place(offset=row.at if row.end == row.info + 1 else row.info)


def _last_rows(data: Bytes) -> list[Fre]:
    return [data.fres(function)[-1] for function in range(data.header.num_fdes) if data.count(function)]


def _moved_fres(name: str, offset: int, sign: int, rule: str, severity: Severity) -> None:
    def value(copy: Copy, random: Random) -> int:
        return copy.section.header.freoff + sign * random.randrange(1, 16)

    _field(name, offset, "freoff", value, rule, severity=severity)


_moved_fres("fres begin too early", 24, -1, "sub-section-order", Severity.ERROR)
_moved_fres("fres begin too late", 20, 1, "sub-section-gap", WARNING)
_field("index begins too late", 24, "fdeoff", lambda _, random: random.randrange(1, 16), "sub-section-order")


# -- the section's end


def _cut(name: str, offset: int, places: Callable[[SframeSection], tuple[int, int]], rule: str) -> None:
    def do(copy: Copy, random: Random) -> Place:
        del copy.section.data[random.randrange(*places(copy.subject.section)) :]
        return Place(offset=offset)

    KINDS.add(name, do, rule)


_cut("cut in the header", 0, lambda _: (1, HEADER_SIZE), "header-size")
_cut("cut in the index", 8, lambda section: (section.index_at, section.fres_at), "index-bounds")
_cut("cut in the fres", 16, lambda section: (section.fres_at, section.fres_end), "rows-bounds")


@KINDS("trailing-bytes", severity=WARNING)
def bytes_after_the_fres(copy: Copy, random: Random) -> Place:
    end = copy.subject.section.end
    data = copy.section.data
    place = end + random.randrange(64)
    data.extend(bytes(max(0, place + 1 - len(data))))
    data[place] = random.randrange(1, 200)
    return Place(offset=place)


@KINDS("another-section")
def another_section_after_it(copy: Copy, _: Random) -> Place:
    end = copy.subject.section.end
    data = copy.section.data
    data[end : end + HEADER_SIZE] = data[:HEADER_SIZE]
    return Place(offset=end)
