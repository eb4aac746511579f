"""From a file's call frame information to the section that is added to it, in memory."""

from __future__ import annotations

import io
from contextlib import suppress

from linker.inject.apply import make_injection_change, write_changed_file
from linker.inject.plan import plan_injection
from sframegen.base.errors import SframegenError
from sframegen.conversion.cfi_sections import find_sources
from sframegen.conversion.convert import convert
from sframegen.elf.file import ElfFile
from sframegen.format.abi import abi_of
from sframegen.format.layouts import WRITABLE
from sframegen.format.locate import read_sframe
from sframegen.tables.compare import find_difference
from sframegen.tables.levels import LEVELS

SEEDS = ("gcc-library", "gcc-stripped", "gcc-debug", "gcc-compressed", "library", "no-sections")


def run(data: bytes) -> None:
    with suppress(SframegenError):
        elf = ElfFile(memoryview(data))
        abi = abi_of(elf)
        layout = WRITABLE[2 + len(data) % 2]
        converted = convert(find_sources(elf).sections, elf.executable_ranges(), abi, layout)
        table, coverage, _ = converted
        fates = coverage.bytes_by_category(elf)
        assert sum(fates["covered"].values()) == coverage.covered_bytes
        encoder = converted.make_encoder(elf, LEVELS["fast"])
        assert find_difference(table, encoder.table)[1] <= 0
        plan = plan_injection(elf, encoder.size_bytes)
        if plan.size < len(data) + (1 << 20):  # else a hole that no file is written for here
            out = io.BytesIO()
            write_changed_file(elf, make_injection_change(plan, elf, bytes(encoder.encode(plan.section_address))), out)
            read = read_sframe(ElfFile(memoryview(out.getvalue()))).table
            assert find_difference(encoder.table, read) == (None, 0)
