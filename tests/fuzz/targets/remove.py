"""What gives an original back, by its record or without one."""

from __future__ import annotations

from contextlib import suppress

from linker.existing.in_place import find_own_loads, find_sframe_extents
from linker.existing.original import restore_original
from linker.existing.take_out import plan_removal
from sframegen.base.errors import SframegenError
from sframegen.elf.file import ElfFile, open_elf
from tests.support.memory_files import written

SEEDS = (
    "injected",
    "injected-tail",
    "unloaded",
    "gcc-unloaded",
    "sframe-file",
    "sframe-file-big",
    "gcc-added",
    "gcc-added-2",
    "no-sections",
)


def run(data: bytes) -> None:
    with suppress(SframegenError):
        elf = open_elf(written(data))
        if find_sframe_extents(elf):
            original = restore_original(elf)
            assert original is None or len(original.elf.data) == original.record.original_size
            find_own_loads(elf)
            removed(elf)


def removed(elf: ElfFile) -> None:
    """Without the record: nothing speaks of a section any more, and what cannot be read now could not before."""
    out = bytearray(elf.data)
    plan = plan_removal(elf)
    for offset, new in plan.writes:
        assert offset + len(new) <= len(out)
        out[offset : offset + len(new)] = new
    assert not find_sframe_extents(ElfFile(memoryview(bytes(out))))
