"""Opens the input objects of a merge one after the other, and reads their code sections and SFrame sections.

Most objects have the usual form: one SFrame section with one relocation for each function, in order, as assemblers write it. A
compiled scanner reads these (object_scan.py), and `ElfFile` reads all others. The first objects can be opened early, while the
linker still runs.
"""

from __future__ import annotations

import os
from contextlib import suppress
from functools import cached_property
from itertools import islice

from linker.merge.object_scan import FIELDS, UNUSUAL, ObjectScan
from linker.objects.archive import is_archive, read_members
from linker.objects.function_places import DescribedSection, described_sections, start_relocation
from sframegen.base.columns import zeros
from sframegen.base.errors import FormatError, name_file_in_errors
from sframegen.base.quick_typing import TYPE_CHECKING, NamedTuple, TypeAlias
from sframegen.elf.code_areas import is_code
from sframegen.elf.file import ElfFile, map_file
from sframegen.elf.records import ET, RELA_SIZE
from sframegen.elf.relocations import relocation_rows
from sframegen.format.abi import Abi, abi_of
from sframegen.format.decode import open_section
from sframegen.tables.gather import DROPPED_ADDRESS, Merger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from sframegen.program.workers import Progress

    FileVersion: TypeAlias = tuple[int, int, int, int, int]

MAX_UNMAPPED = 1 << 16  # bytes: objects up to this size are read, which is faster than mapping them
MAX_EARLY_OBJECTS = 1 << 11  # enough to use the time that a linker takes, and little memory
MAX_EARLY_MAPPED = 1 << 7  # mapped objects to open early: each keeps a descriptor open, and the usual limit is 1,024
MAX_CODE_SECTIONS = 4096  # in an object of the usual form


class CodeSection(NamedTuple):
    """A code section. `relocations`: their number. `offset`: its file offset, if the object has the usual form."""

    number: int
    name: str
    size: int
    relocations: int
    offset: int = 0


class UsualObject(NamedTuple):
    """An object of the usual form, which `ObjectScan` has read."""

    data: memoryview
    name: str
    abi: Abi
    code: list[CodeSection]
    sframe: DescribedSection
    is_relocatable: bool = True

    @property
    def elf(self) -> ElfFile:
        return ElfFile(self.data, self.name)

    def described_sections(self) -> Iterable[DescribedSection]:
        return (self.sframe,)

    def contents(self, code: CodeSection) -> memoryview:
        return self.data[code.offset : code.offset + code.size]


class UnusualObject:
    """An object that does not have the usual form."""

    def __init__(self, data: memoryview, name: str) -> None:
        self.name = name
        self.elf = ElfFile(data, name)
        self.is_relocatable = self.elf.header.e_type == ET.REL

    @property
    def abi(self) -> Abi:
        return abi_of(self.elf)

    @cached_property
    def code(self) -> list[CodeSection]:
        return [
            CodeSection(section.number, section.name, section.header.sh_size, sum(1 for _ in relocation_rows(self.elf, section)))
            for section in self.elf.sections
            if is_code(section)
        ]

    def described_sections(self) -> Iterable[DescribedSection]:
        return described_sections(self.elf)

    def contents(self, code: CodeSection) -> memoryview:
        return self.elf.contents(self.elf.sections[code.number])


InputObject: TypeAlias = UsualObject | UnusualObject  # all except `name` and `is_relocatable` raise FormatError


