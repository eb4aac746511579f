"""add-section on objects and archives: what linkers make of them says what add-section says of the linked file."""

from __future__ import annotations

import shutil
import struct
import subprocess
import zlib
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from linker.merge.inputs import ObjectReader
from linker.objects.archive import read_members, rewrite_archive
from sframegen import Verdict, add_section, check, convert, read, remove
from sframegen.base.errors import FormatError, RefusedError, SframegenError
from sframegen.checks.finding import Severity
from sframegen.elf.file import ElfFile, open_elf
from sframegen.elf.records import SHDR_SIZE, SHF, SHT
from sframegen.elf.symbols import read_functions, sorted_functions
from sframegen.format.abi import AMD64
from sframegen.format.decode import SframeSection
from sframegen.format.layouts import FormatVersion
from sframegen.format.model import FunctionTable
from sframegen.tables.levels import LEVELS, LevelName
from tests.support.cross import ARM64, S390X, Machine
from tests.support.loops import for_each
from tests.support.peers import Compiler, Peers

HALVES = {
    "one": """
        #include <map>
        #include <stdexcept>
        #include <string>
        int other(int);
        template <class T> struct Kept { T value; Kept(T v) : value(v) {} ~Kept() { value = T(); } };
        int main(int argc, char **argv) {
            std::map<std::string, int> found;
            Kept<std::string> kept(argv[0]);
            for (int i = 0; i < argc; i++) found[argv[i]] = other(i);
            try { return std::stoi("x"); } catch (const std::exception &) { return found.size() == (size_t) argc ? 0 : 1; }
        }
    """,
    "two": """
        #include <map>
        #include <string>
        int unused(int x) { return std::to_string(x).size(); }
        int other(int x) {
            char room[x + 16] __attribute__((aligned(64)));
            std::map<std::string, int> found;
            found[std::to_string(x)] = x;
            __asm__ volatile("" ::"r"(room) : "memory");
            return found.size() + x;
        }
    """,
}
FLAGS = ("-x", "c++", "-O2", "-ffunction-sections")


def halves(compile_c: Compiler, directory: Path, *flags: str) -> dict[str, Path]:
    copies = {}
    for name, source in HALVES.items():
        made = compile_c(source, *FLAGS, "-c", *flags, name=f"{name}.o")
        copies[name] = directory / made.name
        shutil.copy(made, copies[name])
    return copies


def link(peers: Peers, out: Path, *arguments: str | Path) -> Path:
    subprocess.run(["g++", "-B", str(peers.tool("ld.lld")).rpartition("/")[0], "-o", out, *arguments], check=True)
    return out


def judge(linked: Path, peers: Peers, directory: Path, *left_out: str) -> int:
    """Asserts that the objects' functions have the rules that add-section gives the linked file; returns how many there are."""
    without, after = directory / "without", directory / "after"
    subprocess.run([peers.tool("objcopy"), "-R", ".sframe", linked, without], check=True)
    add_section(without, output=after, verify=False)
    expected, found = read(after), read(linked)
    judged = compared(expected, found, linked, *left_out)
    text = subprocess.run([peers.tool("readelf"), "--sframe", linked], check=True, capture_output=True, text=True)
    assert not text.stderr
    assert "SORTED" in text.stdout
    [section] = [one.header for one in open_elf(linked).sections if one.name == ".sframe"]
    others = [one.header.sh_offset for one in open_elf(linked).sections if one.header.sh_offset > section.sh_offset]
    assert section.sh_offset + section.sh_size <= min(others), "GNU ld wrote more than it had room for"
    return judged


def compared(expected: SframeSection, found: SframeSection, linked: Path, *left_out: str) -> int:
    """Asserts that both say the same of the functions, wherever a rule of either begins or ends; returns how many these are."""
    names = {one.name for path in linked.parent.glob("*.o") for one in read_functions(open_elf(path))} - {*left_out}
    judged = [symbol for symbol in sorted_functions(open_elf(linked)) if symbol.name in names and symbol.size]
    places = sorted({*begins(expected.table), *begins(found.table)})
    for symbol in judged:
        for pc in places[bisect_left(places, symbol.address) : bisect_left(places, symbol.address + symbol.size)]:
            assert found.rule_at(pc) == expected.rule_at(pc), (symbol.name, hex(pc))
    return len(judged)


def begins(table: FunctionTable) -> Iterator[int]:
    for function, (start, size) in enumerate(zip(table.start, table.size, strict=True)):
        yield from (start + offset for offset in table.row_start[table.first_row[function] : table.first_row[function + 1]])
        yield start + size


LINKS = {"plain": (), "gc": ("-Wl,--gc-sections",), "no-pie": ("-no-pie",), "shared": ("-shared",)}


