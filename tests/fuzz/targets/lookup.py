"""Look-ups in a section's bytes: one by one, all at once, and as the decoded section says it."""

from __future__ import annotations

from array import array
from contextlib import suppress

from sframegen.base.errors import FormatError
from sframegen.format.decode import SframeSection, decode, open_section
from sframegen.format.section_bytes import BAD
from tests.fuzz.targets.decode import ADDRESS, SEEDS
from tests.support.tables import edges, find

__all__ = ["SEEDS", "run"]
MANY = 100  # functions: `edges` is not made for more
PLACES = range(0x1000, 0x6000, 0x3A1)


def run(data: bytes) -> None:
    with suppress(FormatError):
        section = open_section(data, ADDRESS)
        found_all(section)
        for pc in (0, 0x1000, 0x1240, 0x1241, 0x2000, 1 << 63, (1 << 64) - 1, 1 << 64):
            with suppress(FormatError):
                section.look_up(pc)
        table = decode(section.data, ADDRESS).table
        for pc in sorted(pc for pc in edges(table) if not pc >> 64)[:20] if len(table) < MANY else ():
            found = section.look_up(pc)
            assert (found and found.rule) == find(table, pc)


def found_all(section: SframeSection) -> None:
    addresses = array("Q", PLACES)
    functions, rows = (array("q", bytes(8 * len(addresses))) for _ in range(2))
    section.seeker.find_all(addresses, functions, rows)
    for pc, row in zip(addresses, rows, strict=True):
        assert section.seeker.find(pc) == row
        with suppress(FormatError):
            found = section.look_up(pc)
            assert row != BAD
            assert found is None or found.start <= pc < found.start + found.size
