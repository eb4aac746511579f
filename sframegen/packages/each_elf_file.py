"""Applies a function for one file to each ELF file in a package."""

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
    passed: PassReport
    parts: list[R]  # the results of its ELF files, by their path in the package
    refused: list[str]  # a line each
    faults: list[str]  # a line for each file at which sframegen itself failed
    written: WriteResult
    size_before: int
    size: int  # of the new one, if it was written

    @property
    def warnings(self) -> tuple[str, ...]:
        return *self.passed.warnings, *self.refused, *self.written.warnings


class Visits(Generic[R]):
    """A visitor that applies `each` to each ELF file, and keeps its results that are not None."""

    def __init__(self, each: Callable[..., R | None], *, is_written: bool) -> None:
        self._each: Callable[..., R | None] = each
        self._is_written = is_written
        self.parts: list[R] = []
        self.refused: list[str] = []
        self.faults: list[str] = []

    def __call__(self, path: str, given: Path, changed: Path) -> bool:
        try:
            with only_file_errors():
                part = self._each(given, output=changed) if self._is_written else self._each(given)
        except VerificationError as error:
            raise VerificationError(f"{path}: {error.message}") from error
        except SframegenError as error:
            error.file = ""
            (self.faults if isinstance(error, FaultError) else self.refused).append(f"{path}: {error}")
            return False
        if part is None:
            return False
        nowhere: dict[str, Any] = {"output": ""} if hasattr(part, "output") else {}
        self.parts.append(replace(part, file=path, **nowhere))
        return self._is_written and changed.exists() and _has_changed(part)

    def result(self, file: str, passed: PassReport, written: WriteResult, size_before: int, size: int) -> ProcessedPackage[R]:
        """Return the result of the package after the pass."""
        return ProcessedPackage(file, passed, self.parts, self.refused, self.faults, written, size_before, size)


def change_package(
    path: StrPath,
    each: Callable[..., R],
    *,
    output: StrPath | None = None,
    verify: bool = True,
    dry_run: bool = False,
    hard_links: Sequence[StrPath] = (),
    force: bool = False,
    **options: Any,  # noqa: ANN401 - of `each`, with some of those above
) -> ProcessedPackage[R]:
    """Apply `each` to each ELF file of a package; write the new package unless nothing has changed.

    Raises FormatError for a damaged package, RefusedError for a signed one without `force`, VerificationError, OSError.
    """
    writing = WriteOptions(output, verify, dry_run, hard_links, force)
    visits = Visits(partial(each, verify=verify, dry_run=dry_run, force=force, **options), is_written=not dry_run)
    target = writing.target(path)
    with name_file_in_errors(str(target.path)), target:
        return _changed(target, visits, force=force)


def _changed(target: Target, visits: Visits[R], *, force: bool) -> ProcessedPackage[R]:
    name = str(target.path)
    size_before = target.source.status.st_size
    with os.fdopen(os.dup(target.source.descriptor), "rb") as source:
        if target.dry_run:
            passed = pass_through(source, name, visits, None, force=force)
            if passed.signed and not force and any(map(_has_changed, visits.parts)):
                raise RefusedError(Refusal.SIGNED, f"signed: {passed.signed}")
            return visits.result(name, passed, WriteResult(), size_before, size_before)
        results: list[tuple[PassReport, int]] = []

        def write(out: BinaryIO) -> None:
            passed = pass_through(source, name, visits, out, force=force)
            results.append((passed, out.tell() if passed.changed else size_before))
            if not passed.changed:
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
    (passed, size), *_ = results
    return visits.result(name, passed, written, size_before, size)


def read_package(path: StrPath, each: Callable[..., R | None]) -> ProcessedPackage[R]:
    """Apply `each`, which only reads a file, to each ELF file of a package; keep results that are not None."""
    visits = Visits(each, is_written=False)
    with os.fdopen(open_regular(os.fspath(path), os.fspath(path)), "rb") as source:
        passed = pass_through(source, os.fspath(path), visits, None, force=True)
        size = os.fstat(source.fileno()).st_size
    return visits.result(os.fspath(path), passed, WriteResult(), size, size)


def _has_changed(part: Summary | SectionRemoval | CheckReport) -> bool:
    return getattr(part, "plan", None) is not None or getattr(part, "restored", False)
