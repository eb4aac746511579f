"""Maps of links: each function is where the map has its section, judged by the symbol tables of what was linked."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from linker.merge import maps
from linker.merge.maps import MAX_LINE, Placement, _MapLines, _read_placements, read_map
from sframegen.base.errors import FormatError
from sframegen.elf.file import open_elf
from tests.support.cross import ARM64, S390X, Machine
from tests.support.inputs.map_inputs import ARCHIVE, BEFORE_MOLD_3, FOLDING, MAKERS, RELOCATABLE, Inputs, Maker, functions
from tests.support.loops import for_each
from tests.support.peers import Peers, needs_compiler


@pytest.fixture(scope="session")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Inputs:
    needs_compiler("g++")
    return Inputs(tmp_path_factory.mktemp("inputs"))


KINDS = {
    "pie": ("-pie",),
    "no-pie, gc": ("-no-pie", "-Wl,--gc-sections"),
    "other looks": ("-pie",),
    "shared": ("-shared",),
    "static, gc": ("-static", "-Wl,--gc-sections"),
}


@for_each("kind", KINDS)
@pytest.mark.parametrize("maker", MAKERS, ids=lambda maker: maker.name)
def test_every_function_is_where_the_map_has_its_section(
    maker: Maker, kind: str, inputs: Inputs, peers: Peers, tmp_path: Path
) -> None:
    file = tmp_path / "linked"
    looks = (maker.looks,) if kind == "other looks" else ()
    map_file = inputs.link(file, *maker.flags(peers), *KINDS[kind], *looks)
    placements = list(read_map(map_file))
    by_map = {(function.name, placement.address + function.value) for placement, function in inputs.placed(placements)}
    by_symbols = {(function.name, function.value) for function in functions(file) if function.name in inputs.names}
    assert by_map == by_symbols
    assert ("f0_unused" in dict(by_map)) == ("gc" not in kind)
    assert {placement.member for placement in placements if placement.file.endswith(ARCHIVE)} == {
        member for file, member in inputs.functions if file == ARCHIVE
    }
    assert all(placement.size and not placement.section.startswith(".eh_frame+") for placement in placements)
    code = open_elf(file).executable_ranges()

    def has_code(_: str, address: int, size: int) -> bool:
        return any(start < address + size and address < end for start, end in code)

    fewer = list(read_map(map_file, has_code))
    assert len(fewer) < len(placements)
    assert [p for p in fewer if has_code("", p.address, p.size)] == [p for p in placements if has_code("", p.address, p.size)]


@pytest.mark.parametrize("maker", FOLDING, ids=lambda maker: maker.name)
def test_folded_functions_have_no_place_of_their_own(maker: Maker, inputs: Inputs, peers: Peers, tmp_path: Path) -> None:
    file = tmp_path / "linked"
    map_file = inputs.link(file, *maker.flags(peers), "-pie", "-Wl,--icf=all")
    by_map = {f.name: p.address + f.value for p, f in inputs.placed(list(read_map(map_file)))}
    by_symbols = {f.name: f.value for f in functions(file) if f.name in inputs.names}
    assert by_map.items() <= by_symbols.items()
    folded = by_symbols.keys() - by_map.keys()
    assert {by_symbols[name] for name in folded} <= set(by_map.values())
    assert len(folded & {"f0_twin_1", "f0_twin_2"}) == 1


def check_relocatable(inputs: Inputs, file: Path, map_file: Path) -> set[str]:
    """Offsets in output sections; `output_number` stands for one section of the output, of several of one name too. Their names."""
    placements = list(read_map(map_file))
    found = {(f.name, p.output, p.address + f.value): p.output_number for p, f in inputs.placed(placements)}
    linked = {(f.name, f.section, f.value): f.number for f in functions(file) if f.name in inputs.names}
    assert found.keys() == linked.keys()
    pairs = {(found[key], linked[key]) for key in found}
    assert len(pairs) == len({number for number, _ in pairs}) == len({number for _, number in pairs})
    assert {(p.file.removeprefix("./"), p.member) for p in placements} == inputs.functions.keys()
    for name in {placement.output for placement in placements}:
        found_there = read_map(map_file, lambda output, *_, wanted=name: output == wanted)
        assert [p for p in found_there if p.output == name] == [p for p in placements if p.output == name]
    return {output for _, output, _ in found}


@pytest.mark.parametrize("maker", RELOCATABLE, ids=lambda maker: maker.name)
def test_places_in_relocatable_output(maker: Maker, inputs: Inputs, peers: Peers, tmp_path: Path) -> None:
    file = tmp_path / "linked.o"
    names = check_relocatable(inputs, file, inputs.link(file, *maker.flags(peers), "-r", "-nostdlib"))
    assert {".text", ".text.f0_used", ".text._Z5twiceIlET_S0_"} <= names
    if maker is MAKERS[0]:  # several output sections of one name
        check_relocatable(inputs, file, inputs.link(file, *maker.flags(peers), "-r", "-nostdlib", "-Wl,--unique=.text"))
        assert len({function.number for function in functions(file) if function.section == ".text"}) > 1


def test_gold_does_not_say_where_it_puts_sections_of_relocatable_output(inputs: Inputs, peers: Peers, tmp_path: Path) -> None:
    (gold,) = (maker for maker in MAKERS if maker.fuse == "gold")
    map_file = inputs.link(tmp_path / "linked.o", *gold.flags(peers), "-r", "-nostdlib")
    with pytest.raises(FormatError, match=r"line \d+: gold's maps of -r links do not name input sections"):
        list(read_map(map_file))


def test_nobody_waits_for_a_map_that_nobody_writes(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(FormatError, match="nobody writes to this FIFO"):
        list(read_map(tmp_path / "fifo"))


@pytest.fixture(scope="session")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Inputs]:
    return functools.cache(lambda prefix: Inputs(tmp_path_factory.mktemp("foreign"), prefix + "gcc"))


@for_each("flags", ["-shared", "-r"])
@pytest.mark.parametrize(
    ("machine", "linker"),
    [(ARM64, "aarch64-linux-gnu-ld"), (ARM64, "ld.lld"), (S390X, "s390x-linux-gnu-ld")],
    ids=lambda value: getattr(value, "name", value),
)
def test_other_machines(
    machine: Machine, linker: str, flags: str, foreign: Callable[[str], Inputs], peers: Peers, tmp_path: Path
) -> None:
    needs_compiler(machine.prefix + "g++")
    (tmp_path / "ld").symlink_to(peers.tool(linker))
    inputs = foreign(machine.prefix)
    file = tmp_path / "linked"
    map_file = inputs.link(file, "-B", f"{tmp_path}/", flags, "-nostdlib", compiler=machine.prefix + "gcc")
    if flags == "-r":
        check_relocatable(inputs, file, map_file)
    else:
        by_map = {(f.name, p.address + f.value) for p, f in inputs.placed(list(read_map(map_file)))}
        assert by_map == {(f.name, f.value) for f in functions(file) if f.name in inputs.names}


FAR = """
    .section .text.near, "ax"
    .globl _start
