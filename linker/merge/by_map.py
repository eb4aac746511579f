"""Finds where a link placed the code of its input objects, using a linker map, and gathers their SFrame functions there.

`LinkerMap` reduces the map to ranges: input file -> section name -> (address, size). `add_object` then does this for an object:
1. It finds the object's file in the map: the same path, or the most similar path with the same last component.
2. It finds the address of each code section among the ranges of the same name and size. If there are several, it compares code.
3. It gives each function of the object's SFrame sections the address of its code section, plus its offset in that section.
"""

from __future__ import annotations

import os
from bisect import bisect_left, bisect_right
from collections import defaultdict
from dataclasses import dataclass, field
from functools import cached_property
from itertools import repeat
from operator import add, itemgetter, le
from os.path import normpath
from pathlib import Path
from typing import TYPE_CHECKING

from linker.merge.maps import read_map
from sframegen.base.errors import FormatError
from sframegen.elf.code_areas import is_code
from sframegen.elf.ranges import index_of_containing_range
from sframegen.elf.records import SHN
from sframegen.tables.gather import DROPPED_ADDRESS, Merger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from linker.merge.inputs import CodeSection, InputObject
    from linker.merge.maps import HasCode, Placement
    from linker.objects.laid_out import LaidOutObject
    from sframegen.elf.file import ElfFile

# Bytes that a linker may change for each relocation: its field, and the instructions around it that it relaxes (TLS, GOT).
CHANGED_BY_RELOCATION = 16
# Bytes of code to compare if several sections have the same name and size. Each is compared at each candidate address, which
# takes some thousand bytes in real objects.
MAX_COMPARED = 1 << 22

SectionRanges = dict[str, list[tuple[int, int]]]  # section name -> (address, size) of each section of that name, in the map's order
InputFile = tuple[str, str]  # an input's path in the map, and the name of the archive's member or ""


@dataclass
class MergeCounts:
    """The counts of a merge. `Merged` (sframegen/api/merging.py) has the same fields and explains them."""

    objects: int = 0
    objects_without: int = 0
    objects_unlinked: int = 0
    functions: int = 0
    dropped: int = 0
    unknown: int = 0
    plt_functions: int = 0
    rows: int = 0
    section_bytes: int = 0
    versions: tuple[int, ...] = ()
    left_out: dict[str, int] = field(default_factory=dict)
    others: tuple[str, ...] = ()
    undescribed: dict[str, int] = field(default_factory=dict)
    silent: list[str] = field(default_factory=list)


# Reasons why linked code has no function in the new section.
NOT_GIVEN, WITHOUT_SECTION = "in files that were not given", "in objects without .sframe"
NOT_DESCRIBED = "in sections that their object's .sframe does not describe"


