"""Programs and libraries with a new section, as each linker lays them out: they run, loaded bytes stay, the original comes back."""

from __future__ import annotations

import re
import resource
import shutil
import subprocess
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest

from linker.existing.original import restore_original
from linker.inject.gaps import to_new_offset as moved_to
from linker.inject.plan import plan_injection
from sframegen.base.errors import FormatError, RefusedError
from sframegen.elf.file import ElfFile, open_elf
from sframegen.elf.notes import read_build_id
from sframegen.elf.records import PF, PHDR_SIZE, PT, SHN, SHT
from tests.support.inputs.linker_inputs import (
    FLAGS,
    KINDS,
    LARGE_BSS,
    SOURCE,
    blocking_script,
    inject,
    restored,
    section_named,
    section_of,
    small_file,
    with_many_sections,
    with_table_behind,
    without_sections,
)
from tests.support.inputs.linker_inputs import both_findings as verify
from tests.support.loops import for_each
from tests.support.peers import Compiler, Peers

LIBRARIES = {kind for kind, flags in KINDS.items() if "-shared" in flags}
STRIPPERS = {
    "strip": ("-o", "{out}", "{in}"),
    "objcopy": ("{in}", "{out}"),
    "eu-strip": ("-o", "{out}", "{in}"),
    "llvm-strip": ("-o", "{out}", "{in}"),
    "llvm-objcopy": ("{in}", "{out}"),
    "patchelf": ("--set-rpath", "/a/path/longer/than/anything/that/was/in/the/table/of/strings", "--output", "{out}", "{in}"),
}
REFUSED = {  # by the tool, for the original just as well
    ("llvm-strip", "static"),
    ("llvm-objcopy", "static"),
    ("patchelf", "static"),  # has no .dynamic
    ("patchelf", "static-pie"),  # crashes afterwards
}


def run(file: Path, kind: str, compile_c: Compiler) -> None:
    file.chmod(0o755)
    loader = [str(compile_c(SOURCE, *FLAGS, "-DLOADER", name="loader"))] if kind in LIBRARIES else []
    done = subprocess.run([*loader, file.absolute()], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "counter 17\n", "")


def assert_section_is_whole(file: Path, size: int = 3001) -> None:
    elf = open_elf(file)
    (segment,) = [s for s in elf.segments if s.p_type == PT.GNU_SFRAME]
    assert segment.p_filesz == size
    assert elf.at(segment.p_vaddr, size) == section_of(size)[:size]
    section = elf.section(".sframe")
    if elf.sections:
        assert section is not None
        header = section.header
        assert (header.sh_type, header.sh_addr, header.sh_offset, header.sh_size) == (SHT.GNU_SFRAME, *segment[3:1:-1], size)


def assert_table_is_found(file: Path) -> None:
    """As kernels before 5.18 look for it."""
    elf = open_elf(file)
    first = next(s for s in elf.segments if s.p_type == PT.LOAD)
    for segment in elf.segments:
        if segment.p_type == PT.PHDR:
            assert first.p_vaddr - first.p_offset + elf.header.e_phoff == segment.p_vaddr
            assert segment.p_filesz == len(elf.segments) * 56


def remarks(file: Path, peers: Peers) -> list[str]:
    """Of eu-elflint, without the numbers of sections."""
    done = subprocess.run([peers.tool("eu-elflint"), "--gnu-ld", file], capture_output=True, text=True, check=False)
    return [re.sub(r"^section \[[ \d]+\]", "section", line) for line in (done.stdout + done.stderr).splitlines()]


def apply_tool(tool: str, file: Path, output: Path, peers: Peers, *, is_quiet: bool = True) -> None:
    arguments = [argument.format(**{"in": file, "out": output}) for argument in STRIPPERS[tool]]
    output.unlink(missing_ok=True)
    done = subprocess.run([peers.tool(tool), *arguments], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr * is_quiet) == (0, "", "")


