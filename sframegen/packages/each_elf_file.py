"""Applies a function for a single ELF file, such as `add_section`, to each ELF file in a package."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from shutil import copyfileobj
from typing import TYPE_CHECKING, Any, BinaryIO, Generic, NamedTuple, TypeVar

from linker.files.target import Target, WriteResult
from sframegen.api.options import WriteOptions
from sframegen.base.errors import Refusal, RefusedError, SframegenError, VerificationError, name_file_in_errors
from sframegen.base.one_file import FaultError, only_file_errors
from sframegen.elf.file import open_regular
from sframegen.packages.kinds import pass_through

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from sframegen.api.add_summary import Summary
    from sframegen.api.options import StrPath
    from sframegen.api.removing import SectionRemoval
    from sframegen.checks.finding import CheckReport
    from sframegen.packages.package_pass import PassReport

R = TypeVar("R", "Summary", "SectionRemoval", "CheckReport")


class UnchangedError(Exception):
    """Raised to stop writing a new package if no file in it has changed."""


class ProcessedPackage(NamedTuple, Generic[R]):
    """The result of processing a package. Sizes are in bytes."""

    file: str  # the package's path
    report: PassReport
    parts: list[R]  # the results of its ELF files; their `file` is the path in the package
    refused: list[str]  # a line for each refused file
    faults: list[str]  # a line for each file at which sframegen itself failed
    written: WriteResult
    size_before: int
    size: int  # of the new package, if it was written

    @property
    def warnings(self) -> tuple[str, ...]:
        return *self.report.warnings, *self.refused, *self.written.warnings


class ResultCollector(Generic[R]):
    """A visitor that applies `process` to each ELF file, and keeps the results that are not None."""

    def __init__(self, process: Callable[..., R | None], *, is_written: bool) -> None:
        """`is_written`: `process` writes the changed file to its argument `output`; otherwise it only reads the original."""
        self._process: Callable[..., R | None] = process
        self._is_written = is_written
        self.parts: list[R] = []
        self.refused: list[str] = []
        self.faults: list[str] = []

    def __call__(self, path: str, original: Path, changed: Path) -> bool:
        try:
            with only_file_errors():
                part = self._process(original, output=changed) if self._is_written else self._process(original)
        except VerificationError as error:
            raise VerificationError(f"{path}: {error.message}") from error
        except SframegenError as error:
            error.file = ""
            (self.faults if isinstance(error, FaultError) else self.refused).append(f"{path}: {error}")
            return False
        if part is None:
            return False
        no_output: dict[str, Any] = {"output": ""} if self._is_written and hasattr(part, "output") else {}  # a private file
        self.parts.append(replace(part, file=path, **no_output))
        return self._is_written and changed.exists() and _has_changed(part)

    def make_result(self, file: str, report: PassReport, written: WriteResult, size_before: int, size: int) -> ProcessedPackage[R]:
        """Return the result for the whole package after the pass."""
        return ProcessedPackage(file, report, self.parts, self.refused, self.faults, written, size_before, size)


def change_package(
    path: StrPath,
    process: Callable[..., R],
    *,
    output: StrPath | None = None,
    verify: bool = True,
    dry_run: bool = False,
    hard_links: Sequence[StrPath] = (),
    force: bool = False,
    **options: Any,  # noqa: ANN401 - for `process`, which also gets some of the options above
) -> ProcessedPackage[R]:
    """Apply `process` to each ELF file of a package; write the new package unless nothing has changed.

    Raises FormatError for a damaged package, RefusedError for a signed one without `force`, VerificationError, OSError.
    """
    writing = WriteOptions(output, verify, dry_run, hard_links, force)
    collector = ResultCollector(partial(process, verify=verify, dry_run=dry_run, force=force, **options), is_written=not dry_run)
    target = writing.target(path)
    with name_file_in_errors(str(target.path)), target:
        return _change_target(target, collector, force=force)


def _change_target(target: Target, collector: ResultCollector[R], *, force: bool) -> ProcessedPackage[R]:
    """Pass the package of an opened target through the collector, then write and verify the new one if anything changed."""
    name = str(target.path)
    size_before = target.source.status.st_size
    with os.fdopen(os.dup(target.source.descriptor), "rb") as source:
        if target.dry_run:
            report = pass_through(source, name, collector, None, force=force)
            if report.signed and not force and any(map(_has_changed, collector.parts)):
                raise RefusedError(Refusal.SIGNED, f"signed: {report.signed}")
            return collector.make_result(name, report, WriteResult(), size_before, size_before)
        results: list[tuple[PassReport, int]] = []

        def write(out: BinaryIO) -> None:
            report = pass_through(source, name, collector, out, force=force)
            results.append((report, out.tell() if report.changed_files else size_before))
            if not report.changed_files:
                raise UnchangedError

        def check(written: Path, _: object) -> None:
            with written.open("rb") as file:
                again = pass_through(file, name, lambda *_: False, None, force=force)
            before, _ = results[0]
            if (again.entries, again.elf_files) != (before.entries, before.elf_files):
                raise VerificationError("verification failed, nothing was changed: the new package has different entries")

        try:
            written = target.write(write, check)
        except UnchangedError:
            source.seek(0)
            written = WriteResult() if target.in_place else target.write(partial(copyfileobj, source), lambda *_: None)
    (report, size), *_ = results
    return collector.make_result(name, report, written, size_before, size)


def read_package(path: StrPath, process: Callable[..., R | None]) -> ProcessedPackage[R]:
    """Apply `process`, which only reads a file, to each ELF file of a package; keep results that are not None."""
    collector = ResultCollector(process, is_written=False)
    with os.fdopen(open_regular(os.fspath(path), os.fspath(path)), "rb") as source:
        report = pass_through(source, os.fspath(path), collector, None, force=True)
        size = os.fstat(source.fileno()).st_size
    return collector.make_result(os.fspath(path), report, WriteResult(), size, size)


def _has_changed(part: Summary | SectionRemoval | CheckReport) -> bool:
    return getattr(part, "plan", None) is not None or getattr(part, "restored", False)
