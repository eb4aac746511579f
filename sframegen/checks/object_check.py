"""Checks the SFrame sections of relocatable objects as if each object were linked alone.

Only linkers read an object's sections, and kernels those of their modules, so the demands of other consumers do not apply here.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

from linker.objects.laid_out import is_sframe, place_debug_file
from linker.objects.object_view import ObjectView
from linker.objects.resolved_code import resolve_code
from sframegen.base.errors import FormatError
from sframegen.checks.against_cfi import ALL_REGISTERS, ObjectSections, compare_with_cfi
from sframegen.checks.check import count_unwalked, explain_missing_section
from sframegen.checks.consumers import check_consumers
from sframegen.checks.finding import RULE_NO_SECTION, CheckReport, Consumer, Finding, ReportDraft, Severity, Verdict
from sframegen.checks.placement import CHECKED_FLAGS
from sframegen.checks.specification.rule_list import RULES
from sframegen.checks.specification.wellformed import examine_section
from sframegen.code.isa.machines import isa_of
from sframegen.conversion.cfi_sections import find_sources
from sframegen.conversion.convert import convert_sources
from sframegen.conversion.kernel_code import is_module
from sframegen.elf.code_areas import is_code
from sframegen.elf.ranges import index_of_containing_range
from sframegen.elf.records import SHF
from sframegen.format.abi import abi_of, is_arm64
from sframegen.format.layouts import LAYOUTS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from linker.objects.given_file import Objects
    from sframegen.elf.file import ElfFile
    from sframegen.program.workers import JobOptions


def check_objects(
    objects: Objects, debug_file: Path | None = None, consumer: Consumer = "all", job_options: JobOptions | None = None
) -> CheckReport:
    """Check an object, or each object of an archive; messages then begin with its name. `debug_file`: only for a single object.

    `job_options`: if given, the rules are also compared with the instructions. Raises FormatError if those are not supported.
    """
    if debug_file is not None and objects.is_archive:
        raise FormatError("an archive has no separate debug file")
    draft = ReportDraft(objects.file)
    reports = [check_single_object(elf, debug_file, consumer, job_options) for elf in objects.members.values()]
    cfi_verdicts: Counter[Verdict] = Counter()
    instruction_verdicts: dict[str, Counter[str]] = {}
    for report in reports:
        member = report.file.removeprefix(objects.file)
        draft.version = min(filter(None, (draft.version, report.version)), default=0)
        draft.functions += report.functions
        draft.section_bytes += report.section_bytes
        cfi_verdicts.update(report.code)
        for source, counts in report.instructions.items():
            instruction_verdicts.setdefault(source, Counter()).update(counts)
        prefix = f"{member[1:-1]}: " if member else ""  # a report's file is `archive(member)`
        draft.findings += [finding._replace(message=prefix + finding.message) for finding in report.findings]
        draft.warnings += report.warnings
    if not reports:
        draft.findings.append(Finding(RULE_NO_SECTION, Severity.WARNING, "it contains no objects; nothing to check"))
    draft.code = {verdict: cfi_verdicts[verdict] for verdict in Verdict if verdict in cfi_verdicts}
    draft.instructions = {source: dict(counts) for source, counts in instruction_verdicts.items()}
    return draft.report()


def check_single_object(
    elf: ElfFile, debug_file: Path | None = None, consumer: Consumer = "all", job_options: JobOptions | None = None
) -> CheckReport:
    """Check one object, and return its report. Sections that cannot be read or laid out become findings."""
    draft = ReportDraft(elf.name)
    sections = [section for section in elf.sections if is_sframe(section)]
    if not sections and not any(map(is_code, elf.sections)):
        return draft.report()
    if job_options is not None:
        isa_of(abi_of(elf))
    draft.section_bytes = sum(section.header.sh_size for section in sections)
    try:
        view = ObjectView(elf)
        if sections:
            draft.findings += list(check_each_section(view, consumer))
            _add_cfi_findings(view, draft, debug_file)
        else:
            severity = Severity.ERROR if job_options is None else Severity.NOTE  # the CFI is compared with the instructions
            draft.findings.append(Finding(RULE_NO_SECTION, severity, explain_missing_section(view.placed.image)))
        if job_options is not None:
            _check_instructions(view, draft, debug_file, job_options)
    except FormatError as error:
        draft.add_error("unreadable", str(error))
    return draft.report()


def _check_instructions(view: ObjectView, draft: ReportDraft, debug_file: Path | None, job_options: JobOptions) -> None:
    from sframegen.checks.against_code import compare_with_instructions  # noqa: PLC0415 - imports capstone, which is slow

    image, abi = resolve_code(view.elf, view.placed), abi_of(view.elf)
    sources = find_sources(view.placed.image, debug_file, partial(place_debug_file, of=view.placed))
    converted = convert_sources(sources, image.executable_ranges(), abi._replace(base_registers=ALL_REGISTERS))
    table = view.functions if draft.section_bytes else None
    verdicts = compare_with_instructions(image, abi, converted, table, job_options.jobs, job_options.progress)
    draft.warnings, draft.instructions = sources.warnings, verdicts.code
    for finding in verdicts.findings:
        # The object's sections were placed at made-up addresses: instructions are listed with their offsets in the section.
        section_start, *_ = view.placed.sections[index_of_containing_range(view.placed.sections, finding.address or 0) or 0]
        listing = tuple(line._replace(address=line.address - section_start) for line in finding.instructions)
        draft.findings.append(finding._replace(address=None, instructions=listing))


def check_each_section(view: ObjectView, consumer: Consumer) -> Iterator[Finding]:
    """Yield the findings about each section that do not depend on the object's CFI."""
    image = view.placed.image
    sections = list(filter(is_sframe, image.sections))
    if is_module(image) and len(sections) > 1:
        message = f"a kernel reads only the first of {len(sections)} sections"
        yield Finding("arm64-kernel-several", Severity.ERROR, message, "arm64-kernel")
    for section in sections:
        flags = section.header.sh_flags & CHECKED_FLAGS
        if flags != SHF.ALLOC:
            rule = RULES["section-flags"]
            yield Finding(rule.name, rule.severity, f"{rule.fault}: {flags:#x}")
        facts = examine_section(
            image.contents(section), section.header.sh_addr, executable=image.executable_ranges(), byte_order=image.byte_order
        )
        if is_module(image):
            facts.of_kernel = facts.sorted_later = True
            facts.of_other_machine = not is_arm64(view.elf)
            facts.unwalked = count_unwalked(image, image.contents(section), section.header.sh_addr)
            yield from check_consumers(facts, consumer)
        for finding in facts.findings:
            place = None if finding.address is None else view.find_address(finding.address)
            yield finding._replace(address=None, message=f"{place}: {finding.message}" if place else finding.message)


def _add_cfi_findings(view: ObjectView, draft: ReportDraft, debug_file: Path | None) -> None:
    draft.version = min(view.merged.versions)
    draft.functions = sum(len(section.numbers) for section in view.described_sections)
    image = view.placed.image
    try:
        sources = find_sources(image, debug_file, partial(place_debug_file, of=view.placed))
        comparison = compare_with_cfi(image, ObjectSections(view.functions, LAYOUTS[draft.version]), sources, abi_of(image))
    except FormatError as error:
        draft.findings.append(Finding("cfi-unreadable", Severity.ERROR, f"nothing to compare it with: {error}"))
        return
    draft.code, draft.warnings = comparison.code, sources.warnings
    draft.findings += [finding._replace(address=None) for finding in comparison.findings]
