"""What may differ between a file and the one with its new section, as loaded; by pyelftools' reading of the headers.

The checks are asserts: tests make them, and corpus/run.
"""

from __future__ import annotations

import mmap
import re
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import filterfalse, pairwise
from pathlib import Path
from typing import Any

from elftools.elf.elffile import ELFFile
from elftools.elf.segments import NoteSegment

FIRST_PAGE = 4096
MAY_MOVE = re.compile(r"\.(interp|note\..*|gnu\.hash|hash|dynsym|dynstr|gnu\.version(_[rd])?)")
MOVABLE_TAGS = {4, 5, 6, 0x6FFFFEF5, 0x6FFFFFF0, 0x6FFFFFFC, 0x6FFFFFFE}  # hash, strings, symbols, GNU hash, versions
KEPT_SEGMENTS = {"PT_DYNAMIC", "PT_TLS", "PT_GNU_EH_FRAME", "PT_GNU_STACK", "PT_GNU_RELRO"}
ADDED = (".sframe", ".sframegen.")
PATCHELF_FILLERS = b"XZ"  # where it moved something away
CHUNK = 1 << 16
EHDR_SIZE, PHDR_SIZE = 64, 56
SYMBOL_SIZE, SHNDX = 24, 6


class Image:
    """A file as loaded, by pyelftools' reading of its headers."""

    def __init__(self, file: Path, closing: ExitStack) -> None:
        self.elf = ELFFile(closing.enter_context(file.open("rb")))
        self.order = "<" if self.elf.little_endian else ">"
        self.data = closing.enter_context(mmap.mmap(self.elf.stream.fileno(), 0, access=mmap.ACCESS_READ))
        self.segments = [segment.header for segment in self.elf.iter_segments()]
        self.loads = [segment for segment in self.segments if segment.p_type == "PT_LOAD"]
        self.sections = [section.header for section in self.elf.iter_sections()]
        self.names = [section.name for section in self.elf.iter_sections()]
        self.table = self.elf.header.e_phoff, self.elf.header.e_phoff + self.elf.header.e_phnum * PHDR_SIZE

    def of_type(self, *kinds: str) -> list[Any]:
        return [segment for segment in self.segments if segment.p_type in kinds]

    def at(self, address: int, size: int) -> bytes:
        [load] = [load for load in self.loads if load.p_vaddr <= address and address + size <= load.p_vaddr + load.p_filesz]
        start = address - load.p_vaddr + load.p_offset
        return bytes(self.data[start : start + size])

    def dynamic(self) -> list[tuple[int, int]]:
        return [
            pair
            for segment in self.of_type("PT_DYNAMIC")
            for pair in struct.iter_unpack(self.order + "QQ", self.data[segment.p_offset : segment.p_offset + segment.p_filesz])
        ]

    def notes(self) -> set[bytes]:
        return {self.at(segment.p_vaddr, segment.p_filesz) for segment in self.of_type("PT_NOTE", "PT_GNU_PROPERTY")}

    def build_ids(self) -> dict[str, int]:
        """Where each ends in the file."""
        return {
            note["n_desc"]: note["n_offset"] + note["n_size"]
            for segment in self.elf.iter_segments("PT_NOTE")
            if isinstance(segment, NoteSegment)
            for note in segment.iter_notes()
            if note["n_type"] == "NT_GNU_BUILD_ID"
        }


def kept_sections(old: Image, new: Image) -> list[tuple[int, int]]:
    """(number in the old file, number in the new one) of each old section that is not replaced; others are new."""
    replaced = replaced_sections(old, new)
    old_names = ["" if number in replaced else name for number, name in enumerate(old.names)]
    kept = [number for number, name in enumerate(new.names) if not name.startswith(ADDED) or name in old_names]
    assert [new.names[number] for number in kept] == old_names
    return [(number, new_number) for number, new_number in enumerate(kept) if number not in replaced]


def replaced_sections(old: Image, new: Image) -> list[int]:
    """Their headers have no name and type any more, and their bytes are cleared."""
    return [number for number, name in enumerate(old.names) if name == ".sframe" and new.sections[number].sh_type == "SHT_NULL"]


