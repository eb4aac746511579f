"""Each frame is libgcc's: with every compiler and linker at hand, with libraries that come and go, with damaged sections."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import sframegen
from sframegen.backtrace.library_files import SHARED, SONAME, compile_libraries
from sframegen.elf.file import open_elf
from sframegen.elf.records import PT
from tests.support.cross import ARM64, S390X, Machine
from tests.support.loops import for_each
from tests.support.own_stack import INCLUDE, LIBRARY, PROGRAMS, ROOT, SOURCE, OwnStack, compiled_library
from tests.support.peers import Peers, needs_compiler

STRICT = ("-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wconversion", "-Werror")
FRAMES = 15_000  # at least, most of them of the recursion


def frames_of(printed: str) -> int:
    """The number of frames that were compared; none was wrong."""
    counts = [(int(count), int(wrong)) for count, wrong in re.findall(r"(\d+) frames, (\d+) wrong", printed)]
    assert counts, printed
    assert not any(wrong for _, wrong in counts), printed
    return max(count for count, _ in counts)


def needs(tool: str, package: str) -> str:
    if shutil.which(tool) is None:
        pytest.skip(f"no {tool} on this machine: install {package}")
    return tool


@pytest.mark.dear
@for_each("compiler", ["gcc", "clang"])
def test_compiles_without_warnings(compiler: str, tmp_path: Path) -> None:
    subprocess.run([needs(compiler, compiler), *STRICT, *INCLUDE, "-O2", "-c", SOURCE, "-o", tmp_path / "a.o"], check=True)


def test_header_is_cplusplus_too() -> None:
    needs_compiler("g++")
    flags = ("-std=c++11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only", "-x", "c++")
    subprocess.run(["g++", *flags, *INCLUDE, "-include", "sframe_backtrace.h", "/dev/null"], check=True)


@for_each(
    "flags",
    ["-O2", "-O0", "-Os -fno-omit-frame-pointer", "-O2 -mstackrealign", "-O2 -no-pie", "-O2 -fuse-ld=mold", "-O2 -fuse-ld=lld"],
)
def test_all_kinds_of_frames(own_stack: OwnStack, flags: str) -> None:
    for tool in ("mold", "lld"):
        if f"={tool}" in flags:
            needs({"lld": "ld.lld"}.get(tool, tool), tool)
    assert frames_of(own_stack.run(own_stack.program("cases.c", own_stack.object(), *flags.split()))) > FRAMES


@pytest.mark.dear
def test_cplusplus_with_exceptions(own_stack: OwnStack) -> None:
    needs_compiler("g++")
    program = own_stack.program("cases.c", own_stack.object(), "-x", "c++", "-O2", "-lstdc++")
    assert frames_of(own_stack.run(program)) > FRAMES


@for_each("flag", ["-static", "-static-pie"])
def test_static_programs(own_stack: OwnStack, flag: str) -> None:
    assert frames_of(own_stack.run(own_stack.program("cases.c", own_stack.object(), "-O2", flag), alone=True)) > FRAMES


def test_version_2(own_stack: OwnStack) -> None:
    """It has no rules for outermost code, and none for signal frames: their code is known by its bytes."""
    program = own_stack.program("cases.c", own_stack.object(), "-O2", "-static", "-DOUTERMOST_UNCOVERED", version=2)
    assert frames_of(own_stack.run(program, alone=True)) > FRAMES


@pytest.mark.dear
@for_each("flag", ["-static", "-static-libgcc"])
def test_musl(own_stack: OwnStack, tmp_path: Path, flag: str) -> None:
    """Without _dl_find_object, which the loader's list replaces; and with Debian's libgcc, which needs one."""
    compiler = needs("musl-gcc", "musl-tools")
    library, program = tmp_path / "library.o", tmp_path / "program"
    subprocess.run([compiler, "-O2", *INCLUDE, "-c", SOURCE, "-o", library], check=True)
    subprocess.run(["objcopy", "--redefine-sym", "_dl_find_object=no_such_function", library], check=True)
    flags = ["-O2", flag, "-Wl,--eh-frame-hdr", "-DWITHOUT_CFI"]
    sources = [PROGRAMS / "cases.c", PROGRAMS / "musl_find_object.c"]
    subprocess.run([compiler, *flags, *INCLUDE, *sources, library, "-o", program], check=True)
    sframegen.add_section(program)
    assert frames_of(own_stack.run(program, alone=True)) > 11_000


def test_a_coroutine_s_stack_is_not_the_thread_s_own(own_stack: OwnStack) -> None:
    """Nor is it known to be readable when it is gone."""
    program = own_stack.program("beside.c", own_stack.object(), "-O1")
    assert {own_stack.run(program) for _ in range(5)} - {"no room\n"} == {"1 frame\n"}


LARGE_FRAME = "int f{number}(int (*f)(void)) {{ volatile char room[{size}]; room[0] = 1; return f() + room[0]; }}"
MANY = "\n".join(LARGE_FRAME.format(number=number, size=number % 300 * 16 + 16) for number in range(900))


@pytest.mark.dear
@for_each("is_shared", [False, True], ids=["linked", "shared library"])
def test_tables_of_made_code(is_shared: bool, own_stack: OwnStack, tmp_path: Path) -> None:
    """They are walked with the tables of sframegen_jit.h, or not at all. The shared library finds the program's list."""
    library = [own_stack.object()]
    if is_shared:
        assert compile_libraries(LIBRARY, tmp_path, ["gcc"]) == ""
        (tmp_path / SONAME).symlink_to(SHARED)
        library = [f"-L{tmp_path}", f"-Wl,-rpath,{tmp_path}", "-lsframe-backtrace"]
    program = own_stack.program("made_code.c", *library, "-O2", "-fomit-frame-pointer")
    lines = dict(line.split(": ", 1) for line in own_stack.run(program).splitlines())
    assert lines["described"] == "frame 1, no guesses, the outermost frame"
    no_rule = "frame 1, no guesses, no rule describes this code, and no frame pointer leads on"
    assert lines["removed"] == no_rule
    assert lines["unknown"] == lines["unregistered"] == no_rule


