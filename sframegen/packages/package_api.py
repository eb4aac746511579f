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
        done = change_package(path, api.add_section, **options)
    else:
        done = read_package(path, partial(api.add_section, **options))
    report, parts = done.report, done.parts
    changed = sum(part.outcome is Outcome.ADDED for part in parts)
    refused = len(done.refused) + len(done.faults)
    package = Package(report.kind, report.entries, report.elf_files, changed, refused, done.size_before, done.size, tuple(parts))
    summary = sum_summaries(done.file, parts)
    note = "has it already" if summary.outcome is Outcome.UNCHANGED else summary.note
    if not report.elf_files:
        note = "nothing to add: no program or library in it"
    warnings = summary.warnings + done.warnings
    unloaded = {part.unloaded for part in parts if part.section_bytes} == {True}
    summary = replace(summary, package=package, note=note, warnings=warnings, unloaded=unloaded)
    return replace(summary, output=done.written.output, faults=tuple(done.faults))


def remove_from_package(path: StrPath, **options: Any) -> SectionRemoval:  # noqa: ANN401
    """Restore each file in a package. The bytes of the new package may differ. Raises the same errors as `add_to_package`."""
    done = change_package(path, api.remove, **options)
    had = [part for part in done.parts if part.section_bytes]
    lines = tuple(f"{part.file}: {line}" for part in had if part.plan for line in part.plan.lines)
    restored = bool(had) and all(part.restored for part in had)
    return SectionRemoval(
        done.file,
        output=done.written.output,
        section_bytes=sum(part.section_bytes for part in had),
        restored=restored,
        differs=REPACKED if restored else "",
        still_has_one=any(part.still_has_one for part in had),
        size_before=done.size_before,
        size=done.size,
        plan=Plan(lines) if lines else None,
        warnings=tuple(f"{part.file}: {warning}" for part in had for warning in part.warnings) + done.warnings,
        faults=tuple(done.faults),
    )


def check_package(path: StrPath, **options: Any) -> CheckReport:  # noqa: ANN401
    """Check each file with a section. It is an error if no program or library in the package has one.

    Raises FormatError for a package that is damaged or not handled, OSError.
    """
    kept, without_section = 0, 0

    def check_one(path: Path) -> CheckReport | None:
        nonlocal kept, without_section
        if companion_of(open_elf(path)) is not None:
            return None
        if kept > MAX_FINDINGS:
            raise FormatError(f"not checked: the files before it in the package have more than {MAX_FINDINGS:,} findings")
        report = api.check(path, **options)
        if report.lacks_section:
            without_section += 1
            return None
        kept += len(report.findings)
        return report

    done = read_package(path, check_one)
    code: Counter[Verdict] = Counter()
    for one in done.parts:
        code.update(one.code)
    passed, refused = done.report, (*done.refused, *done.faults)
    has_none = without_section and not done.parts
    return CheckReport(
        done.file,
        functions=sum(one.functions for one in done.parts),
        section_bytes=sum(one.section_bytes for one in done.parts),
        code=code,
        findings=(Finding(RULE_NO_SECTION, Severity.ERROR, NO_SECTIONS),) if has_none else (),
        warnings=(*passed.warnings, *(f"{one.file}: {warning}" for one in done.parts for warning in one.warnings)),
        package=CheckedPackage(passed.kind, passed.entries, passed.elf_files, without_section, refused, tuple(done.parts)),
    )