_start: bl far
    .section .far, "ax"
    .globl far
    .type far, %function
far: ret
"""


@pytest.mark.parametrize("linker", ["aarch64-linux-gnu-ld", "ld.lld"])
def test_stubs_that_linkers_make_are_no_inputs(linker: str, peers: Peers, tmp_path: Path) -> None:
    subprocess.run([peers.tool("aarch64-linux-gnu-as"), "-o", tmp_path / "far.o"], input=FAR, text=True, check=True)
    starts = ("--section-start=.text=0x30000000", "--section-start=.far=0x20000000")
    subprocess.run([peers.tool(linker), *starts, "-Map", "far.map", "-o", "far", "far.o"], cwd=tmp_path, check=True)
    text = (tmp_path / "far.map").read_text()
    assert "linker stubs" in text or "<internal>:(.text.thunk)" in text
    near, far = sorted(read_map(tmp_path / "far.map"), key=lambda placement: placement.section, reverse=True)
    assert near[:3] == ("far.o", "", ".text.near")
    assert far._replace(output_number=0) == Placement("far.o", "", ".far", 0x20000000, 4, ".far", 0)


@pytest.mark.parametrize("maker", [maker for maker in BEFORE_MOLD_3 if maker.fuse != "lld"], ids=lambda maker: maker.name)
def test_what_link_time_optimisation_makes(maker: Maker, peers: Peers, tmp_path: Path) -> None:
    file = tmp_path / "linked"
    flags = [*maker.flags(peers), "-flto", "-O2", "-x", "c", "-", "-o", str(file), f"-Wl,-Map,{file}.map"]
    source = "__attribute__((noinline)) int kept(int a) { return a / 3; } int main(int c, char **v) { return kept(c); }"
    subprocess.run(["gcc", *flags], input=source, text=True, check=True)
    addresses = {f.value for f in functions(file) if f.name in ("main", "kept")}
    places = [p for p in read_map(f"{file}.map") if ".ltrans" in p.file and p.section.startswith(".text")]
    assert len(addresses) == 2
    assert all(any(p.address <= address < p.address + p.size for p in places) for address in addresses)


SCRIPT = """
MEMORY { ROM (rx) : ORIGIN = 0x10000, LENGTH = 1M  RAM (rw) : ORIGIN = 0x4000000, LENGTH = 1M }
SECTIONS {
  first = .;
  .text : {
    *(.text.none) BYTE(0x90) LONG(3) *(.text.a_pattern_that_is_long*) SHORT(1) QUAD(7)
    FILL(0x9090) *(.text .text.*) . = ALIGN(64); ASSERT(1, "true"); PROVIDE(unused = .);
  } >ROM =0x90
  .an_output_section_of_a_long_name : { *(.of_a_long_name*) } >ROM
  .data : { *(.data*) *(COMMON) last = .; } >RAM AT>ROM
  .never : { *(.never) }
  /DISCARD/ : { *(.dropped_section) }
}
"""
SCRIPTED = """
    .section .text.a, "ax"
    .skip 3
    .section ".text.b 0x10 (c)", "ax"
    .p2align 4
    .skip 5
    .section .of_a_long_name, "a"
    .skip 2
    .section .data.d, "aw"
    .skip 4
    .comm common, 8
    .section .dropped_section, "a"
    .skip 1
