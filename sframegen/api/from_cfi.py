"""The section of a linked file, from its call frame information."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sframegen.api.added import summary_of
from sframegen.conversion.convert import convert_sources
from sframegen.conversion.sources import find_sources
from sframegen.format.abi import abi_of

if TYPE_CHECKING:
    from sframegen.api.added import Summary
    from sframegen.api.options import Making, Running
    from sframegen.conversion.convert import Converted
    from sframegen.elf.file import ElfFile


def made_of(elf: ElfFile, file: str, making: Making, running: Running) -> tuple[Summary, Converted]:
    """What the section is made of, and what is known of it before there is one. Raises FormatError."""
    sources = find_sources(elf, None if making.debug_file is None else Path(making.debug_file))
    converted = convert_sources(sources, elf.executable_ranges(), abi_of(elf), making.layout)
    if making.synthesize:
        from sframegen.code.whole_file.synthesize import synthesize  # noqa: PLC0415 - takes as long as a small conversion

        converted = synthesize(elf, converted, running.jobs, running.progress)
    return summary_of(file, elf, sources, converted, per_function=making.per_function), converted