@pytest.mark.dear
def test_a_library_whose_file_is_cut_off_while_it_is_loaded(own_stack: OwnStack, tmp_path: Path) -> None:
    """Build-ids make rules stay in the cache, so it has none."""
    source = f"int call(int (*f)(void)) {{ return f() + 0; }}\n{MANY}\n"
    flags = ("-O1", "-fno-optimize-sibling-calls", "-shared", "-fPIC", "-Wl,--build-id=none")
    library = tmp_path / "many.so"
    sframegen.add_section(own_stack.compile_c(source, *flags, name="many.so"), output=library)
    [section] = [segment for segment in open_elf(library).segments if segment.p_type == PT.GNU_SFRAME]
    assert section.p_filesz > 2 * 4096
    program = own_stack.program("cut.c", own_stack.object(), "-O1", "-ldl")
    assert own_stack.run(program, library, str(section.p_offset + 4096)) == "0 1\n"


@pytest.fixture
def call_library(own_stack: OwnStack, tmp_path: Path) -> Path:
    plain = own_stack.compile_c("int call(int (*f)(void)) { return f() + 1; }", "-O1", "-shared", "-fPIC", name="call.so")
    sframegen.add_section(plain, output=tmp_path / "call.so")
    return tmp_path / "call.so"


def test_code_that_is_not_readable(own_stack: OwnStack, call_library: Path) -> None:
    """Neither a guess nor a rule looks at the call before a return address there."""
    assert own_stack.run(own_stack.program("unreadable.c", own_stack.object(), "-O1", "-ldl"), call_library) == "1\n1\n"


