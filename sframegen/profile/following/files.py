"""Keeps track of the files that processes have mapped: each gets a number, is opened once, and stays open.

A file is found by its key, as mappings name it (mapped_file.FileKey), by its inode, which several keys may lead to, or, for a vDSO,
which is in memory only, by its bytes. A rewritten file is retired: it is closed, and later mappings of it get another number.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple
from weakref import finalize

from sframegen.base.errors import FormatError
from sframegen.elf.file import ElfFile, map_descriptor
from sframegen.elf.notes import read_build_id
from sframegen.profile.following.mapped_file import FileKey, MappedFiles, ProcessMapping
from sframegen.profile.limits import MAX_FILES
from sframegen.program.own_memory import drop_pages
from sframegen.stack.mappings import VDSO

if TYPE_CHECKING:
    from sframegen.profile.tables.decoded_table import DecodedTable
    from sframegen.profile.tables.table_builder import BuiltTable

REWRITTEN = "it was rewritten while being traced"
NOT_ELF = "not an ELF file"
TracedInode = tuple[int, int]  # st_dev and st_ino


@dataclass
class TracedFile:
    """A mapped file. `path`: as the process sees it. `elf`: None if the file cannot be opened or is not ELF. `why`: a message."""

    number: int
    path: str
    elf: ElfFile | None = None
    why: str = ""
    build_id: bytes = b""
    table: DecodedTable | None = None
    ready: bool = False  # the table was made, or cannot be made
    final: bool = True  # no proof can add rules to the table
    is_copy: bool = False  # `elf` is a copy, because the file system may stop answering
    checked: int = 0  # CLOCK_MONOTONIC nanoseconds, up to which the file was known not to be rewritten
    spans: dict[tuple[int, int], list[CodeSpan]] = field(default_factory=dict)  # by offset and size, for a mapping at address 0
    closing: finalize[[int], TracedFile] | None = None  # closes the file, at the latest when this object is freed

    def apply_result(self, built: BuiltTable) -> None:
        """Store the result of making the table. A proof that adds no rules leaves the table as it is."""
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
    file: int  # the file's number; 0 (packed_frames.NO_FILE): code without a file


class TracedFiles:
    """All mapped files by number. They stay open, so that the file system gives their inode numbers to no other file."""

    def __init__(self) -> None:
        self.by_number: dict[int, TracedFile] = {}
        self.refused = 0  # files beyond MAX_FILES, whose code counts as code without a file
        self._mapped = MappedFiles()
        self._by_key: dict[FileKey, TracedFile] = {}
        self._by_inode: dict[TracedInode, TracedFile] = {}
        self._by_bytes: dict[bytes, TracedFile] = {}  # vDSO images
        self._unopened: set[int] = set()  # numbers of files that could not be opened, but may be through another process
        self._new: list[TracedFile] = []
        self._without_table: list[int] = []
        self._free: list[int] = []  # numbers that were released

    def take_new(self) -> list[TracedFile]:
        """Return the files that were opened since the last call, and so need a table."""
        new, self._new = self._new, []
        return new

    def take_without_table(self) -> list[int]:
        """Return the numbers of new files that get no table, because they cannot be opened or are not ELF files."""
        numbers, self._without_table = self._without_table, []
        return [number for number in numbers if number in self.by_number and self.by_number[number].ready]

    def release_unused(self, used: set[int]) -> list[int]:
        """Close the files that are not `used`, unless their table is still to come. Return their numbers, which get reused."""
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

    def find_or_open(self, key: FileKey, mapping: ProcessMapping) -> TracedFile | None:
        """Return the file that a process has mapped, opening it if need be; None if it is not ELF, or if there are too many."""
        traced = self._by_key.get(key)
        if traced is not None and traced.elf is not None and self._has_changed(traced, key, mapping):
            self._retire(traced)
            traced = None
        if traced is None or traced.number in self._unopened:
            traced = self._open_file(key, mapping, traced)
            if traced is not None:
                self._by_key[key] = traced
        return None if traced is None or traced.why == NOT_ELF else traced

    def add_image(self, data: bytes) -> TracedFile | None:
        """Return the file that stands for a vDSO with these bytes; None if they are not an ELF file."""
        traced = self._by_bytes.get(data)
        if traced is None and data and (traced := self._add_file(VDSO)) is not None:
            self._by_bytes[data] = traced
            self._parse(traced, memoryview(data), None, None)
        return traced if traced is not None and traced.elf is not None else None

    def retire_rewritten(self) -> set[int]:
        """Close the files that were rewritten since they were opened, because their rules no longer hold. Return their numbers."""
        rewritten = [file for file in self._by_inode.values() if _is_rewritten(file)]
        for file in rewritten:
            self._retire(file)
        return {file.number for file in rewritten}

    def take_answering(self) -> set[int]:
        """Return the numbers of unopened files whose file system answers again, each only once."""
        return {self._by_key[key].number for key in self._mapped.take_answering() if key in self._by_key}

    def release_pages(self) -> None:
        """Release the memory of file and table pages, which are read again when needed."""
        for file in self.by_number.values():
            for data in (file.elf and file.elf.data, file.table and file.table.data):
                drop_pages(data or b"")

    def close(self) -> None:
        for file in self.by_number.values():
            _close(file)

    def _open_file(self, key: FileKey, mapping: ProcessMapping, unopened: TracedFile | None) -> TracedFile | None:
        """Open a file and return it; None if there are too many files. `unopened`: its object if it could not be opened before."""
        try:
            descriptor, status, is_copy = self._mapped.open(key, mapping)
        except (OSError, FormatError) as error:
            why = error.message if isinstance(error, FormatError) else str(error.strerror)
            if unopened is None and (unopened := self._add_file(mapping.path)) is not None:
                unopened.why, unopened.ready = why, True
                self._unopened.add(unopened.number)
            return unopened
        inode = (status.st_dev, status.st_ino)
        same = self._by_inode.get(inode)
        if same is not None and not _is_rewritten(same) and not (same.is_copy and _differs(same, status)):
            os.close(descriptor)
            return same
        if same is not None:
            self._retire(same)
        # Not `unopened`: stacks have its number with addresses that were made without segments.
        traced = self._add_file(mapping.path)
        if traced is None:
            os.close(descriptor)
            return None
        traced.is_copy = is_copy
        try:
            data, _ = map_descriptor(descriptor, mapping.path)
            self._parse(traced, data, status, descriptor)
        except FormatError as error:
            traced.why, traced.ready = error.message, True
        except OSError as error:  # perhaps too many open files at this moment, so it is tried again
            traced.why, traced.ready = str(error.strerror), True
            self._unopened.add(traced.number)
        if traced.elf is None:
            os.close(descriptor)
        else:
            self._by_inode[inode] = traced
            traced.closing = finalize(traced, os.close, descriptor)
        return traced

    def _has_changed(self, traced: TracedFile, key: FileKey, mapping: ProcessMapping) -> bool:
        """Return True if an open file was rewritten before it was mapped, or if a copy is of another file, or of older bytes."""
        if not traced.is_copy:
            return _was_rewritten(traced, mapping.time)
        try:
            return _differs(traced, self._mapped.stat(key, mapping))
        except (OSError, FormatError):  # the file system does not answer
            return False

    def _parse(self, traced: TracedFile, data: memoryview, status: os.stat_result | None, descriptor: int | None) -> None:
        """Set `elf` and `build_id`, or `why` if these bytes are not a valid ELF file."""
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

    def _add_file(self, path: str) -> TracedFile | None:
        """Return a new file with a free number; None if there are too many files."""
        if len(self.by_number) == MAX_FILES:
            self.refused += 1
            return None
        number = self._free.pop() if self._free else len(self.by_number) + 1
        traced = self.by_number[number] = TracedFile(number, path)
        self._without_table.append(number)
        return traced

    def _retire(self, file: TracedFile) -> None:
        """Close a rewritten file. It keeps its number, because stacks have it, but later mappings get another file."""
        _close(file)
        file.elf, file.table, file.ready, file.final, file.why = None, None, True, True, REWRITTEN
        self._forget({file.number})

    def _forget(self, numbers: set[int]) -> None:
        """Forget how files with these numbers were found, so that the same key or inode opens a new file."""
        self._by_key = {key: file for key, file in self._by_key.items() if file.number not in numbers}
        self._by_inode = {inode: file for inode, file in self._by_inode.items() if file.number not in numbers}


def _close(file: TracedFile) -> None:
    if file.elf is not None and file.closing is not None:
        file.closing()
        file.elf.descriptor = None


def _was_rewritten(file: TracedFile, mapped: int) -> bool:
    """Return True if a file was rewritten before it was mapped at the time `mapped`; perhaps also if it was rewritten later."""
    if mapped <= file.checked:
        return False
    now = time.monotonic_ns()
    if _is_rewritten(file):
        return True
    file.checked = now
    return False


def _is_rewritten(file: TracedFile) -> bool:
    """Return True if an open file differs from its status when it was opened."""
    elf = file.elf
    if elf is None or elf.descriptor is None or file.is_copy:
        return False
    return _differs(file, os.fstat(elf.descriptor))


def _differs(file: TracedFile, status: os.stat_result) -> bool:
    """Return True if this status shows another file, or other bytes, than the status when the file was opened."""
    opened = file.elf.status if file.elf else None
    if opened is None:
        return False
    return (status.st_ino, status.st_size, status.st_mtime_ns) != (opened.st_ino, opened.st_size, opened.st_mtime_ns)
