"""What a file is, and the function for its kind."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from linker.objects.given_file import Objects, given
from sframegen.base.errors import naming
from sframegen.elf.file import map_file

if TYPE_CHECKING:
    from collections.abc import Callable

    from sframegen.api.options import StrPath, Writing

T = TypeVar("T")


class Kinds(NamedTuple, Generic[T]):
    """What a public function does to each kind of file. `change_kind` also passes the open `Target`, `read_kind` does not.

    None: files of the kind are not told from linked ones.
    """

    linked: Callable[..., T]  # an `ElfFile`
    objects: Callable[..., T] | None = None  # `Objects`: an object, or those of an archive


def change_kind(path: StrPath, writing: Writing, kinds: Kinds[T]) -> T:
    """Call the function for the file's kind, with the file that is read, and where the result goes."""
    target = writing.target(path)
    with naming(str(target.path)), target:
        found = given(target.data, str(target.path), target.source) if kinds.objects else target.elf()
        if isinstance(found, Objects):
            assert kinds.objects is not None
            return kinds.objects(found, target)
        return kinds.linked(found, target)


def read_kind(path: StrPath, kinds: Kinds[T]) -> T:
    """Like `change_kind`, for functions that only read the file."""
    file = os.fspath(path)
    with naming(file):
        return read_bytes(map_file(file)[0], file, kinds)


def read_bytes(data: memoryview, file: str, kinds: Kinds[T]) -> T:
    """Like `read_kind`, for the bytes of a file. `file`: its name for messages."""
    found = given(data, file)
    if isinstance(found, Objects):
        assert kinds.objects is not None
        return kinds.objects(found)
    return kinds.linked(found)
