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
from sframegen.program import patience
from sframegen.program.workers import Running, attempt, outcomes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from click._termui_impl import ProgressBar

    from sframegen.api.add_summary import Plan
    from sframegen.api.options import WriteOptions
    from sframegen.cli.shared.common_options import CommonOptions
    from sframegen.program.workers import Outcome

    T = TypeVar("T")

LARGE = 0.1  # share of one process's work: a file this large, started last, would keep other processes waiting


class FileReport(Report, Protocol):
    @property
    def warnings(self) -> tuple[str, ...]: ...
    @property
    def plan(self) -> Plan | None: ...
    def one_line(self) -> str: ...


R = TypeVar("R", bound=FileReport)


def changes(
    run: Run, files: tuple[str, ...], change: Callable[[str, WriteOptions], R], writing: WriteOptions, common: CommonOptions
) -> Iterator[R]:
    """Yield the report of `change` on each file that it does not refuse.

    Hard links are processed once. Warnings are printed before their report is given. `run` gets the reports, too.
    """
    if common.output is not None and len(files) > 1:
        raise click.UsageError("-o takes one FILE")
    leave_stdout_to(common.output)
    links: dict[str, list[str] | OSError] = {files[0]: []} if common.output is not None else by_file(files)

    def work(path: str) -> R:
        if Path(path).is_dir():
            refuse_directory(path)
        hard_links = links[path]
        if isinstance(hard_links, OSError):
            raise hard_links
        return change(path, replace(writing, output=common.output, hard_links=hard_links))

    def print_warnings(path: str, report: R) -> R:
        for fault in getattr(report, "faults", ()):
            run.finding(f"{path}: {fault}")
        run.reports.append(report)
        for warning in () if common.quiet else report.warnings:
            note(f"{path}: warning: {warning}")
        return report

    verify = writing.verify and not writing.dry_run
    done = each(run, tuple(links), work, common.jobs, verify=verify, lines=common.prints_lines, writes=not writing.dry_run)
    return (print_warnings(path, report) for path, report in done)


def print_change(report: FileReport, details: Iterable[str] = (), *, plan: bool) -> None:
    for line in (report.one_line(), *details):
        click.echo(line)
    if plan and report.plan is not None:
        click.echo(str(report.plan))


def by_file(files: tuple[str, ...]) -> dict[str, list[str] | OSError]:
    """Return each file once, by its first name, with its other names (hard links), or with why it cannot be located."""
    groups: dict[object, dict[object, str]] = {}
    unknown: dict[str, OSError] = {}
    for file in files:
        try:
            with locate(file) as location:
                status, directory = location.status(), os.fstat(location.directory)
        except OSError as error:
            unknown[file] = error
            status = None
        if status is None:
            groups[file] = {file: file}
        else:
            names = groups.setdefault((status.st_dev, status.st_ino), {})
            names.setdefault((directory.st_dev, directory.st_ino, location.name), file)
    return {first: unknown.get(first, others) for first, *others in (names.values() for names in groups.values())}


def leave_stdout_to(output: str | None) -> None:
    """Print to standard error from now on, if the new file goes to standard output."""
    if is_stdout(output):
        sys.stdout = sys.stderr


def each(
    run: Run, files: Sequence[str], work: Callable[[str], T], jobs: int, *, verify: bool, lines: bool, writes: bool = False
) -> Iterator[tuple[str, T]]:
    """Yield, in order, each file with the result of `work`; a file that `work` refuses is a finding of `run` instead."""
    for file, outcome in all_of(files, work, jobs, verify=verify, lines=lines, writes=writes):
        if isinstance(outcome, Exception):
            with run.file(file):
                raise outcome
        else:
            yield file, outcome


def all_of(
    files: Sequence[str],
    work: Callable[[str], T],
    jobs: int,
    *,
    verify: bool,
    lines: bool,
    writes: bool,
    apart: bool = False,
) -> Iterator[tuple[str, T | Exception]]:
    """Yield, in order, each file with the result of `work`, or with the exception by which `work` refuses it.

    `verify`: results are read back; `lines`: the caller prints something for each file; `writes`: `work` replaces it. `apart`: not
    in this process, even one at a time: a file that is truncated while it is read kills its reader.
    """
    results: Iterator[Outcome[T]]
    if verify:
        import_for_many(len(files))
    if apart := apart or min(jobs, len(files)) > 1:
        results = outcomes(work, files, jobs, by_size(files, jobs))
    else:
        results = one_by_one(work, files)
    if len(files) > 1 and sys.stderr.isatty() and not (lines and sys.stdout.isatty()):
        results = with_bar(results, len(files))
    for file, outcome in zip(files, in_order(results), strict=True):
        if apart and writes and isinstance(outcome, DiedError):
            outcome = DiedError(f"{outcome}, before or after it was changed: sframegen check says which")  # noqa: PLW2901
        yield file, outcome


def one_by_one(work: Callable[[str], T], files: Iterable[str]) -> Iterator[Outcome[T]]:
    for number, file in enumerate(files):
        yield number, attempt(work, file)


def with_bar(results: Iterable[T], length: int) -> Iterator[T]:
    """Yield the results, and show a bar with their number so far."""
    with Bar() as bar:
        for number, result in enumerate(results, 1):
            bar(number, length)
            yield result


class Bar(ExitStack):
    """A progress bar on stderr, which appears only if the work takes some time."""

    def __init__(self) -> None:
        super().__init__()
        self.started = monotonic()
        self.bar: ProgressBar[int] | None = None

    def __call__(self, done: int, length: int) -> None:
        if self.bar is None and monotonic() - self.started > patience.current.progress:
            self.bar = self.enter_context(click.progressbar(length=length, file=sys.stderr))
        if self.bar is not None:
            self.bar.length = length
            self.bar.update(done - self.bar.pos)


@contextmanager
def code_of_one(files: Sequence[str], jobs: int) -> Iterator[Running]:
    """Yield how to read the code of a file: if it is the only one, with all processes, and a bar."""
    with Bar() as bar:
        yield Running() if len(files) > 1 else Running(jobs, bar if sys.stderr.isatty() else None)


def in_order(results: Iterable[Outcome[T]]) -> Iterator[T | Exception]:
    """Yield the outcomes by number, each as soon as those before it are there."""
    waiting: dict[int, T | Exception] = {}
    following = 0
    for number, outcome in results:
        waiting[number] = outcome
        while following in waiting:
            yield waiting.pop(following)
            following += 1


def by_size(files: Sequence[str], jobs: int) -> list[int]:
    """Return the order in which to start the files: large ones first, by size, then the others in their order."""
    sizes = [_size(file) for file in files]
    small = LARGE * sum(sizes) / jobs
    return sorted(range(len(files)), key=lambda number: -max(sizes[number], small))


def _size(file: str) -> int:
    try:
        return Path(file).stat().st_size
    except OSError:
        return 0
