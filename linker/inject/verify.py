"""Compares a written file with its plan and original, using a reader that shares no code with the writer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from linker.files.copying import ranges_are_equal
from linker.files.read_back import read_back, same_sections
from linker.inject.gaps import is_grown, parts_to_copy, shift_header, shift_segment, to_original_offset
from linker.inject.image import find_build_id
from linker.inject.movable import MOVABLE_SEGMENTS
from linker.inject.section_table import renumber_header
from sframegen.elf.file import open_elf, opened_elf
from sframegen.elf.notes import read_build_id, read_valid_notes, select_build_id
from sframegen.elf.ranges import Extent, find_gaps, find_overlapping, join_extents
from sframegen.elf.records import EHDR_SIZE, PF, PHDR_SIZE, PT, SHF, SHT, Phdr, Shdr

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from linker.files.read_back import ReadBack, Reader
    from linker.inject.plan import InjectionPlan
    from linker.inject.undo_record import Write
    from sframegen.base.columns import Bytes
    from sframegen.elf.file import ElfFile, Section

ADDRESS_SIZE = 8  # bytes of a patch with an address; smaller patches have section numbers
KEPT_FIELDS = ("e_ident", "e_version", "e_ehsize", "e_phentsize")  # ELF header fields that stay and that ReadBack does not have


def verify_injection(plan: InjectionPlan, original: ElfFile, result: Path, reader: Reader) -> list[str]:
    """Return findings about the file at `result`; none if it is as planned. Raises FormatError if it cannot be read."""
    written = read_back(result, reader)
    if written is None:
        return [f"{reader} cannot read the file"]
    with opened_elf(result) as elf:
        loaded = check_loaded(plan, original, elf, written) if plan.is_loaded else check_unloaded(original, elf, written)
        return [
            *check_new_header(plan, original, written),
            *check_section(plan, written),
            *loaded,
            *check_segments(plan, original, written),
            *check_new_sections(plan, original, written),
            *check_overwritten(plan, original),
            *check_build_id(original, elf),
        ]


def check_loaded(plan: InjectionPlan, original: ElfFile, elf: ElfFile, written: ReadBack) -> Iterator[str]:
    """Check that a segment maps the section, and all other loaded bytes are unchanged, at the same addresses."""
    if any(getattr(elf.header, field) != getattr(original.header, field) for field in KEPT_FIELDS):
        yield "the ELF header changed"
    yield from check_mapping(plan, written)
    yield from check_load_order(written, len(elf.data))
    yield from check_table(written)
    yield from check_bytes(plan, original, elf, written)
    yield from check_moves(plan, original, elf)


def check_unloaded(original: ElfFile, elf: ElfFile, written: ReadBack) -> Iterator[str]:
    """Check that no segment maps the section, and only the ELF header's section table fields differ from the original."""
    if written.segments != original.segments:
        yield "program headers changed"
    if elf.header._replace(e_shoff=original.header.e_shoff, e_shnum=original.header.e_shnum) != original.header:
        yield "the ELF header changed"
    if not ranges_are_equal(original, EHDR_SIZE, elf, EHDR_SIZE, len(original.data) - EHDR_SIZE):
        yield "bytes of the original changed"


def verify_writes(
    original: ElfFile, segments: list[Phdr], sections: list[Section], writes: Iterable[Write], result: Path, reader: Reader
) -> list[str]:
    """Return findings about the file at `result`, which must have these headers, and the original's bytes except for the writes."""
    written = read_back(result, reader)
    if written is None:
        return [f"{reader} cannot read the file"]
    findings = ["the ELF header changed"] * any(identity_findings(original, written))
    if written.segments != segments:
        findings.append("program headers are not the planned ones")
    if not same_sections(written.sections, sections):
        findings.append("section headers are not the planned ones")
    changed = join_extents(Extent(offset, offset + len(data)) for offset, data in writes)
    size = max([len(original.data), *(item.end for item in changed)])
    with opened_elf(result) as new:
        if len(new.data) != size:
            findings.append(f"the file has {len(new.data)} bytes, not {size}")
        elif not all(ranges_are_equal(original, start, new, start, end - start) for start, end in find_gaps(changed, 0, size)):
            findings.append("bytes changed that do not belong to the section")
    return findings