class LinkerMap:
    """A linker map, reduced to the executable sections of each input file of a link."""

    def __init__(
        self, path: str | os.PathLike[str], linked: ElfFile, address_of: Callable[[Placement], int | None], has_code: HasCode
    ) -> None:
        """`address_of`: returns a placement's address in `linked`, or None for data. `has_code`: as for `read_map`."""
        self.path = os.fspath(path)
        self.linked = linked
        self._ranges_of_file: dict[InputFile, SectionRanges] = {}
        self._function_counts: dict[InputFile, int] = {}  # functions in the SFrame sections of each added object
        for placement in read_map(path, has_code):
            address = address_of(placement)
            if address is not None and placement.size:
                ranges = self._ranges_of_file.setdefault((normpath(placement.file), placement.member), {})
                ranges.setdefault(placement.section, []).append((address, placement.size))

    def add_object(self, obj: InputObject, path: str, member: str, merger: Merger, counts: MergeCounts) -> None:
        """Add the functions of an object's SFrame sections to `merger`, at their linked addresses, if the object was linked.

        Raises FormatError if a section is damaged, or the linked file has different code at that address.
        """
        input_file = self._find_input_file(path, member)
        if input_file is None:
            counts.objects_unlinked += 1
            return
        functions = 0
        addresses: dict[int, int | None] | None = None
        for section, numbers, offsets in obj.described_sections():
            if addresses is None:
                addresses = self._locate_sections(obj, member, self._ranges_of_file.get(input_file, {}))
            bases = [addresses.get(number, DROPPED_ADDRESS) for number in numbers]  # None: the address is unknown
            pairs = zip(bases, offsets, strict=True)
            starts = [DROPPED_ADDRESS if base is None or base == DROPPED_ADDRESS else base + offset for base, offset in pairs]
            _check_functions_inside(obj, numbers, offsets, merger.add(section, starts))
            unknown = bases.count(None)
            counts.unknown += unknown
            counts.dropped += starts.count(DROPPED_ADDRESS) - unknown
            functions += len(starts)
        self._function_counts[input_file] = functions
        counts.objects += bool(functions)
        counts.objects_without += not functions

    def unread_files(self) -> list[str]:
        """Return the names of linked files with code that were not passed to `add_object`."""
        return [_display_name(file, member) for file, member in self._ranges_of_file if (file, member) not in self._function_counts]

    def count_undescribed(self, starts: Sequence[int], counts: MergeCounts) -> None:
        """Count linked code sections in which no function begins. `starts`: ascending addresses of all functions."""
        headers = [section.header for section in self.linked.sections if is_code(section)]
        code = sorted((header.sh_addr, header.sh_addr + header.sh_size) for header in headers) or self.linked.executable_ranges()
        for (file, member), ranges in self._ranges_of_file.items():
            functions = self._function_counts.get((file, member))
            reason_without_functions = NOT_GIVEN if functions is None else WITHOUT_SECTION
            reason = NOT_DESCRIBED if functions else reason_without_functions
            for section, section_ranges in ranges.items():
                for address, size in section_ranges:
                    first = bisect_left(starts, address)
                    has_function = first < len(starts) and starts[first] < address + size
                    if not has_function and index_of_containing_range(code, address) is not None:
                        counts.undescribed[reason] = counts.undescribed.get(reason, 0) + size
                        if functions:
                            counts.silent.append(f"{_display_name(file, member)}: {section}")

    def _find_input_file(self, path: str, member: str) -> InputFile | None:
        """Return the map's name of a file: the same path, or the one with the longest common end; None if there is none."""
        if (normpath(path), member) in self._ranges_of_file:
            return normpath(path), member
        candidates = self._input_files_by_name.get((Path(path).name, member), [])
        if len(candidates) > 1:
            file = self._files_by_path.get(Path(path).resolve(), "")
            candidates = [(file, member)] if (file, member) in self._ranges_of_file else _keep_closest_paths(path, candidates)
        if len(candidates) > 1:
            names = ", ".join(sorted(file for file, _ in candidates)[:3])
            raise FormatError(f"the map has {len(candidates)} files of that name ({names}): use the name it was linked by")
        return candidates[0] if candidates else None

    @cached_property
    def _input_files_by_name(self) -> dict[tuple[str, str], list[InputFile]]:
        """Return the map's input files by the last component of the path and the member."""
        by_name: dict[tuple[str, str], list[InputFile]] = defaultdict(list)
        for file, member in self._ranges_of_file:
            by_name[Path(file).name, member].append((file, member))
            if member:  # a member of a thin archive may also be given as a file of its own
                by_name[Path(member).name, ""].append((file, member))
        return by_name

    @cached_property
    def _files_by_path(self) -> dict[Path, str]:
        """Return the map's file names by absolute path, relative to the working directory or else to the map's directory."""
        files = dict.fromkeys(file for file, _ in self._ranges_of_file)
        return {(origin / file).resolve(): file for origin in (Path(self.path).parent, Path()) for file in files}

    def _locate_sections(self, obj: InputObject, member: str, ranges: SectionRanges) -> dict[int, int | None]:
        """Return the linked addresses of an object's sections by number; None for sections that the map does not distinguish."""
        by_name_and_size: dict[tuple[str, int], list[CodeSection]] = defaultdict(list)
        for code in obj.code:
            by_name_and_size[code.name, code.size].append(code)
        result: dict[int, int | None] = {}

        def matches(code: CodeSection, address: int) -> bool:
            return self._has_code_at(address, obj.contents(code), CHANGED_BY_RELOCATION * code.relocations)

        for (name, size), sections in by_name_and_size.items():
            candidates = [address for address, placed_size in ranges.get(name, ()) if placed_size == size]
            if len(candidates) == len(sections) and all(map(matches, sections, candidates)):  # in the same order
                result.update(zip((code.number for code in sections), candidates, strict=True))
            elif len(candidates) == len(sections) == 1 and not member:
                message = f"its code is not what {self.linked.name} has at {candidates[0]:#x}: the map is of another link"
                raise obj.elf.error(message, name)
            elif len(candidates) * len(sections) * size > MAX_COMPARED:  # too much to compare
                result.update((code.number, None) for code in sections)
            else:
                result.update(_assign_addresses({code.number: [a for a in candidates if matches(code, a)] for code in sections}))
        return result

    def _has_code_at(self, address: int, code: memoryview, limit: int) -> bool:
        """Return True if the linked file has this code at the address, with at most `limit` different bytes."""
        linked = self.linked.at(address, len(code))
        if bytes(linked) == bytes(code):  # faster than comparing memoryviews, which Python does one byte at a time
            return True
        different = int.from_bytes(linked, "big") ^ int.from_bytes(code, "big")  # zero bytes where both are equal
        return len(code) - different.to_bytes(len(code), "big").count(0) <= limit


