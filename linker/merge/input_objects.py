"""The objects that a link is given, opened: their code, and what their SFrame sections describe."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from linker.merge.object_scan import FIELDS, UNUSUAL, ObjectScan
from linker.objects.function_places import Described, described, start_relocation
from linker.objects.laid_out import is_code
from sframegen.base.columns import zeros
from sframegen.base.errors import FormatError
from sframegen.elf.file import ElfFile
from sframegen.elf.records import ET, RELA_SIZE
from sframegen.elf.relocations import relocation_rows
from sframegen.format.abi import abi_of
from sframegen.format.decode import open_section

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sframegen.format.abi import Abi

MAX_CODE = 4096  # sections of code in an object of the usual form


class CodeSection(NamedTuple):
    """A section of code. `relocations`: their number. `at`: offset in the file, if the object has the usual form."""

    number: int
    name: str
    size: int
    relocations: int
    at: int = 0


class UsualObject:
    """One that `ObjectScan` has read."""

    is_relocatable = True

    def __init__(self, data: memoryview, name: str, abi: Abi, code: list[CodeSection], piece: Described) -> None:
        self.data = data
        self.name = name
        self.abi = abi
        self.code = code
        self.piece = piece

    @property
    def elf(self) -> ElfFile:
        return ElfFile(self.data, self.name)

    def described(self) -> Iterable[Described]:
        return (self.piece,)

    def contents(self, code: CodeSection) -> memoryview:
        return self.data[code.at : code.at + code.size]


class OtherObject:
    """Any other."""

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

    def described(self) -> Iterable[Described]:
        return described(self.elf)

    def contents(self, code: CodeSection) -> memoryview:
        return self.elf.contents(self.elf.sections[code.number])


InputObject: TypeAlias = UsualObject | OtherObject  # all except `name` and `is_relocatable` raise FormatError


class ObjectReader:
    """Opens objects for one ABI. Raises FormatError if it is not an ELF file."""

    def __init__(self, abi: Abi) -> None:
        self._abi = abi
        self._scan = ObjectScan()
        self._code = zeros("Q", MAX_CODE * FIELDS)

    def open(self, data: memoryview, name: str) -> InputObject:
        return self._usual(data, name) or OtherObject(data, name)

    def _usual(self, data: memoryview, name: str) -> UsualObject | None:
        scan, found, abi = self._scan, self._code, self._abi
        count = scan.read(data, abi.byte_order == "big", abi.machine, found)
        if count == UNUSUAL:
            return None
        code = []
        for at in range(0, count * FIELDS, FIELDS):
            number, name_at, length, place, size, relocations = found[at : at + FIELDS]
            section_name = str(data[name_at : name_at + length], "utf-8", "replace")
            code.append(CodeSection(number, section_name, size, relocations // RELA_SIZE, place))
        try:
            section = open_section(data[scan.sframe_at : scan.sframe_at + scan.sframe_size], 0)
        except FormatError:
            return None
        if section.abi.sframe_id != abi.sframe_id or section.end != scan.sframe_size:
            return None
        layout, functions = section.layout, section.header.num_fdes
        kind = start_relocation(abi.sframe_id, layout.start_width)
        numbers, offsets = zeros("H", functions), zeros("Q", functions)
        if not scan.places(section.index_at, layout.index_size, section.relative, kind, numbers, offsets):
            return None
        return UsualObject(data, name, abi, code, Described(section, numbers, offsets))