def verify_detached(original: ElfFile, section: Bytes, result: Path, reader: Reader) -> list[str]:
    """Return findings about a detached section's file, which must have these bytes, and the original's PT_LOADs and build-id."""
    written, elf = read_back(result, reader), open_elf(result)
    if written is None:
        return [f"{reader} cannot read the file"]
    findings = ["the ELF header changed"] * any(identity_findings(original, written))
    if written.segments != [segment for segment in original.segments if segment.p_type == PT.LOAD]:
        findings.append("its program headers are not the PT_LOADs of the original")
    sections = [candidate for candidate in written.sections if candidate.name == ".sframe"]
    kinds = [(s.header.sh_type, s.header.sh_flags, s.header.sh_addr) for s in sections]
    if kinds != [(SHT.GNU_SFRAME, 0, 0)] or elf.stored_contents(sections[0]) != memoryview(section):
        findings.append(".sframe is not the planned one")
    if read_build_id(elf) != read_build_id(original):
        findings.append("the build-id changed")
    return findings


def check_new_header(plan: InjectionPlan, original: ElfFile, written: ReadBack) -> Iterator[str]:
    yield from identity_findings(original, written)
    if written.table_offset != plan.table_offset:
        yield f"program header table is at offset {written.table_offset:#x}, planned {plan.table_offset:#x}"


def identity_findings(original: ElfFile, written: ReadBack) -> Iterator[str]:
    """Check that machine, type, entry point and flags in the ELF header are unchanged."""
    for field, value in written.identity.items():
        if value != getattr(original.header, field):
            yield f"{field} was {getattr(original.header, field):#x}, is {value:#x}"


def check_section(plan: InjectionPlan, written: ReadBack) -> Iterator[str]:
    """Check that there is exactly one `.sframe`, as planned."""
    planned = (plan.section_address, plan.section_offset, plan.section_size, plan.section_flags)
    sections = [s.header for s in written.sections if s.name == ".sframe"]
    if bool(sections) != bool(plan.sections):
        yield ".sframe is missing" if plan.sections else ".sframe has a section header, the original has none"
    for s in sections:
        if (s.sh_addr, s.sh_offset, s.sh_size, s.sh_flags) != planned or s.sh_type != SHT.GNU_SFRAME:
            yield ".sframe is not the planned one"


def check_mapping(plan: InjectionPlan, written: ReadBack) -> Iterator[str]:
    """Check that PT_GNU_SFRAME is as planned, and that exactly one PT_LOAD, which is read-only, maps the section."""
    planned = (plan.section_address, plan.section_offset, plan.section_size)
    segments = [s for s in written.segments if s.p_type == PT.GNU_SFRAME]
    if [(s.p_vaddr, s.p_offset, s.p_filesz) for s in segments] != [planned]:
        yield "PT_GNU_SFRAME is not the planned one"
    loads = [s for s in written.segments if s.p_type == PT.LOAD and s.p_vaddr <= planned[0] < s.p_vaddr + s.p_memsz]
    if len(loads) != 1 or loads[0].p_flags != PF.R or not maps_range(loads[0], *planned):
        yield "no read-only PT_LOAD of its own holds .sframe"


def maps_range(load: Phdr, address: int, offset: int, size: int) -> bool:
    end = load.p_offset + load.p_filesz
    return load.p_offset <= offset and offset + size <= end and address - load.p_vaddr == offset - load.p_offset


def check_load_order(written: ReadBack, file_size: int) -> Iterator[str]:
    """Check that PT_LOADs ascend, do not overlap, and lie within the file."""
    end = 0
    for load in (s for s in written.segments if s.p_type == PT.LOAD):
        if load.p_vaddr < end:
            yield f"PT_LOAD at {load.p_vaddr:#x} begins before {end:#x}, where the one before it ends"
        if load.p_filesz and load.p_offset + load.p_filesz > file_size:
            yield f"PT_LOAD at {load.p_vaddr:#x} reaches past the end of the file"
        end = load.p_vaddr + load.p_memsz