def displaced(old: Image, new: Image) -> dict[int, tuple[int, int]]:
    """Numbers of the loaded sections that are elsewhere: the new number, and by how much. The others stand as they stood."""
    moved = {}
    kept = kept_sections(old, new)
    numbers = dict(kept)
    for number, new_number in kept:
        before, after = old.sections[number], new.sections[new_number]
        if before.sh_addr != after.sh_addr:
            assert MAY_MOVE.fullmatch(old.names[number])
            moved[number] = new_number, after.sh_addr - before.sh_addr
        assert after.sh_link == numbers.get(before.sh_link, before.sh_link)
        free = {"sh_name", "sh_addr", "sh_offset", "sh_link", "sh_info"} | (
            {"sh_size"} if old.names[number] == ".shstrtab" else set()
        )
        assert {name: value for name, value in after.items() if name not in free} == {
            name: value for name, value in before.items() if name not in free
        }
        if not before.sh_flags & 2 and before.sh_type not in {"SHT_NULL", "SHT_NOBITS", "SHT_SYMTAB"} and before.sh_size:
            assert (
                new.data[after.sh_offset : after.sh_offset + before.sh_size]
                == old.data[before.sh_offset : before.sh_offset + before.sh_size]
            )
    return moved


def different(old: Image, new: Image, load: Any) -> Iterator[int]:
    """Offsets in the old file of loaded bytes that differ at their addresses."""
    end = load.p_offset + load.p_filesz
    for chunk in range(load.p_offset, end, CHUNK):
        a = old.data[chunk : min(chunk + CHUNK, end)]
        b = new.at(load.p_vaddr + chunk - load.p_offset, len(a))
        if a != b:
            yield from (chunk + index for index, (x, y) in enumerate(zip(a, b, strict=True)) if x != y)


def is_in(ranges: list[tuple[int, int]], offset: int) -> bool:
    return any(start <= offset < end for start, end in ranges)


def renumbered(old: Image, new: Image) -> set[int]:
    """Offsets in the old file of section numbers in loaded symbols that are another number, as the section has one."""
    numbers = dict(kept_sections(old, new))
    found = set()
    for number, header in enumerate(old.sections):
        if header.sh_type == "SHT_DYNSYM" and new.sections[numbers[number]].sh_addr == header.sh_addr:
            for at in range(header.sh_offset + SHNDX, header.sh_offset + header.sh_size, SYMBOL_SIZE):
                [before] = struct.unpack_from(old.order + "H", old.data, at)
                after = numbers.get(before, before)
                if after != before and new.at(header.sh_addr + at - header.sh_offset, 2) == struct.pack(old.order + "H", after):
                    found |= {at, at + 1}
    return found


def check_loaded_bytes(old: Image, new: Image) -> None:
    """Code and data are where they were; the added segment comes after them, and headers may come before."""
    last = old.loads[-1]
    assert all(a.p_vaddr + a.p_memsz <= b.p_vaddr for a, b in pairwise(new.loads))
    for added in new.loads[len(old.loads) :]:
        assert (added.p_flags, added.p_filesz) == (4, added.p_memsz)
        assert added.p_align == max(load.p_align for load in old.loads)
        assert (added.p_vaddr - added.p_offset) % added.p_align == 0
        assert added.p_vaddr // added.p_align > (last.p_vaddr + last.p_memsz - 1) // added.p_align
    moved = displaced(old, new)
    shift = new.loads[0].p_vaddr - old.loads[0].p_vaddr
    allowed = [(0, EHDR_SIZE), new.table] if not shift else []
    allowed += [(s.p_offset, s.p_offset + s.p_filesz) for s in old.of_type("PT_DYNAMIC")]
    for number, _ in moved.values():
        at = new.sections[number].sh_addr - old.loads[0].p_vaddr + old.loads[0].p_offset
        allowed.append((at, at + new.sections[number].sh_size))
    numbers = renumbered(old, new)
    replaced = replaced_sections(old, new)
    left = [(old.sections[n].sh_offset, old.sections[n].sh_offset + old.sections[n].sh_size) for n in (*moved, *replaced)]
    kept = [
        (header.sh_offset, header.sh_offset + header.sh_size)
        for number, header in enumerate(old.sections)
        if header.sh_flags & 2 and header.sh_type not in {"SHT_NOBITS", "SHT_DYNAMIC"} and number not in (*moved, *replaced)
    ]
    for before, after in zip(old.loads, new.loads, strict=False):
        assert (after.p_type, after.p_flags) == (before.p_type, before.p_flags)
        assert (after.p_vaddr - after.p_offset) % after.p_align == 0
        if before is old.loads[0]:
            assert after.p_vaddr <= before.p_vaddr
            assert after.p_vaddr + after.p_memsz >= before.p_vaddr + before.p_memsz
        else:
            sizes = ("p_vaddr", "p_paddr", "p_filesz", "p_memsz")
            assert [after[name] for name in sizes] == [before[name] for name in sizes]
        for offset in filterfalse(numbers.__contains__, different(old, new, before)):
            place = before.p_vaddr + offset - before.p_offset
            cleared = new.at(place, 1) == b"\0" and (is_in(left, offset) or old.data[offset] in PATCHELF_FILLERS)
            assert cleared or is_in(allowed, offset), hex(offset)
            assert not is_in(kept, offset), hex(offset)


