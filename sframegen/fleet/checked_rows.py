"""What a check found in a file -> its row."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sframegen.api import Severity, Verdict
from sframegen.fleet.result_rows import Outcome, one_line

if TYPE_CHECKING:
    from sframegen.api import CheckReport
    from sframegen.fleet.result_rows import FileRow

COVERED = (Verdict.EQUAL, Verdict.WRONG)
DESCRIBED = (*COVERED, Verdict.ABSENT, Verdict.INEXPRESSIBLE)


def fill_checked(row: FileRow, report: CheckReport) -> None:
    """Coverage is that of the section which is there, right or wrong."""
    row.warnings = [one_line(warning) for warning in report.warnings]
    if report.lacks_section:
        row.outcome, row.reason = Outcome.WITHOUT, "no SFrame section"
        return
    row.findings = [one_line(line.strip()) for line in report.lines(Severity.WARNING)]
    is_wrong = report.worst() is Severity.ERROR
    row.outcome = Outcome.WRONG if is_wrong else Outcome.GOOD
    row.reason = row.findings[0] if is_wrong else ""
    row.functions, row.section_bytes = report.functions, report.section_bytes
    row.covered_bytes = sum(report.code.get(verdict, 0) for verdict in COVERED)
    row.code_bytes = sum(report.code.get(verdict, 0) for verdict in DESCRIBED)
