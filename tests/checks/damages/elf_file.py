"""Damage to the file around a section: its header, PT_GNU_SFRAME, the segment that maps it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sframegen.checks.finding import Severity
from sframegen.elf.records import PF, PHDR_SIZE, PT, RECORDS, SHDR_SIZE, SHF, SHT, Phdr, Shdr
from tests.checks.damages.kinds import Kinds, Place
from tests.checks.damages.subject import NowhereError

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random
    from typing import Any

    from tests.checks.damages.kinds import Copy

    Change = Callable[[int, Random], int]

KINDS = Kinds()
WARNING, SFRAME = Severity.WARNING, PT.GNU_SFRAME


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


def _in_segment(name: str, rule: str, kind: int, field: str, change: Change, **more: Any) -> None:
    def do(copy: Copy, random: Random) -> Place:
        segment = _found(copy) if kind == PT.GNU_SFRAME else _load(copy)
        return _segment(copy, kind, **{field: change(getattr(segment, field), random)})

    KINDS.add(name, do, rule, **more)


def _in_header(name: str, rule: str, field: str, change: Change, **more: Any) -> None:
    KINDS.add(name, lambda copy, random: _section(copy, **{field: change(getattr(_header(copy), field), random)}), rule, **more)


def _near(old: int, random: Random) -> int:
    return old + random.choice((-8, 8, 4096))


_in_segment(
    "pt gnu sframe of another type", "no-segment", SFRAME, "p_type", lambda _, random: random.choice((0, PT.NOTE, SFRAME + 1))
)


@KINDS("several-sections")
def second_pt_gnu_sframe(copy: Copy, random: Random) -> Place:
    elf = copy.subject.elf
    number = random.choice([n for n, s in enumerate(elf.segments) if s.p_type not in (PT.LOAD, PT.GNU_SFRAME)])
    RECORDS[Phdr, elf.byte_order].pack_into(copy.image, elf.header.e_phoff + number * PHDR_SIZE, *_found(copy))
    return Place()


_in_segment("pt gnu sframe at another address", "section-place", SFRAME, "p_vaddr", _near)
_in_segment("pt gnu sframe elsewhere in the file", "section-place", SFRAME, "p_offset", _near)


@KINDS("outside-file")
def pt_gnu_sframe_outside_of_the_file(copy: Copy, random: Random) -> Place:
    return _segment(copy, PT.GNU_SFRAME, p_offset=len(copy.image) + random.randrange(1 << 40))


def _sized(name: str, field: str, change: Change) -> None:
    def do(copy: Copy, random: Random) -> Place:
        if "segment-size" in copy.subject.faults:
            raise NowhereError
        return _segment(copy, PT.GNU_SFRAME, **{field: change(getattr(_found(copy), field), random)})

    KINDS.add(name, do, "segment-size", severity=WARNING)


_sized("pt gnu sframe too short", "p_filesz", lambda old, random: old - random.randrange(1, 28))
_sized("pt gnu sframe longer in memory", "p_memsz", lambda old, random: old + random.randrange(1, 4096))


@KINDS("no-section", severity=WARNING)
def section_header_lost(copy: Copy, _: Random) -> Place:
    return _section(copy, sh_type=0, sh_name=0)


CHANGING = (0, SHF.ALLOC | SHF.WRITE, SHF.ALLOC | SHF.EXECINSTR)
_in_header("section type of other data", "section-type", "sh_type", lambda *_: SHT.PROGBITS, severity=WARNING, versions=(3,))
_in_header("section flags of data that changes", "section-flags", "sh_flags", lambda _, random: random.choice(CHANGING))
_in_header("section header with another address", "section-place", "sh_addr", _near)
_in_header("section header with another offset", "section-place", "sh_offset", _near)


@KINDS("not-mapped")
def mapped_in_part(copy: Copy, random: Random) -> Place:
    load, section = _load(copy), copy.subject.section
    if load.p_offset == 0:  # with the headers and all else
        raise NowhereError
    inside = section.address - load.p_vaddr + random.randrange(1, len(section.data))
    return _segment(copy, PT.LOAD, p_filesz=inside)


_in_segment("mapped from elsewhere", "not-mapped", PT.LOAD, "p_offset", lambda old, random: old + random.choice((8, 4096)))
_in_segment("mapped without the right to read", "mapped-unreadable", PT.LOAD, "p_flags", lambda old, _: old & ~PF.R)
_in_segment("mapped writable", "mapped-writable", PT.LOAD, "p_flags", lambda old, _: old | PF.W, severity=WARNING)


@KINDS("machine")
def file_of_another_machine(copy: Copy, random: Random) -> Place:
    machines = [machine for machine in (62, 183, 22) if machine != copy.subject.elf.header.e_machine]
    copy.image[18:20] = random.choice(machines).to_bytes(2, copy.subject.elf.byte_order)
    return Place()
