"""The search in a decoded table, as the kernel program and the walker of copies search it."""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

from sframegen.profile.tables.decoded_table import ELEMENT_SIZE, PAGE_BITS, ROW_RULE_SHIFT, RULE_BYTES, RULE_ELEMENTS, DecodedTable
from sframegen.stack.walking.step import RuleFlag


class DecodedRule(NamedTuple):
    cfa_offset: int
    ra_offset: int
    fp_offset: int
    cfa_register: int
    ra_register: int
    fp_register: int
    flags: RuleFlag


def find_rule(table: DecodedTable, address: int) -> DecodedRule | None:
    offset = address - table.base
    page = offset >> PAGE_BITS
    if not 0 <= page < table.pages:
        return None
    with memoryview(table.data) as view, view.cast("I") as numbers:
        first, end = numbers[2 * table.index_at + page : 2 * table.index_at + page + 2]
        rows = numbers[2 * table.rows_at : 2 * table.rows_at + table.rows]
        in_page = offset & (1 << PAGE_BITS) - 1
        row = bisect_right(rows, in_page, first, end, key=lambda row: row & 0xFF) - 1
        number = rows[row] >> ROW_RULE_SHIFT if row >= 0 else 0
    if not number:
        return None
    said = DecodedRule(*RULE_BYTES.unpack_from(table.data, ELEMENT_SIZE * (table.rules_at + RULE_ELEMENTS * number)))
    return said._replace(flags=RuleFlag(said.flags))
