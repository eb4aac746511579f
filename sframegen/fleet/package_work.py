"""Works on one package: looks for an earlier result, fetches the content, processes it, and writes the result.

The earlier result is found by the content's identity before the content is read, else by its SHA256 afterwards.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from socket import gethostname
from time import perf_counter
from typing import TYPE_CHECKING, BinaryIO

from linker.files.rename_into_place import write_atomically
from linker.files.rights import Rights, Source
from sframegen.base.errors import SframegenError
from sframegen.base.one_file import FaultError, only_file_errors
from sframegen.fleet.file_rows import PackageFiles
from sframegen.fleet.result_rows import Finished, PackageResult, PackageRow, RowOutcome, to_one_line
from sframegen.fleet.run_options import Mode, RunOptions
from sframegen.fleet.sources.fetching import compute_digest, format_size_and_mtime, identify_content, opened_content
from sframegen.packages import kinds
from sframegen.packages.each_elf_file import UnchangedError

if TYPE_CHECKING:
    from sframegen.fleet.output_directory import OutputDirectory
    from sframegen.fleet.sources.items import Item
    from sframegen.packages.package_pass import PassReport

SAME_SOURCES_NEEDED = "all workers need the same sources, unchanged during the run"


def work_on(item: Item, options: RunOptions, output: OutputDirectory) -> Finished:
    """Process a package and write its result. Raises OSError if it cannot be fetched, or the output cannot be written."""
    try:
        with only_file_errors():
            return _process_item(item, options, output)
    except FaultError as error:
        outcome, reason = RowOutcome.FAILED, error.message
    except SframegenError as error:  # the item is not a package
        outcome, reason = RowOutcome.REFUSED, str(error).removeprefix(f"{item.path_or_url}: ")
    return output.write_no_content(options.make_key_without_content(item), item, outcome, reason)


def _process_item(item: Item, options: RunOptions, output: OutputDirectory) -> Finished:
    started = perf_counter()
    identity_key = options.make_identity_key(item, _identify(item))
    if earlier := output.find_earlier_result(identity_key):
        return earlier
    row = PackageRow(item.name, item.source, worker=f"{gethostname()} {os.getpid()}")
    with opened_content(item) as content:
        row.sha256 = compute_digest(content)
        _check_unchanged(item, format_size_and_mtime(os.fstat(content.fileno())))
        row.seconds_fetching = round(perf_counter() - started, 6)
        if item.sha256 and row.sha256 != item.sha256:
            raise OSError(None, "its SHA256 differs from the one in its index", item.source)
        key = options.make_key(row.sha256, item.name)
        earlier_row = output.read_finished_package(key)
        if earlier_row is None:
            files = PackageFiles(item.name, row.sha256, options)
            _process_content(item, content, row, files, output)
            output.write_result(key, PackageResult(row, files.rows))
            output.remove_result(options.make_key_without_content(item))
    if identity_key:
        output.store_key(identity_key, key)
    row = earlier_row or row
    return Finished(key, row.outcome, row.reason, is_new=earlier_row is None)


def _identify(item: Item) -> str:
    """Return the item's identity. Raises OSError if this machine does not see the same content as the machine of the run."""
    try:
        content = identify_content(item)
    except OSError as error:
        if not item.size_and_mtime:
            raise
        raise OSError(None, f"{gethostname()} cannot read it ({error.strerror}): {SAME_SOURCES_NEEDED}") from error
    _check_unchanged(item, content.size_and_mtime)
    return content.identity


def _check_unchanged(item: Item, size_and_mtime: str) -> None:
    if item.size_and_mtime and size_and_mtime != item.size_and_mtime:
        raise OSError(None, f"on {gethostname()} its size or time differs from where the run was started: {SAME_SOURCES_NEEDED}")


def _process_content(item: Item, content: BinaryIO, row: PackageRow, files: PackageFiles, output: OutputDirectory) -> None:
    """Process the package's content and fill its row, also with errors of the package. Raises OSError, MemoryError."""
    _reset_peak_memory()
    row.package_bytes = os.fstat(content.fileno()).st_size
    try:
        report, row.new_package_bytes = _pass_and_rewrite(item, content, files, output)
        if row.new_package_bytes:
            with output.open_file(f"packages/{item.name}") as file:
                row.new_sha256 = compute_digest(file)
    except SframegenError as error:
        row.outcome = RowOutcome.REFUSED
        row.reason = to_one_line(str(error).removeprefix(f"{item.name}: "))
        row.elf_files = len(files.rows)
    else:
        if files.faults:
            row.outcome, row.reason = RowOutcome.FAILED, to_one_line(files.faults[0])
        else:
            row.outcome = _summarize_outcomes(files)
        row.kind, row.entries, row.unpacked_bytes, row.elf_files = report[:4]  # its first fields have the same names
        row.seconds_reading, row.seconds_writing = round(report.seconds_reading, 6), round(report.seconds_writing, 6)
        row.warnings = [to_one_line(warning) for warning in report.warnings]
    row.seconds_converting = round(sum(file.seconds for file in files.rows), 6)
    row.peak_memory_bytes = _read_peak_memory()


def _summarize_outcomes(files: PackageFiles) -> RowOutcome:
    """Return the package's outcome: the first of the outcomes for its mode that any of its files has."""
    outcomes = {row.outcome for row in files.rows}
    if files.options.mode is Mode.CHECK:
        candidates, default = (RowOutcome.WRONG, RowOutcome.GOOD), RowOutcome.NO_SECTION
    else:
        candidates, default = (RowOutcome.ADDED, RowOutcome.UNCHANGED), RowOutcome.NOTHING
    return next((outcome for outcome in candidates if outcome in outcomes), default)


def _pass_and_rewrite(item: Item, source: BinaryIO, files: PackageFiles, output: OutputDirectory) -> tuple[PassReport, int]:
    """Process the package, and write the new one atomically if a file changed. Return the report, and the new size or 0."""
    force = files.options.force
    if files.options.mode is not Mode.REWRITE:
        return kinds.pass_through(source, item.name, files.visit, None, force=force), 0
    reports: list[PassReport] = []

    def write(target: BinaryIO) -> None:
        reports.append(kinds.pass_through(source, item.name, files.visit, target, force=force))
        if not reports[0].changed_files:
            raise UnchangedError

    with output.locate_package(item.name, make=True) as location:
        try:
            write_atomically(location, write, source=Source(source.fileno(), os.fstat(source.fileno())), rights=Rights.COPY)
        except UnchangedError:
            location.unlink()  # an earlier run may have written a package from other content
        status = location.status()
    return reports[0], 0 if status is None else status.st_size


def _reset_peak_memory() -> None:
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # resets VmHWM: proc(5)


def _read_peak_memory() -> int:
    """Return the peak memory since the reset in bytes; 0 if the system does not report it."""
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0
