"""merge: many sections -> one, by properties, on objects that GNU as made, and on damaged ones; the reader of usual objects."""

from __future__ import annotations

import resource
import shutil
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from linker.merge import inputs
from linker.merge.inputs import InputObject, ObjectReader, UnusualObject, UsualObject
from sframegen import add_section, check, merge, read
from sframegen.base.errors import FormatError
from sframegen.elf.file import ElfFile, open_elf
from sframegen.elf.records import Shdr
from sframegen.elf.symbols import find_functions_named
from sframegen.format.abi import AARCH64, AMD64, Abi
from sframegen.format.decode import SframeSection, decode
from sframegen.format.encode import Encoder
from sframegen.format.layouts import V2, V3, WRITABLE, FormatVersion, Layout
from sframegen.format.model import OUTERMOST, FunctionTable
from sframegen.format.words import Reason
from sframegen.tables.compare import find_difference
from sframegen.tables.gather import Merger
from tests.fuzz.seeds import seed
from tests.support.commands import run as invoke
from tests.support.loops import for_each
from tests.support.peers import Compiler, Peers
from tests.support.producers import functions
from tests.support.tables import content, function_tables

CODE = [(0x1000, 1 << 40)]
SOURCES = {
    "main.c": "int twice(int); static int own(int a) { return twice(a) - 1; } int main(int n, char **v) { return own(n) != 1; }",
    "twice.c": "int add(int, int); int twice(int a) { return add(a, a); } int unused(int a) { return add(a, 1) + twice(a); }",
    "add.c": "int add(int a, int b) { volatile int room[40] = {a}; return room[0] + b; }",
}


def section_of(table: FunctionTable, layout: Layout = V3, flags: int = 0) -> SframeSection:
    encoder = Encoder(table, AMD64, layout)
    encoder.flags |= flags
    return decode(encoder.encode(0x500000), 0x500000)


def merged(*sections: SframeSection) -> FunctionTable:
    merger = Merger()
    for section in sections:
        merger.add(section)
    return merger.build_table(CODE)[0]


def parts(table: FunctionTable, owners: list[int], count: int) -> list[FunctionTable]:
    return [table.select([f for f in range(len(table)) if owners[f % len(owners)] == part]) for part in range(count)]


@pytest.mark.dear
@settings(max_examples=40)
@pytest.mark.parametrize("layout", [V2, V3], ids=["V2", "V3"])
@given(st.data())
def test_merging_is_independent_of_how_functions_are_spread_over_inputs(layout: Layout, data: st.DataObject) -> None:
    table = data.draw(function_tables(AMD64, layout))
    owners = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=8))
    order = data.draw(st.permutations(range(4)))
    sections = [section_of(part, layout) for part in parts(table, owners, 4)]
    whole = merged(section_of(table, layout))
    assert content(whole) == content(table)
    assert content(merged(*(sections[number] for number in order))) == content(whole)
    first = section_of(merged(*sections[:2]), layout)
    last = section_of(merged(*sections[2:]), layout)
    assert content(merged(first, *sections[2:])) == content(merged(*sections[:2], last)) == content(whole)


# -- objects and maps


class Link:
    """Objects of SOURCES with GNU as's sections, linked by GNU ld with a map, without the `.plt.got` whose row ld has wrong."""

    def __init__(self, compile_c: Compiler, peers: Peers, directory: Path, *flags: str) -> None:
        self.peers, self.directory = peers, directory
        self.objects = []
        for name, source in SOURCES.items():
            made = compile_c(source, "-O1", "-ffunction-sections", "-Wa,--gsframe", "-c", name=f"{name}.o", peer_binutils=True)
            self.objects.append(directory / made.name)
            shutil.copy(made, self.objects[-1])
        self.program, self.map = self.link("program", *self.objects, *flags)

    def link(self, name: str, *arguments: str | Path) -> tuple[Path, Path]:
        out, map_file = self.directory / name, self.directory / f"{name}.map"
        binaries = self.peers.tool("ld").rpartition("/")[0]
        subprocess.run(
            ["gcc", "-no-pie", "-B", binaries, "-o", out, f"-Wl,-Map={map_file}", *arguments], check=True, capture_output=True
        )
        return out, map_file

    def merge(self, *objects: Path) -> Path:
        out = self.directory / "merged"
        merge(objects or self.objects, out, executable=self.program, map_file=self.map, verify=False)
        return out

    def readelf(self, path: Path) -> str:
        command = [self.peers.tool("readelf"), "--sframe", str(path)]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def linked(compile_c: Compiler, peers: Peers, tmp_path: Path) -> Link:
    return Link(compile_c, peers, tmp_path)


