"""Looks up unwind rules in an object's SFrame sections by section and offset, because an unlinked object has no addresses."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

from linker.objects.function_places import DescribedSection, described_sections
from linker.objects.laid_out import LaidOutObject, is_sframe, lay_out
from sframegen.base.errors import FormatError
from sframegen.base.quick_typing import TYPE_CHECKING, NamedTuple
from sframegen.base.text import printable
from sframegen.elf.code_areas import is_code
from sframegen.elf.function_names import FunctionNames, split_name_and_offset
from sframegen.elf.ranges import index_of_containing_range
from sframegen.elf.records import SHN
from sframegen.elf.symbols import find_functions_named, sorted_functions
from sframegen.format.abi import abi_of
from sframegen.format.model import FunctionTable, Match, look_up_in
from sframegen.tables.gather import DROPPED_ADDRESS, Merger

if TYPE_CHECKING:
    from collections.abc import Callable

    from linker.objects.given_file import Objects
    from sframegen.elf.file import ElfFile, Section
    from sframegen.format.decode import SframeSection

REMEDY = "give a function's name, or SECTION+OFFSET"


class SectionOffset(NamedTuple):
    """A location in an object's code: a code section and a byte offset in it."""

    section: Section
    offset: int

    def __str__(self) -> str:
        return f"{printable(self.section.name)}+{self.offset:#x}"


class ObjectView:
    """One object with SFrame sections. Its methods raise FormatError if its tables contradict one another."""

    def __init__(self, elf: ElfFile) -> None:
        self.elf = elf

    @cached_property
    def described_sections(self) -> list[DescribedSection]:
        return list(described_sections(self.elf))

    @cached_property
    def placed(self) -> LaidOutObject:
        """Return the object laid out in memory, for code that needs a single address space."""
        return lay_out(self.elf, abi_of(self.elf))

    def sections(self) -> list[SframeSection]:
        """Return the SFrame sections, with function starts as offsets in their code sections, as readelf shows them."""
        return [replace(described.section, starts=described.offsets) for described in self.described_sections]

    def function_namer(self, section: int) -> Callable[[int], str | None]:
        """Return a callable that maps a function's number in an SFrame section to its symbol's name. `section`: its number."""
        names, addresses = self._names, self.addresses(self.described_sections[section])
        return lambda function: None if addresses[function] == DROPPED_ADDRESS else names.at(addresses[function])

    def code_section_namer(self, section: int) -> Callable[[int], str]:
        """Return a callable that maps a function's number to the name of its code section, or "" if the code was dropped."""
        sections, numbers = self.elf.sections, self.described_sections[section].numbers
        return lambda function: sections[numbers[function]].name if numbers[function] != SHN.UNDEF else ""

    def addresses(self, described: DescribedSection) -> list[int]:
        """Return the addresses of a section's functions in the placed object; DROPPED_ADDRESS if a linker has dropped the code."""
        sections = self.placed.image.sections
        return [
            DROPPED_ADDRESS if number == SHN.UNDEF else sections[number].header.sh_addr + offset
            for number, offset in zip(described.numbers, described.offsets, strict=True)
        ]

    @cached_property
    def merged(self) -> Merger:
        """Return all SFrame sections, merged at the addresses of the placed object."""
        merger = Merger()
        for described in self.described_sections:
            merger.add(described.section, self.addresses(described))
        return merger

    def look_up(self, at: SectionOffset) -> Match | None:
        """Return the function and row that cover a location. The function's start is an offset in the code section."""
        if at.offset >= at.section.header.sh_size:  # in the laid out object, another section's code may be at that address
            return None
        base = self.placed.image.sections[at.section.number].header.sh_addr
        match = look_up_in(self.functions, base + at.offset)
        return match and match._replace(start=match.start - base)

    @cached_property
    def functions(self) -> FunctionTable:
        """Return all functions, at their addresses in the placed object, except those whose code was dropped."""
        return self.merged.build_table(self.placed.image.executable_ranges())[0]

    @cached_property
    def _names(self) -> FunctionNames:
        return FunctionNames(sorted_functions(self.placed.image))

    def name_at(self, at: SectionOffset) -> str | None:
        if at.offset >= at.section.header.sh_size:
            return None
        return self._names.at(self.placed.image.sections[at.section.number].header.sh_addr + at.offset)

    def find_address(self, address: int) -> SectionOffset | None:
        """Return the section and offset of an address of the laid out object, or None if no code is there."""
        number = index_of_containing_range(self.placed.sections, address)
        if number is None:
            return None
        start, _, section = self.placed.sections[number]
        return SectionOffset(self.elf.sections[section], address - start)

    def find_places(self, name: str) -> list[SectionOffset]:
        """Return the locations of the functions with that name, or if there are none, of the code sections with that name."""
        addresses = {symbol.address for symbol in find_functions_named(self.placed.image, name.encode(errors="replace"))}
        places = [place for address in sorted(addresses) if (place := self.find_address(address))]
        return places or [SectionOffset(section, 0) for section in self.elf.sections if section.name == name and is_code(section)]


def find_place(views: list[ObjectView], text: str, file: str) -> tuple[ObjectView, SectionOffset]:
    """Return the view and location that `text` names in a file's objects: a function, a code section, or either + offset.

    The offset is decimal or 0x... A whole text that is a name takes precedence over name + offset. Raises FormatError if no
    object or more than one has the name.
    """
    for name, offset in split_name_and_offset(text):
        places = [(view, place) for view in views for place in view.find_places(name)]
        if len(places) > 1:
            raise FormatError(f"{len(places)} functions or sections of code are named {printable(name)}", file=file)
        if places:
            [(view, place)] = places
            return view, place._replace(offset=place.offset + offset)
    message = f"'{printable(text)}' is neither a function nor a code section; an object has no addresses: {REMEDY}"
    raise FormatError(message, file=file)


def make_views(objects: Objects) -> list[ObjectView]:
    """Return views of the objects that have SFrame sections. Raises FormatError if no object has one."""
    views = [ObjectView(elf) for elf in objects.members.values() if any(map(is_sframe, elf.sections))]
    if not views:
        raise FormatError("no SFrame section", file=objects.file)
    return views