def test_a_library_that_hides_its_header(own_stack: OwnStack, call_library: Path) -> None:
    printed = own_stack.run(own_stack.program("hidden.c", own_stack.object(), "-O1", "-ldl"), call_library)
    assert printed == "2: no rule describes this code, and no frame pointer leads on; then all\n"


@for_each("build_id", ["sha1", "none"])
def test_another_library_at_the_same_address(own_stack: OwnStack, tmp_path: Path, build_id: str) -> None:
    libraries = []
    for size in (1024, 2048):
        library = tmp_path / f"lib{size}.so"
        flags = ("-O2", "-shared", "-fPIC", f"-DBYTES={size}", f"-Wl,--build-id={build_id}")
        shutil.copy(own_stack.compiled("reloaded.c", *flags), library)
        sframegen.add_section(library)
        libraries.append(library)
    assert libraries[0].stat().st_size == libraries[1].stat().st_size
    printed = own_stack.run(own_stack.program("reloads.c", own_stack.object(), "-O2", "-ldl"), *libraries, "100")
    assert printed.startswith("99 of 100 at the same address; ")
    assert frames_of(printed) == 800


@pytest.mark.parametrize(
    ("machine", "flags"),
    [(ARM64, ""), (ARM64, "-mbranch-protection=standard"), (S390X, "")],
    ids=["arm64", "arm64-signed", "s390x"],
)
def test_other_machines(peers: Peers, tmp_path: Path, machine: Machine, flags: str) -> None:
    options = ["-O2", *INCLUDE, SOURCE, *machine.static.split(), *flags.split()]
    plain = machine.compiler(peers, tmp_path)((PROGRAMS / "cases.c").read_text(), *options)
    program = tmp_path / "program"
    shutil.copy(plain, program)
    sframegen.add_section(program)
    command = machine.command(machine.root, program, WITHOUT_LOADER="1")
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert frames_of(done.stdout) > FRAMES


def test_memory_is_what_the_page_says(own_stack: OwnStack) -> None:
    sizes = subprocess.run(["size", own_stack.object()], capture_output=True, text=True, check=True).stdout.splitlines()[1].split()
    _, data, zeroed = (int(number) for number in sizes[:3])
    assert f"has {zeroed / 1024:.0f} KiB of memory" in " ".join((ROOT / "docs/backtrace.md").read_text().split())
    assert data == 0  # none of it is in the file, and so in memory before it is used


LIBRARIES = ("libc.so.6", "libgcc_s.so.1")


@pytest.fixture(scope="module")
def plain(own_stack: OwnStack) -> Path:
    return own_stack.compiled("cases.c", own_stack.object(), "-O2", "-Wl,--build-id=sha1")


def filled(store: Path, *files: Path) -> Path:
    for file in files:
        sframegen.add_section(file, detached=store)
    return store


