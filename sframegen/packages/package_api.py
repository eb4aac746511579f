"""Applies add_section, remove or check to each program and library in a package.

These functions have the keywords and the result types of the public ones. Their results have sums over all files.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from sframegen import api
from sframegen.api.add_summary import Outcome, Package, Plan, Summary, sum_summaries
from sframegen.api.removing import SectionRemoval
from sframegen.base.errors import FormatError
from sframegen.checks.finding import RULE_NO_SECTION, CheckedPackage, CheckReport, Finding, Severity, Verdict
from sframegen.detached.detached_file import companion_of
from sframegen.elf.file import open_elf
from sframegen.packages.each_elf_file import change_package, read_package

if TYPE_CHECKING:
    from pathlib import Path

    from sframegen.api.options import StrPath

REPACKED = "packed again: not proven to be the same bytes"
MAX_FINDINGS = 200_000  # findings in a package, because all of them are kept in memory until its end
NO_SECTIONS = "no program or library in it has an SFrame section"


def add_to_package(path: StrPath, **options: Any) -> Summary:  # noqa: ANN401 - here and below: as the public function has them
    """Add a section to each program and library in a package. Refused files are reported as warnings.

    Raises FormatError for a package that is damaged or not handled, RefusedError for a signed one without `force`,
    VerificationError, OSError.
    """
    if options.get("detached") is None:
        processed = change_package(path, api.add_section, **options)
    else:  # detached sections go to a store, and the package does not change
        processed = read_package(path, partial(api.add_section, **options))
    report, parts = processed.report, processed.parts
    changed = sum(part.outcome is Outcome.ADDED for part in parts)
    refused = len(processed.refused) + len(processed.faults)
    package = Package(
        report.kind, entries=report.entries, elf_files=report.elf_files, changed=changed, refused=refused,
        size_before=processed.size_before, size=processed.size, files=tuple(parts),
    )  # fmt: skip
    summary = sum_summaries(processed.file, parts)
    note = "has it already" if summary.outcome is Outcome.UNCHANGED else summary.note
    if not report.elf_files:
        note = "nothing to add: no program or library in it"
    warnings = summary.warnings + processed.warnings
    with_section = [part for part in parts if part.section_bytes]
    unloaded = bool(with_section) and all(part.unloaded for part in with_section)
    summary = replace(summary, package=package, note=note, warnings=warnings, unloaded=unloaded)
    return replace(summary, output=processed.written.output, faults=tuple(processed.faults))


def remove_from_package(path: StrPath, **options: Any) -> SectionRemoval:  # noqa: ANN401
    """Restore each file in a package. The bytes of the new package may differ. Raises the same errors as `add_to_package`."""
    processed = change_package(path, api.remove, **options)
    removals = [part for part in processed.parts if part.section_bytes]
    lines = tuple(f"{part.file}: {line}" for part in removals if part.plan for line in part.plan.lines)
    restored = bool(removals) and all(part.restored for part in removals)
    return SectionRemoval(
        processed.file, output=processed.written.output, section_bytes=sum(part.section_bytes for part in removals),
        restored=restored, differs=REPACKED if restored else "", still_has_one=any(part.still_has_one for part in removals),
        size_before=processed.size_before, size=processed.size, plan=Plan(lines) if lines else None,
        warnings=tuple(f"{part.file}: {warning}" for part in removals for warning in part.warnings) + processed.warnings,
        faults=tuple(processed.faults),
    )  # fmt: skip


def check_package(path: StrPath, **options: Any) -> CheckReport:  # noqa: ANN401
    """Check each file with a section. It is an error if no program or library in the package has one.

    Raises FormatError for a package that is damaged or not handled, OSError.
    """
    finding_count, without_section = 0, 0

    def check_one(path: Path) -> CheckReport | None:
        nonlocal finding_count, without_section
        if companion_of(open_elf(path)) is not None:  # a debug file or a detached section, which need no section
            return None
        if finding_count > MAX_FINDINGS:
            raise FormatError(f"not checked: the files before it in the package have more than {MAX_FINDINGS:,} findings")
        report = api.check(path, **options)
        if report.lacks_section:
            without_section += 1
            return None
        finding_count += len(report.findings)
        return report

    processed = read_package(path, check_one)
    code: Counter[Verdict] = Counter()
    for part in processed.parts:
        code.update(part.code)
    report, refused = processed.report, (*processed.refused, *processed.faults)
    has_none = without_section > 0 and not processed.parts
    package = CheckedPackage(
        report.kind, entries=report.entries, elf_files=report.elf_files, without_section=without_section, refused=refused,
        files=tuple(processed.parts),
    )  # fmt: skip
    return CheckReport(
        processed.file, functions=sum(part.functions for part in processed.parts),
        section_bytes=sum(part.section_bytes for part in processed.parts), code=code,
        findings=(Finding(RULE_NO_SECTION, Severity.ERROR, NO_SECTIONS),) if has_none else (),
        warnings=(*report.warnings, *(f"{part.file}: {warning}" for part in processed.parts for warning in part.warnings)),
        package=package,
    )  # fmt: skip