"""
PLACES = [
    (".text.a", 0x1000F, 3, ".text"),
    (".text.b 0x10 (c)", 0x10020, 5, ".text"),
    (".of_a_long_name", 0x10040, 2, ".an_output_section_of_a_long_name"),
    (".data.d", 0x4000000, 4, ".data"),
    ("COMMON", 0x4000008, 8, ".data"),
]


@pytest.mark.parametrize("linker", ["ld", "system ld", "ld.lld"])
def test_a_linker_script(linker: str, peers: Peers, tmp_path: Path) -> None:
    (tmp_path / "script").write_text(SCRIPT)
    subprocess.run([peers.tool("as"), "-o", tmp_path / "an object.o"], input=SCRIPTED, text=True, check=True)
    program = shutil.which("ld") if linker == "system ld" else peers.tool(linker)
    command = [str(program), "-T", "script", "-Map", "map", "-o", "out", "an object.o", "--cref"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    placements = list(read_map(tmp_path / "map"))
    assert {(p.file, p.member) for p in placements} == {("an object.o", "")}
    assert [p[2:6] for p in placements] == PLACES


GNU_MAP = """
Memory Configuration

Name             Origin             Length             Attributes
*default*        0x0000000000000000 0xffffffffffffffff

Linker script and memory map

LOAD a.o

.text           0x0000000000001000       0x28
 *(.text)
 .text          0x0000000000001000       0x10 a.o
                0x0000000000001004                main
 .text.a_long_name
                0x0000000000001010       0x10 lib.a(b.o)
                                         0x14 (size before relaxing)
 *fill*         0x0000000000001020        0x8 90
OUTPUT(a.out elf64-x86-64)
"""
GOLD_MAP = """
Memory map

 ** file header
                0x0000000000000000       0x40

.text           0x0000000000001000       0x20
 .text          0x0000000000001000       0x10 a.o
                0x0000000000001004                main
 .text.a_long_name
                0x0000000000001010       0x10 lib.a(b.o)
"""
LLD_MAP = """\
             VMA              LMA     Size Align Out     In      Symbol
            1000             1000       20    16 .text
            1000             1000       10    16         a.o:(.text)
            1004             1004        2     1                 main
            1010             1010       10    16         lib.a(b.o):(.text.a_long_name)
            1020             1020       10    16         <internal>:(.text)
"""
MOLD_MAP = """\
               VMA       Size Align Out     In      Symbol
            0x1000         32    16 .text
            0x1000         16    16         a.o:(.text)
            0x1004          0     0                 main
            0x1010         16    16         lib.a(b.o):(.text.a_long_name)
                 0         64     8 SHDR
