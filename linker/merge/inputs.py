"""The files that a merge is given, opened one after the other. The first can be opened early, while a linker runs."""

from __future__ import annotations

import os
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, TypeAlias

from linker.merge.input_objects import ObjectReader, OtherObject, UsualObject
from linker.objects.archive import is_archive, members
from sframegen.base.errors import FormatError, naming
from sframegen.elf.file import ElfFile, map_file
from sframegen.format.abi import abi_of
from sframegen.tables.gather import DEAD, Merger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from linker.merge.input_objects import InputObject
    from sframegen.format.abi import Abi
    from sframegen.program.workers import Progress

    Version: TypeAlias = tuple[int, int, int, int, int]

SMALL = 1 << 16  # bytes: a smaller object is read faster than it is mapped
FIRST = 1 << 11  # objects that are opened early: enough for what a linker takes, and little memory
FIRST_MAPPED = 1 << 7  # of these are larger: each keeps a descriptor open, and the usual limit is 1,024


class Inputs:
    """Objects, and archives of them."""

    def __init__(self, paths: Sequence[str | os.PathLike[str]], progress: Progress | None = None) -> None:
        self._paths = paths
        self._progress = progress
        self._first: dict[str, tuple[UsualObject, Version]] = {}  # opened early

    def open_first(self) -> None:
        """Open the first objects, up to one that is not of the usual form: its faults are reported in its turn."""
        with suppress(FormatError, OSError):
            reader = None
            mapped = 0
            for path in map(str, islice(self._paths, FIRST)):
                data, status = map_file(path, small=SMALL)
                mapped += status.st_size > SMALL
                reader = reader or ObjectReader(abi_of(ElfFile(data, path)))
                one = reader.open(data, path)
                if mapped > FIRST_MAPPED or not isinstance(one, UsualObject):
                    break
                self._first[path] = one, _version(status)

    def objects(self, abi: Abi) -> Iterator[tuple[str, str, InputObject]]:
        """(file, name of the member or "", object) of each. `abi`: theirs. Raises FormatError, OSError."""
        reader = ObjectReader(abi)
        for number, path in enumerate(map(str, self._paths), 1):
            one, version = self._first.pop(path, (None, None))
            if one is not None and version == _version(os.stat(path)):  # noqa: PTH116 - there are thousands
                yield path, "", one
            else:
                yield from _opened(path, reader.open)
            if self._progress is not None:
                self._progress(number, len(self._paths))


def read_all(paths: Sequence[str | os.PathLike[str]]) -> None:
    """Raises the FormatError of the first object whose sections cannot be merged."""
    merger = Merger()
    for path in map(str, paths):
        for _, _, one in _opened(path, OtherObject):
            with naming(one.name):
                if not one.is_relocatable:
                    raise FormatError("a linked file, not an object")
                for section, numbers, _ in one.described():
                    merger.add(section, [DEAD] * len(numbers))


def _version(status: os.stat_result) -> Version:
    """Changes when a file is written or replaced: the linker may have read the new content."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _opened(path: str, opened: Callable[[memoryview, str], InputObject]) -> Iterator[tuple[str, str, InputObject]]:
    data, _ = map_file(path, small=SMALL)
    if is_archive(data):
        for member in members(data, path):
            if member.is_elf:
                one = opened(member.contents, f"{path}({member.name})")
                if one.is_relocatable:
                    yield path, member.name, one
    else:
        yield path, "", opened(data, path)