def header_of(path: Path, name: str) -> Shdr:
    section = open_elf(path).section(name)
    assert section is not None
    return section.header


def overwrite(path: Path, offset: int, data: bytes, section: str = "") -> None:
    offset += header_of(path, section).sh_offset if section else 0
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def test_by_its_map_a_program_gets_the_section_that_ld_made(linked: Link) -> None:
    assert linked.readelf(linked.merge()) == linked.readelf(linked.program)
    assert subprocess.run([linked.merge()], check=False).returncode == 0


def test_kernels_take_no_section_of_code_in_several_places(linked: Link, compile_c: Compiler) -> None:
    far = compile_c('__attribute__((section(".far"))) int far(void) { return 1; }', "-c", name="far.o")
    program, map_file = linked.link("far", *linked.objects, far, "-Wl,--section-start=.far=0x10000000")
    assert len(open_elf(program).executable_loads()) == 2
    out = linked.directory / "out"
    warnings = merge(linked.objects, out, executable=program, map_file=map_file).warnings
    found = [finding for finding in check(out, consumer="kernel").findings if finding.rule == "kernel-one-text"]
    assert tuple(finding.message for finding in found) == warnings != ()
    assert merge(linked.objects, out, executable=linked.program, map_file=linked.map).warnings == ()


def test_names_of_section_groups_may_be_long(linked: Link, compile_c: Compiler, tmp_path: Path) -> None:
    name = "e" * 1300
    source = f"""
        enum {name} : int {{}};
        template <class T> __attribute__((noinline)) int grouped(T a) {{ volatile int b[9] = {{(int) a}}; return b[0]; }}
        int main(int n, char **) {{ return grouped({name}(n)) + grouped(n) != 2; }}
    """
    made = compile_c(source, "-x", "c++", "-O1", "-c", "-Wa,--gsframe", name="long.o", peer_binutils=True)
    assert max(len(section.name) for section in open_elf(made).sections) > len(name)
    program, map_file = linked.link("long", made)
    report = merge([made], tmp_path / "merged", executable=program, map_file=map_file, verify=False)
    assert (report.dropped, report.silent) == (0, ())
    assert linked.readelf(tmp_path / "merged") == linked.readelf(program)


def test_code_that_ld_dropped_has_no_function(compile_c: Compiler, peers: Peers, tmp_path: Path) -> None:
    linked = Link(compile_c, peers, tmp_path, "-Wl,--gc-sections")
    report = merge(linked.objects, tmp_path / "out", executable=linked.program, map_file=linked.map)
    assert (report.objects, report.dropped, report.unknown) == (3, 1, 0)
    theirs = read(linked.program).table
    ours = read(tmp_path / "out").table
    assert set(map(repr, content(theirs))) <= set(map(repr, content(ours)))
    assert len(ours) == len(theirs) + report.plt_functions  # of which ld forgets with --gc-sections