def check_table(written: ReadBack) -> Iterator[str]:
    """Check that PT_PHDR has the table's address, also as kernels before 5.18 compute it from the first PT_LOAD and e_phoff."""
    tables = [s for s in written.segments if s.p_type == PT.PHDR]
    loads = [s for s in written.segments if s.p_type == PT.LOAD]
    size = len(written.segments) * PHDR_SIZE
    for table in tables:
        if (table.p_offset, table.p_filesz) != (written.table_offset, size):
            yield "PT_PHDR does not cover the program header table"
        if loads and loads[0].p_vaddr - loads[0].p_offset + written.table_offset != table.p_vaddr:
            yield "PT_PHDR is not where the first PT_LOAD puts the program header table"
        if not any(maps_range(load, table.p_vaddr, table.p_offset, table.p_filesz) for load in loads):
            yield "PT_PHDR is in no PT_LOAD"


def check_segments(plan: InjectionPlan, original: ElfFile, written: ReadBack) -> Iterator[str]:
    """Check that every segment of the original is still there, in order, and unchanged or changed as planned."""
    if written.segments != list(plan.segments):
        yield "program headers are not the planned ones"
    dropped, new = list(plan.dropped_segments), list(plan.new_segments)
    remaining = [s for s in written.segments if s not in new]
    for segment in original.segments:
        if segment in dropped:
            dropped.remove(segment)
            continue
        if not remaining or not is_planned_change(plan, segment, remaining.pop(0)):
            yield f"segment of type {segment.p_type:#x} at {segment.p_vaddr:#x} changed, which is not in the plan"
            return
    if remaining:
        yield f"{len(remaining)} segments that neither original nor plan has"


def is_planned_change(plan: InjectionPlan, old: Phdr, new: Phdr) -> bool:
    """Return True if `new` is the program header `old` after the shifts, growth and moves of the plan."""
    if shift_segment(plan.gaps, old) == new:
        return True
    if old.p_type == new.p_type == PT.PHDR:
        return True  # other checks compare it with the table itself
    if old.p_type == PT.LOAD:
        return is_grown(old, new, plan.gaps)
    shifts = (new.p_vaddr - old.p_vaddr, new.p_offset - old.p_offset)
    is_moved = any(
        item.contains(old.p_offset, old.p_filesz)
        and (item.to_address - item.from_address, item.to_offset - item.from_offset) == shifts
        for item in plan.moves
    )
    return (
        old.p_type in MOVABLE_SEGMENTS
        and is_moved
        and new._replace(p_offset=old.p_offset, p_vaddr=old.p_vaddr, p_paddr=old.p_paddr) == old
    )


def check_new_sections(plan: InjectionPlan, original: ElfFile, written: ReadBack) -> Iterator[str]:
    """Check that every section of the original is still there, unchanged or moved and renumbered as planned."""
    if not same_sections(written.sections, plan.sections):
        yield "section headers are not the planned ones"
    kept = [section for section in written.sections if section.number not in plan.added]
    numbers = {old: section.number for old, section in enumerate(kept)}
    for old, new in zip(original.sections, kept, strict=False):
        if old.number == 0:
            # Its size may be the number of sections, and sh_name is 0 in all headers that a reader returns.
            is_as_planned = new.header._replace(sh_size=0) == old.header._replace(sh_size=0, sh_name=0)
        elif old.number == original.shstrndx:
            is_as_planned = new.header.sh_offset == plan.names_offset
        else:
            address, offset = planned_location(plan, old.header)
            expected = renumber_header(old.header, numbers)._replace(sh_name=0, sh_addr=address, sh_offset=offset)
            is_as_planned = new.header == expected
        if not is_as_planned or new.name != old.name:
            yield f"section {old.number} {old.name} changed, which is not in the plan"


def planned_location(plan: InjectionPlan, header: Shdr) -> tuple[int, int]:
    """Return the (address, file offset) that a section of the original has in the new file."""
    if header.sh_type != SHT.NOBITS and header.sh_flags & SHF.ALLOC:
        for item in plan.moves:
            if item.contains(header.sh_offset, header.sh_size):
                shift = item.to_address - item.from_address
                return header.sh_addr + shift, header.sh_offset + item.to_offset - item.from_offset
    return header.sh_addr, shift_header(plan.gaps, header).sh_offset