@for_each("layout", ["front", "tail"])
def test_objcopy_takes_the_section_out_and_it_can_be_added_again(
    layout: str, compile_c: Compiler, peers: Peers, tmp_path: Path
) -> None:
    kind = "pie" if layout == "front" else "library"
    original = compile_c(SOURCE, *FLAGS, *KINDS[kind]) if layout == "front" else blocked_library(compile_c, tmp_path)
    inject(original, tmp_path / "a")
    with pytest.raises(FormatError, match="take it out first"):
        inject(tmp_path / "a", tmp_path / "never-written")
    without = ("--remove-section", ".sframe", tmp_path / "a", tmp_path / "b")
    subprocess.run([peers.tool("objcopy"), *without], check=True, stderr=subprocess.PIPE)
    plan = inject(tmp_path / "b", tmp_path / "c", 77)
    run(tmp_path / "c", kind, compile_c)
    assert_section_is_whole(tmp_path / "c", 77)
    assert verify(plan, open_elf(tmp_path / "b"), tmp_path / "c") == []


def test_zeros_that_follow_the_section_headers_stay(compile_c: Compiler, tmp_path: Path) -> None:
    original = tmp_path / "original"
    original.write_bytes(compile_c(SOURCE, *FLAGS, *KINDS["pie"]).read_bytes() + bytes(1001))
    plan = inject(original, tmp_path / "result")
    end = moved_to(plan.gaps, plan.original_size)
    assert (tmp_path / "result").read_bytes()[end - 1001 : end] == bytes(1001)
    assert verify(plan, open_elf(original), tmp_path / "result") == []
    run(tmp_path / "result", "pie", compile_c)


def blocked_library(compile_c: Compiler, directory: Path) -> Path:
    (directory / "script").write_text(blocking_script())
    return compile_c(SOURCE, *FLAGS, *KINDS["library"], f"-Wl,-T,{directory / 'script'}", name="blocked.so")


@pytest.fixture
def program(compile_c: Compiler) -> bytes:
    return compile_c(SOURCE, *FLAGS, *KINDS["pie"]).read_bytes()


@pytest.mark.full
def test_more_sections_than_the_elf_header_can_say(program: bytes, compile_c: Compiler, peers: Peers, tmp_path: Path) -> None:
    """Moved notes have numbers above 65,280, and their symbols SHN_XINDEX."""
    source, result = tmp_path / "original", tmp_path / "result"
    source.write_bytes(with_many_sections(program, 66_000))
    plan = inject(source, result)
    run(result, "pie", compile_c)
    assert verify(plan, open_elf(source), result) == []
    assert restored(result.read_bytes()) == source.read_bytes()
    elf = open_elf(result)
    assert (elf.header.e_shnum, elf.header.e_shstrndx, len(elf.sections)) == (0, SHN.XINDEX, 66_001)
    assert [s.name for s in elf.sections[-40:-1]] == [s.name for s in open_elf(source).sections[-39:]]
    note = section_named(elf, ".note.ABI-tag")
    assert any(".note.ABI-tag" in item.names for item in plan.moves)

    def readelf(*options: str) -> str:
        done = subprocess.run([peers.tool("readelf"), *options, "-W", result], capture_output=True, text=True, check=True)
        assert done.stderr == ""
        return done.stdout

    [symbol] = [line.split() for line in readelf("-s").splitlines() if line.endswith(" __abi_tag")]
    assert (int(symbol[1], 16), int(symbol[6])) == (note.header.sh_addr, note.number)
    assert "0 (66001)" in readelf("-h")
    assert readelf("-S").splitlines()[66_000 + 4].split()[:3] == ["[66000]", ".sframe", "GNU_SFRAME"]


