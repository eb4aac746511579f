"""The decoder of SFrame sections; what it has read can be written in another version, and says the same then."""

from __future__ import annotations

from contextlib import suppress

from sframegen.base.errors import FormatError
from sframegen.cli.shared.section_text import dump_text
from sframegen.format.decode import SframeSection, decode
from sframegen.format.encode import Encoder
from sframegen.format.layouts import WRITABLE
from sframegen.tables.compare import find_difference
from sframegen.tables.lower import lower_table

SEEDS = tuple(f"sframe-{abi}-{version}" for abi in ("AMD64", "AArch64", "AArch64 big-endian", "s390x") for version in (1, 2, 3))
ADDRESS = 0x3000


def run(data: bytes) -> None:
    with suppress(FormatError):
        section = decode(data, ADDRESS)
        for _ in dump_text(section):
            pass
        for layout in WRITABLE.values():
            with suppress(FormatError):
                rewritten(section, layout.version)


def rewritten(section: SframeSection, version: int) -> None:
    abi, layout = section.abi, WRITABLE[version]
    lowered, left_out = lower_table(section.table, abi, layout)
    again = Encoder(lowered, abi, layout, share=abi.shares_rows).encode(ADDRESS)
    assert find_difference(section.table, decode(again, ADDRESS).table) == (None, sum(left_out.values()))
