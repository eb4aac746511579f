"""Map files of linkers."""

from __future__ import annotations

from contextlib import suppress

from linker.merge.maps import read_map
from sframegen.base.errors import FormatError
from tests.support.memory_files import written

SEEDS = ("gcc-map", "map-lld", "map-mold", "map-gold")


def run(data: bytes) -> None:
    with suppress(FormatError):
        for placement in read_map(written(data)):
            assert placement.size > 0
            assert placement.address + placement.size <= 1 << 64
