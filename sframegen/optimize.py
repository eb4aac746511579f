"""How small a section is made: levels of optimisation, from one FDE a function to neighbours joined under one."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, NamedTuple

from sframegen.format.encode import Encoder
from sframegen.join import group, heads_of, rebuild
from sframegen.model import FunctionTable

if TYPE_CHECKING:
    from sframegen.abi import Abi
    from sframegen.format.layouts import Layout

ROUNDS = 3  # what functions share depends on which stay alone, and that on what they share


class Level(NamedTuple):
    """Functions with the same rows share them; neighbours are joined to FDEs of at most so many rows and bytes of code."""

    share: bool
    max_rows: int = 0
    max_span: int = 0


LEVELS = {"none": Level(share=False), "share": Level(share=True), "fast": Level(True, 16, 256), "size": Level(True, 64, 65536)}


def optimize(table: FunctionTable, abi: Abi, layout: Layout, level: Level, may_follow: bytes) -> FunctionTable:
    """The same rules at every address that `table` covers; padding between joined functions is covered too.

    `may_follow`[f]: whether nothing but padding is between function f - 1 and f.
    """
    count = len(table)
    if not level.max_rows or not count:
        return table
    encoder = Encoder(table, abi, layout, share=level.share)
    group_first = array("I", bytes(4 * (count + 1)))
    heads, alone = bytearray(count), bytearray(b"\1" * count)
    columns = (table.start, table.size, table.kind, table.first_row, table.row_start, table.row_rule)
    groups = count
    for _ in range(ROUNDS):
        group(
            *columns, encoder.rule_at, encoder.kind_bytes, may_follow, encoder.block_size, encoder.owner, alone,
            array("I", bytes(4 * count)), array("Q", bytes(8 * count)), level.max_rows, level.max_span,
            array("Q", bytes(8 * (count + 1))), group_first,
        )  # fmt: skip
        groups = heads_of(group_first, heads, alone)
    joined = FunctionTable(
        start=array("Q", bytes(8 * groups)), size=array("I", bytes(4 * groups)), kind=array("H", bytes(2 * groups)),
        first_row=array("I", bytes(4 * (groups + 1))), row_start=array("I", bytes(4 * len(table.row_start))),
        row_rule=array("I", bytes(4 * len(table.row_start))), kinds=table.kinds, rules=table.rules,
    )  # fmt: skip
    rows = rebuild(*columns, heads, joined.start, joined.size, joined.kind, joined.first_row, joined.row_start, joined.row_rule)
    del joined.row_start[rows:], joined.row_rule[rows:]
    return joined