def test_linked_code_that_no_object_describes_is_counted(linked: Link) -> None:
    main, twice, add = linked.objects
    lost = next(section for section in open_elf(main).sections if section.name in (".text.main", ".text.startup.main"))
    overwrite(main, 8, bytes(8), ".rela.sframe")  # an empty relocation: of dropped code
    subprocess.run([linked.peers.tool("objcopy"), "-R", ".sframe", "-R", ".rela.sframe", add], check=True)
    code_size = header_of(add, ".text.add").sh_size
    out = linked.directory / "out"
    report = merge([main, twice, add], out, executable=linked.program, map_file=linked.map, verify=False)
    undescribed = dict(report.undescribed)
    strangers = undescribed.pop("in files that were not given")
    assert strangers > 0
    assert undescribed == {
        "in objects without .sframe": code_size,
        "in sections that their object's .sframe does not describe": lost.header.sh_size,
    }
    assert report.silent == (f"{main}: {lost.name}",)
    all_bytes = code_size + lost.header.sh_size + strangers
    done = invoke("merge", "-v", "--map", linked.map, "-o", out, linked.program, *linked.objects)
    assert f"; {all_bytes:,} bytes of linked code that no object describes\n" in done.output
    assert f"  does not describe its section: {main}: {lost.name}\n" in done.output


