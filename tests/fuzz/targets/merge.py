"""The merger: sections that follow one another, of several versions, sorted or not, become one."""

from __future__ import annotations

from contextlib import suppress

from sframegen.base.errors import SframegenError
from sframegen.format.decode import decode
from sframegen.format.encode import Encoder
from sframegen.format.layouts import V3
from sframegen.format.locate import split_joined_sections
from sframegen.tables.compare import find_difference
from sframegen.tables.gather import Merger
from sframegen.tables.lower import lower_table
from tests.fuzz.targets.decode import ADDRESS

SEEDS = ("sframe-pieces", "sframe-AMD64-3", "sframe-AMD64-2", "sframe-s390x-1", "sframe-AArch64-3")
CODE = [(0x1000, 0x1B00), (0x1C00, 0x7000)]


def run(data: bytes) -> None:
    with suppress(SframegenError):
        merger = Merger()
        for piece in split_joined_sections(memoryview(data), ADDRESS):
            merger.add(piece)
        if merger.abi is None:
            return
        abi = merger.abi
        merged, _ = merger.build_table(CODE)
        lowered, left_out = lower_table(merged, abi, V3)
        written = decode(Encoder(lowered, abi, V3, share=abi.shares_rows).encode(ADDRESS), ADDRESS)
        assert find_difference(merged, written.table) == (None, sum(left_out.values()))
