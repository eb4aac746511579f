"""Distinguishes linked files, objects and archives, and packages, which only some commands take."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

from linker.objects.archive import is_archive
from sframegen.base.errors import FormatError
from sframegen.elf.file import ElfFile, map_file, read_beginning
from sframegen.elf.records import ET

if TYPE_CHECKING:
    from linker.objects.object_view import ObjectView


def is_package(path: str) -> bool:
    """Return True for a package; False if the file cannot be read. Raises FormatError for a kind of package that is not handled."""
    with suppress(OSError, FormatError):
        if read_beginning(path, path, 4) == b"\x7fELF":
            return False
    from sframegen.packages.kinds import BEGINNING_BYTES, IMAGE, OCI_LAYOUT, detect_kind  # noqa: PLC0415 - here and below: not for each program

    try:
        beginning = read_beginning(path, path, BEGINNING_BYTES)
    except IsADirectoryError:
        if os.path.lexists(f"{path}/{OCI_LAYOUT}"):
            raise FormatError(IMAGE, file=path) from None
        return False
    except (FormatError, OSError):
        return False
    return detect_kind(path, beginning) is not None


def refuse_package(path: str) -> None:
    """Raise FormatError if the file is a package, whether or not its kind is handled."""
    if is_package(path):
        raise FormatError("a package: add-section, remove and check take packages; unpack it, and give the files in it", file=path)


def refuse_directory(path: str) -> NoReturn:
    """Raise FormatError if the directory is an unpacked container image, else IsADirectoryError."""
    refuse_package(path)
    raise IsADirectoryError(errno.EISDIR, "is a directory; check, add-section -r and remove -r take directories", path)


def open_views(path: str) -> ElfFile | list[ObjectView]:
    """Return a linked file, or a view of each object that has SFrame sections. Raises FormatError if none has one, or OSError."""
    try:
        return _read_views(path)
    except IsADirectoryError:
        refuse_directory(path)
    except FormatError:
        refuse_package(path)
        raise


def _read_views(path: str) -> ElfFile | list[ObjectView]:
    data, status = map_file(path)
    if not is_archive(data):
        elf = ElfFile(data, path, status)
        if elf.header.e_type != ET.REL:
            return elf
    from linker.objects.given_file import Objects, parse_input  # noqa: PLC0415
    from linker.objects.object_view import make_views  # noqa: PLC0415 - takes longer to import than most sections to read

    parsed = parse_input(data, path)
    return make_views(parsed) if isinstance(parsed, Objects) else parsed
