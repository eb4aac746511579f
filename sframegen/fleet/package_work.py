"""One package: fetched, known by its content, passed through, and its result written. Runs in a process of its own."""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from socket import gethostname
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import TYPE_CHECKING, BinaryIO

from cfi.errors import SframegenError
from linker.files.location import locate, make_directory
from linker.files.rename_into_place import Source, write_atomically
from sframegen.fleet.file_rows import Files
from sframegen.fleet.known_results import failed_key, identity_key, known, refuse_or_fail
from sframegen.fleet.loose_files import digest_of, pass_loose
from sframegen.fleet.result_rows import Finished, Outcome, PackageResult, PackageRow, one_line
from sframegen.fleet.run_options import WRITES_PACKAGES
from sframegen.fleet.sources.fetching import digest, fetched
from sframegen.fleet.sources.items import ItemKind
from sframegen.packages import kinds
from sframegen.packages.images.layout_directory import pass_layout

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sframegen.fleet.output_directory import OutputDirectory
    from sframegen.fleet.run_options import RunOptions
    from sframegen.fleet.sources.items import Item
    from sframegen.packages.passing import Passed


class UnchangedError(Exception):
    """Nothing in the package changed: it is not written."""


def work_on(item: Item, options: RunOptions, output: OutputDirectory) -> Finished:
    """Make and write the result of a package. Raises OSError where it cannot be fetched, or the output not be written."""
    try:
        return _worked_on(item, options, output)
    except SframegenError as error:  # of what is no package at all
        return refuse_or_fail(item, options, output, Outcome.REFUSED, str(error).removeprefix(f"{item.place}: "))


def _worked_on(item: Item, options: RunOptions, output: OutputDirectory) -> Finished:
    started = perf_counter()
    earlier = known(item, options, output)
    if earlier is not None:
        return earlier
    identity = identity_key(item, options)
    row = PackageRow(item.name, item.source, worker=f"{gethostname()} {os.getpid()}")
    with _content(item) as source:
        row.sha256 = digest(source) if source else digest_of(item)
        row.seconds_fetching = round(perf_counter() - started, 6)
        if item.sha256 and row.sha256 != item.sha256:
            raise OSError(None, "has another SHA256 than its index gives", item.source)
        key = options.key_of(row.sha256, item.name)
        package = output.done(key)
        if package is None:
            row.package_bytes = os.fstat(source.fileno()).st_size if source else 0
            files = Files(item.name, row.sha256, options, output.store)
            _pass(item, source, row, files, output)
            output.write_result(key, PackageResult(row, files.rows))
            output.forget(failed_key(item, options))
    if identity:
        output.remember(identity, key)
    return Finished(key, (package or row).outcome, (package or row).reason, is_new=package is None)


@contextmanager
def _content(item: Item) -> Iterator[BinaryIO | None]:
    """None for a directory."""
    if item.kind is ItemKind.FILE:
        with fetched(item) as source:
            yield source
    else:
        yield None


def _pass(item: Item, source: BinaryIO | None, row: PackageRow, files: Files, output: OutputDirectory) -> None:
    """Fill the row. What is wrong with the package is in it; raises OSError, MemoryError."""
    _reset_peak()
    try:
        if item.kind is ItemKind.LAYOUT:
            passed = _layout(item, files, output)
        elif source is None:
            passed = pass_loose(item, files.visit, output)
        elif files.options.mode in WRITES_PACKAGES:
            passed = _rewritten(item, source, files, output)
        else:
            passed = kinds.pass_through(source, item.name, files.visit, None, force=files.options.force)
    except SframegenError as error:
        row.outcome = Outcome.REFUSED
        row.reason = one_line(str(error).removeprefix(f"{item.name}: "))
        row.elf_files = len(files.rows)
    else:
        row.outcome, row.reason = _outcome_of(files), ""
        row.kind, row.entries, row.unpacked_bytes, row.elf_files = passed[:4]
        row.seconds_reading, row.seconds_writing = round(passed.seconds_reading, 6), round(passed.seconds_writing, 6)
        row.warnings = [one_line(warning) for warning in passed.warnings]
        if item.kind is not ItemKind.FILE:
            row.package_bytes = passed.unpacked_bytes
        if passed.changed and files.options.mode in WRITES_PACKAGES:
            row.new_package_bytes = _size(output.package(item.name))
    row.seconds_converting = round(sum(file.seconds for file in files.rows), 6)
    row.peak_memory_bytes = _peak()


def _outcome_of(files: Files) -> Outcome:
    outcomes = {row.outcome for row in files.rows}
    return next((outcome for outcome in (Outcome.ADDED, Outcome.UNCHANGED) if outcome in outcomes), Outcome.NOTHING)


def _rewritten(item: Item, source: BinaryIO, files: Files, output: OutputDirectory) -> Passed:
    """The new package takes its place only when it is whole, and only if something in it changed."""
    passed: list[Passed] = []

    def write(target: BinaryIO) -> None:
        passed.append(kinds.pass_through(source, item.name, files.visit, target, force=files.options.force))
        if not passed[0].changed:
            raise UnchangedError

    path = output.package(item.name)
    make_directory(os.path.dirname(path))  # noqa: PTH120
    with locate(path) as location:
        try:
            write_atomically(location, write, source=Source(source.fileno(), os.fstat(source.fileno())), in_place=False)
        except UnchangedError:
            location.unlink()  # of an earlier run, from another content
    return passed[0]


def _layout(item: Item, files: Files, output: OutputDirectory) -> Passed:
    """An OCI image layout; a new one is a directory of that name, whole from the start."""
    if files.options.mode not in WRITES_PACKAGES:
        return pass_layout(item.place, files.visit, None, dry_run=True, force=files.options.force).passed
    path = output.package(item.name)
    make_directory(os.path.dirname(path))  # noqa: PTH120
    with TemporaryDirectory(prefix=".sframegen.", dir=os.path.dirname(path)) as temporary:  # noqa: PTH120
        new = os.path.join(temporary, "layout")  # noqa: PTH118
        passed = pass_layout(item.place, files.visit, new, dry_run=False, force=files.options.force).passed
        if os.path.isdir(path):  # noqa: PTH112 - of an earlier run
            os.rename(path, os.path.join(temporary, "old"))  # noqa: PTH104, PTH118
        if passed.changed:
            os.rename(new, path)  # noqa: PTH104
    return passed


def _size(path: str) -> int:
    """The size of a file, or of the files below a directory."""
    if os.path.isdir(path):  # noqa: PTH112
        return sum(file.lstat().st_size for file in Path(path).rglob("*") if file.is_file())
    return os.stat(path).st_size  # noqa: PTH116


# -- memory


def _reset_peak() -> None:
    """Let the kernel count this process' largest size from here."""
    try:
        with open("/proc/self/clear_refs", "w", encoding="ascii") as file:  # noqa: PTH123
            file.write("5")
    except OSError:
        pass


def _peak() -> int:
    """The largest size since then, in bytes; 0 if the system does not say."""
    try:
        for line in Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0
