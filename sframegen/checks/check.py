"""Runs all checks of one file's section, and makes the report."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sframegen.base.errors import FormatError
from sframegen.checks.against_cfi import ALL_REGISTERS, compare
from sframegen.checks.consumers import accepted, readers, takes
from sframegen.checks.finding import NO_SECTION, CheckReport, Consumer, Finding, ReportDraft, Severity
from sframegen.checks.placement import in_file
from sframegen.checks.specification.wellformed import examine
from sframegen.checks.unusable import unusable
from sframegen.code.isa.machines import isa_of
from sframegen.conversion.cfi_sections import find_sources
from sframegen.conversion.convert import convert_sources
from sframegen.conversion.coverage import explain_empty_section
from sframegen.conversion.kernel_code import find_kernel_symbols, find_unwalked_code
from sframegen.detached.detached_file import ADDRESS, Companion, is_detached
from sframegen.elf.ranges import count_contained
from sframegen.elf.records import ET
from sframegen.format.abi import abi_of
from sframegen.format.decode import SframeSection, open_section
from sframegen.format.locate import sframe_of, unloaded_of
from sframegen.program.libraries import import_library

if TYPE_CHECKING:
    from pathlib import Path

    from sframegen.elf.file import ElfFile
    from sframegen.program.workers import Progress

ALONE = f"{Companion.DETACHED_SECTION}, with nothing to compare it with: check the file that it is for, with this store"


def check_file(
    elf: ElfFile,
    *,
    detached: memoryview | None = None,
    consumer: Consumer = "all",
    debug_file: Path | None = None,
    instructions: bool = False,
    second_reader: bool = False,
    jobs: int = 1,
    progress: Progress | None = None,
) -> CheckReport:
    """Check a program or library. `detached`: the section for a file without one.

    Raises FormatError if the file is neither, or its segments or its debug file cannot be read; with `instructions` also for an
    ABI whose instructions are not supported.
    """
    if elf.header.e_type not in (ET.EXEC, ET.DYN):
        raise elf.error("neither a program nor a library, nor an object")
    if instructions:
        isa_of(abi_of(elf))
    draft = ReportDraft(elf.name, findings=in_file(elf))
    try:
        found = _locate(elf, detached)
        if found is None:
            severity = Severity.NOTE if instructions else Severity.ERROR  # the CFI is compared with the instructions
            draft.findings.append(Finding(NO_SECTION, severity, no_section(elf, debug_file)))
        else:
            loaded = detached is None and unloaded_of(elf) is None
            section = _check_section(elf, *found, draft, consumer, loaded=loaded)
            if is_detached(elf):
                draft.findings.append(Finding("cfi-unreadable", Severity.ERROR, ALONE))
                return draft.report()
            if section is not None:
                _compare(elf, section, draft, debug_file, second_reader, progress)
    except FormatError as error:
        draft.add_error("unreadable", str(error))
    if instructions:
        _check_instructions(elf, detached, draft, debug_file, jobs, progress)
    return draft.report()


def no_section(elf: ElfFile, debug_file: Path | None = None) -> str:
    """Return the message that there is no section, and how to make one, or why that is impossible."""
    try:
        made = convert_sources(find_sources(elf, debug_file), elf.executable_ranges(), abi_of(elf))
    except FormatError as error:
        return f"no SFrame section, and none can be made: {_why(error, elf)}"
    if len(made.table):
        return "no SFrame section; sframegen add-section makes one"
    return f"no SFrame section, and none can be made: {explain_empty_section(made.coverage.functions, made.coverage.ignored_fdes)}"


def _locate(elf: ElfFile, detached: memoryview | None) -> tuple[memoryview, int] | None:
    return sframe_of(elf) if detached is None else (detached, ADDRESS)


def _check_section(
    elf: ElfFile, data: memoryview, address: int, draft: ReportDraft, consumer: Consumer, *, loaded: bool
) -> SframeSection | None:
    """Check the section by itself, and return it; None if it is for another ABI than its file."""
    facts = examine(data, address, executable=elf.executable_ranges(), byte_order=elf.byte_order)
    facts.loaded, facts.of_kernel = loaded, bool(find_kernel_symbols(elf))
    if facts.of_kernel:
        facts.unwalked = count_unwalked(elf, data, address)
    draft.findings += [*facts.findings, *accepted(facts, consumer)]
    section = open_section(data, address)
    draft.version, draft.functions, draft.section_bytes = section.header.version, section.header.num_fdes, len(data)
    abi = abi_of(elf)
    if section.abi.sframe_id != abi.sframe_id:
        return None
    table = section.table
    kernel = "arm64-kernel" if facts.of_kernel else "kernel"
    if kernel in readers(facts, consumer) and takes(facts, kernel):
        draft.unusable, notes = unusable(table, elf.executable_ranges(), abi, kernel)
        draft.findings += notes
    return section


def count_unwalked(elf: ElfFile, data: memoryview, address: int) -> int:
    """Return how many functions a kernel's unwinder does not look up; 0 for a damaged section, about which there are findings."""
    try:
        return count_contained(find_unwalked_code(elf), open_section(data, address).table.start)
    except FormatError:
        return 0


def _compare(
    elf: ElfFile,
    section: SframeSection,
    draft: ReportDraft,
    debug_file: Path | None,
    second_reader: bool,
    progress: Progress | None,
) -> None:
    """Compare the section with its file's CFI, as sframegen reads it and, if asked for, as pyelftools does."""
    abi = abi_of(elf)
    try:
        sources = find_sources(elf, debug_file)
        truth = compare(elf, section, sources, abi)
    except FormatError as error:
        draft.findings.append(Finding("cfi-unreadable", Severity.ERROR, f"nothing to compare it with: {_why(error, elf)}"))
        return
    draft.code, draft.warnings = truth.code, sources.warnings
    draft.findings += truth.findings
    if second_reader and sources.sections:
        import_library("elftools.dwarf.callframe", "RegisterRule")
        from sframegen.checks.second.agreement import second_reading  # noqa: PLC0415 - pyelftools, where it is used

        second = second_reading(elf, section, sources, truth, abi, progress)
        draft.second_reader = second.code
        draft.findings += second.findings


def _why(error: FormatError, elf: ElfFile) -> str:
    """Return the error's text without the file: the report names it, and in a package the error names a copy."""
    if error.file == elf.name:
        error.file = ""
    return str(error)


def _check_instructions(
    elf: ElfFile, detached: memoryview | None, draft: ReportDraft, debug_file: Path | None, jobs: int, progress: Progress | None
) -> None:
    """Check the rules against the instructions; only those of the CFI if the section is damaged."""
    from sframegen.checks.against_code import hold  # noqa: PLC0415 - capstone takes longer to import than most files to check

    abi = abi_of(elf)
    section = None
    try:
        found = _locate(elf, detached)
        if found is not None:
            opened = open_section(*found)
            section = opened.table if opened.abi.sframe_id == abi.sframe_id else None
    except FormatError:  # the fault is a finding already
        pass
    try:
        sources = find_sources(elf, debug_file)
        converted = convert_sources(sources, elf.executable_ranges(), abi._replace(base_registers=ALL_REGISTERS))
        held = hold(elf, abi, converted, section, jobs, progress)
    except FormatError as error:
        draft.add_error("cfi-unreadable", f"nothing to compare with the instructions: {_why(error, elf)}")
        return
    draft.warnings = sources.warnings
    draft.instructions = held.code
    draft.findings += held.findings
