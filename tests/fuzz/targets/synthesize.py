"""Rows for code without call frame information, in a file whose own is left out."""

from __future__ import annotations

from contextlib import suppress

from sframegen.base.errors import FormatError
from sframegen.code.whole_file.synthesize import synthesize
from sframegen.conversion.cfi_sections import find_sources
from sframegen.conversion.convert import convert
from sframegen.elf.file import ElfFile
from sframegen.format.abi import abi_of
from sframegen.tables.compare import find_difference
from sframegen.tables.levels import LEVELS

SEEDS = ("gcc-library", "gcc-stripped", "library", "no-sections")


def run(data: bytes) -> None:
    with suppress(FormatError):
        elf = ElfFile(memoryview(data))
        sections = find_sources(elf).sections if len(data) % 2 else []
        before = convert(sections, elf.executable_ranges(), abi_of(elf))
        after = synthesize(elf, before)
        table, coverage, _ = after
        fates, bare = coverage.bytes_by_category(elf), before.coverage.bytes_by_category(elf)
        total = sum(fates.get("synthesized", {}).values())
        assert total == sum(end - start for ranges in coverage.synthesized for start, end in ranges)
        assert sum(bare["no_cfi"].values()) - sum(fates["no_cfi"].values()) == total
        ends = [start + size for start, size in zip(table.start, table.size, strict=True)]
        assert all(end <= start for end, start in zip(ends, table.start[1:], strict=False))
        assert find_difference(table, after.make_encoder(elf, LEVELS["fast"]).table)[1] <= 0
