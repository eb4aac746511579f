"""Runs all checks of a linked file's section, and puts their findings into one report.

The section is checked by itself (against the specification and the demands of its consumers), then against the file's CFI, as
sframegen and, if asked for, pyelftools read it. If asked for, its rules and those of the CFI are compared with the instructions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sframegen.base.errors import FormatError
from sframegen.checks.against_cfi import ALL_REGISTERS, compare_with_cfi
from sframegen.checks.consumers import check_consumers, is_accepted_by, select_consumers
from sframegen.checks.finding import RULE_NO_SECTION, CheckReport, Consumer, Finding, ReportDraft, Severity
from sframegen.checks.placement import check_placement
from sframegen.checks.specification.wellformed import examine_section
from sframegen.checks.unusable import find_unusable_code
from sframegen.code.isa.machines import isa_of
from sframegen.conversion.cfi_sections import find_sources
from sframegen.conversion.convert import convert_sources
from sframegen.conversion.coverage import explain_empty_section
from sframegen.conversion.kernel_code import find_kernel_symbols, find_unwalked_code
from sframegen.detached.detached_file import ADDRESS, Companion, is_detached
from sframegen.elf.ranges import count_contained
from sframegen.elf.records import ET
from sframegen.format.abi import abi_of, is_arm64
from sframegen.format.decode import SframeSection, open_section
from sframegen.format.locate import find_sframe, find_unloaded_section
from sframegen.program.libraries import import_library

if TYPE_CHECKING:
    from pathlib import Path

    from sframegen.elf.file import ElfFile
    from sframegen.program.workers import Progress

CHECKED_ALONE = f"{Companion.DETACHED_SECTION}, with nothing to compare it with: check the file that it is for, with this store"


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
    draft = ReportDraft(elf.name, findings=check_placement(elf))
    try:
        located = find_sframe(elf) if detached is None else (detached, ADDRESS)
        if located is None:
            severity = Severity.NOTE if instructions else Severity.ERROR  # the CFI is compared with the instructions
            draft.findings.append(Finding(RULE_NO_SECTION, severity, explain_missing_section(elf, debug_file)))
        else:
            loaded = detached is None and find_unloaded_section(elf) is None
            section = _check_section(elf, *located, draft, consumer, loaded=loaded)
            if is_detached(elf):
                draft.findings.append(Finding("cfi-unreadable", Severity.ERROR, CHECKED_ALONE))
                return draft.report()
            if section is not None:
                _add_cfi_findings(elf, section, draft, debug_file, second_reader, progress)
    except FormatError as error:
        draft.add_error("unreadable", str(error))
    if instructions:
        _check_instructions(elf, detached, draft, debug_file, jobs, progress)
    return draft.report()


def explain_missing_section(elf: ElfFile, debug_file: Path | None = None) -> str:
    """Return the message that there is no section. It also says how to make one, or why that is impossible."""
    try:
        table, coverage, _ = convert_sources(find_sources(elf, debug_file), elf.executable_ranges(), abi_of(elf))
    except FormatError as error:
        return f"no SFrame section, and none can be made: {_error_text(error, elf)}"
    if len(table):
        return "no SFrame section; sframegen add-section makes one"
    reason = explain_empty_section(coverage.functions, coverage.ignored_fdes)
    return f"no SFrame section, and none can be made: {reason}"


def _check_section(
    elf: ElfFile, data: memoryview, address: int, draft: ReportDraft, consumer: Consumer, *, loaded: bool
) -> SframeSection | None:
    """Check the section without the file's CFI, and return it; None if it is for another ABI than its file."""
    facts = examine_section(data, address, executable=elf.executable_ranges(), byte_order=elf.byte_order)
    facts.loaded, facts.of_kernel = loaded, bool(find_kernel_symbols(elf))
    facts.of_other_machine = not is_arm64(elf)
    if facts.of_kernel:
        facts.unwalked = count_unwalked(elf, data, address)
    draft.findings += [*facts.findings, *check_consumers(facts, consumer)]
    section = open_section(data, address)
    draft.version, draft.functions, draft.section_bytes = section.header.version, section.header.num_fdes, len(data)
    abi = abi_of(elf)
    if section.abi.sframe_id != abi.sframe_id:
        return None
    table = section.table
    kernel = "arm64-kernel" if facts.of_kernel else "kernel"
    if kernel in select_consumers(facts, consumer) and is_accepted_by(facts, kernel):
        draft.unusable, notes = find_unusable_code(table, elf.executable_ranges(), abi, kernel)
        draft.findings += notes
    return section


def count_unwalked(elf: ElfFile, data: memoryview, address: int) -> int:
    """Return how many functions a kernel's unwinder does not look up; 0 for a damaged section, which other findings are about."""
    try:
        return count_contained(find_unwalked_code(elf), open_section(data, address).table.start)
    except FormatError:
        return 0


def _add_cfi_findings(
    elf: ElfFile, section: SframeSection, draft: ReportDraft, debug_file: Path | None, pyelftools: bool, progress: Progress | None
) -> None:
    """Add findings about the section and its file's CFI, as sframegen reads that and, if asked for, as pyelftools does."""
    abi = abi_of(elf)
    try:
        sources = find_sources(elf, debug_file)
        comparison = compare_with_cfi(elf, section, sources, abi)
    except FormatError as error:
        draft.findings.append(Finding("cfi-unreadable", Severity.ERROR, f"nothing to compare it with: {_error_text(error, elf)}"))
        return
    draft.code, draft.warnings = comparison.code, sources.warnings
    draft.findings += comparison.findings
    if pyelftools and sources.sections:
        import_library("elftools.dwarf.callframe", "RegisterRule")
        from sframegen.checks.second.agreement import compare_second_reading  # noqa: PLC0415 - pyelftools, where it is used

        second = compare_second_reading(elf, section, sources, comparison, abi, progress)
        draft.second_reader = second.code
        draft.findings += second.findings


def _error_text(error: FormatError, elf: ElfFile) -> str:
    """Return the error's text without the file, because the report names it, and the error would name a package's copy of it."""
    if error.file == elf.name:
        error.file = ""
    return str(error)


def _check_instructions(
    elf: ElfFile, detached: memoryview | None, draft: ReportDraft, debug_file: Path | None, jobs: int, progress: Progress | None
) -> None:
    """Add findings about rules that the instructions contradict. If the section is damaged, only the CFI's rules are compared."""
    from sframegen.checks.against_code import compare_with_instructions  # noqa: PLC0415 - imports capstone, which is slow

    abi = abi_of(elf)
    table = None
    try:
        located = find_sframe(elf) if detached is None else (detached, ADDRESS)
        if located is not None:
            section = open_section(*located)
            table = section.table if section.abi.sframe_id == abi.sframe_id else None
    except FormatError:  # the fault is already a finding
        pass
    try:
        sources = find_sources(elf, debug_file)
        converted = convert_sources(sources, elf.executable_ranges(), abi._replace(base_registers=ALL_REGISTERS))
        verdicts = compare_with_instructions(elf, abi, converted, table, jobs, progress)
    except FormatError as error:
        draft.add_error("cfi-unreadable", f"nothing to compare with the instructions: {_error_text(error, elf)}")
        return
    draft.warnings = sources.warnings
    draft.instructions = verdicts.code
    draft.findings += verdicts.findings