def check_overwritten(plan: InjectionPlan, original: ElfFile) -> Iterator[str]:
    """Check that no section is overwritten, except by patches and where metadata moved away."""
    patched = {to_original_offset(plan.gaps, patch.offset) for patch in plan.patches}
    overwritten = join_extents(Extent(offset, offset + size) for offset, size in plan.overwritten() if offset not in patched)
    table = range(original.header.e_phoff, original.header.e_phoff + original.phnum * PHDR_SIZE + 1)
    for section in original.sections:
        header = section.header
        start, end = header.sh_offset, header.sh_offset + header.sh_size
        is_moved = any(item.contains(start, header.sh_size) for item in plan.moves) or (start in table and end in table)
        overlaps = () if is_moved or header.sh_type in (SHT.NULL, SHT.NOBITS) else find_overlapping(overwritten, start, end)
        yield from (f"{section.name} is overwritten at file offset {item.start:#x}" for item in overlaps)


def check_bytes(plan: InjectionPlan, original: ElfFile, result: ElfFile, written: ReadBack) -> Iterator[str]:
    """Check that every loaded byte is unchanged at its address, and every other one at its new offset, unless overwritten."""
    overwritten = join_extents(Extent(offset, offset + size) for offset, size in plan.overwritten())
    new_loads = [s for s in written.segments if s.p_type == PT.LOAD]
    for load in (s for s in original.segments if s.p_type == PT.LOAD):
        new_load = next((s for s in new_loads if s.p_vaddr <= load.p_vaddr < s.p_vaddr + max(1, s.p_memsz)), load)
        shift = load.p_vaddr - new_load.p_vaddr + new_load.p_offset - load.p_offset  # of the file offset of the same address
        for start, end in find_gaps(overwritten, load.extent.start, load.extent.end):
            if not ranges_are_equal(original, start, result, start + shift, end - start):
                yield f"bytes loaded from file offsets {start:#x} to {end:#x} changed"
    loads = (s.extent for s in original.segments if s.p_type == PT.LOAD and s.p_filesz)
    compared = join_extents([*overwritten, *loads])
    for start, to, size in parts_to_copy(plan.gaps, len(original.data)):
        for at, end in find_gaps(compared, start, start + size):
            if not ranges_are_equal(original, at, result, at + to - start, end - at):
                yield f"bytes from file offsets {at:#x} to {end:#x} changed"


def check_moves(plan: InjectionPlan, original: ElfFile, result: ElfFile) -> Iterator[str]:
    """Check that moved metadata is at its new address, and that dynamic tags and symbols refer to that address."""
    patched = join_extents(Extent(patch.offset, patch.offset + patch.size) for patch in plan.patches)
    for item in plan.moves:
        moved = result.at(item.to_address, item.size)
        for start, end in find_gaps(patched, item.to_offset, item.to_offset + item.size):
            at = item.from_offset + start - item.to_offset
            new = moved[start - item.to_offset : end - item.to_offset].tobytes()
            if original.data[at : at + end - start].tobytes() != new:
                yield f"{', '.join(item.names)} changed when it moved to {item.to_address:#x}"
    for patch in plan.patches:
        if int.from_bytes(result.data[patch.offset : patch.offset + patch.size], result.byte_order) != patch.new:
            yield f"{patch.name} does not say {patch.new:#x}"
        if patch.size == ADDRESS_SIZE and not any(0 <= patch.new - item.to_address <= item.size for item in plan.moves):
            yield f"{patch.name} says {patch.new:#x}, where nothing moved to"


def check_build_id(original: ElfFile, result: ElfFile) -> Iterator[str]:
    if select_build_id(read_valid_notes(result)) != select_build_id(read_valid_notes(original)):
        yield "the build-id changed"
    if find_build_id(original) is not None and find_build_id(result) is None:
        yield "the build-id note left the first page of the file"
