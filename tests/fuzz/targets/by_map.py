"""An object whose section goes into that of the file which a linker made of it, where the linker's map says."""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from pathlib import Path

from linker.merge.by_map import LinkerMap, MergeCounts, read_map_of_object
from linker.merge.inputs import ObjectReader
from linker.objects.laid_out import LaidOutObject, lay_out
from sframegen.base.errors import SframegenError
from sframegen.elf.file import ElfFile
from sframegen.format.abi import AMD64
from sframegen.format.layouts import V3
from sframegen.tables.gather import Merger
from sframegen.tables.lower import lower_table
from tests.fuzz.seeds import seed
from tests.support.memory_files import directory

SEEDS = ("object-sframe",)
MAP = """               VMA       Size Align Out     In      Symbol
               0x0         64     1 .text
               0x0         64    16         input:(.text)
"""


@cache
def linked() -> LaidOutObject:
    return lay_out(ElfFile(memoryview(seed("object-sframe")), "linked"), AMD64)


def linker_map(file: Path) -> LinkerMap:
    file.write_text(MAP)
    try:
        return read_map_of_object(file, linked())
    finally:
        file.unlink()


def run(data: bytes) -> None:
    merger = Merger()
    with suppress(SframegenError):
        counts = MergeCounts()
        given = ObjectReader(AMD64).open(memoryview(data), "input")
        linker_map(directory() / "map").add_object(given, "input", "", merger, counts)
        assert not counts.objects_unlinked
        if counts.objects:
            lower_table(merger.build_table(linked().image.executable_ranges())[0], AMD64, V3)