@pytest.mark.dear
@pytest.mark.parametrize(
    ("linker", "kind", "level"),
    [*(("bfd", kind, level) for kind in LINKS for level in LEVELS), *(("mold", kind, "size") for kind in LINKS)],
)
def test_linkers_that_merge_link_what_add_section_makes(
    peers: Peers, compile_c: Compiler, tmp_path: Path, linker: str, kind: str, level: LevelName
) -> None:
    made = halves(compile_c, tmp_path, "-fno-pie" if kind == "no-pie" else "-fPIC")
    for path in made.values():
        assert add_section(path, optimize=level).covered_bytes
    peers.tool(f"ld.{linker}")
    linked = link(peers, tmp_path / "linked", f"-fuse-ld={linker}", *LINKS[kind], *made.values())
    assert judge(linked, peers, tmp_path) > 5
    if kind != "shared":
        subprocess.run([linked], check=True)
    found = sorted_functions(open_elf(linked))
    assert (kind == "gc") == ("_Z6unusedi" not in {symbol.name for symbol in found})


@pytest.mark.dear
@pytest.mark.parametrize("linker", ["ld.bfd", "ld.lld", "ld.mold"])
def test_relocatable_links(peers: Peers, compile_c: Compiler, tmp_path: Path, linker: str) -> None:
    made = halves(compile_c, tmp_path)
    for path in made.values():
        add_section(path)
    subprocess.run([peers.tool(linker), "-r", "-o", tmp_path / "joined.o", *made.values()], check=True)
    linked = link(peers, tmp_path / "linked", f"-fuse-ld={linker.replace('ld.', '')}", tmp_path / "joined.o")
    subprocess.run([linked], check=True)
    if linker != "ld.lld":  # which leaves the sections one after the other
        assert judge(linked, peers, tmp_path) > 5


def test_lld_links_and_drops_the_same_groups(peers: Peers, compile_c: Compiler, tmp_path: Path) -> None:
    made = halves(compile_c, tmp_path)
    for path in made.values():
        add_section(path)
    for flags in ((), ("-Wl,--icf=all",)):
        linked = link(peers, tmp_path / "linked", "-fuse-ld=lld", *flags, *made.values())
        subprocess.run([linked], check=True)
        change = convert(linked, 3)  # lld leaves the sections one after the other
        assert change.pieces > 2
        assert judge(linked, peers, tmp_path) > 5
        assert convert(linked, 3).section_bytes == 0
        subprocess.run([linked], check=True)
    linked = link(peers, tmp_path / "linked", "-fuse-ld=lld", "-Wl,--gc-sections", *made.values())
    change = convert(linked, 3)  # only groups keep their pieces: nothing refers to the others
    assert change.functions
    subprocess.run([linked], check=True)


def test_sections_of_two_versions_become_one(peers: Peers, compile_c: Compiler, tmp_path: Path) -> None:
    made = halves(compile_c, tmp_path)
    add_section(made["one"], version=2)
    add_section(made["two"], version=3)
    linked = link(peers, tmp_path / "linked", "-fuse-ld=lld", *made.values())
    assert convert(linked, 3).from_version == 2
    assert judge(linked, peers, tmp_path, "main") > 3
    subprocess.run([linked], check=True)


