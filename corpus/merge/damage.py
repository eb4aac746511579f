"""Objects with something wrong in their SFrame sections: what GNU ld does with them, and what merge does."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from sframegen.elf.file import open_elf
from sframegen.elf.records import RECORDS, SHT, Shdr

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from sframegen.elf.file import ElfFile, Section

    from .toolchain import Done, Toolchain

GOOD = "int good(int x) { return x + 1; }\nint also_good(int x) { return good(x) * 2; }\n"
BAD = "int good(int);\nint bad(int x) { return good(x) + 2; }\nint worse(int x) { return bad(x) * good(x); }\n"


PROGRAM = re.compile(r"^(sframegen|Error): |/\S+/ld-linux-\S+: ")  # who speaks; GNU ld by the name of its dynamic linker
FOLDER = re.compile(r"(?<!\S)/\S+/")


class Object(NamedTuple):
    """What a damage works on: the bytes, and the headers of the SFrame section and of its relocations."""

    raw: bytearray
    elf: ElfFile
    section: Section
    relocations: Section

    def put(self, at: int, what: bytes) -> None:
        """Into the section."""
        start = self.section.header.sh_offset + at
        self.raw[start : start + len(what)] = what

    def header(self, section: Section, **fields: int) -> None:
        """Other values in a section's header."""
        code = RECORDS[Shdr, self.elf.byte_order]
        code.pack_into(self.raw, self.elf.header.e_shoff + section.number * code.size, *section.header._replace(**fields))


def _cut(size: int) -> Callable[[Object], None]:
    """The section has `size` bytes, and no relocations."""

    def work(one: Object) -> None:
        one.header(one.section, sh_size=size)
        one.header(one.relocations, sh_size=0)

    return work


ORIGINALS = {"older version: 2": "older.o"}  # what is damaged, where it is not bad.o

# By name, what is done to the object. Offsets in the section's header: magic 0, version 2, flags 3, ABI 4, fixed FP 5, fixed RA 6,
# auxiliary header's size 7, numbers of FDEs 8 and rows 12, size of rows 16, offsets of FDEs 20 and rows 24.
DAMAGES: dict[str, Callable[[Object], None]] = {
    "none": lambda _: None,
    "bad magic": lambda one: one.put(0, b"\0\0"),
    "truncated: 20 bytes, its relocations still there": lambda one: one.header(one.section, sh_size=20),
    "truncated: 20 bytes, no relocations": _cut(20),
    "truncated: in the FDEs": lambda one: one.header(one.section, sh_size=36),
    "truncated: in the rows": lambda one: one.header(one.section, sh_size=one.section.header.sh_size - 4),
    "empty: 0 bytes, its relocations still there": lambda one: one.header(one.section, sh_size=0),
    "empty: 0 bytes, no relocations": _cut(0),
    "ABI mismatch": lambda one: one.put(4, b"\2" if one.raw[one.section.header.sh_offset + 4] != 2 else b"\3"),
    "data encoding mismatch: not FUNC_START_PCREL": lambda one: one.put(3, b"\0"),
    "another fixed RA offset": lambda one: one.put(6, b"\xf0"),
    "an FDE without relocation: one entry less": lambda one: one.header(
        one.relocations, sh_size=one.relocations.header.sh_size - one.relocations.header.sh_entsize
    ),
    "an FDE without relocation: R_NONE": lambda one: one.raw.__setitem__(
        slice(one.relocations.header.sh_offset + 8, one.relocations.header.sh_offset + 16), bytes(8)
    ),
    "unknown version: 4": lambda one: one.put(2, b"\4"),
    "older version: 2": lambda _: None,
    "wrong section type: PROGBITS": lambda one: one.header(one.section, sh_type=SHT.PROGBITS),
    "more FDEs than there are": lambda one: one.put(8, struct.pack("<I", 1000)),
}


@dataclass
class Tried:
    """What came of one damage: `GNU ld`, `merge --map` and `merge -o` each in a line."""

    damage: str
    gnu: str
    by_map: str
    relocatable: str


