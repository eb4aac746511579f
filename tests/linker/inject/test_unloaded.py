"""Sections that no segment has: program headers and bytes stay, programs run as before, and the original comes back."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from linker.existing.original import restore_original
from linker.inject.apply import make_injection_change, write_changed_file
from linker.inject.plan import InjectionPlan, describe_plan, plan_unloaded
from sframegen import FormatError, Severity, Summary, add_section, check, convert, read, remove
from sframegen.base.errors import Refusal, RefusedError
from sframegen.elf.file import ElfFile, open_elf
from sframegen.elf.records import CHDR_SIZE, EHDR_SIZE, PT, SHF, SHT
from sframegen.format.layouts import FormatVersion
from sframegen.format.locate import find_unloaded_section
from tests.linker.inject.test_min_kernel import system_loader
from tests.linker.inject.test_run import run
from tests.support.commands import run as invoke
from tests.support.inputs.linker_inputs import (
    FLAGS,
    KINDS,
    SOURCE,
    elf_of,
    section_named,
    section_of,
    small_file,
    source_of,
    with_header,
    with_many_sections,
    with_many_segments,
    with_section,
    with_segment,
    without_sections,
)
from tests.support.inputs.linker_inputs import both_findings as verify
from tests.support.peers import Compiler, Peers, corpus_file
from tests.support.zstandard import compress_section

SHAPES = {
    "program": small_file(),
    "library": small_file(library=True),
    "no room": small_file(blocked=256),
    "big-endian": small_file("big", blocked=256),
    "many sections": with_many_sections(small_file(), 0xFF00),
}
SIZE = 3001


def inject(original: Path, result: Path) -> InjectionPlan:
    elf = open_elf(original)
    plan = plan_unloaded(elf, SIZE)
    with result.open("wb") as out:
        write_changed_file(elf, make_injection_change(plan, elf, section_of(SIZE)[:SIZE]), out)
    return plan


@pytest.fixture(params=[pytest.param(name, marks=[pytest.mark.full] * (name == "many sections")) for name in SHAPES])
def original(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    file = tmp_path / "original"
    file.write_bytes(SHAPES[request.param])
    return file


def test_only_the_place_of_the_section_headers_changes(original: Path, tmp_path: Path) -> None:
    plan = inject(original, tmp_path / "result")
    before, after = open_elf(original), open_elf(tmp_path / "result")
    assert plan.layout == "unloaded"
    assert len(after.data) == plan.size
    assert after.segments == before.segments
    assert after.header._replace(e_shoff=0, e_shnum=0) == before.header._replace(e_shoff=0, e_shnum=0)
    assert after.data[EHDR_SIZE : len(before.data)] == before.data[EHDR_SIZE:]
    assert [s.header for s in after.sections[1 : before.shstrndx]] == [s.header for s in before.sections[1 : before.shstrndx]]
    section = after.sections[-1]
    assert (section.name, section.header.sh_type, section.header.sh_flags) == (".sframe", SHT.GNU_SFRAME, 0)
    assert (section.header.sh_addr, section.header.sh_size) == (0, SIZE)
    assert after.stored_contents(section) == section_of(SIZE)[:SIZE]
    assert verify(plan, before, tmp_path / "result") == []
    found = restore_original(after)
    assert found is not None
    assert found.elf.data == before.data
    remove(tmp_path / "result")
    assert (tmp_path / "result").read_bytes() == original.read_bytes()


def test_the_plan_says_so() -> None:
    lines = describe_plan(plan_unloaded(ElfFile(memoryview(small_file())), SIZE))
    assert lines[0].startswith("layout: unloaded; ")
    assert lines[1].startswith(".sframe: not loaded, offset 0x")
    assert lines[1].endswith("0xbb9 bytes")
    assert lines[-1] == "written over: 0x40 bytes at offset 0x0"
    assert not any("segment" in line or "program header" in line for line in lines)


def test_verification_finds(tmp_path: Path) -> None:
    (tmp_path / "original").write_bytes(small_file())
    plan = inject(tmp_path / "original", tmp_path / "result")
    good = (tmp_path / "result").read_bytes()
    at = section_named(elf_of(good), ".symtab").header.sh_offset  # of a section that is not loaded
    for changed, finding in (
        (with_header(good, e_flags=1), "the ELF header changed"),
        (with_header(good, e_version=2), "the ELF header changed"),
        (with_segment(good, 0, p_align=16), "program headers changed"),
        (good[:at] + b"\xff" + good[at + 1 :], "bytes of the original changed"),
        (with_section(good, ".sframe", sh_flags=SHF.ALLOC), ".sframe is not the planned one"),
    ):
        (tmp_path / "result").write_bytes(changed)
        assert finding in verify(plan, open_elf(tmp_path / "original"), tmp_path / "result")


def test_refusals(compile_c: Compiler, tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match=r"no section headers: without them") as error:
        plan_unloaded(ElfFile(memoryview(without_sections(small_file()))), SIZE)
    assert error.value.reason is Refusal.NO_ROOM
    with pytest.raises(RefusedError, match=r"follow the ELF image") as error:
        plan_unloaded(ElfFile(memoryview(small_file() + b"PK\3\4 and more")), SIZE)
    assert error.value.reason is Refusal.APPENDED_DATA
    (tmp_path / "original").write_bytes(small_file())
    inject(tmp_path / "original", tmp_path / "result")
    with pytest.raises(FormatError, match=r"has an \.sframe section already"):
        plan_unloaded(open_elf(tmp_path / "result"), SIZE)
    with pytest.raises(FormatError, match=r"a section of 0 bytes"):
        plan_unloaded(open_elf(tmp_path / "original"), 0)
    with pytest.raises(FormatError, match="only linked files can have a section that is not loaded"):
        add_section(compile_c(SOURCE, *FLAGS, "-c", name="main.o"), output=tmp_path / "out.o", unloaded=True)


def add_and_read(original: Path, file: Path, version: FormatVersion = 3) -> Summary:
    summary = add_section(original, output=file, unloaded=True, version=version)
    assert summary.unloaded
    elf = open_elf(file)
    assert elf.segments == open_elf(original).segments
    assert find_unloaded_section(elf) is not None
    section = read(file)
    assert (section.header.version, section.address) == (version, 0)
    report = check(file)
    assert {finding.rule for finding in report.findings if finding.severity} == set(), report.findings
    assert "not-loaded" in {finding.rule for finding in report.findings}
    assert ", not loaded" in report.one_line()
    again = add_section(file, unloaded=True, version=version)
    assert (again.note, again.output) == ("has it already", "")
    copy = file.with_name("removed")
    remove(file, output=copy)
    assert copy.read_bytes() == original.read_bytes()
    return summary


def test_the_dynamic_loader(compile_c: Compiler, tmp_path: Path) -> None:
    loader, program = system_loader(), compile_c(SOURCE, *FLAGS)
    with pytest.raises(RefusedError) as error:
        add_section(loader, output=tmp_path / "loaded")
    assert error.value.reason is Refusal.DYNAMIC_LOADER
    assert add_and_read(loader, tmp_path / "loader").warnings == ()
    (tmp_path / "loader").chmod(0o755)
    done = subprocess.run([tmp_path / "loader", program], capture_output=True, text=True, check=True)
    assert done.stdout == "counter 17\n"


@pytest.mark.full
@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("name", ["bash", "arm64-bash", "s390x-bash"])
def test_gnu_readelf_reads_the_same(name: str, version: FormatVersion, peers: Peers, tmp_path: Path) -> None:
    """It takes the section's address for 0 too, and expands it without being asked."""
    original = corpus_file(name)
    file = tmp_path / "result"
    add_and_read(original, file, version)
    for is_compressed in (False, True):
        if is_compressed:
            compress_section(file)
        theirs = subprocess.run([peers.tool("readelf"), "--sframe", file], capture_output=True, text=True, check=True).stdout
        assert theirs.strip() == invoke("dump", file).stdout.strip()