class ObjectReader:
    """A reader that opens objects of one ABI. `open` raises FormatError for data that is not an ELF file."""

    def __init__(self, abi: Abi) -> None:
        self._abi = abi
        self._scan = ObjectScan()
        self._fields = zeros("Q", MAX_CODE_SECTIONS * FIELDS)  # of the code sections of the object being read

    def open(self, data: memoryview, name: str) -> InputObject:
        return self._read_usual(data, name) or UnusualObject(data, name)

    def _read_usual(self, data: memoryview, name: str) -> UsualObject | None:
        """Read an object of the usual form; None for any other one, even if it is damaged."""
        scan, fields, abi = self._scan, self._fields, self._abi
        count = scan.read(data, abi.byte_order == "big", abi.machine, fields)
        if count == UNUSUAL:
            return None
        code = []
        for first in range(0, count * FIELDS, FIELDS):
            number, name_at, length, offset, size, relocations_size = fields[first : first + FIELDS]
            section_name = str(data[name_at : name_at + length], "utf-8", "replace")
            code.append(CodeSection(number, section_name, size, relocations_size // RELA_SIZE, offset))
        try:
            section = open_section(data[scan.sframe_at : scan.sframe_at + scan.sframe_size], 0)
        except FormatError:
            return None
        if section.abi.sframe_id != abi.sframe_id or section.end != scan.sframe_size:
            return None
        layout, functions = section.layout, section.header.num_fdes
        relocation_type = start_relocation(abi.sframe_id, layout.start_width)
        numbers, offsets = zeros("H", functions), zeros("Q", functions)
        if not scan.locate_functions(section.index_at, layout.index_size, section.relative, relocation_type, numbers, offsets):
            return None
        return UsualObject(data, name, abi, code, DescribedSection(section, numbers, offsets))


class Inputs:
    """The inputs of a merge: objects and archives of objects."""

    def __init__(self, paths: Sequence[str | os.PathLike[str]], progress: Progress | None = None) -> None:
        self._paths = paths
        self._progress = progress
        self._early: dict[str, tuple[UsualObject, FileVersion]] = {}  # objects that were opened early, by path

    def open_early(self) -> None:
        """Open the first objects early, up to one that does not have the usual form: `objects` reports its faults."""
        with suppress(FormatError, OSError):
            reader = None
            mapped = 0
            for path in map(str, islice(self._paths, MAX_EARLY_OBJECTS)):
                data, status = map_file(path, small=MAX_UNMAPPED)
                mapped += status.st_size > MAX_UNMAPPED
                reader = reader or ObjectReader(abi_of(ElfFile(data, path)))
                obj = reader.open(data, path)
                if mapped > MAX_EARLY_MAPPED or not isinstance(obj, UsualObject):
                    break
                self._early[path] = obj, _file_version(status)

    def objects(self, abi: Abi) -> Iterator[tuple[str, str, InputObject]]:
        """Yield (file, member name or "", object) for each object. `abi`: the ABI of all. Raises FormatError, OSError."""
        reader = ObjectReader(abi)
        for number, path in enumerate(map(str, self._paths), 1):
            obj, version = self._early.pop(path, (None, None))
            if obj is not None and version == _file_version(os.stat(path)):  # noqa: PTH116 - there are thousands
                yield path, "", obj
            else:
                yield from _open_objects(path, reader.open)
            if self._progress is not None:
                self._progress(number, len(self._paths))


def check_all_objects(paths: Sequence[str | os.PathLike[str]]) -> None:
    """Raise FormatError for the first object whose sections cannot be merged. A failed link calls this to find its reason."""
    merger = Merger()
    for path in map(str, paths):
        for _, _, obj in _open_objects(path, UnusualObject):
            with name_file_in_errors(obj.name):
                if not obj.is_relocatable:
                    raise FormatError("a linked file, not an object")
                for section, numbers, _ in obj.described_sections():
                    merger.add(section, [DROPPED_ADDRESS] * len(numbers))


def _file_version(status: os.stat_result) -> FileVersion:
    """Return a value that changes when a file is written or replaced, because the linker may then have read the new content."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _open_objects(path: str, open_object: Callable[[memoryview, str], InputObject]) -> Iterator[tuple[str, str, InputObject]]:
    """Yield (file, member name or "", object) for an object, or for each object of an archive."""
    data, _ = map_file(path, small=MAX_UNMAPPED)
    if is_archive(data):
        for member in read_members(data, path):
            if member.is_elf:
                obj = open_object(member.contents, f"{path}({member.name})")
                if obj.is_relocatable:
                    yield path, member.name, obj
    else:
        yield path, "", open_object(data, path)