@pytest.mark.dear
def test_a_symbol_whose_section_nothing_tells() -> None:
    data = with_many_sections(small_file(), 66_000)
    at = ElfFile(memoryview(data)).header.e_shoff + (66_000 - 1) * 64 + 4
    without = data[:at] + bytes(4) + data[at + 4 :]  # SHT_NULL
    patched = [
        [patch for patch in plan_injection(ElfFile(memoryview(file)), 28).patches if patch.name.startswith(".symtab")]
        for file in (data, without)
    ]
    assert list(map(len, patched)) == [1, 0]


@for_each(("flag", "kind"), [*product([PF.R, PF.X], ["pie", "no-pie", "library"]), (PF.R, "static-pie")])
def test_a_program_header_table_elsewhere(flag: int, kind: str, compile_c: Compiler, tmp_path: Path) -> None:
    """Not at offset 64 but after the metadata, or after code, as LIEF 1.0 and BOLT put it; it stays there, and grows."""
    source, result = tmp_path / "original", tmp_path / "result"
    source.write_bytes(with_table_behind(compile_c(SOURCE, *FLAGS, *KINDS[kind]).read_bytes(), flag))
    table = open_elf(source).header
    end = table.e_phoff + table.e_phnum * PHDR_SIZE
    if -end % 0x1000 < 3 * PHDR_SIZE:
        pytest.skip("no room after the headers in what this linker makes")
    source.chmod(0o755)
    plan = inject(source, result)
    assert plan.layout == "front"
    assert plan.table_offset == open_elf(source).header.e_phoff > 64
    assert plan.moves == ()
    assert verify(plan, open_elf(source), result) == []
    assert restored(result.read_bytes()) == source.read_bytes()
    for file in (source, result):
        run(file, kind, compile_c)


def test_section_headers_that_are_none(program: bytes, compile_c: Compiler, tmp_path: Path) -> None:
    source, result = tmp_path / "original", tmp_path / "result"
    bare = without_sections(program)
    source.write_bytes(bare[:40] + len(bare).to_bytes(8, "little") + bare[48:] + bytes(64))
    plan = inject(source, result)
    assert open_elf(result).sections == []
    assert open_elf(result).header.e_shoff == moved_to(plan.gaps, len(bare))
    assert verify(plan, open_elf(source), result) == []
    run(result, "pie", compile_c)


LINKERS = ("bfd", "newest bfd", "gold", "lld", "mold")
PEERS = {"newest bfd": "ld.bfd", "lld": "ld.lld"}
SHAPES = {
    "pie": ("-fPIE", "-pie"),
    "no-pie": ("-fno-pie", "-no-pie"),
    "library": ("-fPIC", "-shared", "-DLIBRARY"),
    "static": ("-fno-pie", "-static"),
    "static-pie": ("-fPIE", "-static-pie"),
    "one segment for headers and code": ("-fPIE", "-pie", "-Wl,-z,noseparate-code"),
    "64 KiB pages": ("-fPIE", "-pie", "-Wl,-z,max-page-size=0x10000"),
    "2 MiB pages, fixed": ("-fno-pie", "-no-pie", "-Wl,-z,max-page-size=0x200000"),
    "2 MiB pages, library": ("-fPIC", "-shared", "-DLIBRARY", "-Wl,-z,max-page-size=0x200000"),
    "64 KiB pages, static": ("-fno-pie", "-static", "-Wl,-z,max-page-size=0x10000"),
    "a segment for every section": ("-fPIE", "-pie", "-Wl,-z,separate-loadable-segments"),
    "one read-only segment": ("-fPIE", "-pie", "-Wl,--no-rosegment"),
    "no section headers": ("-fPIE", "-pie", "-Wl,-z,nosectionheader"),
    "no section headers, static": ("-fno-pie", "-static", "-Wl,-z,nosectionheader"),
    "a read-only segment of its own": ("-fPIE", "-pie", "-Wl,--rosegment"),
    "huge .bss": ("-fPIE", "-pie", "-DHUGE"),
    "no build-id": ("-fPIE", "-pie", "-Wl,--build-id=none"),
    "stripped": ("-fPIE", "-pie", "-s"),
    "hashes of both kinds": ("-fPIC", "-shared", "-DLIBRARY", "-Wl,--hash-style=both"),
}
ONLY = {  # linkers that have the option; all others have all the other shapes
    "static-pie": ("bfd", "newest bfd", "lld", "mold"),
    "one segment for headers and code": ("bfd", "newest bfd", "lld", "mold"),
    "a segment for every section": ("lld",),
    "one read-only segment": ("lld",),
    "a read-only segment of its own": ("gold", "newest bfd"),
    "no section headers": ("newest bfd",),
    "no section headers, static": ("newest bfd",),
    **dict.fromkeys(("no build-id", "stripped", "hashes of both kinds"), ("bfd",)),
}
CODE = r"no room for two more program headers: \.init cannot move"
BUILD_ID = "no room for two more program headers: the build-id note would leave the first page of the file"
NO_ROOM = {  # for kernels before 5.18
    ("gold", "a read-only segment of its own"): CODE,
    ("lld", "static-pie"): BUILD_ID,
    ("mold", "static-pie"): BUILD_ID,
}
HUGE = "#ifdef HUGE\n" + LARGE_BSS.replace("100 << 20", "1500 << 20") + "#endif\n"


