"""Converts a linked file's call frame information, and summarizes the result before a section is written."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from sframegen.api.add_summary import Summary
from sframegen.conversion.cfi_sections import Sources, find_sources
from sframegen.conversion.convert import Converted, convert_sources
from sframegen.conversion.coverage import explain_empty_section
from sframegen.detached.detached_file import Companion
from sframegen.format.abi import abi_of

if TYPE_CHECKING:
    from sframegen.api.options import SectionOptions
    from sframegen.elf.file import ElfFile
    from sframegen.program.workers import JobOptions


def summarize_before_writing(file: str, elf: ElfFile, sources: Sources, converted: Converted) -> Summary:
    """Return the summary of a file with all that is known before its section is encoded."""
    coverage = converted.coverage
    final_calls = coverage.final_calls(elf)
    return Summary(
        file=file,
        functions=coverage.functions, functions_covered=coverage.functions_covered, code_bytes=coverage.code_bytes,
        covered_bytes=coverage.covered_bytes, rows=len(converted.table.row_start),
        eh_frame_bytes=sum(len(section.data) for section in sources.sections),
        eh_frame_hdr_bytes=sources.eh_frame_hdr_bytes,
        cfi_sections=(*(section.name for section in sources.sections), *[".eh_frame_hdr"] * bool(sources.eh_frame_hdr_bytes)),
        fates=coverage.bytes_by_category(elf),
        synthesized_functions=sum(map(len, coverage.synthesized)),
        synthesized_bytes=sum(end - start for ranges in coverage.synthesized for start, end in ranges),
        ignored_fdes=coverage.ignored_fdes, final_calls=len(final_calls.function) + final_calls.without_padding,
        final_calls_without_padding=final_calls.without_padding, warnings=tuple(sources.warnings),
    )  # fmt: skip


def note_nothing_to_add(summary: Summary) -> Summary:
    """Return the summary with a note that says why no section was made."""
    return replace(summary, note=f"nothing to add: {explain_empty_section(summary.functions, summary.ignored_fdes)}")


def summarize_detached(file: str) -> Summary:
    """Return the summary for an input that is itself a detached section."""
    return Summary(file, note=f"nothing to add: {Companion.DETACHED_SECTION}, for another file")


def convert_file(elf: ElfFile, file: str, options: SectionOptions, running: JobOptions) -> tuple[Summary, Converted]:
    """Convert a file's call frame information; return (summary without a section, functions and rules). Raises FormatError."""
    sources = find_sources(elf, None if options.debug_file is None else Path(options.debug_file))
    converted = convert_sources(sources, elf.executable_ranges(), abi_of(elf), options.layout)
    if options.synthesize:
        from sframegen.code.whole_file.synthesize import synthesize  # noqa: PLC0415 - takes as long as a small conversion

        converted = synthesize(elf, converted, running.jobs, running.progress)
    return summarize_before_writing(file, elf, sources, converted), converted
