"""The linked ELF files of one directory as a package; and a directory that is a package of its own format."""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path
from shutil import copyfileobj
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import TYPE_CHECKING, BinaryIO

from cfi.errors import SframegenError
from linker.files.location import below, locate, make_directory
from linker.files.rename_into_place import Source, write_atomically
from sframegen.elf.opening import beginning_of
from sframegen.elf.records import EHDR_SIZE
from sframegen.fleet.sources.fetching import digest, opened_file
from sframegen.fleet.sources.items import ItemKind
from sframegen.fleet.sources.listing import BEGINNING, is_package
from sframegen.format.abi import is_linked
from sframegen.packages.passing import Passed

if TYPE_CHECKING:
    from linker.files.location import Location
    from sframegen.fleet.output_directory import OutputDirectory
    from sframegen.fleet.sources.items import Item
    from sframegen.packages.passing import Visit


def files_of(item: Item) -> list[tuple[str, os.stat_result]]:
    """Name and status of each file that counts, in their order. Raises OSError."""
    root = Path(item.place)
    if item.kind is ItemKind.LAYOUT:
        paths = sorted(path for path in root.rglob("*") if path.is_file() and not path.is_symlink())
        return [(str(path.relative_to(root)), path.lstat()) for path in paths]
    with os.scandir(root) as entries:
        return sorted((entry.name, entry.stat(follow_symlinks=False)) for entry in entries if _is_linked_file(entry))


def _is_linked_file(entry: os.DirEntry[str]) -> bool:
    if not entry.is_file(follow_symlinks=False):
        return False
    try:
        beginning = beginning_of(entry.path, entry.path, BEGINNING, os.O_NOFOLLOW)
    except (SframegenError, OSError):
        return False
    return is_linked(beginning[:EHDR_SIZE]) and not is_package(entry.name, beginning)


def digest_of(item: Item) -> str:
    """The SHA256 of the names and contents in a directory."""
    total = sha256()
    for name, _ in files_of(item):
        with opened_file(os.path.join(item.place, name)) as file:  # noqa: PTH118
            total.update(f"{name}\0{digest(file)}\n".encode("utf-8", "surrogateescape"))
    return total.hexdigest()


def pass_loose(item: Item, visit: Visit, output: OutputDirectory) -> Passed:
    """Each linked ELF file of the directory; those that change are written to a directory of that name."""
    names = files_of(item)
    size = changed_files = 0
    written = 0.0
    root = os.open(item.place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with TemporaryDirectory() as temporary:
            for name, status in names:
                size += status.st_size
                given, changed = Path(item.place, name), Path(temporary, "changed")
                if visit(name, given, changed):
                    changed_files += 1
                    started = perf_counter()
                    _put(changed, below(root, name, str(given)), output.package(f"{item.name}/{name}"))
                    written += perf_counter() - started
                changed.unlink(missing_ok=True)
    finally:
        os.close(root)
    return Passed("directory", len(names), size, len(names), changed_files, 0.0, written)


def _put(changed: Path, given: Location, path: str) -> None:
    """Write a changed file to the output, with the rights of the given one."""
    make_directory(os.path.dirname(path))  # noqa: PTH120

    def write(out: BinaryIO) -> None:
        with changed.open("rb") as file:
            copyfileobj(file, out)

    with given, locate(path) as location:
        descriptor = given.open()
        try:
            write_atomically(location, write, source=Source(descriptor, os.fstat(descriptor)), in_place=False)
        finally:
            os.close(descriptor)