def read_map_of_linked_file(map_file: str | os.PathLike[str], elf: ElfFile) -> LinkerMap:
    """Read the map of the link that made a program or library."""
    code = elf.executable_ranges()
    starts = [start for start, _ in code]

    def address_of(placement: Placement) -> int | None:
        at = bisect_right(starts, placement.address) - 1
        return placement.address if at >= 0 and placement.address + placement.size <= code[at][1] else None

    def has_code(_: str, address: int, size: int) -> bool:
        return any(start < address + size and address < end for start, end in code)

    return LinkerMap(map_file, elf, address_of, has_code)


def read_map_of_object(map_file: str | os.PathLike[str], placed: LaidOutObject) -> LinkerMap:
    """Read the map of the link (-r) that made an object. Its order tells sections of the same name apart."""
    addresses: dict[str, list[int]] = defaultdict(list)  # name -> addresses of the object's sections of that name, in order
    for start, _, number in sorted(placed.sections, key=itemgetter(2)):
        addresses[placed.image.sections[number].name].append(start)
    map_numbers: dict[str, list[int]] = defaultdict(list)  # name -> numbers of the map's output sections of that name, in order

    def address_of(placement: Placement) -> int | None:
        if not placement.size or placement.output not in addresses:
            return None
        numbers = map_numbers[placement.output]
        if not numbers or numbers[-1] != placement.output_number:
            numbers.append(placement.output_number)
        starts = addresses[placement.output]
        if len(numbers) > len(starts):
            message = f"it has {len(numbers)} output sections {placement.output}, {placed.image.name} {len(starts)}"
            raise FormatError(message, file=str(map_file))
        return starts[len(numbers) - 1] + placement.address

    return LinkerMap(map_file, placed.image, address_of, lambda output, *_: output in addresses)


def _check_functions_inside(obj: InputObject, numbers: Sequence[int], offsets: Sequence[int], sizes: Sequence[int]) -> None:
    """Raise FormatError if a function ends outside of its section."""
    section_sizes = {code.number: code.size for code in obj.code}
    if all(map(le, map(add, offsets, sizes), map(section_sizes.get, numbers, repeat(0)))):
        return
    sections = obj.elf.sections
    for number, offset, size in zip(numbers, offsets, sizes, strict=True):
        if number != SHN.UNDEF and offset + size > sections[number].header.sh_size:
            message = f"a function of {size} bytes at {offset:#x} is not inside of {sections[number].name}"
            raise obj.elf.error(message, ".sframe")


def _display_name(file: str, member: str) -> str:
    return f"{file}({member})" if member else file


def _assign_addresses(matches: dict[int, list[int]]) -> dict[int, int | None]:
    """Return the address of each section that matches only one address, which no other section matches; else None.

    `matches`: by section number, all addresses with its code; a section without any is left out.
    """
    matched = list(matches.values())
    return {
        number: addresses[0] if len(addresses) == 1 and matched.count(addresses) == 1 else None
        for number, addresses in matches.items()
        if addresses
    }


def _keep_closest_paths(path: str, candidates: Iterable[InputFile]) -> list[InputFile]:
    """Return the candidates whose paths share the most trailing components with `path`."""
    by_shared_count: dict[int, list[InputFile]] = defaultdict(list)
    for candidate in candidates:
        pairs = zip(reversed(Path(path).parts), reversed(Path(candidate[0]).parts), strict=False)
        shared_count = next((n for n, (ours, theirs) in enumerate(pairs) if ours != theirs), len(path))
        by_shared_count[shared_count].append(candidate)
    return by_shared_count[max(by_shared_count)]