def try_all(tools: Toolchain) -> list[Tried]:
    """In the toolchain's folder."""
    folder = compile_objects(tools)
    return [_tried(tools, folder, name) for name in DAMAGES]


def compile_objects(tools: Toolchain) -> Path:
    """A folder with good.o, bad.o, and older.o, which is bad.o with a section of an older version."""
    folder = tools.directory / "damage"
    folder.mkdir(exist_ok=True)
    for name, text in (("good", GOOD), ("bad", BAD)):
        (folder / f"{name}.c").write_text(text)
        tools.must(*tools.driver("c"), "-O2", "-fPIC", "-Wa,--gsframe", "-c", f"{name}.c", cwd="damage")
    tools.must(*tools.driver("c"), "-O2", "-fPIC", "-c", "-o", "older.o", "bad.c", cwd="damage")
    tools.sframegen("add-section", "--sframe-version", "2", "older.o", cwd="damage")
    return folder


def damaged(path: Path, damage: str) -> bytes:
    """The object with that damage."""
    elf = open_elf(path)
    [section] = [one for one in elf.sections if one.header.sh_type == SHT.GNU_SFRAME]
    [relocations] = [one for one in elf.sections if one.name == ".rela.sframe"]
    raw = bytearray(elf.data)
    DAMAGES[damage](Object(raw, elf, section, relocations))
    return bytes(raw)


def _tried(tools: Toolchain, folder: Path, damage: str) -> Tried:
    it = damaged(folder / ORIGINALS.get(damage, "bad.o"), damage)
    (folder / "it.o").write_bytes(it)
    inputs = ("good.o", "it.o")
    for made in ("gnu.so", "bare.so", "merged.so", "merged.o"):
        (folder / made).unlink(missing_ok=True)
    gnu = tools.gnu("ld", "-shared", "-o", "gnu.so", *inputs, cwd="damage")
    bare = tools.gnu("ld", "-shared", "--discard-sframe", "-Map=bare.so.map", "-o", "bare.so", *inputs, cwd="damage")
    if bare.status:  # it reads them all the same: the map is that of the sound object, whose code is at the same places
        (folder / "it.o").write_bytes((folder / "bad.o").read_bytes())
        tools.gnu("ld", "-shared", "--discard-sframe", "-Map=bare.so.map", "-o", "bare.so", *inputs, cwd="damage")
        (folder / "it.o").write_bytes(it)
    by_map = tools.sframegen("merge", "--map", "bare.so.map", "-o", "merged.so", "bare.so", *inputs, cwd="damage")
    relocatable = tools.sframegen("merge", "--linker", tools.tools / "ld", "-o", "merged.o", *inputs, cwd="damage")
    return Tried(
        damage,
        _line(tools, gnu, folder / "gnu.so"),
        _line(tools, by_map, folder / "merged.so"),
        _line(tools, relocatable, folder / "merged.o"),
    )


def _line(tools: Toolchain, done: Done, file: Path) -> str:
    """Exit status, the first thing that was said (by sframegen, after what its linker said), and what is in the file."""
    lines = [line.strip() for line in done.said.splitlines() if line.strip()]
    said = next((line for line in lines if line.startswith("sframegen: ")), lines[0] if lines else "")
    said = FOLDER.sub("", PROGRAM.sub("", said))
    return f"{done.status}: {f'{said}; ' if said else ''}{_found(tools, file)}"


def _found(tools: Toolchain, file: Path) -> str:
    if not file.exists() or not file.stat().st_size:
        return "an empty file" if file.exists() else "no file"
    if not any(one.header.sh_type == SHT.GNU_SFRAME for one in open_elf(file).sections):
        return "no section"
    text = tools.gnu("readelf", "--sframe", file).said
    return f"{text.count('func idx')} FDEs" + (", which readelf complains about" if "rror" in text or "arning" in text else "")