def test_names_of_objects_are_no_options_of_the_linker(linked: Link, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(linked.directory)
    for name in ("-Map=written.o", "@arguments.o"):
        shutil.copy(linked.objects[2], name)
        report = merge([*linked.objects[:2], name], "out.o", linker=linked.peers.tool("ld"))
        assert (report.objects, report.functions) == (3, 4)
    assert not (linked.directory / "written.o").exists()


def test_what_ld_r_makes_links_like_the_objects(linked: Link) -> None:
    out = linked.directory / "all.o"
    report = merge(linked.objects, out, linker=linked.peers.tool("ld"))
    assert (report.objects, report.functions) == (3, 4)
    program, _ = linked.link("from_all", out)
    assert linked.readelf(program) == linked.readelf(linked.program)
    again = linked.directory / "again.o"
    merge([out], again, linker=linked.peers.tool("ld"))
    program, _ = linked.link("from_again", again)
    assert linked.readelf(program) == linked.readelf(linked.program)


@pytest.mark.parametrize("first", [0, 1])
def test_objects_that_are_opened_while_the_linker_runs_are_merged_as_others(
    linked: Link, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports = []
    for name, number in (("one", first), ("other", inputs.MAX_EARLY_OBJECTS)):
        monkeypatch.setattr(inputs, "MAX_EARLY_OBJECTS", number)
        done: list[tuple[int, int]] = []
        out = linked.directory / name
        report = merge(
            linked.objects, out, linker=linked.peers.tool("ld"), progress=lambda *numbers, done=done: done.append(numbers)
        )
        reports.append((replace(report, file="", output=""), out.read_bytes(), done))
    assert reports[0] == reports[1]
    assert reports[0][2] == [(1, 3), (2, 3), (3, 3)]
    calls: list[tuple[int, int]] = []
    merge(linked.objects, out, executable=linked.program, map_file=linked.map, progress=lambda *one: calls.append(one))
    assert calls == reports[0][2]


def test_objects_that_change_while_the_linker_runs_are_read_as_they_are_then(
    linked: Link, compile_c: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were opened before: a linker may be a script that works on its objects first."""
    without = compile_c(SOURCES["add.c"], "-O1", "-ffunction-sections", "-c", name="without.o")
    new = Path(shutil.copy(without, linked.directory / "new.o"))
    open_early = inputs.Inputs.open_early

    def then_change(given: inputs.Inputs) -> None:
        open_early(given)
        new.rename(linked.objects[2])  # at once: the linker runs already

    monkeypatch.setattr(inputs.Inputs, "open_early", then_change)
    report = merge(linked.objects, linked.directory / "out.o", linker=linked.peers.tool("ld"))
    assert (report.objects, report.objects_without) == (2, 1)


def test_objects_may_be_more_than_files_that_a_process_may_have_open(
    compile_c: Compiler, peers: Peers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = "static __attribute__((used)) int add(int a) { volatile int room[40] = {a}; return room[0]; }"
    made = compile_c(source, "-O1", "-c", "-Wa,--gsframe", peer_binutils=True)
    objects = [Path(shutil.copy(made, tmp_path / f"{number}.o")) for number in range(inputs.MAX_EARLY_MAPPED + 100)]
    monkeypatch.setattr(inputs, "MAX_UNMAPPED", 0)  # as if they were large
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = max(int(entry.name) for entry in Path("/proc/self/fd").iterdir())
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + inputs.MAX_EARLY_MAPPED + 50, limits[1]))
    try:
        report = merge(objects, tmp_path / "out.o", linker=peers.tool("ld"))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert report.objects == len(objects)


GROUPS = """
    inline __attribute__((noinline)) int grouped(int a) { volatile int b[9] = {a}; return b[0]; }
    int unused(int a) { return grouped(a) + 1; }
    int main(int n, char **) { return n - 1; }
"""


@for_each("given", ["unchanged", "with a piece for each group"])
def test_ld_collects_garbage_from_what_merge_made_as_from_the_objects(
    compile_c: Compiler, peers: Peers, tmp_path: Path, given: str
) -> None:
    flags = ("-x", "c++", "-O1", "-ffunction-sections", "-c")
    source = tmp_path / "grouped.o"
    if given == "unchanged":
        shutil.copy(compile_c(GROUPS, *flags, "-Wa,--gsframe", peer_binutils=True), source)
    else:
        shutil.copy(compile_c(GROUPS, *flags), source)
        add_section(source)
    merge([source], tmp_path / "one.o", linker=peers.tool("ld"))
    assert sum(section.name == ".sframe" for section in open_elf(tmp_path / "one.o").sections) == 1
    linked = Link(compile_c, peers, tmp_path)
    program, _ = linked.link("collected", tmp_path / "one.o", "-Wl,--gc-sections")
    assert not list(find_functions_named(open_elf(program), b"_Z6unusedi"))
    assert not list(find_functions_named(open_elf(program), b"_Z7groupedi"))
    whole, _ = linked.link("whole", tmp_path / "one.o")
    [function] = find_functions_named(open_elf(whole), b"_Z7groupedi")
    assert function.address in list(read(whole).table.start)


def test_the_object_is_blamed_for_what_its_linker_stumbles_over(linked: Link) -> None:
    with pytest.raises(FormatError, match=r"^/bin/true: -r wrote no object and no map$"):
        merge(linked.objects, linked.directory / "out.o", linker="/bin/true")
    overwrite(linked.objects[1], 8, b"\xe8\3", ".sframe")
    linker = linked.directory / "ld"
    linker.write_text("#!/bin/sh\necho own words >&2\nexit 3\n")
    linker.chmod(0o755)
    with pytest.raises(FormatError, match=r"twice\.c\.o: \.sframe\+0x8: 1000 functions do not fit") as error:
        merge(linked.objects, linked.directory / "out.o", linker=str(linker))
    assert error.value.__notes__ == ["own words"]


def test_no_map_is_trusted_that_a_full_disk_may_have_cut_off(linked: Link) -> None:
    linker = linked.directory / "filling"
    linker.write_text(f"""#!/bin/sh\n{linked.peers.tool("ld")} "$@" && ln -sf /dev/full "${{3%/*}}/room"\n""")
    linker.chmod(0o755)
    with pytest.raises(OSError, match="No space left on device"):
        merge(linked.objects, linked.directory / "out.o", linker=str(linker))


def test_versions_are_mixed_where_ld_refuses(linked: Link) -> None:
    old = linked.directory / "old.o"
    subprocess.run([linked.peers.tool("objcopy"), "-R", ".sframe", "-R", ".rela.sframe", linked.objects[0], old], check=True)
    add_section(old, version=2)
    program, map_file = linked.link("mixed", old, *linked.objects[1:])
    report = merge([old, *linked.objects[1:]], linked.directory / "out", executable=program, map_file=map_file)
    assert report.versions == (2, 3)
    assert find_difference(read(linked.program).table, read(linked.directory / "out").table) == (None, 0)


def test_rows_without_words_of_older_objects_are_left_out_of_version_2(linked: Link, monkeypatch: pytest.MonkeyPatch) -> None:
    source = linked.directory / "bottom.s"
    source.write_text(functions(bottom=".undefined rip; hlt", other="nop; ret"))
    added = linked.directory / "bottom.o"
    subprocess.run([linked.peers.tool("as"), "-o", added, source], check=True)
    with monkeypatch.context() as patch:
        patch.setitem(WRITABLE, 2, V2._replace(outermost=True))
        add_section(added, version=2, optimize="none")
    program, map_file = linked.link("mixed", *linked.objects, added)
    for level in ("none", "fast"):
        out = linked.directory / level
        report = merge([added], out, executable=program, map_file=map_file, version=2, optimize=level)
        assert report.left_out == {Reason.OUTERMOST.value: 1}
        assert OUTERMOST not in read(out).table.rules


def test_damage_is_named_with_the_object(linked: Link) -> None:
    twice = linked.objects[1]
    good = twice.read_bytes()
    for section, offset, data, message in (
        (".sframe", 0, b"\0\0", r"\.sframe\+0x0: magic number is 0000, expected 0xdee2"),
        (".sframe", 4, b"\x04", r"ABI s390x is big-endian, the section little-endian"),
        (".sframe", 36, b"\xff\xff\0\0", r"a function of 65535 bytes at 0x0 is not inside of \.text\.twice"),
        (".rela.sframe", 8, b"\x01", r"\.sframe\+0x1c: relocation type 1 cannot mark the start"),
    ):
        twice.write_bytes(good)
        overwrite(twice, offset, data, section)
        with pytest.raises(FormatError, match=rf"twice\.c\.o: .*{message}"):
            linked.merge()
    assert not (linked.directory / "merged").exists()


def test_a_linked_file_among_the_objects_is_named(linked: Link) -> None:
    program = linked.directory / "program"
    subprocess.run(["gcc", "-shared", "-nostdlib", "-o", program, "-x", "c", "/dev/null"], check=True)
    with pytest.raises(FormatError, match=r"program: a linked file, not an object"):
        merge([*linked.objects, program], linked.directory / "merged.o")


def test_the_map_of_another_link_is_refused(linked: Link, compile_c: Compiler) -> None:
    overwrite(linked.objects[2], 0, b"\x90" * header_of(linked.objects[2], ".text.add").sh_size, ".text.add")
    with pytest.raises(FormatError, match=r"add\.c\.o: \.text\.add: its code is not what .*program has at 0x"):
        linked.merge()
    other = compile_c("int main(void) { return 0; }", name="other")
    with pytest.raises(FormatError):
        merge(linked.objects[:1], linked.directory / "out", executable=other, map_file=linked.map)


def test_objects_that_were_not_linked_or_say_nothing_are_counted(linked: Link, compile_c: Compiler) -> None:
    stranger = compile_c("int stranger(void) { return 0; }", "-c", "-Wa,--gsframe", name="stranger.o", peer_binutils=True)
    subprocess.run([linked.peers.tool("objcopy"), "-R", ".sframe", "-R", ".rela.sframe", linked.objects[2]], check=True)
    out = linked.directory / "out"
    report = merge([*linked.objects, stranger], out, executable=linked.program, map_file=linked.map)
    assert (report.objects, report.objects_without, report.objects_unlinked) == (2, 1, 1)
    assert any(name.endswith("crti.o") for name in report.others)
    with pytest.raises(FormatError, match="none of the objects is in the map"):
        merge([stranger], out, executable=linked.program, map_file=linked.map)
    with pytest.raises(FormatError, match="none of the objects has an SFrame section"):
        merge(linked.objects[2:], out, executable=linked.program, map_file=linked.map)


def test_files_of_one_name_are_told_apart_by_their_directories(compile_c: Compiler, peers: Peers, tmp_path: Path) -> None:
    linked = Link(compile_c, peers, tmp_path)
    moved = []
    for number, path in enumerate(linked.objects):
        moved.append(tmp_path / str(number) / "same.o")
        moved[-1].parent.mkdir()
        shutil.copy(path, moved[-1])
    linked.program, linked.map = linked.link("same", *moved)
    text = linked.readelf(linked.program)
    assert linked.readelf(linked.merge(*moved)) == text
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for number, path in enumerate(moved):
        (elsewhere / str(number)).mkdir()
        shutil.move(path, elsewhere / str(number) / "same.o")
    assert linked.readelf(linked.merge(*(elsewhere / str(n) / "same.o" for n in range(3)))) == text
    shutil.move(elsewhere / "0" / "same.o", elsewhere / "same.o")
    with pytest.raises(FormatError, match="the map has 3 files of that name"):
        linked.merge(elsewhere / "same.o")


def test_archives_are_taken_by_member(linked: Link) -> None:
    archive = linked.directory / "lib.a"
    subprocess.run(["ar", "rc", archive, *linked.objects[1:]], check=True)
    linked.program, linked.map = linked.link("with_archive", linked.objects[0], archive)
    assert linked.readelf(linked.merge(linked.objects[0], archive)) == linked.readelf(linked.program)
    overwrite(linked.objects[1], 0, b"\0\0", ".sframe")
    subprocess.run(["ar", "r", archive, linked.objects[1]], check=True)
    with pytest.raises(FormatError, match=r"lib\.a\(twice\.c\.o\): \.sframe\+0x0: magic number is 0000"):
        linked.merge(linked.objects[0], archive)


def test_the_command_tells_what_it_did(linked: Link) -> None:
    out, objects = linked.directory / "out", linked.objects
    done = invoke("merge", "--map", linked.map, "-o", out, "-v", linked.program, *objects)
    assert done.exit_code == 0
    assert done.output.startswith(f"{out}: 4 FDEs of 3 objects, ")
    assert "not given, though linked: " in done.output
    assert invoke("merge", "--map", linked.map, "-o", out, linked.program).exit_code == 2
    failed = invoke("merge", "--linker", "no-such-ld", "-o", out, *objects)
    assert failed.exit_code == 1
    assert "no-such-ld: No such file or directory; use --linker to name another" in failed.output
    failed = invoke("merge", "--linker", linked.peers.tool("ld"), "-o", out, *objects, objects[0])
    assert failed.exit_code == 1
    first, *lines = failed.output.splitlines()
    assert first == f"sframegen: {linked.peers.tool('ld')}: -r failed: exit status 1"
    assert any("multiple definition of" in line for line in lines)
    assert any(line.endswith("first defined here") for line in lines)


def test_to_standard_output_goes_the_file_and_nothing_else(linked: Link) -> None:
    out = linked.directory / "out"
    arguments: list[str | Path] = ["--map", linked.map, linked.program, *linked.objects]
    command = [sys.executable, "-m", "sframegen", "merge", "-o"]
    subprocess.run([*command, out, *arguments], check=True)
    for name, *options in (["/dev/stdout"], ["-"], ["-", "--json"]):
        done = subprocess.run([*command, name, *options, *arguments], check=True, capture_output=True)
        assert done.stdout == out.read_bytes()
        assert b"/dev/stdout" in done.stderr


def test_function_starts_without_pcrel_are_read(linked: Link) -> None:
    """Relocations are then made for starts that count from the section's first byte."""
    for path in linked.objects:
        overwrite(path, 3, b"\0", ".sframe")
        relocations = header_of(path, ".rela.sframe")
        for at in range(relocations.sh_offset, relocations.sh_offset + relocations.sh_size, 24):
            offset, addend = struct.unpack_from("<Q8xq", path.read_bytes(), at)
            overwrite(path, at + 16, struct.pack("<q", addend + offset))
    assert linked.readelf(linked.merge()) == linked.readelf(linked.program)


def test_unusual_sections_of_an_object(linked: Link) -> None:
    """As older assemblers have them, of another fixed offset, with an empty relocation, and empty."""
    twice, theirs = linked.objects[1], read(linked.program).table
    good, elf = twice.read_bytes(), open_elf(twice)
    at_header = elf.header.e_shoff + 64 * next(section.number for section in elf.sections if section.name == ".sframe")
    overwrite(twice, at_header + 4, struct.pack("<I", 1))  # known by its name
    assert linked.readelf(linked.merge()) == linked.readelf(linked.program)
    twice.write_bytes(good)
    overwrite(twice, 6, b"\xf0", ".sframe")
    ours = read(linked.merge()).table
    rules = {ours.start[f]: {rule.ra.offset for _, rule in ours.rows(f) if rule.ra} for f in range(len(ours))}
    assert sorted(map(sorted, rules.values())) == [[-16], [-16], *([[-8]] * (len(theirs) - 2))]
    twice.write_bytes(good)
    overwrite(twice, 24 + 8, bytes(8), ".rela.sframe")  # of dropped code
    assert len(read(linked.merge()).table) == len(theirs) - 1
    twice.write_bytes(good)
    overwrite(twice, at_header + 32, bytes(8))
    report = merge(linked.objects, linked.directory / "out", executable=linked.program, map_file=linked.map)
    assert (report.objects, report.objects_without) == (2, 1)


SOURCE = """
int other(int); static __attribute__((noinline)) int own(int a) { volatile int room[40] = {a}; return room[0]; }
int one(int a) { return own(a) + other(a); } int two(int a) { return other(own(a)) - 1; }
"""
HEADERS = 64  # bytes of the ELF header


def content_of(given: InputObject) -> object:
    return (
        given.name,
        given.is_relocatable,
        given.abi.name,
        [(code.number, code.name, code.size, code.relocations, bytes(given.contents(code))) for code in given.code],
        [(bytes(piece.section.data), list(piece.numbers), list(piece.offsets)) for piece in given.described_sections()],
    )


def opened(data: bytes, abi: Abi = AMD64) -> InputObject:
    return ObjectReader(abi).open(memoryview(data), "input")


@for_each("flags", [(), ("-ffunction-sections",), ("-g",)])
@for_each("version", [2, 3])
def test_what_compilers_and_gnu_as_make_has_the_usual_form(
    version: FormatVersion, flags: tuple[str, ...], compile_c: Compiler, tmp_path: Path
) -> None:
    add_section(compile_c(SOURCE, "-c", "-O2", *flags, name="made.o"), output=tmp_path / "made.o", version=version)
    gnu = [compile_c(SOURCE, "-c", "-O2", "-Wa,--gsframe", name="gnu.o", peer_binutils=True)] if not flags else []
    for path in (tmp_path / "made.o", *gnu):
        data = path.read_bytes()
        found = opened(data)
        assert isinstance(found, UsualObject)
        assert content_of(found) == content_of(UnusualObject(memoryview(data), "input"))
        assert len(found.code) == (3 if "-ffunction-sections" in flags else 1)
        assert isinstance(opened(data, AARCH64), UnusualObject)


def places_of_headers(data: bytes) -> list[int]:
    """Offsets of the ELF header, the section headers, the names, the symbols, the relocations and the SFrame header."""
    elf = ElfFile(memoryview(data), "input")
    spans = [(0, HEADERS), (elf.header.e_shoff, elf.header.e_shoff + 64 * elf.shnum)]
    for section in elf.sections:
        at, size = section.header.sh_offset, section.header.sh_size
        if section.name in (".shstrtab", ".symtab", ".rela.sframe", ".sframe"):
            spans.append((at, at + min(size, 256)))
    return [at for start, end in spans for at in range(start, end)]


@for_each("values", [(0, 1, 2), (6, 0x20, 0x7F), (0x80, 0xFE, 0xFF)])
def test_a_changed_byte_is_read_as_by_the_readers_of_all_objects(values: tuple[int, ...]) -> None:
    data = seed("object-sframe")
    assert isinstance(opened(data), UsualObject)
    usual = 0
    for at in places_of_headers(data):
        for value in values:
            changed = data[:at] + bytes([value]) + data[at + 1 :]
            try:
                found = opened(changed)
            except FormatError:
                continue
            if isinstance(found, UsualObject):
                assert content_of(found) == content_of(UnusualObject(memoryview(changed), "input"))
                usual += 1
    assert usual > len(places_of_headers(data)) * len(values) // 4  # so that something was compared