def run(program: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([program], env={**os.environ, **environ}, capture_output=True, text=True, errors="replace", check=False)


def test_all_frames_are_right(plain: Path, tmp_path: Path) -> None:
    libraries = [compiled_library(name) for name in LIBRARIES]
    store = filled(tmp_path / "store", plain, Path("/lib64/ld-linux-x86-64.so.2").resolve(), *libraries)
    done = run(plain, SFRAMEGEN_PATH=f"{tmp_path / 'none'}::{store}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == "4 detached\n"
    assert frames_of(done.stdout) > FRAMES


def count(plain: Path, *stores: Path) -> int:
    done = run(plain, SFRAMEGEN_PATH=":".join(map(str, stores)), ONLY_PREPARE="1")
    assert done.returncode == 0, done.stderr
    return int(done.stderr.split()[0])


def linked(path: Path) -> None:
    target = path.with_name("elsewhere")
    path.rename(target)
    path.symlink_to(target)


def replaced(file: Path, at: int, new: bytes) -> None:
    data = file.read_bytes()
    file.write_bytes(data[:at] + new + data[at + len(new) :])


def pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


CHANGES: dict[str, Callable[[Path], object]] = {
    "writable": lambda file: file.chmod(0o646),
    "linked": linked,
    "directory linked": lambda file: linked(file.parent),
    "cut": lambda file: file.write_bytes(file.read_bytes()[:-100]),
    "emptied": lambda file: file.write_bytes(b""),
    "other layout": lambda file: replaced(file, 64 + 40, bytes([file.read_bytes()[64 + 40] ^ 1])),  # first p_memsz
    "damaged": lambda file: replaced(file, file.read_bytes().index(b"\xe2\xde\x03") + 8, b"\xff\xff\xff\x7f"),
    "pipe": pipe,
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_not_used(plain: Path, tmp_path: Path, change: str) -> None:
    store, second = (filled(tmp_path / name, plain) for name in ("store", "second"))
    (file,) = (path for path in store.rglob("*.sframe"))
    assert count(plain, store) == 1
    CHANGES[change](file)
    assert count(plain, store) == 0
    assert count(plain, store, second) == 1


def test_of_another_file(own_stack: OwnStack, plain: Path, tmp_path: Path) -> None:
    other = own_stack.compiled("cases.c", own_stack.object(), "-O1", "-Wl,--build-id=sha1")
    store = filled(tmp_path / "store", plain, other)
    ours, theirs = (next(filled(tmp_path / str(at), one).rglob("*.sframe")) for at, one in enumerate((plain, other)))
    place = store / ours.relative_to(tmp_path / "0")
    shutil.copy(theirs, place)
    assert count(plain, store) == 0
    shutil.copy(ours, place)
    assert count(plain, store) == 1


def test_a_header_that_leads_out_of_the_address_space(own_stack: OwnStack, tmp_path: Path) -> None:
    checked = ("-O0", "-fsanitize=pointer-overflow", "-fno-sanitize-recover=all")
    program = own_stack.compiled("cases.c", own_stack.object(*checked), "-Wl,--build-id=sha1", *checked)
    store = filled(tmp_path / "store", program)
    (file,) = store.rglob("*.sframe")
    data = bytearray(file.read_bytes())
    first = int.from_bytes(data[40:48], "little")  # section header, of type SHT_NULL
    data[first + 24 : first + 32] = (1 << 63).to_bytes(8, "little")  # sh_offset
    file.write_bytes(data)
    assert count(program, store) == 1


ROUNDS = int(os.environ.get("SFRAMEGEN_DAMAGE_ROUNDS", "150"))  # of 64 copies each


@pytest.fixture(scope="module")
def sections(own_stack: OwnStack, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Sections of both versions; the first is large, all have flexible rules or those of version 2."""
    directory = tmp_path_factory.mktemp("sections")
    programs = [own_stack.home / "libc.so.6"]
    programs += [own_stack.program("cases.c", own_stack.object(), "-O2", version=version) for version in (3, 2)]
    for number, program in enumerate(programs):
        subprocess.run(["objcopy", "--dump-section", f".sframe={directory / str(number)}", program, directory / "copy"], check=True)
    return sorted(path for path in directory.iterdir() if path.name != "copy")


@pytest.mark.dear
@pytest.mark.parametrize("seed", ["1", "2"])
def test_no_damage_is_read(tmp_path: Path, sections: list[Path], seed: str) -> None:
    needs_compiler("gcc")
    program = tmp_path / "hostile"
    flags = ["-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    subprocess.run(["gcc", *flags, *INCLUDE, PROGRAMS / "hostile.c", "-o", program], check=True)
    command: list[str | Path] = [program, str(ROUNDS), seed, *sections]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    opened, rules, walks, frames = (int(part.split()[0]) for part in done.stdout.split(";")[0].split(","))
    ends = [int(number) for number in done.stdout.split("ends:")[1].split()]
    assert opened > ROUNDS * 64 // 4, done.stdout
    assert rules > opened
    assert frames > walks
    assert sum(ends) == walks
    assert all(ends[number] for number in (2, 3, 4, 5)), done.stdout  # each bad end occurred
