"""Code as a kernel has it in memory, written as an ELF file that GNU readelf reads: relocated by pyelftools, not by sframegen."""

from __future__ import annotations

import struct
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from elftools.elf.elffile import ELFFile

if TYPE_CHECKING:
    from pathlib import Path

PF_R, PF_X = 4, 1
PT_LOAD, PT_GNU_SFRAME = 1, 0x6474E554
SHT_PROGBITS, SHT_STRTAB, SHT_NOBITS, SHT_GNU_SFRAME = 1, 3, 8, 0x6FFFFFF4
ALLOC, EXECUTE = 2, 4
MACHINES = {"EM_AARCH64": 183, "EM_S390": 22}
EHDR, PHDR, SHDR = 64, 56, 64
# (bytes, minus the field's address) by machine and relocation type, of the few in CFI and in a section.
FIELDS = {
    183: {257: (8, False), 258: (4, False), 260: (8, True), 261: (4, True)},
    22: {4: (4, False), 5: (4, True), 22: (8, False), 23: (8, True)},
}
FORMATS = {(4, False): "I", (8, False): "Q", (4, True): "i", (8, True): "q"}
# A module's text is in one place, what is freed after its start in another, data in a third: as far apart as an arm64 kernel may.
TEXT, INIT, DATA = 0xFFFF80007A000000, 0xFFFF80007C800000, 0xFFFF80007E000000
ROOM = {".plt": 0x2000, ".text.ftrace_trampoline": 0x40}  # sections of one byte that the loader makes larger
SIGNATURE = b"~Module signature appended~\n"
NUMBERS = struct.Struct(">BBBBB3xI")  # before it: the last is the number of bytes that are signed


class Piece(NamedTuple):
    address: int
    data: bytes
    judged: bool  # False: code that is not looked up


class Loaded(NamedTuple):
    """What is in memory. `section`: with its address."""

    machine: int
    order: str  # as `struct` writes it
    code: list[Piece]
    section: tuple[int, bytes]
    debug_frame: bytes

    def write(self, path: Path) -> None:
        """Write it so that only judged code is executable, whose CFI is then compared."""
        names = b"\0.debug_frame\0.sframe\0.shstrtab\0"
        chunks = [*(piece.data for piece in self.code), self.section[1], self.debug_frame, names]
        at, places = EHDR + PHDR * (len(self.code) + 1), []
        for chunk in chunks:
            at += -at % 16
            places.append(at)
            at += len(chunk)
        loads = [
            (PT_LOAD, PF_R | PF_X * piece.judged, place, piece.address, len(piece.data))
            for piece, place in zip(self.code, places, strict=False)
        ]
        section, debug_frame, strings = places[-3:]
        loads.append((PT_GNU_SFRAME, PF_R, section, self.section[0], len(self.section[1])))
        headers = [
            (0, 0, 0, 0, 0, 0),
            (1, SHT_PROGBITS, 0, 0, debug_frame, len(self.debug_frame)),
            (14, SHT_GNU_SFRAME, ALLOC, self.section[0], section, len(self.section[1])),
            (22, SHT_STRTAB, 0, 0, strings, len(names)),
        ]
        end = at + -at % 16
        identity = b"\x7fELF\2" + (b"\1" if self.order == "<" else b"\2") + b"\1" + bytes(9)
        rest = (2, self.machine, 1, 0, EHDR, end, 0, EHDR, PHDR, len(loads), SHDR, len(headers), 3)
        with path.open("wb") as out:
            out.write(identity + struct.pack(f"{self.order}HHIQQQIHHHHHH", *rest))
            for kind, flags, offset, address, size in loads:
                out.write(struct.pack(f"{self.order}IIQQQQQQ", kind, flags, offset, address, address, size, size, 1))
            for place, chunk in zip(places, chunks, strict=True):
                out.seek(place)
                out.write(chunk)
            out.seek(end)
            for name, kind, section_flags, address, offset, size in headers:
                fields = (name, kind, section_flags, address, offset, size, 0, 0, 8, 0)
                out.write(struct.pack(f"{self.order}IIQQQQIIQQ", *fields))


def without_signature(module: bytes) -> bytes:
    """Return the module without the signature at its end, if it has one."""
    if not module.endswith(SIGNATURE):
        return module
    end = len(module) - len(SIGNATURE)
    *_, signed = NUMBERS.unpack(module[end - NUMBERS.size : end])
    return module[: end - NUMBERS.size - signed]


def load_module(path: Path, debug_path: Path) -> Loaded:
    """Do what a kernel does: text in the order of the headers, `.init*` elsewhere, then data; then relocations."""
    with path.open("rb") as stream, debug_path.open("rb") as debug_stream:
        elf, debug = ELFFile(stream), ELFFile(debug_stream)
        places = _places(elf)
        [number] = [at for at, one in enumerate(elf.iter_sections()) if one["sh_type"] in (SHT_GNU_SFRAME, "SHT_GNU_SFRAME")]
        # By name, and of several with one name by their order: numbers differ where a file lacks sections.
        by_key = {key: places[at] for at, key in enumerate(_keys(elf)) if at in places}
        there = {at: by_key[key] for at, key in enumerate(_keys(debug)) if key in by_key}
        [frames] = [at for at, one in enumerate(debug.iter_sections()) if one.name == ".debug_frame"]
        code = [
            Piece(places[at], one.data(), not one.name.startswith(".init"))
            for at, one in enumerate(elf.iter_sections())
            if at in places and one["sh_flags"] & EXECUTE
        ]
        return Loaded(
            MACHINES[elf["e_machine"]],
            "<" if elf.little_endian else ">",
            sorted(code),
            (places[number], _relocated(elf, number, places)),
            _relocated(debug, frames, {frames: 0, **there}),
        )


def _keys(elf: ELFFile) -> list[tuple[str, int]]:
    seen: Counter[str] = Counter()
    keys = []
    for section in elf.iter_sections():
        keys.append((section.name, seen[section.name]))
        seen[section.name] += 1
    return keys


def _places(elf: ELFFile) -> dict[int, int]:
    """Return the address of each section that is in memory."""
    places, free = {}, {TEXT: TEXT, INIT: INIT, DATA: DATA}
    for number, section in enumerate(elf.iter_sections()):
        if section["sh_flags"] & ALLOC:
            part = INIT if section.name.startswith(".init") else TEXT if section["sh_flags"] & EXECUTE else DATA
            places[number] = free[part] + -free[part] % max(section["sh_addralign"], 1)
            free[part] = places[number] + ROOM.get(section.name, section["sh_size"])
    return places


def _relocated(elf: ELFFile, number: int, places: dict[int, int]) -> bytes:
    """Return a section's contents with its relocations. Raises KeyError, struct.error for what a kernel refuses."""
    data = bytearray(elf.get_section(number).data())
    mark = "<" if elf.little_endian else ">"
    table: Any
    for table in elf.iter_sections():
        if table["sh_type"] != "SHT_RELA" or table["sh_info"] != number:
            continue
        symbols: Any = elf.get_section(table["sh_link"])
        for one in table.iter_relocations():
            size, relative = FIELDS[MACHINES[elf["e_machine"]]][one["r_info_type"]]
            symbol = symbols.get_symbol(one["r_info_sym"])
            value = places[symbol["st_shndx"]] + symbol["st_value"] + one["r_addend"]
            value -= (places[number] + one["r_offset"]) * relative
            # The field is zero before: x86's loader refuses others.
            assert not any(data[one["r_offset"] : one["r_offset"] + size]) or not relative
            struct.pack_into(mark + FORMATS[size, relative], data, one["r_offset"], value)
    return bytes(data)
