"""Damage to the file around a section: its header, PT_GNU_SFRAME, the segment that maps it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sframegen.checks.finding import Severity
from sframegen.elf.records import PF, PHDR_SIZE, PT, RECORDS, SHDR_SIZE, SHF, SHT, Phdr, Shdr
from tests.checks.damages.kinds import Kinds, Place
from tests.checks.damages.subject import NowhereError

if TYPE_CHECKING:
    from random import Random

    from tests.checks.damages.kinds import Copy

KINDS = Kinds()
WARNING = Severity.WARNING


def _segment(copy: Copy, kind: int, **fields: int) -> Place:
    """Changes PT_GNU_SFRAME, or the PT_LOAD that maps the section."""
    elf = copy.subject.elf
    address = copy.subject.section.address
    number, segment = next(
        (number, one)
        for number, one in enumerate(elf.segments)
        if one.p_type == kind and one.p_vaddr <= address < one.p_vaddr + one.p_memsz
    )
    at = elf.header.e_phoff + number * PHDR_SIZE
    RECORDS[Phdr, elf.byte_order].pack_into(copy.image, at, *segment._replace(**fields))
    return Place()


def _load(copy: Copy) -> Phdr:
    address = copy.subject.section.address
    return next(s for s in copy.subject.elf.segments if s.p_type == PT.LOAD and s.p_vaddr <= address < s.p_vaddr + s.p_memsz)


def _found(copy: Copy) -> Phdr:
    return next(segment for segment in copy.subject.elf.segments if segment.p_type == PT.GNU_SFRAME)


def _section(copy: Copy, **fields: int) -> Place:
    elf = copy.subject.elf
    section = elf.section(".sframe")
    if section is None:
        raise NowhereError
    at = elf.header.e_shoff + section.number * SHDR_SIZE
    RECORDS[Shdr, elf.byte_order].pack_into(copy.image, at, *section.header._replace(**fields))
    return Place()


def _header(copy: Copy) -> Shdr:
    section = copy.subject.elf.section(".sframe")
    if section is None:
        raise NowhereError
    return section.header


@KINDS("no-segment")
def pt_gnu_sframe_of_another_type(copy: Copy, random: Random) -> Place:
    return _segment(copy, PT.GNU_SFRAME, p_type=random.choice((0, PT.NOTE, PT.GNU_SFRAME + 1)))


@KINDS("several-sections")
def second_pt_gnu_sframe(copy: Copy, random: Random) -> Place:
    elf = copy.subject.elf
    number = random.choice([n for n, s in enumerate(elf.segments) if s.p_type not in (PT.LOAD, PT.GNU_SFRAME)])
    RECORDS[Phdr, elf.byte_order].pack_into(copy.image, elf.header.e_phoff + number * PHDR_SIZE, *_found(copy))
    return Place()


@KINDS("section-place")
def pt_gnu_sframe_at_another_address(copy: Copy, random: Random) -> Place:
    by = random.choice((-8, 8, 4096))
    return _segment(copy, PT.GNU_SFRAME, p_vaddr=_found(copy).p_vaddr + by)


@KINDS("section-place")
def pt_gnu_sframe_elsewhere_in_the_file(copy: Copy, random: Random) -> Place:
    return _segment(copy, PT.GNU_SFRAME, p_offset=_found(copy).p_offset + random.choice((-8, 8, 4096)))


@KINDS("outside-file")
def pt_gnu_sframe_outside_of_the_file(copy: Copy, random: Random) -> Place:
    return _segment(copy, PT.GNU_SFRAME, p_offset=len(copy.image) + random.randrange(1 << 40))


@KINDS("segment-size", severity=WARNING)
def pt_gnu_sframe_too_short(copy: Copy, random: Random) -> Place:
    if "segment-size" in copy.subject.faults:
        raise NowhereError
    return _segment(copy, PT.GNU_SFRAME, p_filesz=_found(copy).p_filesz - random.randrange(1, 28))


@KINDS("segment-size", severity=WARNING)
def pt_gnu_sframe_longer_in_memory(copy: Copy, random: Random) -> Place:
    if "segment-size" in copy.subject.faults:
        raise NowhereError
    return _segment(copy, PT.GNU_SFRAME, p_memsz=_found(copy).p_memsz + random.randrange(1, 4096))


@KINDS("no-section", severity=WARNING)
def section_header_lost(copy: Copy, _: Random) -> Place:
    return _section(copy, sh_type=0, sh_name=0)


@KINDS("section-type", severity=WARNING, versions=(3,))
def section_type_of_other_data(copy: Copy, _: Random) -> Place:
    return _section(copy, sh_type=SHT.PROGBITS)


@KINDS("section-flags")
def section_flags_of_data_that_changes(copy: Copy, random: Random) -> Place:
    return _section(copy, sh_flags=random.choice((0, SHF.ALLOC | SHF.WRITE, SHF.ALLOC | SHF.EXECINSTR)))


@KINDS("section-place")
def section_header_with_another_address(copy: Copy, random: Random) -> Place:
    return _section(copy, sh_addr=_header(copy).sh_addr + random.choice((-8, 8, 4096)))


@KINDS("section-place")
def section_header_with_another_offset(copy: Copy, random: Random) -> Place:
    return _section(copy, sh_offset=_header(copy).sh_offset + random.choice((-8, 8, 4096)))


@KINDS("not-mapped")
def mapped_in_part(copy: Copy, random: Random) -> Place:
    load, section = _load(copy), copy.subject.section
    if load.p_offset == 0:  # with the headers and all else
        raise NowhereError
    inside = section.address - load.p_vaddr + random.randrange(1, len(section.data))
    return _segment(copy, PT.LOAD, p_filesz=inside)


@KINDS("not-mapped")
def mapped_from_elsewhere(copy: Copy, random: Random) -> Place:
    load = _load(copy)
    return _segment(copy, PT.LOAD, p_offset=load.p_offset + random.choice((8, 4096)))


@KINDS("mapped-unreadable")
def mapped_without_the_right_to_read(copy: Copy, _: Random) -> Place:
    return _segment(copy, PT.LOAD, p_flags=_load(copy).p_flags & ~PF.R)


@KINDS("mapped-writable", severity=WARNING)
def mapped_writable(copy: Copy, _: Random) -> Place:
    return _segment(copy, PT.LOAD, p_flags=_load(copy).p_flags | PF.W)


@KINDS("machine")
def file_of_another_machine(copy: Copy, random: Random) -> Place:
    machines = [machine for machine in (62, 183, 22) if machine != copy.subject.elf.header.e_machine]
    copy.image[18:20] = random.choice(machines).to_bytes(2, copy.subject.elf.byte_order)
    return Place()