@pytest.fixture
def file(compile_c: Compiler, tmp_path: Path) -> Path:
    return Path(shutil.copy(compile_c(SOURCE, *FLAGS, "-static"), tmp_path / "file"))


def test_loaded_and_not_are_two_sections(file: Path) -> None:
    original = file.read_bytes()
    add_section(file, unloaded=True)
    with pytest.raises(RefusedError, match=r"already has an SFrame section that is not loaded") as error:
        add_section(file)
    assert error.value.reason is Refusal.OTHER_SECTION
    add_section(file, replace=True)
    assert find_unloaded_section(open_elf(file)) is None
    with pytest.raises(RefusedError, match=r"already has a loaded SFrame section"):
        add_section(file, unloaded=True)
    add_section(file, unloaded=True, replace=True)
    assert PT.GNU_SFRAME not in {s.p_type for s in open_elf(file).segments}
    remove(file)
    assert file.read_bytes() == original


def test_in_the_place_of_a_linkers_section(compile_c: Compiler, tmp_path: Path) -> None:
    """GNU ld's, of which only headers and bytes go; the record gives it back."""
    original = compile_c(SOURCE, *FLAGS, "-Wa,--gsframe", peer_binutils=True)
    file = Path(shutil.copy(original, tmp_path / "file"))
    with pytest.raises(RefusedError, match=r"already has a loaded SFrame section"):
        add_section(file, unloaded=True)
    add_section(file, unloaded=True, replace=True)
    elf = open_elf(file)
    assert find_unloaded_section(elf) is not None
    assert PT.GNU_SFRAME not in {s.p_type for s in elf.segments}
    assert {finding.rule for finding in check(file).findings if finding.severity} == set()
    run(file, "pie", compile_c)
    assert remove(file).still_has_one
    assert file.read_bytes() == original.read_bytes()


