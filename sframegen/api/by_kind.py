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
    path: StrPath, writing: WriteOptions, on_linked: Callable[[ElfFile, Target], T],
    on_objects: Callable[[Objects, Target], T] | None = None,
) -> T:  # fmt: skip
    """Call `on_linked` or `on_objects`, depending on the file's kind, with the input file and the target of the result.

    `on_objects` gets an object, or those of an archive. Without it, `on_linked` gets every ELF file, and reports other kinds.
    """
    target = writing.target(path)
    with name_file_in_errors(str(target.path)), target:
        parsed = parse_input(target.data, str(target.path), target.source) if on_objects else target.elf()
        if isinstance(parsed, Objects):
            assert on_objects is not None
            return on_objects(parsed, target)
        return on_linked(parsed, target)


def read_by_kind(path: StrPath, on_linked: Callable[[ElfFile], T], on_objects: Callable[[Objects], T]) -> T:
    """Call `on_linked` or `on_objects`, depending on the file's kind. Both only read the file."""
    file = os.fspath(path)
    with name_file_in_errors(file):
        return read_contents_by_kind(map_file(file)[0], file, on_linked, on_objects)


def read_contents_by_kind(data: memoryview, file: str, on_linked: Callable[[ElfFile], T], on_objects: Callable[[Objects], T]) -> T:
    """Like `read_by_kind`, for the bytes of a file. `file`: its name in messages."""
    parsed = parse_input(data, file)
    return on_objects(parsed) if isinstance(parsed, Objects) else on_linked(parsed)
