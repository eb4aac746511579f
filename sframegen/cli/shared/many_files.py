"""Processes several files in one run: in parallel, with a progress bar, and with results in the order of the files."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Protocol, TypeVar

import click

from linker.files.location import locate
from linker.files.read_back import import_for_many
from linker.files.target import is_stdout
from sframegen.base.one_file import DiedError
from sframegen.cli.shared.file_kinds import refuse_directory
from sframegen.cli.shared.output import Report, Run, note
from sframegen.program import time_limits
from sframegen.program.workers import JobOptions, run_all, run_or_catch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from click._termui_impl import ProgressBar

    from sframegen.api.add_summary import Plan
    from sframegen.api.options import WriteOptions
    from sframegen.cli.shared.common_options import CommonOptions
    from sframegen.program.workers import Outcome

    T = TypeVar("T")

LARGE_SHARE = 0.1  # of one process's bytes: a larger file starts early, since the other processes would wait for it at the end


class FileReport(Report, Protocol):
    @property
    def warnings(self) -> tuple[str, ...]: ...
    @property
    def plan(self) -> Plan | None: ...
    def one_line(self) -> str: ...


R = TypeVar("R", bound=FileReport)


def change_files(
    run: Run, files: tuple[str, ...], change: Callable[[str, WriteOptions], R], write_options: WriteOptions, common: CommonOptions
) -> Iterator[R]:
    """Yield the report of `change` on each file that it does not refuse; add the reports to `run`, too.

    A file with several names (hard links) is processed once. The warnings of a report are printed before it is yielded.
    """
    if common.output is not None and len(files) > 1:
        raise click.UsageError("-o takes one FILE")
    reserve_stdout_for(common.output)
    links: dict[str, list[str] | OSError] = {files[0]: []} if common.output is not None else group_hard_links(files)

    def work(path: str) -> R:
        if Path(path).is_dir():
            refuse_directory(path)
        hard_links = links[path]
        if isinstance(hard_links, OSError):
            raise hard_links
        return change(path, replace(write_options, output=common.output, hard_links=hard_links))

    def record_report(path: str, report: R) -> R:
        for fault in getattr(report, "faults", ()):
            run.report_finding(f"{path}: {fault}")
        run.reports.append(report)
        for warning in () if common.quiet else report.warnings:
            note(f"{path}: warning: {warning}")
        return report

    writes = not write_options.dry_run
    verify = write_options.verify and writes
    done = process_files(run, tuple(links), work, common.jobs, verify=verify, prints=common.prints_lines, writes=writes)
    return (record_report(path, report) for path, report in done)


def print_change(report: FileReport, details: Iterable[str] = (), *, plan: bool) -> None:
    for line in (report.one_line(), *details):
        click.echo(line)
    if plan and report.plan is not None:
        click.echo(str(report.plan))


def group_hard_links(files: tuple[str, ...]) -> dict[str, list[str] | OSError]:
    """Return, by the first name of each file, its other names (hard links), or the reason why it cannot be located.

    Two paths that lead to the same directory entry count as one name.
    """
    groups: dict[object, dict[object, str]] = {}  # by device and inode: the file's path, by directory and name
    errors: dict[str, OSError] = {}
    for file in files:
        try:
            with locate(file) as location:
                status, directory = location.status(), os.fstat(location.directory)
        except OSError as error:
            errors[file] = error
            status = None
        if status is None:
            groups[file] = {file: file}
        else:
            names = groups.setdefault((status.st_dev, status.st_ino), {})
            names.setdefault((directory.st_dev, directory.st_ino, location.name), file)
    return {first: errors.get(first, others) for first, *others in (names.values() for names in groups.values())}


def reserve_stdout_for(output: str | None) -> None:
    """Print messages to standard error from now on, if the output file is standard output."""
    if is_stdout(output):
        sys.stdout = sys.stderr


def process_files(
    run: Run, files: Sequence[str], work: Callable[[str], T], jobs: int, *, verify: bool, prints: bool, writes: bool = False
) -> Iterator[tuple[str, T]]:
    """Yield each file, in order, with the result of `work`; if `work` refuses a file, report that in `run` instead."""
    for file, outcome in attempt_files(files, work, jobs, verify=verify, prints=prints, writes=writes):
        if isinstance(outcome, Exception):
            with run.working_on(file):
                raise outcome
        else:
            yield file, outcome


def attempt_files(
    files: Sequence[str], work: Callable[[str], T], jobs: int, *, verify: bool, prints: bool, writes: bool, forks: bool = False
) -> Iterator[tuple[str, T | Exception]]:
    """Yield each file, in order, with the result of `work`, or with the exception by which `work` refuses it.

    `verify`: results are read back. `prints`: the caller prints a line for each file. `writes`: `work` replaces the files. `forks`:
    use child processes even for a single file, because a file that is truncated while it is read kills the process that reads it.
    """
    results: Iterator[Outcome[T]]
    if verify:
        import_for_many(len(files))
    if forks := forks or min(jobs, len(files)) > 1:
        results = run_all(work, files, jobs, order_by_size(files, jobs))
    else:
        results = enumerate(run_or_catch(work, file) for file in files)
    if len(files) > 1 and sys.stderr.isatty() and not (prints and sys.stdout.isatty()):
        results = count_on_bar(results, len(files))
    for file, outcome in zip(files, restore_order(results), strict=True):
        if forks and writes and isinstance(outcome, DiedError):
            outcome = DiedError(f"{outcome}, before or after it was changed: sframegen check says which")  # noqa: PLW2901
        yield file, outcome


def count_on_bar(results: Iterable[T], length: int) -> Iterator[T]:
    """Yield the results, and show on a progress bar how many of `length` there are so far."""
    with DelayedProgressBar() as bar:
        for number, result in enumerate(results, 1):
            bar(number, length)
            yield result


class DelayedProgressBar(ExitStack):
    """A progress bar on stderr, which appears only after some seconds, so that short commands print none."""

    def __init__(self) -> None:
        super().__init__()
        self.started = monotonic()
        self.bar: ProgressBar[int] | None = None

    def __call__(self, done: int, length: int) -> None:
        if self.bar is None and monotonic() - self.started > time_limits.current.progress:
            self.bar = self.enter_context(click.progressbar(length=length, file=sys.stderr))
        if self.bar is not None:
            self.bar.length = length
            self.bar.update(done - self.bar.pos)


@contextmanager
def make_job_options(files: Sequence[str], jobs: int) -> Iterator[JobOptions]:
    """Yield the settings for reading the code of one file: a single file uses all `jobs` and a progress bar, others one process."""
    with DelayedProgressBar() as bar:
        yield JobOptions() if len(files) > 1 else JobOptions(jobs, bar if sys.stderr.isatty() else None)


def restore_order(results: Iterable[Outcome[T]]) -> Iterator[T | Exception]:
    """Yield the outcomes in the order of their numbers, each as soon as those before it have arrived."""
    waiting: dict[int, T | Exception] = {}
    next_number = 0
    for number, outcome in results:
        waiting[number] = outcome
        while next_number in waiting:
            yield waiting.pop(next_number)
            next_number += 1


def order_by_size(files: Sequence[str], jobs: int) -> list[int]:
    """Return the indexes of the files in the order in which to start them: large files by size, then the others as they are."""
    sizes = [_file_size(file) for file in files]
    large = LARGE_SHARE * sum(sizes) / jobs
    return sorted(range(len(files)), key=lambda number: -max(sizes[number], large))


def _file_size(file: str) -> int:
    try:
        return Path(file).stat().st_size
    except OSError:
        return 0
