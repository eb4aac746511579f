"""Finds out whether a file is linked, an object or an archive of objects, and calls the function for that kind."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, TypeVar

from linker.objects.given_file import Objects, parse_input
from sframegen.base.errors import name_file_in_errors
from sframegen.elf.file import ElfFile, map_file

if TYPE_CHECKING:
    from collections.abc import Callable

    from linker.files.target import Target
    from sframegen.api.options import StrPath, WriteOptions

T = TypeVar("T")


def change_by_kind(
    path: StrPath,
    writing: WriteOptions,
    linked: Callable[[ElfFile, Target], T],
    objects: Callable[[Objects, Target], T] | None = None,
) -> T:
    """Call `linked` or `objects`, depending on the file's kind, with the input file and the target of the result.

    `objects` gets an object, or those of an archive. Without it, `linked` gets every ELF file, and reports other kinds itself.
    """
    target = writing.target(path)
    with name_file_in_errors(str(target.path)), target:
        found = parse_input(target.data, str(target.path), target.source) if objects else target.elf()
        if isinstance(found, Objects):
            assert objects is not None
            return objects(found, target)
        return linked(found, target)


def read_by_kind(path: StrPath, linked: Callable[[ElfFile], T], objects: Callable[[Objects], T]) -> T:
    """Call `linked` or `objects`, depending on the file's kind. Both only read the file."""
    file = os.fspath(path)
    with name_file_in_errors(file):
        return read_contents_by_kind(map_file(file)[0], file, linked, objects)


def read_contents_by_kind(data: memoryview, file: str, linked: Callable[[ElfFile], T], objects: Callable[[Objects], T]) -> T:
    """Like `read_by_kind`, for the bytes of a file. `file`: its name in messages."""
    found = parse_input(data, file)
    return objects(found) if isinstance(found, Objects) else linked(found)
