"""Opens and locks the input file of a change, then writes, verifies and replaces its output."""

from __future__ import annotations

import os
import stat
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from linker.files.copying import LARGE, CopyAhead, FilePart, copy_file
from linker.files.location import Location, enter_location
from linker.files.lock import close_locked, open_locked
from linker.files.read_back import Reader, choose_reader
from linker.files.rename_into_place import write_atomically
from linker.files.rights import Rights, Source
from sframegen.base.quick_typing import TYPE_CHECKING, BinaryIO, NamedTuple, Self
from sframegen.elf.file import ElfFile, map_descriptor, open_regular

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    StrPath = str | os.PathLike[str]

STDOUT = 1
STDOUT_NAMES = ("/dev/stdout", "/dev/fd/1", "/proc/self/fd/1")


class WriteResult(NamedTuple):
    """The result of a write: the path of the written file, "" if none was written, and warnings about rights and hard links."""

    output: str = ""
    warnings: tuple[str, ...] = ()


class Target:
    """A context manager for one change of a file: opens the input, then writes, verifies and replaces the output.

    Everything is read from `source`, which stays open. A file that is changed in place is locked, except in a dry run, and its
    name is looked up only once, so that nobody can redirect it. `path` may be a `Location`.
    """

    def __init__(
        self,
        path: StrPath,
        output: StrPath | None,
        *,
        verify: bool,
        dry_run: bool,
        hard_links: Sequence[StrPath] = (),  # other names of the file, which follow it
    ) -> None:
        """`output`: None to change the file in place."""
        self.path = Path(path)
        self.output = self.path if output is None else Path(output)
        self.verify = verify
        self.dry_run = dry_run
        self._arguments = (path, output, hard_links)
        self._stack = ExitStack()
        self._copy_ahead: CopyAhead | None = None

    def __enter__(self) -> Self:
        path, output, hard_links = self._arguments
        with ExitStack() as stack:
            is_written = output is None or not (self.dry_run or is_stdout(output))
            self._location = enter_location(path if output is None else output, stack) if is_written else None
            self.in_place = self._location is not None and (output is None or _leads_to(path, self._location))
            self._hard_links = [enter_location(link, stack) for link in hard_links] if self.in_place else []
            if self._location is None or not self.in_place:
                descriptor = open_regular(os.fspath(path), os.fspath(path))
            else:
                descriptor = self._location.open() if self.dry_run else open_locked(self._location)
            stack.callback(close_locked, descriptor)
            self.data, status = map_descriptor(descriptor, os.fspath(path))
            self.source = Source(descriptor, status)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def elf(self) -> ElfFile:
        """Return the input as an ELF file. Raises FormatError."""
        return ElfFile(self.data, str(self.path), self.source.status, self.source.descriptor)

    def begin_copy(self, elf: ElfFile, size: int) -> None:
        """Begin to copy the first `size` bytes in a thread, if they are many and a file will be written. Call this early."""
        if self._location is not None and not self.dry_run and size >= LARGE and len(os.sched_getaffinity(0)) > 1:
            self._copy_ahead = self._stack.enter_context(CopyAhead(elf, self._location, size))
            self._copy_ahead.start()

    def copy_to(self, elf: ElfFile, out: BinaryIO, parts: Sequence[FilePart] = ()) -> None:
        """Copy these parts, by default all of the file, to the new file. Functions given to `write` call this first."""
        (copy_file if self._copy_ahead is None else self._copy_ahead.copy_into)(elf, out, parts)

    def copy(self, elf: ElfFile) -> WriteResult:
        """Write an unchanged copy to the output, unless that is the file itself."""
        return WriteResult() if self.in_place or self.dry_run else self._write(partial(self.copy_to, elf), None)

    def write(self, write: Callable[[BinaryIO], None], check: Callable[[Path, Reader], None]) -> WriteResult:
        """Write the new file, except in a dry run. `check` reads it back, and raises an exception to keep the old file."""
        if self.dry_run:
            return WriteResult()
        if not self.verify:
            return self._write(write, None)
        reader = choose_reader(len(self.data))
        return self._write(write, lambda written: check(written, reader))

    def _write(self, write: Callable[[BinaryIO], None], check: Callable[[Path], None] | None) -> WriteResult:
        if self._location is None:
            _write_to_stdout(write, check)
            return WriteResult(str(self.output))
        replaced = write_atomically(
            self._location, write, check, source=self.source, rights=Rights.IN_PLACE if self.in_place else Rights.OUTPUT,
            hard_links=self._hard_links, prepared=None if self._copy_ahead is None else self._copy_ahead.file,
        )  # fmt: skip
        warnings = []
        if replaced.lost:
            warnings.append(f"{self.output} could not be given {', '.join(replaced.lost)}")
        if replaced.other_names > 0:
            noun = "name" if replaced.other_names == 1 else "names"
            warnings.append(f"{replaced.other_names} other {noun} (hard links) of {self.output} keep the old file")
        return WriteResult(str(self.output), tuple(warnings))


def _leads_to(path: StrPath, location: Location) -> bool:
    status = location.status()
    return status is not None and os.path.samestat(os.stat(path), status)  # noqa: PTH116 - a PathLike of any kind


def is_stdout(output: StrPath | None) -> bool:
    """Return True if the path leads to standard output, also by the name of its pipe or device, which cannot be replaced."""
    if output is None or os.fspath(output) in STDOUT_NAMES:
        return output is not None
    try:
        ours = os.fstat(STDOUT)
        return not stat.S_ISREG(ours.st_mode) and os.path.samestat(os.stat(output), ours)  # noqa: PTH116
    except OSError:
        return False


def _write_to_stdout(write: Callable[[BinaryIO], None], check: Callable[[Path], None] | None) -> None:
    """Write the new file to standard output once it is complete and verified."""
    from shutil import copyfileobj  # noqa: PLC0415 - here and below: importing them takes longer than a small file
    from tempfile import TemporaryFile  # noqa: PLC0415

    with TemporaryFile() as file:
        write(file)
        file.flush()
        if check is not None:
            check(Path(f"/proc/self/fd/{file.fileno()}"))
        file.seek(0)
        with open(STDOUT, "wb", closefd=False) as stdout:
            copyfileobj(file, stdout)
