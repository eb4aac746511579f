"""Linked files and objects, told apart by what reads a section: an object's functions have no addresses yet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from linker.objects.archive import is_archive
from sframegen.base.errors import FormatError
from sframegen.elf.file import ElfFile, map_file
from sframegen.elf.records import ET

if TYPE_CHECKING:
    from linker.objects.object_view import ObjectView


def open_views(path: str) -> ElfFile | list[ObjectView]:
    """A linked file, or the objects with SFrame sections of what is not linked. Raises FormatError where none has, or OSError."""
    try:
        return _views(path)
    except (FormatError, IsADirectoryError):
        from sframegen.cli.shared.packages_too import refuse_package  # noqa: PLC0415 - not for each run

        refuse_package(path)
        raise


def _views(path: str) -> ElfFile | list[ObjectView]:
    data, status = map_file(path)
    if not is_archive(data):
        elf = ElfFile(data, path, status)
        if elf.header.e_type != ET.REL:
            return elf
    from linker.objects.given_file import Objects, given  # noqa: PLC0415
    from linker.objects.object_view import views_of  # noqa: PLC0415 - takes longer to import than most sections to read

    found = given(data, path)
    return views_of(found) if isinstance(found, Objects) else found
