"""Files that processes have mapped: each has a number, is opened once, and gets a table."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple
from weakref import finalize

from sframegen.base.errors import FormatError
from sframegen.elf.file import ElfFile, map_descriptor
from sframegen.elf.notes import read_build_id
from sframegen.profile.following.mapped_file import FileKey, MappedFiles, MappedPlace
from sframegen.profile.limits import MAX_FILES
from sframegen.program.own_memory import drop_pages
from sframegen.stack.mappings import VDSO

if TYPE_CHECKING:
    from sframegen.profile.tables.decoded_table import DecodedTable
    from sframegen.profile.tables.table_builder import BuiltTable

REWRITTEN = "it was rewritten while being traced"
NOT_ELF = "not an ELF file"
TracedInode = tuple[int, int]  # device and number, as stat has them


@dataclass
class TracedFile:
    """A mapped file. `path`: as the process has it. `elf`: None if the file cannot be opened or is not ELF; `why` says so."""

    number: int
    path: str
    elf: ElfFile | None = None
    why: str = ""
    build_id: bytes = b""
    table: DecodedTable | None = None
    ready: bool = False  # its table is made, or cannot be made
    final: bool = True  # no proof can add rules to it
    is_copy: bool = False  # `elf` is a copy, since the file system may stop answering
    checked: int = 0  # CLOCK_MONOTONIC nanoseconds, up to which the file was not rewritten
    spans: dict[tuple[int, int], list[CodeSpan]] = field(default_factory=dict)  # by offset and size, if it were mapped at address 0
    closing: finalize[[int], TracedFile] | None = None  # closes the file, also when nobody has this object any more: names need it

    def take(self, built: BuiltTable) -> None:
        """Take over the outcome of making its table. A proof that adds no rules leaves the table as it is."""
        self.ready, self.final = True, built.final or self.elf is None
        if built.table is not None or not built.final:
            self.table, self.why = built.table, built.why
        else:
            self.why = built.why or self.why


class CodeSpan(NamedTuple):
    """An executable mapping: run-time addresses [start, end); link-time address = run-time address - bias (64 bits)."""

    start: int
    end: int
    bias: int
    file: int  # number; 0: no file


class TracedFiles:
    """All mapped files, with their numbers. Files stay open, so that no other file gets the same inode number."""

    def __init__(self) -> None:
        self.by_number: dict[int, TracedFile] = {}
        self.refused = 0  # files above the greatest number: their code counts as code without a file
        self._mapped = MappedFiles()
        self._by_key: dict[FileKey, TracedFile] = {}
        self._by_inode: dict[TracedInode, TracedFile] = {}
        self._by_bytes: dict[bytes, TracedFile] = {}  # images of the kernel
        self._unopened: set[int] = set()  # numbers of files that could not be opened; another process's mapping may allow it
        self._new: list[TracedFile] = []
        self._without_table: list[int] = []
        self._free: list[int] = []  # numbers that were released

    def take_new(self) -> list[TracedFile]:
        """Return the files that were opened since the last call: they need a table."""
        new, self._new = self._new, []
        return new

    def take_without_table(self) -> list[int]:
        """Return the numbers of files that get no table: they cannot be opened, or are not ELF files."""
        numbers, self._without_table = self._without_table, []
        return [number for number in numbers if number in self.by_number and self.by_number[number].ready]

    def release(self, used: set[int]) -> list[int]:
        """Close the files that are not `used`, unless their table is still to come; return their numbers, which are used again."""
        released = [
            file
            for file in self.by_number.values()
            if file.number not in used and file.ready and (file.elf.descriptor is not None if file.elf else file.why)
        ]
        if not released:
            return []
        for file in released:
            _close(file)
            del self.by_number[file.number]
        numbers = {file.number for file in released}
        self._unopened -= numbers
        self._forget(numbers)
        self._free += numbers
        return sorted(numbers)

    def traced(self, key: FileKey, place: MappedPlace) -> TracedFile | None:
        """Return the file that a process has mapped; None if it is not ELF, or if there are too many files."""
        known = self._by_key.get(key)
        if known is not None and known.elf is not None and self._is_other(known, key, place):
            self._retire(known)
            known = None
        if known is None or known.number in self._unopened:
            known = self._open_file(key, place, known)
            if known is not None:
                self._by_key[key] = known
        return None if known is None or known.why == NOT_ELF else known

    def image(self, data: bytes) -> TracedFile | None:
        """Return the file made of a vDSO's bytes; None if they are not an ELF file."""
        known = self._by_bytes.get(data)
        if known is None and data and (known := self._numbered(VDSO)) is not None:
            self._by_bytes[data] = known
            self._parse(known, memoryview(data), None, None)
        return known if known is not None and known.elf is not None else None

    def retired(self) -> set[int]:
        """Return the numbers of files that were rewritten since they were opened, so that their rules do not hold any more."""
        old = [file for file in self._by_inode.values() if _is_rewritten(file)]
        for file in old:
            self._retire(file)
        return {file.number for file in old}

    def answering(self) -> set[int]:
        """Return the numbers of unopened files whose file system did not answer, but answers now."""
        return {self._by_key[key].number for key in self._mapped.answering() if key in self._by_key}

    def release_pages(self) -> None:
        """Release the mapped pages of files and tables to the kernel's cache, until they are read again."""
        for file in self.by_number.values():
            for data in (file.elf and file.elf.data, file.table and file.table.data):
                drop_pages(data or b"")

    def close(self) -> None:
        for file in self.by_number.values():
            _close(file)

    def _open_file(self, key: FileKey, place: MappedPlace, known: TracedFile | None) -> TracedFile | None:
        """Open a file and return it; None if it is not ELF. `known`: its object, if opening has failed before."""
        try:
            descriptor, status, is_copy = self._mapped.open(key, place)
        except (OSError, FormatError) as error:
            why = error.message if isinstance(error, FormatError) else str(error.strerror)
            if known is None and (known := self._numbered(place.path)) is not None:
                known.why, known.ready = why, True
                self._unopened.add(known.number)
            return known
        inode = (status.st_dev, status.st_ino)
        same = self._by_inode.get(inode)
        if same is not None and not _is_rewritten(same) and not (same.is_copy and _differs(same, status)):
            os.close(descriptor)
            return same
        if same is not None:
            self._retire(same)
        traced = self._numbered(place.path)  # another one than before: addresses in stacks were without a bias
        if traced is None:
            os.close(descriptor)
            return None
        traced.is_copy = is_copy
        try:
            data, _ = map_descriptor(descriptor, place.path)
            self._parse(traced, data, status, descriptor)
        except FormatError as error:
            traced.why, traced.ready = error.message, True
        except OSError as error:  # too many open files, perhaps: not for ever
            traced.why, traced.ready = str(error.strerror), True
            self._unopened.add(traced.number)
        if traced.elf is None:
            os.close(descriptor)
        else:
            self._by_inode[inode] = traced
            traced.closing = finalize(traced, os.close, descriptor)
        return traced

    def _is_other(self, known: TracedFile, key: FileKey, place: MappedPlace) -> bool:
        """Return True if the open file is not as it was when the process mapped it."""
        return _was_rewritten(known, place.time) or self._is_old_copy(known, key, place)

    def _is_old_copy(self, known: TracedFile, key: FileKey, place: MappedPlace) -> bool:
        """Return True if a copy is of another file, or of older bytes. False if the file does not answer."""
        if not known.is_copy:
            return False
        try:
            return _differs(known, self._mapped.status(key, place))
        except (OSError, FormatError):
            return False

    def _parse(self, traced: TracedFile, data: memoryview, status: os.stat_result | None, descriptor: int | None) -> None:
        if bytes(data[:4]) != b"\x7fELF":
            traced.why, traced.ready = NOT_ELF, True
            return
        try:
            traced.elf = ElfFile(data, traced.path, status, descriptor)
        except FormatError as error:
            traced.why, traced.ready = error.message, True
            return
        try:
            traced.build_id = read_build_id(traced.elf) or b""
        except FormatError:
            traced.build_id = b""
        traced.why, traced.ready = "", False
        self._new.append(traced)

    def _numbered(self, path: str) -> TracedFile | None:
        if len(self.by_number) == MAX_FILES:
            self.refused += 1
            return None
        number = self._free.pop() if self._free else len(self.by_number) + 1
        traced = self.by_number[number] = TracedFile(number, path)
        self._without_table.append(number)
        return traced

    def _retire(self, file: TracedFile) -> None:
        _close(file)
        file.elf, file.table, file.ready, file.final, file.why = None, None, True, True, REWRITTEN
        self._forget({file.number})

    def _forget(self, numbers: set[int]) -> None:
        self._by_key = {key: file for key, file in self._by_key.items() if file.number not in numbers}
        self._by_inode = {inode: file for inode, file in self._by_inode.items() if file.number not in numbers}


def _close(file: TracedFile) -> None:
    if file.elf is not None and file.closing is not None:
        file.closing()
        file.elf.descriptor = None


def _was_rewritten(file: TracedFile, mapped: int) -> bool:
    """Return True for a file that was rewritten before it was `mapped`, and perhaps if it was rewritten since."""
    if mapped <= file.checked:
        return False
    now = time.monotonic_ns()
    if _is_rewritten(file):
        return True
    file.checked = now
    return False


def _is_rewritten(file: TracedFile) -> bool:
    elf = file.elf
    if elf is None or elf.descriptor is None or file.is_copy:
        return False
    return _differs(file, os.fstat(elf.descriptor))


def _differs(file: TracedFile, now: os.stat_result) -> bool:
    then = file.elf.status if file.elf else None
    return then is not None and (now.st_ino, now.st_size, now.st_mtime_ns) != (then.st_ino, then.st_size, then.st_mtime_ns)
