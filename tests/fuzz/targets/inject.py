"""Plans where a section goes in a linked file, and the record that takes it back out."""

from __future__ import annotations

import io
from contextlib import suppress

from linker.inject.apply import make_injection_change, write_changed_file
from linker.inject.kernel_versions import KernelChange
from linker.inject.plan import plan_injection
from sframegen.base.errors import SframegenError
from sframegen.elf.file import ElfFile
from tests.support.inputs.linker_inputs import restored, section_of

SEEDS = ("program", "big-endian", "tail", "no-sections", "many-sections", "many-segments", "gcc-library", "gcc-stripped")
SIZE = 128


def run(data: bytes) -> None:
    with suppress(SframegenError):
        elf = ElfFile(memoryview(data))
        plan = plan_injection(elf, SIZE, allowed=frozenset(KernelChange) if len(data) % 2 else frozenset())
        str(plan)
        if plan.size > len(data) + (1 << 20):  # a hole that no file would be written for here
            return
        out = io.BytesIO()
        write_changed_file(elf, make_injection_change(plan, elf, section_of(SIZE)[:SIZE]), out)
        assert len(out.getvalue()) == plan.size
        assert restored(out.getvalue()) == data
