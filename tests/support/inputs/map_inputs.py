"""Objects whose functions all have names of their own, the linkers that link them, and where the functions are then."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

from linker.merge.maps import Placement
from tests.support.peers import Peers

C = """
#define FAR __attribute__((noinline, noclone))
int {0}_used(int), {0}_other(int);
static FAR int {0}_local(int a) {{ return a * 3 + NUMBER; }}
static FAR int {0}_cold(int a) {{ __asm__ volatile(""); return a / 7; }}
FAR int {0}_twin_1(int a) {{ return a * 12345 + 7; }}
FAR int {0}_twin_2(int a) {{ return a * 12345 + 7; }}
int {0}_unused(int a) {{ return {0}_cold(a) - NUMBER; }}
int {0}_used(int a) {{ return {0}_local(a) + {0}_twin_1(a) + {0}_twin_2(a); }}
int {0}_other(int a) {{ return a + 1; }}
"""
CXX = """
template <class T> __attribute__((noinline)) T twice(T x) {{ return x + x; }}
struct Base {{ virtual int number(int a) {{ return a + 5; }} }};
struct {0}_Derived : Base {{ int number(int a) override {{ return twice(a) + NUMBER; }} }};
Base *{0}_make() {{ static {0}_Derived made; return &made; }}
extern "C" int {0}_used(int a) {{ return {0}_make()->number(a) + twice(long(a)); }}
"""
ASSEMBLER = """
    .section ".text.with a name of words","ax"
    .globl {0}_used
    .type {0}_used, %function
{0}_used: .long 0
    .size {0}_used, . - {0}_used
    .section ".text.as(int)::such","ax"
    .type {0}_parenthesis, %function
{0}_parenthesis: .long 0
    .size {0}_parenthesis, . - {0}_parenthesis
    .comm {0}_common, 8
    .section .note.GNU-stack,"",%progbits
