"""Processes one ELF file of a package according to the run's mode, and makes its row for the table of files."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Any

from sframegen import api
from sframegen.base.errors import RefusedError, SframegenError, VerificationError
from sframegen.base.one_file import FaultError, only_file_errors
from sframegen.conversion.coverage import explain_empty_section
from sframegen.detached.detached_file import companion_of
from sframegen.elf.dynamic import DT, read_dynamic
from sframegen.elf.file import ElfFile, map_file
from sframegen.elf.notes import read_build_id
from sframegen.elf.records import ET, read_strings
from sframegen.fleet.producers import guess_producer
from sframegen.fleet.result_rows import FileRow, RowOutcome, to_one_line
from sframegen.fleet.run_options import Mode, RunOptions
from sframegen.format.abi import abi_of

if TYPE_CHECKING:
    from pathlib import Path

    from sframegen.api.add_summary import Summary

COVERED_VERDICTS = (api.Verdict.EQUAL, api.Verdict.WRONG)  # the section has a rule, which may differ from that of the CFI
CFI_VERDICTS = (*COVERED_VERDICTS, api.Verdict.ABSENT, api.Verdict.INEXPRESSIBLE)  # the CFI has a rule
ELF_TYPE_NAMES = {ET.EXEC: "EXEC", ET.DYN: "DYN"}


@dataclass
class PackageFiles:
    """The rows of one package's ELF files. A pass over the package calls `visit` for each of them."""

    package: str
    sha256: str
    options: RunOptions
    rows: list[FileRow] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)  #: a line for each file at which sframegen itself failed

    def visit(self, path: str, original: Path, changed: Path) -> bool:
        """Process a file and add its row. Raises OSError, and MemoryError if a higher memory limit could change the row."""
        row = FileRow(self.package, self.sha256, to_one_line(path), RowOutcome.REFUSED)
        self.rows.append(row)
        started = perf_counter()
        try:
            with only_file_errors():
                return self._process(row, original, changed)
        except RefusedError as error:
            row.reason = to_one_line(f"{error.reason.value}: {error.message.removeprefix(f'{error.reason.value}: ')}")
        except VerificationError as error:
            row.reason = to_one_line(f"verification: {error.message}")
        except FaultError as error:
            row.reason = to_one_line(error.message)
            self.faults.append(f"{path}: {error.message}")
        except SframegenError as error:
            row.reason = to_one_line(": ".join(filter(None, (error.place, error.message))))
        finally:
            row.seconds = round(perf_counter() - started, 6)
        return False

    def _process(self, row: FileRow, original: Path, changed: Path) -> bool:
        """Convert or check the file as the mode says, and fill its row. Return True if a changed file was written."""
        data, status = map_file(original)
        row.file_bytes = status.st_size
        elf = ElfFile(data, os.fspath(original))
        abi = abi_of(elf)
        row.machine, row.elf_type = abi.common_name or abi.name, ELF_TYPE_NAMES.get(elf.header.e_type, "")
        row.build_id = (read_build_id(elf) or b"").hex()
        producer = guess_producer(elf, _read_needed_libraries(elf))
        row.producer, row.producer_version, row.language = producer
        companion = companion_of(elf)
        is_checked = self.options.mode is Mode.CHECK
        if companion is not None:
            row.outcome, row.reason = RowOutcome.NO_SECTION if is_checked else RowOutcome.NOTHING, companion.value
            return False
        if is_checked:
            row.executable_bytes = sum(end - start for start, end in elf.executable_ranges())
        del elf, data
        if is_checked:
            fill_from_report(row, api.check(original))
            return False
        output_keywords: dict[str, Any] = {"dry_run": True} if self.options.mode is Mode.SURVEY else {"output": changed}
        summary = api.add_section(original, replace=True, **self.options.add_keywords, **output_keywords)
        fill_from_summary(row, summary)
        row.warnings = [to_one_line(warning.removeprefix(f"{changed} ")) for warning in summary.warnings]
        if not changed.exists() or row.outcome is not RowOutcome.ADDED:
            return False
        row.new_file_bytes = changed.stat().st_size
        return True


def fill_from_summary(row: FileRow, summary: Summary) -> None:
    row.outcome = RowOutcome(summary.outcome)
    if row.outcome is RowOutcome.NOTHING:
        row.reason = explain_empty_section(summary.functions, summary.ignored_fdes)
    row.executable_bytes = sum(sum(counts.values()) for counts in summary.fates.values())
    row.code_bytes, row.covered_bytes = summary.code_bytes, summary.covered_bytes
    row.functions, row.functions_covered = summary.functions, summary.functions_covered
    row.rows, row.section_bytes, row.stored_bytes = summary.rows, summary.section_bytes, summary.section_bytes
    row.eh_frame_bytes, row.eh_frame_hdr_bytes = summary.eh_frame_bytes, summary.eh_frame_hdr_bytes
    if summary.plan is not None:
        row.new_file_bytes = summary.plan.file_size or 0
    row.left_out = {fate: count for fate, count in summary.fates.get("left_out", {}).items() if count}
    row.no_cfi = {fate: count for fate, count in summary.fates.get("no_cfi", {}).items() if count}


def _read_needed_libraries(elf: ElfFile) -> list[str]:
    """Return the names of the libraries that the file needs, which are in DT_NEEDED."""
    dynamic = read_dynamic(elf)
    tags = {entry.tag: entry.value for entry in dynamic}
    if DT.STRTAB not in tags:
        return []
    names = bytes(elf.at(tags[DT.STRTAB], tags.get(DT.STRSZ, 0)))
    return read_strings(names, tuple(entry.value for entry in dynamic if entry.tag == DT.NEEDED))


def fill_from_report(row: FileRow, report: api.CheckReport) -> None:
    """Fill the row from the report of a check. Its coverage is the coverage of the existing section, even if that is wrong."""
    row.warnings = [to_one_line(warning) for warning in report.warnings]
    if report.lacks_section:
        row.outcome, row.reason = RowOutcome.NO_SECTION, "no SFrame section"
        return
    row.findings = [to_one_line(line.strip()) for line in report.lines(api.Severity.WARNING)]
    is_wrong = report.worst() is api.Severity.ERROR
    row.outcome = RowOutcome.WRONG if is_wrong else RowOutcome.GOOD
    row.reason = row.findings[0] if is_wrong else ""
    row.functions, row.section_bytes = report.functions, report.section_bytes
    row.covered_bytes = sum(report.code.get(verdict, 0) for verdict in COVERED_VERDICTS)
    row.code_bytes = sum(report.code.get(verdict, 0) for verdict in CFI_VERDICTS)
