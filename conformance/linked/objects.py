"""Functions with code -> a relocatable object, whose SFrame section has a relocation for each function."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from conformance.linked.elf import (
    ET_REL,
    SHF_ALLOC,
    SHF_EXECINSTR,
    SHF_GROUP,
    SHF_INFO_LINK,
    SHT_GNU_SFRAME,
    SHT_GROUP,
    SHT_PROGBITS,
    SHT_RELA,
    SHT_STRTAB,
    SHT_SYMTAB,
    ElfSection,
    elf_file,
)
from conformance.machines import MARKS
from conformance.writer import PCREL, Section, write

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from conformance.machines import Machine
    from conformance.writer import Function

STB_LOCAL, STB_GLOBAL, STB_WEAK, STT_FUNC, STT_SECTION = 0, 1, 2, 2, 3
GRP_COMDAT = 1
# PC-relative data of 8 and of 4 bytes; a call, with the byte in the code where its field is, and the addend.
RELATIVE = {"amd64": {8: 24, 4: 2}, "aarch64": {8: 260, 4: 261}, "s390x": {8: 23, 4: 5}}
CALLS = {"amd64": (4, -4)}
NO_OPERATION = {"amd64": b"\x90", "aarch64": bytes.fromhex("1f2003d5"), "s390x": bytes.fromhex("0707")}


@dataclass(frozen=True)
class Code:
    """A function in a section of its own. `calls`: symbols. `comdat`: in a group, as inline functions are."""

    name: str
    function: Function
    calls: tuple[str, ...] = ()
    comdat: bool = False


@dataclass(frozen=True)
class Object:
    """`header`: fields of the section's header to change. `pieces_in_groups`: groups have their function's SFrame section.

    `descending`: relocations in the other order. `sframe`: there is a section. `empty`: of no bytes.
    """

    machine: Machine
    codes: Sequence[Code]
    version: int = 3
    flags: int | None = None
    header: Mapping[str, int] = field(default_factory=dict)
    auxiliary: bytes = b""
    padding: bytes = b""
    pieces_in_groups: bool = False
    descending: bool = False
    sframe: bool = True
    empty: bool = False

    def bytes(self) -> bytes:
        return _Maker(self).file()


class _Maker:
    """Sections are numbered from 1 as they are added; symbols: those of sections first, then of functions."""

    def __init__(self, given: Object) -> None:
        self.given = given
        self.mark = MARKS[given.machine.byte_order]
        self.sections: list[ElfSection] = []
        self.section_symbols: list[int] = []  # numbers of sections
        self.text_of: dict[str, int] = {}
        self.undefined = [name for code in given.codes for name in code.calls if name not in {one.name for one in given.codes}]
        self.names = [code.name for code in given.codes] + self.undefined

    def add(self, section: ElfSection) -> int:
        self.sections.append(section)
        return len(self.sections)

    def file(self) -> bytes:
        given = self.given
        for code in given.codes:
            flags = SHF_ALLOC | SHF_EXECINSTR | SHF_GROUP * code.comdat
            text = NO_OPERATION[given.machine.name] * (code.function.size // len(NO_OPERATION[given.machine.name]))
            self.text_of[code.name] = self.add(ElfSection(f".text.{code.name}", SHT_PROGBITS, flags, text, align=16))
            self.section_symbols.append(self.text_of[code.name])
        members = {code.name: [self.text_of[code.name]] for code in given.codes if code.comdat}
        if given.empty:
            self.add(ElfSection(".sframe", SHT_GNU_SFRAME, SHF_ALLOC))
        elif given.sframe:
            self.add_sframe(members)
        self.add_calls()
        self.add(ElfSection(".note.GNU-stack", SHT_PROGBITS, align=1))
        for name, numbers in members.items():
            content = struct.pack(f"{self.mark}{len(numbers) + 1}I", GRP_COMDAT, *numbers)
            self.add(ElfSection(".group", SHT_GROUP, data=content, info=self.symbol(name), link=-1, align=4, entry_size=4))
        table, names = self.symbols()
        symtab = self.add(
            ElfSection(".symtab", SHT_SYMTAB, data=table, link=len(self.sections) + 2, info=self.first_global, entry_size=24)
        )
        self.add(ElfSection(".strtab", SHT_STRTAB, data=names, align=1))
        return elf_file(given.machine, ET_REL, [one._replace(link=symtab) if one.link < 0 else one for one in self.sections])

    @property
    def first_global(self) -> int:
        return 1 + len(self.section_symbols)

    def symbol(self, name: str) -> int:
        return self.first_global + self.names.index(name)

    def add_sframe(self, members: dict[str, list[int]]) -> None:
        """All functions in one section, or each of a group in its own."""
        codes = self.given.codes
        pieces = [[code] for code in codes if code.comdat] if self.given.pieces_in_groups else []
        pieces.append([code for code in codes if [code] not in pieces])
        for piece in filter(None, pieces):
            group = members[piece[0].name] if len(piece) == 1 and [piece[0]] in pieces[:-1] else None
            self.add_piece(piece, group)

    def add_piece(self, codes: Sequence[Code], group: list[int] | None) -> None:
        given = self.given
        functions = [code.function for code in codes]
        section = Section(
            given.version, given.machine, functions, flags=PCREL if given.flags is None else given.flags,
            auxiliary=given.auxiliary, padding=given.padding,
        )  # fmt: skip
        written = write(section).change(dict(given.header))
        data = bytearray(written.data)
        relocations = []
        for number, code in enumerate(codes):
            at, width = written.places[f"{number}.start"]
            data[at : at + width] = bytes(width)
            addend = 0 if given.flags is None or given.flags & PCREL else at
            kind = RELATIVE[given.machine.name][width]
            relocations.append(struct.pack(self.mark + "QQq", at, self.text_symbol(code.name) << 32 | kind, addend))
        shared = SHF_GROUP if group is not None else 0
        place = self.add(ElfSection(".sframe", SHT_GNU_SFRAME, SHF_ALLOC | shared, bytes(data)))
        rela = self.add_rela(".rela.sframe", place, relocations[::-1] if given.descending else relocations, shared)
        if group is not None:
            group += [place, rela]

    def text_symbol(self, name: str) -> int:
        return 1 + self.section_symbols.index(self.text_of[name])

    def add_rela(self, name: str, of: int, relocations: Sequence[bytes], shared: int = 0) -> int:
        flags = SHF_INFO_LINK | shared
        return self.add(ElfSection(name, SHT_RELA, flags, b"".join(relocations), link=-1, info=of, entry_size=24))

    def add_calls(self) -> None:
        for code in self.given.codes:
            if not code.calls:
                continue
            kind, addend = CALLS[self.given.machine.name]
            text = bytearray(self.sections[self.text_of[code.name] - 1].data)
            relocations = []
            for number, name in enumerate(code.calls):
                text[5 * number] = 0xE8
                relocations.append(struct.pack(self.mark + "QQq", 5 * number + 1, self.symbol(name) << 32 | kind, addend))
            at = self.text_of[code.name] - 1
            self.sections[at] = self.sections[at]._replace(data=bytes(text))
            self.add_rela(f".rela.text.{code.name}", at + 1, relocations)

    def symbols(self) -> tuple[bytes, bytes]:
        table, names = bytes(24), b"\0"
        for section in self.section_symbols:
            table += struct.pack(self.mark + "IBBHQQ", 0, STT_SECTION, 0, section, 0, 0)
        weak = {code.name for code in self.given.codes if code.comdat}
        sizes = {code.name: code.function.size for code in self.given.codes}
        for name in self.names:
            info = (STB_WEAK if name in weak else STB_GLOBAL) << 4 | STT_FUNC * (name in sizes)
            table += struct.pack(self.mark + "IBBHQQ", len(names), info, 0, self.text_of.get(name, 0), 0, sizes.get(name, 0))
            names += name.encode() + b"\0"
        return table, names
