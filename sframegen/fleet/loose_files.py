"""The linked ELF files of one directory as a package."""

from __future__ import annotations

import errno
import os
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from shutil import copyfileobj
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, Self

from cfi.errors import SframegenError
from linker.files.location import below, locate
from linker.files.rename_into_place import write_atomically
from linker.files.rights import Rights, Source
from sframegen.elf.opening import open_regular
from sframegen.elf.records import EHDR_SIZE
from sframegen.fleet.sources.fetching import digest, opened_file, status_text
from sframegen.fleet.sources.items import ItemKind
from sframegen.fleet.sources.listing import BEGINNING, is_package_file
from sframegen.format.abi import is_linked
from sframegen.packages.passing import Passed, checksum_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sframegen.fleet.file_rows import PackageFiles
    from sframegen.fleet.output_directory import OutputDirectory
    from sframegen.fleet.sources.items import Item


CHANGED = "it was changed while it was read"


class HeldFile(NamedTuple):
    """A file of a package, held open: all that is known of it comes from there."""

    name: str
    file: BinaryIO

    @property
    def source(self) -> Source:
        return Source(self.file.fileno(), os.fstat(self.file.fileno()))

    @property
    def path(self) -> Path:
        """Leads to this file, whatever its names lead to by now."""
        return Path(f"/proc/self/fd/{self.file.fileno()}")


class LooseFiles:
    """The files of a directory that is held open; no symbolic link is followed."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> Self:
        with locate(self._path) as location:
            self._directory = os.open(location.name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=location.directory)
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._directory)

    def __contains__(self, name: object) -> bool:
        try:
            with below(self._directory, str(name), self._path) as location:
                return location.status() is not None
        except OSError:
            return False

    @contextmanager
    def open(self, name: str) -> Iterator[BinaryIO]:
        """Raises FormatError if it is not a regular file, OSError."""
        path = os.path.join(self._path, name)  # noqa: PTH118 - for messages
        with os.fdopen(open_regular(name, path, os.O_NOFOLLOW, directory=self._directory), "rb") as file:
            yield file

    def files(self) -> Iterator[str]:
        """The names of its linked ELF files that are not packages, in their order."""
        for name in sorted(os.listdir(self._directory)):  # noqa: PTH208 - of a directory that is open
            try:
                with self.open(name) as file:
                    beginning = file.read(BEGINNING)
            except (SframegenError, OSError):
                continue
            if is_linked(beginning[:EHDR_SIZE]) and not is_package_file(name, beginning):
                yield name


def held_files(item: Item) -> Iterator[HeldFile]:
    """Each file that counts, in their order, open until the next one is asked for. Raises FormatError, OSError."""
    with LooseFiles(item.place) as files:
        for name in list(files.files()):
            with files.open(name) as file:
                yield HeldFile(name, file)


def states_of(item: Item) -> dict[str, str]:
    """A text for each file of an item on this machine, which changes when the file does. Raises FormatError, OSError."""
    if item.kind is ItemKind.FILE:
        with opened_file(item.place) as file:
            return {"": status_text(os.fstat(file.fileno()))}
    return {given.name: status_text(given.source.status) for given in held_files(item)}


class PackageContent(NamedTuple):
    """The contents of a package."""

    sha256: str
    file: BinaryIO | None  #: of a directory: None
    states: dict[str, str]  #: of its files; a text changes when its file does


def content_of(item: Item) -> PackageContent:
    """Read a directory: the SHA256 is that of all names and contents. Raises FormatError, OSError."""
    total, states = sha256(), {}
    for given in held_files(item):
        states[given.name] = status_text(given.source.status)
        total.update(f"{given.name}\0{digest(given.file)}\n".encode("utf-8", "surrogateescape"))
    return PackageContent(total.hexdigest(), None, states)


def pass_loose(item: Item, content: PackageContent, files: PackageFiles, output: OutputDirectory) -> tuple[Passed, int]:
    """Visit each linked ELF file of the directory; those that change are written to a directory of that name.

    Returns what was seen, and the size of what was written. Raises FormatError, OSError.
    """
    size = changed_files = new_size = 0
    written = 0.0
    with LooseFiles(item.place) as directory, TemporaryDirectory() as temporary:
        changed = Path(temporary, "changed")
        for given in held_files(item):
            status = given.source.status
            if status_text(status) != content.states.get(given.name):
                raise OSError(errno.EBUSY, f"{given.name}: {CHANGED}")
            size += status.st_size
            if (checksum := checksum_of([given.name], directory, ())) and not files.options.force:
                files.refused(given.name, status.st_size, f"signed: {checksum}")
            elif files.visit(given.name, given.path, changed):
                changed_files += 1
                new_size += changed.stat().st_size
                started = perf_counter()
                _put(changed, given, f"{item.name}/{given.name}", output)
                written += perf_counter() - started
            changed.unlink(missing_ok=True)
    number = len(files.rows)
    return Passed("directory", number, size, number, changed_files, 0.0, written), new_size


def _put(changed: Path, given: HeldFile, name: str, output: OutputDirectory) -> None:
    """Write a changed file to the output."""

    def write(out: BinaryIO) -> None:
        with changed.open("rb") as file:
            copyfileobj(file, out)

    with output.package(name, make=True) as location:
        write_atomically(location, write, source=given.source, rights=Rights.COPY)
