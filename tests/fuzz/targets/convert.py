"""Another section in the place of the one that a file has."""

from __future__ import annotations

from contextlib import suppress

from linker.existing.in_place import find_slot, plan_exchange
from sframegen.base.errors import SframegenError
from sframegen.elf.file import ElfFile
from sframegen.format.encode import Encoder
from sframegen.format.layouts import WRITABLE
from sframegen.format.locate import open_joined_sections, read_sframe
from sframegen.tables.compare import find_difference
from sframegen.tables.gather import Merger
from sframegen.tables.lower import lower_table

SEEDS = ("sframe-file", "sframe-file-2", "sframe-file-big", "injected", "gcc-added", "gcc-added-2")


def run(data: bytes) -> None:
    with suppress(SframegenError):
        elf = ElfFile(memoryview(data))
        pieces = open_joined_sections(elf)
        abi = pieces[0].abi
        merger = Merger()
        for piece in pieces:
            merger.add(piece)
        merged, _ = merger.build_table(elf.executable_ranges())
        place = find_slot(elf)
        for layout in WRITABLE.values():
            with suppress(SframegenError):
                table, left_out = lower_table(merged, abi, layout)
                exchange = plan_exchange(elf, place, Encoder(table, abi, layout).encode(place.address))
                out = bytearray(data)
                for offset, new in exchange.writes:
                    out[offset : offset + len(new)] = new
                again = read_sframe(ElfFile(memoryview(bytes(out)))).table
                assert find_difference(merged, again) == (None, sum(left_out.values()))