def check_displaced_metadata(old: Image, new: Image) -> None:
    """It is the same elsewhere, and named there."""
    moved, numbers = displaced(old, new), dict(kept_sections(old, new))
    for number in moved:
        new_number, _ = moved[number]
        before, after = old.sections[number], new.sections[new_number]
        contents = bytearray(old.data[before.sh_offset : before.sh_offset + before.sh_size])
        if before.sh_type == "SHT_DYNSYM":
            for at in range(0, len(contents), SYMBOL_SIZE):
                _, _, _, section, value, _ = struct.unpack_from(old.order + "IBBHQQ", contents, at)
                struct.pack_into(old.order + "H", contents, at + SHNDX, numbers.get(section, section))
                if section in moved:
                    struct.pack_into(old.order + "Q", contents, at + 8, value + moved[section][1])
        assert new.at(after.sh_addr, after.sh_size) == contents
        assert new.data[after.sh_offset : after.sh_offset + after.sh_size] == contents
    places = {old.sections[number].sh_addr: old.sections[number].sh_addr + by for number, (_, by) in moved.items()}
    assert new.dynamic() == [(tag, places.get(value, value) if tag in MOVABLE_TAGS else value) for tag, value in old.dynamic()]
    for kind in ("PT_INTERP", "PT_NOTE", "PT_GNU_PROPERTY"):
        for segment in new.of_type(kind):
            stored = new.data[segment.p_offset : segment.p_offset + segment.p_filesz]
            assert stored == new.at(segment.p_vaddr, segment.p_filesz)
    assert new.notes() == old.notes()
    assert [new.at(s.p_vaddr, s.p_filesz) for s in new.of_type("PT_INTERP")] == [
        old.at(s.p_vaddr, s.p_filesz) for s in old.of_type("PT_INTERP")
    ]
    by_place = [[{**segment, "p_offset": 0} for segment in image.of_type(*KEPT_SEGMENTS)] for image in (new, old)]
    assert by_place[0] == by_place[1]


def check_headers(old: Image, new: Image) -> None:
    """They are where kernels and profilers look."""
    start, end = new.table
    assert len(old.of_type("PT_PHDR")) == len(new.of_type("PT_PHDR"))
    for segment in new.of_type("PT_PHDR"):
        assert new.loads[0].p_vaddr - new.loads[0].p_offset + start == segment.p_vaddr
        assert (segment.p_offset, segment.p_filesz, segment.p_memsz) == (start, end - start, end - start)
        assert new.at(segment.p_vaddr, segment.p_filesz) == new.data[start:end]
    ids = old.build_ids()
    assert new.build_ids().keys() == ids.keys()
    assert all(new.build_ids()[name] <= FIRST_PAGE for name, place in ids.items() if place <= FIRST_PAGE)
    sframe = new.of_type(0x6474E554)  # type: ignore[arg-type]
    assert [new.sections[new.names.index(".sframe")][name] for name in ("sh_addr", "sh_offset", "sh_size")] == [
        sframe[0][name] for name in ("p_vaddr", "p_offset", "p_filesz")
    ]
