"""check for packages: each program and library in one that has a section."""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING

from cfi.errors import FormatError
from sframegen.checks.check_report import NO_SECTION, CheckedPackage, CheckReport
from sframegen.checks.finding import Finding, Severity
from sframegen.detached.companion import companion_of
from sframegen.elf.file import open_elf

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from sframegen.api.options import StrPath
    from sframegen.checks.against_cfi.comparison import Verdict
    from sframegen.elf.file import ElfFile

MAX_FINDINGS = 200_000  # of a package: all of them are kept until its end
NO_SECTIONS = "no program or library in it has an SFrame section; sframegen add-section makes them"


def check_package(path: StrPath, check_linked: Callable[[ElfFile], CheckReport]) -> CheckReport:
    """Check what has a section. That nothing has one is an error, unless there is no program or library either.

    Raises FormatError for a package that is damaged or not handled, OSError.
    """
    from sframegen.api.packaged import read_package  # noqa: PLC0415 - only for packages

    kept, without_section = 0, 0

    def part(given: Path) -> CheckReport | None:
        nonlocal kept, without_section
        elf = open_elf(given)
        if companion_of(elf) is not None:
            return None
        if kept > MAX_FINDINGS:
            raise FormatError(f"not checked: the files before it in the package have more than {MAX_FINDINGS:,} findings")
        report = check_linked(elf)
        if report.lacks_section:
            without_section += 1
            return None
        kept += len(report.findings)
        return report

    done = read_package(path, part)
    code: Counter[Verdict] = Counter()
    for one in done.parts:
        code.update(one.code)
    passed, refused = done.passed, (*done.refused, *done.faults)
    has_none = without_section and not done.parts
    return CheckReport(
        os.fspath(path),
        functions=sum(one.functions for one in done.parts),
        section_bytes=sum(one.section_bytes for one in done.parts),
        code=code,
        findings=(Finding(NO_SECTION, Severity.ERROR, NO_SECTIONS),) if has_none else (),
        warnings=(*passed.warnings, *(f"{one.file}: {warning}" for one in done.parts for warning in one.warnings)),
        package=CheckedPackage(passed.kind, passed.entries, passed.elf_files, without_section, refused, tuple(done.parts)),
    )