@pytest.mark.parametrize("linker", LINKERS)
@for_each("shape", SHAPES)
def test_every_shape_of_every_linker(linker: str, shape: str, compile_c: Compiler, peers: Peers, tmp_path: Path) -> None:
    if linker not in ONLY.get(shape, LINKERS):
        return
    where = ("-B", str(Path(peers.tool(PEERS[linker])).parent)) if linker in PEERS else ()
    if not where and shutil.which(f"ld.{linker}") is None:
        pytest.skip(f"no ld.{linker} on this machine")
    flags = (*FLAGS, *SHAPES[shape], f"-fuse-ld={linker.removeprefix('newest ')}", *where)
    kind = "library" if "-shared" in flags else "pie"
    original, result = compile_c(HUGE + SOURCE, *flags, name="file.so" if kind == "library" else "file"), tmp_path / "result"
    if (linker, shape) in NO_ROOM:
        with pytest.raises(RefusedError, match=NO_ROOM[linker, shape] + "$") as error:
            inject(original, result, min_kernel="5.17")
        assert "\n" not in str(error.value)
    plan = inject(original, result)
    assert plan.layout == ("tail" if (linker, shape) in NO_ROOM else "before" if "-fno-pie" in SHAPES[shape] else "front")
    assert result.stat().st_size == plan.size
    run(result, kind, compile_c)
    assert_section_is_whole(result)
    if (linker, shape) not in NO_ROOM:
        assert_table_is_found(result)
    before, after = open_elf(original), open_elf(result)
    assert verify(plan, before, result) == []
    assert read_build_id(after) == read_build_id(before)
    assert (read_build_id(before) is None) == (shape == "no build-id")
    way_back = restore_original(after)
    assert way_back is not None
    assert way_back.elf.data == before.data
    moved = {name for item in plan.moves for name in item.names}
    for section in before.sections:
        header = section.header
        if header.sh_addr and header.sh_size and header.sh_type != SHT.NOBITS and section.name not in moved | {".dynamic"}:
            assert after.at(header.sh_addr, header.sh_size) == before.contents(section), section.name
    if linker == "bfd" or shape in ("pie", "library"):
        new = {*remarks(result, peers)} - {*remarks(original, peers), "No errors"}
        types = "unknown program header entry type 0x6474e554", "'.sframe' has unsupported type"
        assert len(new) == 2, new
        assert all(any(text in line for line in new) for text in types), new
        done = subprocess.run([peers.tool("readelf"), "-aW", result], capture_output=True, text=True, check=False)
        assert done.stderr == ""


# -- cores: they show the build-ids of what was mapped, without the files, by the first page of each

