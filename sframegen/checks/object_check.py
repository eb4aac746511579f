"""Checks the SFrame sections of objects like those of linked files, as if each object were linked alone.

Only linkers read an object's sections, so the demands of other consumers are not checked here.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from linker.objects.laid_out import is_code, is_sframe
from linker.objects.object_view import ObjectView
from sframegen.base.errors import FormatError
from sframegen.checks.against_cfi import AllSections, compare
from sframegen.checks.check import no_section
from sframegen.checks.finding import NO_SECTION, Finding, ReportDraft, Severity, Verdict
from sframegen.checks.placement import FLAGS
from sframegen.checks.specification.rule_list import RULES
from sframegen.checks.specification.wellformed import examine
from sframegen.conversion.sources import find_sources
from sframegen.elf.records import SHF
from sframegen.format.abi import abi_of
from sframegen.format.layouts import LAYOUTS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from linker.objects.given_file import Objects
    from sframegen.checks.finding import CheckReport
    from sframegen.elf.file import ElfFile


def check_objects(objects: Objects) -> CheckReport:
    """Check an object, or each object of an archive, whose name then begins each message."""
    total = ReportDraft(objects.file)
    parts = [check_object(elf) for elf in objects.members.values()]
    code: Counter[Verdict] = Counter()
    for part in parts:
        member = part.file.removeprefix(objects.file)
        total.version = min(filter(None, (total.version, part.version)), default=0)
        total.functions += part.functions
        total.section_bytes += part.section_bytes
        code.update(part.code)
        total.findings += [one._replace(message=f"{member[1:-1]}: {one.message}") if member else one for one in part.findings]
        total.warnings += part.warnings
    if not parts:
        total.findings.append(Finding("none", Severity.WARNING, "it contains no objects; nothing to check"))
    total.code = {verdict: code[verdict] for verdict in Verdict if verdict in code}
    return total.report()


def check_object(elf: ElfFile) -> CheckReport:
    """Check one object, and return its report. Sections that cannot be read or laid out are findings."""
    draft = ReportDraft(elf.name)
    sections = [section for section in elf.sections if is_sframe(section)]
    if not sections and not any(map(is_code, elf.sections)):
        return draft.report()
    draft.section_bytes = sum(section.header.sh_size for section in sections)
    try:
        view = ObjectView(elf)
        if not sections:
            draft.findings.append(Finding(NO_SECTION, Severity.ERROR, no_section(view.placed.image)))
            return draft.report()
        draft.findings += list(well_formed(view))
        _compare(view, draft)
    except FormatError as error:
        draft.add_error("unreadable", str(error))
    return draft.report()


def well_formed(view: ObjectView) -> Iterator[Finding]:
    """Yield the findings about each section by itself."""
    image = view.placed.image
    for section in filter(is_sframe, image.sections):
        flags = section.header.sh_flags & FLAGS
        if flags != SHF.ALLOC:
            rule = RULES["section-flags"]
            yield Finding(rule.name, rule.severity, f"{rule.says}: {flags:#x}")
        facts = examine(
            image.contents(section), section.header.sh_addr, executable=image.executable_ranges(), byte_order=image.byte_order
        )
        for finding in facts.findings:
            place = None if finding.address is None else view.place_of_address(finding.address)
            yield finding._replace(address=None, message=f"{place}: {finding.message}" if place else finding.message)


def _compare(view: ObjectView, draft: ReportDraft) -> None:
    merged = view.merged
    draft.version, draft.functions = min(merged.versions), sum(len(one.numbers) for one in view.described)
    image = view.placed.image
    sources = find_sources(image)
    try:
        truth = compare(image, AllSections(view.functions, LAYOUTS[draft.version]), sources, abi_of(image))
    except FormatError as error:
        draft.findings.append(Finding("cfi-unreadable", Severity.ERROR, f"nothing to compare it with: {error}"))
        return
    draft.code, draft.warnings = truth.code, sources.warnings
    draft.findings += [finding._replace(address=None) for finding in truth.findings]
