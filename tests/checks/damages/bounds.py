"""Damage to the header of a section, and to its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sframegen.checks.finding import Severity
from sframegen.format.layouts import F_FDE_FUNC_START_PCREL, F_FDE_SORTED, HEADER_SIZE
from tests.checks.damages.kinds import Kinds, Place
from tests.checks.damages.subject import NotHereError

if TYPE_CHECKING:
    from random import Random

    from tests.checks.damages.kinds import Bytes, Copy, Fre

KINDS = Kinds()
WARNING = Severity.WARNING
FLAGS_AT = 3


@KINDS("magic")
def other_magic_number(copy: Copy, random: Random) -> Place:
    copy.section.data[random.randrange(2)] ^= 1 << random.randrange(8)
    return Place(offset=0)


@KINDS("version")
def unknown_version(copy: Copy, random: Random) -> Place:
    copy.section.data[2] = random.randrange(4, 256)
    return Place(offset=2)


@KINDS("sub-section-order", versions=(3,))
def version_2_instead_of_3(copy: Copy, _: Random) -> Place:
    copy.section.data[2] = 2
    return Place(offset=24)


@KINDS("sub-section-gap", severity=WARNING, versions=(2,))
def version_3_instead_of_2(copy: Copy, _: Random) -> Place:
    copy.section.data[2] = 3
    return Place(offset=20)


@KINDS("flags")
def unknown_flag(copy: Copy, random: Random) -> Place:
    copy.section.data[FLAGS_AT] |= 1 << random.randrange(3, 8)
    return Place(offset=FLAGS_AT)


@KINDS("gnu-sorted", severity=WARNING)
def flag_of_order_lost(copy: Copy, _: Random) -> Place:
    copy.section.data[FLAGS_AT] &= ~F_FDE_SORTED
    return Place()


@KINDS("gnu-pc-relative", severity=WARNING)
def flag_of_relative_starts_lost(copy: Copy, _: Random) -> Place:
    copy.section.data[FLAGS_AT] &= ~F_FDE_FUNC_START_PCREL
    return Place()


@KINDS("abi", "machine")
def unknown_abi(copy: Copy, random: Random) -> Place:
    copy.section.set_header(abi_arch=random.randrange(5, 256))
    return Place(offset=4)


@KINDS("machine")
def abi_of_another_machine(copy: Copy, random: Random) -> Place:
    copy.section.set_header(abi_arch=random.choice([n for n in range(1, 5) if n != copy.abi.sframe_id]))
    return Place()


@KINDS("fixed-offsets")
def other_fixed_offset_of_ra(copy: Copy, random: Random) -> Place:
    copy.section.set_header(cfa_fixed_ra_offset=copy.abi.fixed_ra_offset - 8 * random.randrange(1, 9))
    return Place(offset=5)


@KINDS("fixed-offsets")
def other_fixed_offset_of_fp(copy: Copy, random: Random) -> Place:
    copy.section.set_header(cfa_fixed_fp_offset=-8 * random.randrange(1, 9))
    return Place(offset=5)


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


@KINDS("sub-section-order")
def one_function_more(copy: Copy, _: Random) -> Place:
    copy.section.set_header(num_fdes=copy.section.header.num_fdes + 1)
    return Place(offset=24)


@KINDS("sub-section-gap", severity=WARNING)
def one_function_fewer(copy: Copy, _: Random) -> Place:
    copy.section.set_header(num_fdes=copy.section.header.num_fdes - 1)
    return Place(offset=20)


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


@KINDS("sub-section-order")
def fres_begin_too_early(copy: Copy, random: Random) -> Place:
    copy.section.set_header(freoff=copy.section.header.freoff - random.randrange(1, 16))
    return Place(offset=24)


@KINDS("sub-section-gap", severity=WARNING)
def fres_begin_too_late(copy: Copy, random: Random) -> Place:
    copy.section.set_header(freoff=copy.section.header.freoff + random.randrange(1, 16))
    return Place(offset=20)


@KINDS("sub-section-order")
def index_begins_too_late(copy: Copy, random: Random) -> Place:
    copy.section.set_header(fdeoff=random.randrange(1, 16))
    return Place(offset=24)


# -- the section's end


@KINDS("header-size")
def cut_in_the_header(copy: Copy, random: Random) -> Place:
    del copy.section.data[random.randrange(1, HEADER_SIZE) :]
    return Place(offset=0)


@KINDS("index-bounds")
def cut_in_the_index(copy: Copy, random: Random) -> Place:
    section = copy.subject.section
    del copy.section.data[random.randrange(section.index_at, section.fres_at) :]
    return Place(offset=8)


@KINDS("rows-bounds")
def cut_in_the_fres(copy: Copy, random: Random) -> Place:
    section = copy.subject.section
    del copy.section.data[random.randrange(section.fres_at, section.fres_end) :]
    return Place(offset=16)


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