CRASHING = r"""
#include <sys/prctl.h>
#include <unistd.h>
void wait_or_crash(int wait) {
    if (!wait) __builtin_trap();
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
    write(1, "waiting\n", 8);
    for (;;) pause();
}
#ifndef LIBRARY
int main(int count, char **words) { wait_or_crash(count > 1); }
#endif
"""
USER = "void wait_or_crash(int wait); int main(int count, char **words) { wait_or_crash(count > 1); }"
LIBRARY = ("-shared", "-fPIC", "-DLIBRARY")
CRASHING_KINDS = {
    "PIE": ("-pie",),
    "non-PIE": ("-no-pie",),
    "static-PIE": ("-static-pie",),
    "static-PIE, tail": ("-static-pie", "-fuse-ld=lld", "-B{peers}"),
    "library": LIBRARY,
    "library, tail": (*LIBRARY, "-Wl,-T,{script}"),
}
CORE_PATTERN = Path("/proc/sys/kernel/core_pattern").read_text().strip()  # may name a program, or a place far away


def kernel_core(program: Path, environ: dict[str, str]) -> Path:
    most = resource.getrlimit(resource.RLIMIT_CORE)[1]
    if most == 0:
        pytest.skip("no core files: their limit is 0")

    def allow_cores() -> None:
        resource.setrlimit(resource.RLIMIT_CORE, (most, most))

    done = subprocess.run([program], env=environ, cwd=program.parent, check=False, preexec_fn=allow_cores)
    assert done.returncode < 0
    [core] = program.parent.glob(CORE_PATTERN.partition("%")[0] + "*")
    return core


def gdb_core(program: Path, environ: dict[str, str]) -> Path:
    gcore = shutil.which("gcore") or pytest.skip("no gcore on this machine: install gdb")
    with subprocess.Popen([program, "wait"], env=environ, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"waiting\n"
        try:
            subprocess.run([gcore, "-o", program.parent / "core", str(process.pid)], check=True, capture_output=True)
        finally:
            process.kill()
    return program.parent / f"core.{process.pid}"


def build_ids(core: Path, peers: Peers) -> set[str]:
    told = subprocess.run([peers.tool("eu-unstrip"), "-n", f"--core={core}"], capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"^0x\w+\+0x\w+ ([0-9a-f]{40})@", told, re.MULTILINE))


@pytest.mark.parametrize("write_core", [gdb_core] if CORE_PATTERN[:1] in "|/" else [gdb_core, kernel_core])
@pytest.mark.parametrize("kind", CRASHING_KINDS)
def test_a_core_tells_the_build_ids(
    kind: str, write_core: Callable[[Path, dict[str, str]], Path], compile_c: Compiler, peers: Peers, tmp_path: Path
) -> None:
    (tmp_path / "script").write_text(blocking_script())
    lld = Path(peers.tool("ld.lld")).parent
    flags = ("-O1", "-Wl,--build-id", *(flag.format(script=tmp_path / "script", peers=lld) for flag in CRASHING_KINDS[kind]))
    is_library, is_tail = "library" in kind, kind.endswith("tail")
    subject = compile_c(CRASHING, *flags, name="libcrash.so" if is_library else "program")
    program = compile_c(USER, f"-L{subject.parent}", "-lcrash") if is_library else subject
    for file in {program, subject}:
        assert inject(file, tmp_path / file.name, min_kernel="5.18").layout == (
            "tail" if is_tail and file == subject else "before" if kind == "non-PIE" and file == subject else "front"
        )
    core = write_core(tmp_path / program.name, {"LD_LIBRARY_PATH": str(tmp_path)})
    for file in {program, subject}:
        (tmp_path / file.name).unlink()
    told = build_ids(core, peers)
    for file in {program, subject}:
        build_id = read_build_id(open_elf(file))
        assert build_id is not None
        # In the tail layout the first page has the build-id, but not the program headers by which it would be found.
        assert (build_id.hex() in told) == (not (is_tail and file == subject)), told