def test_whole_trees(compile_c: Compiler, tmp_path: Path) -> None:
    root, files = tmp_path / "root", ("static", "library", "pie")
    root.mkdir()
    for kind in files:
        shutil.copy(compile_c(source_of(kind), *FLAGS, *KINDS[kind]), root / kind)
    before = {kind: (root / kind).read_bytes() for kind in files}
    for text in ("3 files given a section, 0 unchanged", "0 files given a section, 3 unchanged"):
        assert invoke("add-tree", "--unloaded", root).stdout.startswith(text)
        assert all(find_unloaded_section(open_elf(root / kind)) for kind in files)
    assert invoke("add-tree", root).stdout.startswith("3 files given a section")
    assert not any(find_unloaded_section(open_elf(root / kind)) for kind in files)
    invoke("remove-tree", root)
    assert {kind: (root / kind).read_bytes() for kind in files} == before


def test_convert_keeps_it_unloaded(file: Path) -> None:
    original = file.read_bytes()
    summary = add_section(file, unloaded=True)
    change = convert(file, 2)
    assert (change.from_version, change.section_bytes_before) == (3, summary.section_bytes)
    section = find_unloaded_section(open_elf(file))
    assert section is not None
    assert read(file).header.version == 2
    assert change.section_bytes == len(open_elf(file).contents(section))
    assert {finding.rule for finding in check(file).findings if finding.severity} <= {"not-loaded"}
    remove(file)
    assert file.read_bytes() == original


@pytest.mark.parametrize("is_compressed", [False, True])
def test_after_a_tool_that_drops_the_record(file: Path, is_compressed: bool, peers: Peers, tmp_path: Path) -> None:
    add_section(file, unloaded=True)
    plain = read(file).table
    if is_compressed:
        compress_section(file)
    rewritten = tmp_path / "rewritten"
    subprocess.run([peers.tool("objcopy"), file, rewritten], check=True)
    section = find_unloaded_section(open_elf(rewritten))
    assert section is not None
    assert read(rewritten).table == plain
    again = add_section(rewritten, unloaded=True)
    assert (again.note, again.unloaded) == ("has it already", True)
    with pytest.raises(RefusedError, match=r"that is not loaded"):
        add_section(rewritten)
    convert(rewritten, 2)
    assert read(rewritten).header.version == 2
    while (removal := remove(rewritten)).still_has_one:
        pass
    assert not removal.restored
    elf = open_elf(rewritten)
    assert not any(section.name == ".sframe" for section in elf.sections)
    at, size = section.header.sh_offset, section.header.sh_size
    assert not any(rewritten.read_bytes()[at : at + size])


def test_a_damaged_one_is_replaced(file: Path) -> None:
    add_section(file, unloaded=True)
    compress_section(file)
    good = file.read_bytes()
    file.write_bytes(with_section(good, ".sframe", sh_size=CHDR_SIZE - 1))
    with pytest.raises(FormatError, match=r"expected 24 bytes of compression header, have 23"):
        read(file)
    at = section_named(elf_of(good), ".sframe").header.sh_offset + CHDR_SIZE + 20
    file.write_bytes(good[:at] + b"\xff" * 20 + good[at + 20 :])
    with pytest.raises(FormatError, match=r"cannot be decompressed"):
        read(file)
    assert check(file).worst() is Severity.ERROR
    with pytest.raises(RefusedError, match=r"SFrame section"):
        add_section(file, unloaded=True)
    damaged = file.read_bytes()
    add_section(file, unloaded=True, replace=True)
    assert {finding.rule for finding in check(file).findings if finding.severity} == set()
    remove(file)
    assert file.read_bytes() == damaged


def test_two_of_them(file: Path) -> None:
    add_section(file, unloaded=True)
    section = section_named(open_elf(file), ".sframe").header
    file.write_bytes(with_section(file.read_bytes(), ".comment", **section._asdict()))
    assert "several-sections" in {finding.rule for finding in check(file).findings}
    with pytest.raises(FormatError, match=r"more than one SFrame section"):
        convert(file, 2)


def test_program_headers_that_no_kernel_reads() -> None:
    with pytest.raises(RefusedError, match=r"has 1,171 program headers, above the 1,170 that kernels read"):
        plan_unloaded(ElfFile(memoryview(with_many_segments(small_file(), 1171))), SIZE)