"""
MAPS = {"GNU": GNU_MAP, "gold": GOLD_MAP, "lld": LLD_MAP, "mold": MOLD_MAP}


def read_text(text: str | bytes) -> list[Placement]:
    data = io.BytesIO(text if isinstance(text, bytes) else text.encode())
    with io.TextIOWrapper(data, encoding="utf-8", errors="surrogateescape", newline="\n") as stream:
        return list(_read_placements(_MapLines(stream, "the map"), lambda *_: True))


@for_each("maker", MAPS)
def test_small_maps(maker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of the file may end anywhere, headings be in any language, names have any bytes."""
    text = MAPS[maker]
    whole = read_text(text)
    assert whole == [
        Placement("a.o", "", ".text", 0x1000, 0x10, ".text", 0),
        Placement("lib.a", "b.o", ".text.a_long_name", 0x1010, 0x10, ".text", 0),
    ]
    for size in (1, 2, 7, 30, 200):
        monkeypatch.setattr(maps, "BLOCK", size)
        assert read_text(text) == whole
    german = text.replace("Memory Configuration", "Speicherkonfiguration").replace("Linker script and memory map", "Linker-Skript")
    assert read_text(german) == whole
    if maker == "lld":
        (first, _) = read_text(text.encode().replace(b" a.o:", b" \xff\r\x85.o:"))
        assert os.fsencode(first.file) == b"\xff\r\x85.o"


@for_each("maker", MAPS)
def test_a_map_that_is_cut_off(maker: str) -> None:
    """Within a line it is an error, between lines what is there so far, or an error where a line lacks its second half."""
    text = MAPS[maker]
    whole = read_text(text)
    for end in range(len(text)):
        try:
            found = read_text(text[:end])
        except FormatError as error:
            assert str(error).startswith("the map: ")  # noqa: PT017 - not each length fails
        else:
            assert text[end - 1] == "\n"
            assert found == whole[: len(found)]
            assert not text[:end].endswith("long_name\n")


@for_each(
    ("maker", "old", "new", "line", "message"),
    [
        ("GNU", "0x10 a.o", "16 a.o", 13, "not what a linker writes"),
        ("GNU", "1000       0x10 a.o", "1000", 13, "not what a linker writes"),
        ("GNU", "0x0000000000001010       0x10 lib", "", 15, "not what a linker writes: ' .text.a_long_name'"),
        ("GNU", "0x0000000000001010 ", "0x1010g ", 16, "not what a linker writes"),
        ("GNU", "0x0000000000001010 ", "0xfffffffffffffff1 ", 16, "0x10 bytes at 0xfffffffffffffff1 do not fit"),
        ("lld", "1004        2", "1004        z", 4, "not what a linker writes"),
        ("lld", "1010       10 ", "1010 10000000000000000", 5, "not what a linker writes"),
        ("lld", "1010             1010       10 ", "1010 1010 ffffffffffffffff", 5, "do not fit into the address space"),
        ("mold", "0x1010         16", "0x1010         1a", 5, "not what a linker writes"),
        ("mold", "0x1010         16", "0x1010 99999999999999999999", 5, "do not fit into the address space"),
        ("mold", "0x1004          0", "1004          0", 4, "not what a linker writes"),
    ],
)
def test_lines_that_cannot_be_right(maker: str, old: str, new: str, line: int, message: str) -> None:
    assert MAPS[maker].count(old) == 1
    with pytest.raises(FormatError) as raised:
        read_text(MAPS[maker].replace(old, new))
    assert raised.value.place == f"line {line}"
    assert message in raised.value.message


@for_each("text", ["", "\n", "int main;\n", "VMA\n", "Archive member included\n\nMemory map of mine\n"])
def test_what_is_no_map(text: str) -> None:
    with pytest.raises(FormatError, match="not a map of GNU ld, gold, lld or mold"):
        read_text(text)


@for_each("maker", MAPS)
def test_it_is_read_line_by_line(maker: str, tmp_path: Path) -> None:
    file = tmp_path / "map"
    file.write_text(MAPS[maker] + "x" * MAX_LINE + "\n")
    placements = read_map(file)
    assert next(placements).file == "a.o"
    with pytest.raises(FormatError, match=r"line \d+: too long"):
        list(placements)


@for_each("maker", MAPS)
@for_each("part", [" ", "(", ")", " 0x1", " 0x1 0x1", ":(", " 1", " x"])
def test_long_lines_take_no_more_than_their_length(maker: str, part: str) -> None:
    """By the cap on a test's time: the square of a line's length would take hours."""
    for begin in (
        "",
        " ",
        " .text",
        "            1000             1000       10    16         ",
        "  0x1000         16    16         ",
    ):
        with contextlib.suppress(FormatError):
            read_text(MAPS[maker] + begin + part * ((MAX_LINE - 100) // len(part)) + "\n")
