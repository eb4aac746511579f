"""Checks that the section header, PT_GNU_SFRAME and the PT_LOADs of a file agree on where the section is and how it is used."""

from __future__ import annotations

import struct

from sframegen.base.errors import FormatError
from sframegen.base.quick_typing import TYPE_CHECKING, NamedTuple
from sframegen.checks.finding import Finding
from sframegen.checks.specification.rule_list import MAX_PER_RULE, RULES
from sframegen.conversion.kernel_code import find_kernel_symbols
from sframegen.elf.dynamic import dynamic_segment
from sframegen.elf.records import ET, PF, PT, SHF, SHT, STRUCT_BYTE_ORDERS, Phdr
from sframegen.format.abi import BY_MACHINE, BY_SFRAME_ID
from sframegen.format.layouts import MAGIC
from sframegen.format.locate import IMAGE_SECTION, find_unloaded_section, is_sframe_section

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sframegen.elf.file import ElfFile, Section

PAGE_SIZE = 0x1000  # bytes
CHECKED_FLAGS = SHF.ALLOC | SHF.WRITE | SHF.EXECINSTR | SHF.COMPRESSED
BrokenRule = tuple[str, str]  # (name of the broken rule, detail)
# Rules that do not apply to an image whose linker script places the section, because a kernel finds its section by symbols.
RULES_OF_PROGRAMS = {"no-segment", "section-type", "mapped-writable"}


class SectionPlace(NamedTuple):
    """Where one of the headers says that the section is. `offset` and `size` are those in the file."""

    address: int
    offset: int
    size: int


def check_placement(elf: ElfFile) -> list[Finding]:
    """Return the findings about a linked file; none about an object, whose sections are in no segment. Does not raise."""
    if elf.header.e_type == ET.REL:
        return []
    is_image = elf.section(IMAGE_SECTION) is not None or bool(find_kernel_symbols(elf))
    findings = [
        Finding(name, RULES[name].severity, RULES[name].fault + (f": {detail}" if detail else ""))
        for name, detail in _find_faults(elf)
        if not (is_image and name in RULES_OF_PROGRAMS)
    ]
    return findings[:MAX_PER_RULE]


def _find_faults(elf: ElfFile) -> Iterator[BrokenRule]:
    segments = [segment for segment in elf.segments if segment.p_type == PT.GNU_SFRAME]
    sections = list(filter(is_sframe_section, elf.sections))
    if not segments and not sections:
        return
    yield from _check_dynamic(elf)
    if len(segments) > 1 or len(sections) > 1:
        yield "several-sections", f"{len(sections)} sections, {len(segments)} segments"
    unloaded = find_unloaded_section(elf)
    if unloaded is not None:
        yield from _check_not_loaded(elf, unloaded)
        return
    segment, section = next(iter(segments), None), next(iter(sections), None)
    if segment is None:
        yield "no-segment", ""
    elif section is None and elf.sections:
        yield "no-section", ""
    if section is not None and section.header.sh_flags & CHECKED_FLAGS != SHF.ALLOC:
        yield "section-flags", f"{section.header.sh_flags & CHECKED_FLAGS:#x}"
    places = [SectionPlace(segment.p_vaddr, segment.p_offset, segment.p_filesz)] if segment else []
    if section:
        places.append(SectionPlace(section.header.sh_addr, section.header.sh_offset, section.header.sh_size))
    if len({place[:2] for place in places}) > 1:
        yield "section-place", " and ".join(f"address {place.address:#x}, {place.offset:#x} in the file" for place in places)
    sizes = {place.size for place in places} | {segment.p_memsz for segment in segments[:1]}
    if len(sizes) > 1:
        yield "segment-size", " and ".join(f"{size} bytes" for size in sorted(sizes))
    yield from _check_mapping(elf, places[0])
    place = places[0]
    if place.offset + place.size > len(elf.data):
        yield "outside-file", f"it ends at {place.offset + place.size:#x}, the file at {len(elf.data):#x}"
        return
    yield from _check_preamble(elf, elf.data[place.offset : place.offset + place.size], section)


def _check_dynamic(elf: ElfFile) -> Iterator[BrokenRule]:
    """Check that .dynamic is mapped writable if PT_DYNAMIC has PF_W. If PT_LOADs share a page, the last one decides."""
    segment = dynamic_segment(elf)
    if segment is None or not segment.p_flags & PF.W or not segment.p_memsz:
        return
    loads = [load for load in elf.segments if load.p_type == PT.LOAD and load.p_memsz]
    for page in {segment.p_vaddr // PAGE_SIZE, (segment.p_vaddr + segment.p_memsz - 1) // PAGE_SIZE}:
        mapping = [load for load in loads if load.p_vaddr // PAGE_SIZE <= page <= (load.p_vaddr + load.p_memsz - 1) // PAGE_SIZE]
        if mapping and not mapping[-1].p_flags & PF.W:
            yield "dynamic-read-only", f"address {segment.p_vaddr:#x}, {segment.p_memsz:#x} bytes"
            return


def _check_not_loaded(elf: ElfFile, section: Section) -> Iterator[BrokenRule]:
    """Check a section outside of all segments, which may be compressed."""
    yield "not-loaded", ""
    wrong_flags = section.header.sh_flags & CHECKED_FLAGS & ~SHF.COMPRESSED
    if wrong_flags:
        yield "section-flags", f"{wrong_flags:#x}"
    end = section.header.sh_offset + section.header.sh_size
    if end > len(elf.data):
        yield "outside-file", f"it ends at {end:#x}, the file at {len(elf.data):#x}"
        return
    try:
        contents = elf.contents(section)
    except FormatError:  # reading the section has already made it a finding
        return
    yield from _check_preamble(elf, contents, section)


def _check_mapping(elf: ElfFile, place: SectionPlace) -> Iterator[BrokenRule]:
    """Check that a PT_LOAD maps all bytes of the section from the file, readable and not writable."""

    def maps_section(load: Phdr) -> bool:
        inside = load.p_vaddr <= place.address and place.address + place.size <= load.p_vaddr + load.p_filesz
        return load.p_type == PT.LOAD and inside and place.address - load.p_vaddr == place.offset - load.p_offset

    load = next(filter(maps_section, elf.segments), None)
    if load is None:
        yield "not-mapped", ""
        return
    if not load.p_flags & PF.R:
        yield "mapped-unreadable", ""
    if load.p_flags & PF.W:
        yield "mapped-writable", ""


def _check_preamble(elf: ElfFile, contents: memoryview, section: Section | None) -> Iterator[BrokenRule]:
    """Check that the section's magic number and ABI are those of the file, and the section's type is that of its version."""
    preamble = bytes(contents[:5])
    if len(preamble) < 5:
        return
    magic, version, _, abi_arch = struct.unpack(STRUCT_BYTE_ORDERS[elf.byte_order] + "HBBB", preamble)
    expected = BY_MACHINE.get((elf.header.e_machine, elf.byte_order))
    if magic != MAGIC or (expected is None or expected.sframe_id != abi_arch):
        abi = BY_SFRAME_ID.get(abi_arch)
        yield "machine", f"{abi.name if abi else f'ABI {abi_arch}'} in a file of e_machine {elf.header.e_machine}"
    has_type = section is None or section.header.sh_type == SHT.GNU_SFRAME
    if not has_type and version in RULES["section-type"].versions:
        yield "section-type", f"{section.header.sh_type:#x}" if section else ""
