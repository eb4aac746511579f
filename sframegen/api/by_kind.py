"""What a file is, and the function for its kind."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from cfi.errors import naming
from linker.objects.given_file import Objects, given
from sframegen.elf.opening import beginning_of, map_file
from sframegen.packages.kinds import BEGINNING, is_layout, kind_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from sframegen.api.options import StrPath, Writing
    from sframegen.api.packaged import PassedPackage

T = TypeVar("T")


class Kinds(NamedTuple, Generic[T]):
    """What a public function does to each kind of file. `change_kind` also passes the open `Target`, `read_kind` does not.

    None: files of the kind are not told from linked ones.
    """

    linked: Callable[..., T]  # an `ElfFile`
    objects: Callable[..., T] | None = None  # `Objects`: an object, or those of an archive
    package: Callable[[str, PassedPackage[Any]], T] | None = None  # its name, and what came of each file in it: their sum


def is_package(path: str, data: memoryview | None = None) -> bool:
    """True if the file is a package, such as a wheel. `data`: its bytes, if they are known. Raises FormatError, OSError."""
    beginning = beginning_of(path, path, BEGINNING) if data is None else bytes(data[:BEGINNING])
    return not beginning.startswith(b"\x7fELF") and kind_of(path, beginning) is not None


def change_kind(path: StrPath, writing: Writing, kinds: Kinds[T]) -> T:
    """Call the function for the file's kind, with the file that is read, and where the result goes."""

    def each(part: StrPath, output: StrPath | None = None) -> T:
        return change_kind(part, writing.of_part(output), kinds)

    if kinds.package and is_layout(path):
        from sframegen.api.packaged import change_layout  # noqa: PLC0415 - here and below: only for packages

        return kinds.package(os.fspath(path), change_layout(path, each, writing))
    target = writing.target(path)
    with naming(str(target.path)), target:
        if is_package(str(target.path), target.data) and kinds.package:  # what is not handled is refused by all
            from sframegen.api.packaged import change_package  # noqa: PLC0415

            return kinds.package(str(target.path), change_package(target, each, force=writing.force))
        found = given(target.data, str(target.path), target.source) if kinds.objects else target.elf()
        if isinstance(found, Objects):
            assert kinds.objects is not None
            return kinds.objects(found, target)
        return kinds.linked(found, target)


def read_kind(path: StrPath, kinds: Kinds[T]) -> T:
    """Like `change_kind`, for functions that only read the file."""
    file = os.fspath(path)
    if (is_layout(path) or is_package(file)) and kinds.package:  # what is not handled is refused by all
        from sframegen.api.packaged import read_package  # noqa: PLC0415

        return kinds.package(file, read_package(path, partial(read_kind, kinds=kinds)))
    with naming(file):
        return read_bytes(map_file(file)[0], file, kinds)


def read_bytes(data: memoryview, file: str, kinds: Kinds[T]) -> T:
    """Like `read_kind`, for the bytes of a file that is no package. `file`: its name for messages."""
    found = given(data, file)
    if isinstance(found, Objects):
        assert kinds.objects is not None
        return kinds.objects(found)
    return kinds.linked(found)
