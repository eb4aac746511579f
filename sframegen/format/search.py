"""From an address to what a section's bytes say of it, as an unwinder finds it: nothing else is decoded."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, NamedTuple

from cfi.errors import FormatError
from sframegen.format.decode import kind_of, rule_of
from sframegen.format.model import OUTERMOST, FdeType, Kind, Rule
from sframegen.format.seek import BAD, NO_ROWS, NOT_COVERED
from sframegen.format.unpack import FAULTS

if TYPE_CHECKING:
    from sframegen.format.decode import SframeSection
    from sframegen.format.model import FunctionTable


class Found(NamedTuple):
    """The function and the row that cover an address."""

    start: int
    size: int
    kind: Kind
    row_offset: int | None  # where the row begins, bytes from the function's start or the repeated block's; None without rows
    rule: Rule


def look_up(section: SframeSection, pc: int) -> Found | None:
    """What covers link-time address `pc`. A default function without rows is an outermost frame; a flexible one says nothing.

    Raises FormatError where the functions are not in ascending order, or what covers `pc` is damaged.
    """
    if pc >> 64:
        return None
    seeker = section.seeker
    row_at = seeker.find(pc)
    if row_at == NOT_COVERED:
        return None
    if row_at == BAD:
        raise FormatError(FAULTS[seeker.fault], section.place, seeker.at)
    kind = kind_of(seeker.info, seeker.info2, seeker.rep_size, section.place, seeker.at)
    function = (seeker.start, seeker.size, kind)
    if row_at != NO_ROWS:
        return Found(*function, seeker.row_offset, rule_of(section, kind.fde_type, row_at))
    return Found(*function, None, OUTERMOST) if kind.fde_type is FdeType.DEFAULT else None


def look_up_in(table: FunctionTable, pc: int) -> Found | None:
    """The same in a table whose functions ascend: where there is no section that could be searched."""
    function = bisect_right(table.start, pc) - 1
    if function < 0 or pc - table.start[function] >= table.size[function]:
        return None
    kind = table.kinds[table.kind[function]]
    offset = pc - table.start[function]
    first, end = table.first_row[function], table.first_row[function + 1]
    head = (table.start[function], table.size[function], kind)
    if first == end:
        return Found(*head, None, OUTERMOST) if kind.fde_type is FdeType.DEFAULT else None
    row = bisect_right(table.row_start, offset % kind.rep_size if kind.mask and kind.rep_size else offset, first, end) - 1
    return None if row < first else Found(*head, table.row_start[row], table.rules[table.row_rule[row]])


def find(section: SframeSection, pc: int) -> Rule | None:
    """The rule at link-time address `pc`; None where the section has none.

    Raises FormatError where the functions are not in ascending order, or what covers `pc` is damaged.
    """
    found = look_up(section, pc)
    return None if found is None else found.rule