def test_an_archive_without_objects_is_not_called_good(peers: Peers, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("text")
    subprocess.run([peers.tool("ar"), "rcs", tmp_path / "a", tmp_path / "text"], check=True, capture_output=True)
    report = check(tmp_path / "a")
    assert [(one.rule, one.severity, one.message) for one in report.findings] == [
        ("no-sframe", Severity.WARNING, "it contains no objects; nothing to check")
    ]
    assert report.one_line() == f"{tmp_path / 'a'}: 1 warning"


def test_archives(peers: Peers, compile_c: Compiler, tmp_path: Path) -> None:
    made = halves(compile_c, tmp_path)
    archive, text = tmp_path / "both.a", tmp_path / "a_member_that_is_no_object.txt"
    text.write_text("odd")
    subprocess.run([peers.tool("ar"), "rcs", archive, *made.values(), text], check=True)
    nm = (peers.tool("nm"), "-s", archive)
    before = subprocess.run(nm, check=False, capture_output=True, text=True).stdout
    summary = add_section(archive)
    assert summary.section_bytes
    assert summary.coverage == 100
    assert subprocess.run(nm, check=False, capture_output=True, text=True).stdout == before
    assert "Archive index" in before
    linked = link(peers, tmp_path / "linked", archive)  # main too comes by way of the index
    subprocess.run([linked], check=True)
    assert judge(linked, peers, tmp_path) > 5
    size = archive.stat().st_size
    assert add_section(archive).note == "nothing to add"
    assert archive.stat().st_size == size


@pytest.mark.parametrize("machine", [ARM64, S390X], ids=lambda machine: machine.name)
@for_each("version", [2, 3])
def test_other_machines(machine: Machine, version: FormatVersion, peers: Peers, tmp_path: Path) -> None:
    made, linked = tmp_path / "made.o", tmp_path / "linked"
    shutil.copy(machine.compiler(peers, tmp_path)(HALVES["two"], *FLAGS, "-c", "-fPIC", name="two.o"), made)
    add_section(made, version=version)
    subprocess.run([peers.tool(f"{machine.prefix}ld"), "-shared", "-o", linked, made], check=True)
    if version == 3:
        without, after = tmp_path / "without", tmp_path / "after"
        subprocess.run([peers.tool(f"{machine.prefix}objcopy"), "-R", ".sframe", linked, without], check=True)
        add_section(without, output=after, verify=False)
        assert compared(read(after), read(linked), linked) > 3


def test_objects_keep_everything_that_they_had(peers: Peers, compile_c: Compiler, tmp_path: Path) -> None:
    made = halves(compile_c, tmp_path)["one"]
    before = made.read_bytes()
    add_section(made)
    assert made.read_bytes()[64 : len(before)] == before[64:]
    readelf = [peers.tool("readelf"), "-sW", str(made)]
    assert subprocess.run(readelf, check=True, capture_output=True, text=True).stderr == ""
    elf = open_elf(made)
    grouped = [section for section in elf.sections if section.header.sh_type == SHT.GNU_SFRAME]
    assert len(grouped) > 3  # those in no group, and a piece for each group that has code
    again = made.read_bytes()
    assert add_section(made).section_bytes == 0
    assert made.read_bytes() == again
    raw = bytearray(again)
    raw[grouped[0].header.sh_offset + grouped[0].header.sh_size - 1] ^= 0x10  # another rule
    made.write_bytes(raw)
    with pytest.raises(RefusedError, match="already has a different SFrame section"):
        add_section(made)


@for_each("level", LEVELS)
def test_functions_with_equal_rows_leave_the_sections_behind_alone(
    peers: Peers, compile_c: Compiler, tmp_path: Path, level: LevelName
) -> None:
    """GNU ld makes room for the objects' sections as they are, and writes the rows of each function apart."""
    made = tmp_path / "made.o"
    source = "int f(int);" + "".join(
        f'__attribute__((section(".text.g{n}"))) int g{n}(int x) {{ return f(x + {n}) * f(x); }}' for n in range(99)
    )
    shutil.copy(compile_c(source, "-O2", "-fPIC", "-c", name="made.o"), made)
    add_section(made, optimize=level)
    subprocess.run([peers.tool("ld"), "-shared", "-o", tmp_path / "linked", made], check=True)
    assert judge(tmp_path / "linked", peers, tmp_path) == 99


def test_debug_frame_serves_too(peers: Peers, compile_c: Compiler, tmp_path: Path) -> None:
    """Its CIE pointers are relocated: they count from the section's start, not from address 0."""
    made = tmp_path / "made.o"
    source = 'int f(int); int g(int x) { return f(x) + 1; } __attribute__((section(".odd"))) int h(int x) { return f(g(x)) + 2; }'
    shutil.copy(compile_c(source, "-O2", "-g", "-fPIC", "-fno-asynchronous-unwind-tables", "-c", name="made.o"), made)
    assert add_section(made).coverage == 100
    subprocess.run([peers.tool("ld"), "-shared", "-o", tmp_path / "linked", made], check=True)
    assert judge(tmp_path / "linked", peers, tmp_path) == 2


@pytest.fixture
def forms(peers: Peers, compile_c: Compiler, tmp_path: Path) -> dict[int, Path]:
    """One object twice, with SHT_RELA and, as Chromium has them, SHT_CREL."""
    source = compile_c(HALVES["two"], *FLAGS, "-S", "-fPIC", name="two.s")
    made = {SHT.RELA: tmp_path / "rela.o", SHT.CREL: tmp_path / "crel.o"}
    for form, path in made.items():
        flags = ("-filetype=obj", "-triple=x86_64-linux-gnu", *(["--crel"] if form == SHT.CREL else []))
        subprocess.run([peers.tool("llvm-mc"), *flags, "-o", path, source], check=True)
    return made


def test_objects_with_crel_relocations(forms: dict[int, Path], peers: Peers) -> None:
    """Linkers that read them make the same of both; GNU ld does not."""
    linked: dict[str, list[object]] = {"ld.lld": [], "mold": [], "ours": []}
    for path in forms.values():
        before = path.read_bytes()
        assert add_section(path).coverage == 100
        kinds = {section.header.sh_type for section in open_elf(path).sections if "sframe" in section.name}
        assert kinds == {SHT.GNU_SFRAME, SHT.RELA}
        assert add_section(path).section_bytes == 0  # it is there
        assert check(path).findings == ()
        linked["ours"].append([one[1:] for one in ObjectReader(AMD64).open(memoryview(path.read_bytes()), "").described_sections()])
        for linker in ("ld.lld", "mold"):
            out = path.with_suffix(f".{linker}")
            subprocess.run([peers.tool(linker), "-shared", "-o", out, path], check=True)
            elf = open_elf(out)
            linked[linker].append([bytes(elf.contents(section)) for section in elf.sections if section.name == ".sframe"])
        remove(path)
        assert path.read_bytes() == before
    assert all(made == [made[0]] * 2 and made[0] for made in linked.values())
    assert check(forms[SHT.CREL].with_suffix(".mold"), consumer="kernel").code[Verdict.WRONG] == 0


@for_each("form", [SHT.REL, 0x60000001, SHT.CREL])
def test_relocations_that_are_not_read_are_no_absent_ones(form: int, forms: dict[int, Path]) -> None:
    """Another type of section; SHT_CREL without addends (the bit 4 of its first byte), or cut off."""
    path = forms[SHT.CREL if form == SHT.CREL else SHT.RELA]
    data, elf = bytearray(path.read_bytes()), open_elf(path)
    [table] = [section for section in elf.sections if section.name in (".crel.eh_frame", ".rela.eh_frame")]
    header = elf.header.e_shoff + table.number * SHDR_SIZE
    faults = [(header + 4, struct.pack("<I", form), "relocations of section type")]
    if form == SHT.CREL:
        place = table.header.sh_offset
        faults = [(header + 32, struct.pack("<Q", 9), "cut off"), (place, bytes([data[place] & ~4]), "with their addends in place")]
    for at, value, message in faults:
        changed = bytearray(data)
        changed[at : at + len(value)] = value
        path.write_bytes(changed)
        with pytest.raises(FormatError, match=message):
            add_section(path)
        assert path.read_bytes() == changed


def test_a_compressed_symbol_table_does_no_harm(compile_c: Compiler, tmp_path: Path) -> None:
    """Nobody compresses one: expanded, it would not be where its entries are written to."""
    raw = bytearray(compile_c(HALVES["two"], *FLAGS, "-c", name="two.o").read_bytes())
    elf = ElfFile(memoryview(bytes(raw)))
    [table] = [section for section in elf.sections if section.header.sh_type == SHT.SYMTAB]
    expanded = b"".join(struct.pack("<IBBHQQ", 0, 0, 0, 1, value, 0) for value in range(10_000))
    packed = struct.pack("<IIQQ", 1, 0, len(expanded), 8) + zlib.compress(expanded)
    shdr = struct.Struct("<IIQQQQIIQQ")
    header = table.header._replace(sh_flags=SHF.COMPRESSED, sh_offset=len(raw), sh_size=len(packed))
    shdr.pack_into(raw, elf.header.e_shoff + table.number * shdr.size, *header)
    path = tmp_path / "two.o"
    path.write_bytes(raw + packed)
    with suppress(SframegenError):
        add_section(path)


ARCHIVE = b"!<arch>\n"


def member(name: bytes, contents: bytes) -> bytes:
    header = b"%-16s%-12d%-6d%-6d%-8s%-10d`\n" % (name, 0, 0, 0, b"644", len(contents))
    return header + contents + b"\n" * (len(contents) % 2)


@for_each(
    ("raw", "said"),
    [
        (b"!<thin>\n", "a thin archive"),
        (ARCHIVE + b"x" * 59, "expected 60 bytes of member header, have 59"),
        (ARCHIVE + b"x" * 60, "not the header of a member"),
        (ARCHIVE + member(b"a.o/", b"1234")[:-1], "not the header of a member"),
        (ARCHIVE + member(b"__.SYMDEF", b""), "BSD's format"),
    ],
)
def test_archives_that_are_refused(raw: bytes, said: str) -> None:
    with pytest.raises(FormatError, match=said):
        read_members(memoryview(raw), "lib.a")


def test_an_index_that_names_no_member_is_refused() -> None:
    index = struct.pack(">II", 1, 7) + b"one\0"
    found = read_members(memoryview(ARCHIVE + member(b"/", index) + member(b"a.o/", b"1234")), "lib.a")
    with pytest.raises(FormatError, match="where no member is"):
        list(rewrite_archive(found, {}, "lib.a"))
