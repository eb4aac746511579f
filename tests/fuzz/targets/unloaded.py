"""A section that no segment has, added to any file, also in the place of another one; and the record that takes it back out."""

from __future__ import annotations

import io
from contextlib import suppress

from linker.existing.add_or_replace import find_base, has_same_unloaded_section, make_change, plan_section
from linker.inject.apply import write_changed_file
from linker.inject.layout import UNLOADED_ADDRESS
from sframegen.base.errors import SframegenError
from sframegen.elf.file import ElfFile, open_elf
from sframegen.format.abi import AMD64, S390X
from sframegen.format.encode import Encoder
from sframegen.format.layouts import V3
from sframegen.format.locate import find_unloaded_section
from tests.fuzz.seeds import sframe_table
from tests.support.inputs.linker_inputs import restored
from tests.support.memory_files import written

SEEDS = ("unloaded", "gcc-unloaded", "injected", "program", "big-endian", "many-sections", "gcc-added", "no-sections")


def run(data: bytes) -> None:
    with suppress(SframegenError):
        elf = open_elf(written(data))
        base = find_base(elf)
        abi = AMD64 if elf.byte_order == "little" else S390X
        encoder = Encoder(sframe_table(abi, V3), abi, V3)
        section = encoder.encode(UNLOADED_ADDRESS)
        has_same_unloaded_section(elf, section)
        plan = plan_section(base, encoder, frozenset(), section)
        str(plan)
        out = io.BytesIO()
        write_changed_file(ElfFile(memoryview(data)), make_change(plan, base, encoder), out, record=base.record)
        result = ElfFile(memoryview(out.getvalue()))
        written_section = find_unloaded_section(result)
        assert written_section is not None
        assert result.contents(written_section) == section
        assert has_same_unloaded_section(result, section)
        assert result.segments == base.elf.segments
        assert restored(out.getvalue()) == base.given.data