"""
MAIN = "int main(int argc, char **argv) {{ return {0}; }}"
# File -> (its source, gcc's flags). Members of the archive come last.
OBJECTS = {
    "one.o": (C, "-x c -O2 -ffunction-sections"),
    "a dir: (x)/two (2).o": (C, "-x c -O2 -ffunction-sections -freorder-blocks-and-partition"),
    "plain.o": (C, "-x c -O1"),
    "comdat_1.o": (CXX, "-x c++ -O2 -fno-exceptions -fno-rtti -fno-threadsafe-statics"),
    "comdat_2.o": (CXX, "-x c++ -O2 -ffunction-sections -fno-exceptions -fno-rtti -fno-threadsafe-statics"),
    "odd.o": (ASSEMBLER, "-x assembler"),
    "lib/member.o": (C, "-x c -O2 -ffunction-sections"),
    "lib/a_member_with_a_name_that_is_long.o": (C, "-x c -O2"),
    "lib/comdat_3.o": (CXX, "-x c++ -O2 -fno-exceptions -fno-rtti -fno-threadsafe-statics"),
}
ARCHIVE = "lib (3)/libx.a"


class Maker(NamedTuple):
    """A linker by the name that gcc has for it, the peers' where `peer`; flags of its own that change the map's looks."""

    name: str
    fuse: str
    peer: bool
    looks: str

    def flags(self, peers: Peers) -> list[str]:
        program = f"ld.{self.fuse}"
        if self.peer:
            return [f"-fuse-ld={self.fuse}", "-B", str(Path(peers.tool(program)).parent)]
        if shutil.which(program) is None:
            pytest.skip(f"no {program} on this machine")
        return [f"-fuse-ld={self.fuse}"]


MAKERS = (
    Maker("GNU 2.47", "bfd", peer=True, looks="-Wl,-z,separate-code,--cref,--print-map-locals"),
    Maker("GNU", "bfd", peer=False, looks="-Wl,-z,noseparate-code,--cref,--no-print-map-discarded,--no-demangle"),
    Maker("gold", "gold", peer=False, looks="-Wl,--cref,--no-demangle"),
    Maker("lld", "lld", peer=True, looks="-Wl,-z,separate-code,--cref,--no-demangle"),
    Maker("mold", "mold", peer=False, looks="-Wl,-z,separate-code,--no-demangle"),
    Maker("mold 3", "mold", peer=True, looks="-Wl,-z,separate-code,--no-demangle"),
)
# What mold 3 folds has no symbol any more. For LTO it starts itself again, which a program that runs by another ld.so cannot.
BEFORE_MOLD_3 = [maker for maker in MAKERS if maker.name != "mold 3"]
FOLDING = [maker for maker in BEFORE_MOLD_3 if maker.fuse != "bfd"]
RELOCATABLE = [maker for maker in MAKERS if maker.fuse != "gold"]


class Function(NamedTuple):
    name: str
    section: str
    number: int  # of the section
    value: int  # address; in objects the offset in the section


def functions(file: Path) -> list[Function]:
    with file.open("rb") as stream:
        elf = ELFFile(stream)
        table = elf.get_section_by_name(".symtab")
        assert isinstance(table, SymbolTableSection)
        found = []
        for symbol in table.iter_symbols():
            number = symbol["st_shndx"]
            if symbol["st_info"]["type"] == "STT_FUNC" and isinstance(number, int) and symbol["st_size"]:
                found.append(Function(symbol.name, elf.get_section(number).name, number, symbol["st_value"]))
        return found


class Inputs:
    """The objects in `directory`, their functions by the names that maps have for them."""

    def __init__(self, directory: Path, compiler: str = "gcc", flags: str = "-fPIC") -> None:
        self.directory = directory
        self.functions: dict[tuple[str, str], list[Function]] = {}
        for number, (name, (source, options)) in enumerate(OBJECTS.items()):
            file = directory / name
            file.parent.mkdir(exist_ok=True)
            command = [compiler, *options.split(), *flags.split(), "-c", "-o", str(file), "-"]
            text = source.format(f"f{number}").replace("NUMBER", str(number))
            subprocess.run(command, input=text, text=True, check=True)
        members = [name for name in OBJECTS if name.startswith("lib/")]
        (directory / ARCHIVE).parent.mkdir()
        subprocess.run(["ar", "rc", ARCHIVE, *members], cwd=directory, check=True)
        for name in OBJECTS:
            key = (ARCHIVE, Path(name).name) if name in members else (name, "")
            self.functions[key] = functions(directory / name)
        calls = " + ".join(f"f{number}_used(argc)" for number in range(len(OBJECTS)))
        declarations = "".join(f"int f{number}_used(int);" for number in range(len(OBJECTS)))
        subprocess.run(
            [compiler, "-x", "c", "-fPIC", "-c", "-o", directory / "main.o", "-"],
            input=declarations + MAIN.format(calls),
            text=True,
            check=True,
        )
        self.functions["main.o", ""] = functions(directory / "main.o")
        self.names = {function.name for found in self.functions.values() for function in found}
        self.objects = ["main.o", *(name for name in OBJECTS if name not in members)]

    def link(self, output: Path, *flags: str, compiler: str = "gcc") -> Path:
        """The map of a link of all of them."""
        path = output.with_suffix(".map")
        archive = f"./{ARCHIVE}" if "-r" not in flags else f"-Wl,--whole-archive,./{ARCHIVE},--no-whole-archive"
        command = [compiler, *flags, f"-Wl,-Map,{path}", "-o", str(output), *self.objects, archive]
        done = subprocess.run(command, cwd=self.directory, check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return path

    def placed(self, placements: list[Placement]) -> Iterator[tuple[Placement, Function]]:
        """What the map says of their functions: a placement and a function that is in the section."""
        for placement in placements:
            for function in self.functions.get((placement.file.removeprefix("./"), placement.member), ()):
                if function.section == placement.section:
                    yield placement, function
