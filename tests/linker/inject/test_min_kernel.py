"""What only newer kernels bear: --min-kernel, and dynamic loaders, which are distinguished from libraries."""

from __future__ import annotations

import ctypes
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from linker.inject.kernel_versions import Kernel, KernelChange, changes_accepted_by, parse_kernel_version
from linker.inject.plan import plan_injection
from sframegen import FormatError, add_section, convert, remove
from sframegen.base.errors import Refusal, RefusedError
from sframegen.elf.dynamic import Role, determine_role, read_dynamic
from sframegen.elf.file import ElfFile, open_elf
from sframegen.elf.records import PT, ByteOrder
from sframegen.format.locate import find_sframe
from tests.support.commands import run as invoke
from tests.support.inputs.linker_inputs import FLAGS, SOURCE, small_file, with_segment
from tests.support.loops import for_each
from tests.support.peers import Compiler, Peers

REFUSAL = "a dynamic loader: Linux before 6.7 cannot start programs with a loader that has a segment after its .bss"
MODULE = "int value; int *at = &value; int get(void) { return *at + 7; }\n"
MODULE_FLAGS = ("-shared", "-fPIC", "-nostdlib", "-Wl,-e,get")  # older GNU ld gave every library an entry point


def role(file: Path) -> Role:
    elf = open_elf(file)
    return determine_role(elf, read_dynamic(elf))


def system_loader() -> Path:
    program = open_elf(Path(sys.executable).resolve())
    segment = next((s for s in program.segments if s.p_type == PT.INTERP), None)
    if segment is None or program.header.e_machine != 62:
        pytest.skip("no x86-64 program with a dynamic loader here")
    return Path(bytes(program.data[segment.p_offset : segment.p_offset + segment.p_filesz - 1]).decode())


@for_each(
    ("version", "kernel", "safe"),
    [
        ("5.17", (5, 17), set()),
        ("5.18", (5, 18), {KernelChange.TABLE_AT_THE_END}),
        ("6.6.99-generic", (6, 6), {KernelChange.TABLE_AT_THE_END}),
        ("6.7", (6, 7), set(KernelChange)),
        ("6.18.44+deb13-amd64", (6, 18), set(KernelChange)),
        ("10.0", (10, 0), set(KernelChange)),
    ],
)
def test_versions(version: str, kernel: tuple[int, int], safe: set[KernelChange]) -> None:
    assert parse_kernel_version(version) == Kernel(*kernel)
    assert changes_accepted_by(version) == safe
    assert changes_accepted_by(None) == {KernelChange.TABLE_AT_THE_END}  # of 5.18


@for_each("version", ["", "6", "6.", "6.x", "v6.7", "6.7 ", "6.7;x", "6.7$(x)", "6.7\n", "-6.7", "6.99999999", "\u0666.7"])
def test_what_is_no_version(version: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^not a Linux version such as 5\.18"):
        parse_kernel_version(version)
    with pytest.raises(ValueError, match=r"^not a Linux version"):
        add_section(tmp_path / "missing", min_kernel=version)
    for command in ("add-section", "add-tree", "link", "merge"):
        result = invoke(command, f"--min-kernel={version}", "-o", "a", tmp_path)
        assert (result.exit_code, result.stdout) == (2, "")


@for_each(
    ("flags", "expected"),
    [
        ((), Role.LIBRARY),  # the relocations have symbols: others may define value and at
        (("-Wl,-Bsymbolic", "-fvisibility=hidden"), Role.UNSURE),
        (("-Wl,-Bsymbolic", "-fvisibility=hidden", "-Wl,-z,pack-relative-relocs", "-Wl,-e,0"), Role.LIBRARY),
        (("-Wl,-Bsymbolic", "-fvisibility=hidden", "-Wl,-soname,libmodule.so.1"), Role.UNSURE),
        (("-Wl,-soname,ld-module.so.1",), Role.LOADER),
        (("-Wl,-soname,ld64.so.1",), Role.LOADER),
        (("-Wl,-soname,ld.so.1.2",), Role.LOADER),
        (("-Wl,-soname,ldap.so.1",), Role.LIBRARY),
        (("-Wl,-soname,old-module.so.1",), Role.LIBRARY),
        (("-Dget=get", "-Dvalue=_rtld_global"), Role.LOADER),  # glibc
        (("-Dvalue=_dl_debug_addr",), Role.LOADER),  # musl
        (("-Dvalue=rtld_db_dlactivity",), Role.LOADER),  # Android
        (("-Dvalue=_rtld_global", "-Wl,--no-as-needed", "-lc"), Role.LIBRARY),  # needs another
        (("-Wl,-e,0", "-Dvalue=_rtld_global"), Role.LIBRARY),  # does not begin
    ],
)
def test_loaders_and_libraries(flags: tuple[str, ...], expected: Role, compile_c: Compiler) -> None:
    """A module with an entry point is no loader, as 26 of PostgreSQL, linked by an older GNU ld."""
    module = compile_c(MODULE, *MODULE_FLAGS, *flags, name="m.so")
    assert role(module) is expected
    assert flags or open_elf(module).header.e_entry


@for_each("data", [small_file(library=True), small_file("big", library=True)])
def test_relocations_that_are_not_in_the_file(data: bytes) -> None:
    """Two tags of a file without DT_NEEDED say where they are: in none of its segments."""
    mark = "<QQ" if data[5] == 1 else ">QQ"
    changed = data.replace(struct.pack(mark, 1, 1), struct.pack(mark, 7, 1 << 40)).replace(
        struct.pack(mark, 11, 24), struct.pack(mark, 8, 24)
    )
    elf = ElfFile(memoryview(changed), "file")
    with pytest.raises(FormatError, match="file: program header table: no segment maps 24 bytes at address 0x10000000000"):
        determine_role(elf, read_dynamic(elf))


@for_each("options", [{"force": True}, {"min_kernel": "6.7"}, {"min_kernel": "6.7", "force": True}])
def test_a_library_that_may_be_a_loader(options: dict[str, object], compile_c: Compiler, tmp_path: Path) -> None:
    module = compile_c(MODULE, *MODULE_FLAGS, "-Wl,-Bsymbolic,-z,norelro", "-fvisibility=hidden", name="hidden.so")
    result = tmp_path / "m.so"
    with pytest.raises(RefusedError, match="may be " + REFUSAL):
        add_section(module, output=result)
    assert not result.exists()
    summary = add_section(module, output=result, **options)  # type: ignore[arg-type]
    assert [warning.partition(":")[0] for warning in summary.warnings] == ["may be a dynamic loader"] * (len(options) == 1) * (
        "force" in options
    )
    ctypes.CDLL(str(result))


@pytest.mark.parametrize("tool", ["", "strip", "eu-strip", "llvm-strip"])
def test_the_systems_loader(tool: str, compile_c: Compiler, peers: Peers, tmp_path: Path) -> None:
    original, file = system_loader(), tmp_path / "ld.so"
    assert role(original) is Role.LOADER
    for options in ({}, {"min_kernel": "6.6"}):
        with pytest.raises(RefusedError, match="is " + REFUSAL):
            add_section(original, output=file, **options)  # type: ignore[arg-type]
    add_section(original, output=file, min_kernel="6.7")
    if tool:
        subprocess.run([peers.tool(tool), "-o", tmp_path / "stripped", file], check=True)
        (tmp_path / "stripped").rename(file)
    assert find_sframe(open_elf(file)) is not None
    program = compile_c(SOURCE, *FLAGS)
    named = tmp_path / "named"
    subprocess.run([peers.tool("patchelf"), "--set-interpreter", file, "--output", named, program], check=True)
    for command in ([file, program], [named]):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, "counter 17\n", "")
    if not tool:
        remove(file)
        assert file.read_bytes() == original.read_bytes()


@for_each("is_loader", [False, True])
def test_convert_needs_no_permission_for_what_the_file_already_has(compile_c: Compiler, tmp_path: Path, *, is_loader: bool) -> None:
    """Where the new section is too large for the place of the old one."""
    file = tmp_path / "file"
    flags = ("-fPIE", "-static-pie", "-fuse-ld=lld")
    original = system_loader() if is_loader else compile_c("int main(void) { return 0; }", *flags)
    add_section(original, output=file, optimize="size", min_kernel="6.7")
    plan = convert(file, 2, optimize="none").plan
    assert plan is not None
    assert plan.lines[0].startswith("layout: ")
    subprocess.run([file, *["--version"] * is_loader], check=True, stdout=subprocess.DEVNULL)
    remove(file)
    assert file.read_bytes() == original.read_bytes()


CANNOT_MOVE = r"no room for two more program headers: \.init cannot move$"


def test_a_loader_never_has_its_table_at_the_end() -> None:
    """glibc's and musl's look for it e_phoff bytes after their first byte, where strip does not leave it."""
    data = small_file(library=True, blocked=256)
    needed, strings = struct.pack("<QQQ", 1, 1, 4), b"other\0" * 3  # DT_NEEDED, before DT_HASH
    assert data.count(needed) == 1
    alone = data.replace(needed, struct.pack("<QQQ", 14, 1, 4))
    loader = alone.replace(strings, b"_rtld_global".ljust(len(strings), b"\0"), 1)
    for allowed in (frozenset(KernelChange), frozenset[KernelChange]()):  # so that no version is named as a remedy
        with pytest.raises(RefusedError, match=CANNOT_MOVE):
            plan_injection(ElfFile(memoryview(loader)), 28, allowed=allowed)
    assert plan_injection(ElfFile(memoryview(alone)), 28, allowed=frozenset(KernelChange)).layout == "tail"  # that may be one


@for_each("order", ["little", "big"])
def test_a_program_has_its_table_at_the_end_where_kernels_find_it(order: ByteOrder) -> None:
    program = ElfFile(memoryview(small_file(order, blocked=256)))
    with pytest.raises(RefusedError, match=CANNOT_MOVE) as error:
        plan_injection(program, 28, allowed=frozenset([KernelChange.SEGMENT_IN_A_LOADER]))
    assert error.value.reason is Refusal.OLD_KERNELS
    plan = plan_injection(program, 28, allowed=frozenset([KernelChange.TABLE_AT_THE_END]))
    [table] = [segment for segment in plan.segments if segment.p_type == PT.PHDR]
    [holder] = [segment for segment in plan.segments if segment.p_type == PT.LOAD and segment.p_offset == plan.table_offset]
    assert table[2:7] == holder[2:7]
    assert table.p_filesz == plan.table_size
    assert (plan.layout, plan.moves) == ("tail", ())


def test_no_kernel_has_room_after_the_last_address() -> None:
    data = with_segment(small_file(blocked=256), 4, p_vaddr=(1 << 63) - 0x5000)  # the last PT_LOAD
    with pytest.raises(RefusedError, match=CANNOT_MOVE):
        plan_injection(ElfFile(memoryview(data)), 28)


@for_each(
    ("source", "flags"),
    [
        ("static char pool[1 << 30]; int main(void) { return pool[7]; }", "-fPIE -static-pie -fuse-ld=lld"),  # no table after that
        (  # as a kernel
            "int main(void) { return 0; } void _start(void) { main(); }",
            "-nostdlib -static -fno-pie -mcmodel=kernel -Wl,-Ttext=0xffffffff81000000",
        ),
    ],
)
def test_a_remedy_was_tried(source: str, flags: str, compile_c: Compiler, peers: Peers, tmp_path: Path) -> None:
    file, out = compile_c(source, *flags.split()), tmp_path / "out"

    def refusal(*arguments: object) -> str:
        result = invoke("add-section", "-o", tmp_path / "loaded", *arguments)
        assert result.exit_code == 1
        return result.stderr

    remedy = "; use --unloaded to add a section for tools that read the file\n"
    assert refusal(file).endswith(remedy)
    assert refusal("--min-kernel", "6.7", file).endswith(remedy)
    assert invoke("add-section", "--unloaded", "-o", out, file).exit_code == 0
    subprocess.run([peers.tool("strip"), out], check=True)  # with its undo record
    assert refusal(out).endswith(remedy)  # where --replace, the remedy against another section, would be refused


def test_each_command_names_the_remedy_and_needs_none(peers: Peers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a static-PIE of lld, which has no room before its build-id."""
    monkeypatch.chdir(tmp_path)
    Path("main.c").write_text("int main(void) { return 0; }")
    subprocess.run(["gcc", "-fPIE", "-c", "main.c"], check=True)
    link = ["gcc", "-static-pie", "-fuse-ld=lld", "-B", str(Path(peers.tool("ld.lld")).parent), "-Wl,-Map=map", "main.o"]
    subprocess.run([*link, "-o", "program"], check=True)
    Path("root").mkdir()
    shutil.copy("program", "root")
    add_section("main.o", output="with.o")
    for command, *arguments, result in (
        ("link", "--", *link, "-o", "linked"),
        ("add-tree", "root", "root/program"),
        ("merge", "--map", "map", "program", "main.o", "-o", "merged"),
        ("add-section", "program"),
    ):
        if command == "merge":
            shutil.copy("with.o", "main.o")
        given = arguments if command == "add-tree" else [*arguments, result]
        old, new = (
            subprocess.run(
                [sys.executable, "-m", "sframegen", command, *options, *given], capture_output=True, text=True, check=False
            )
            for options in (("--min-kernel", "5.17"), ())
        )
        assert "; --min-kernel 5.18 puts them at the end of the file" in old.stderr
        assert old.returncode == (0 if command in ("link", "add-tree") else 1)
        assert new.returncode == 0, new.stderr
        subprocess.run([Path(result).absolute()], check=True)
        assert find_sframe(open_elf(Path(result))) is not None
    assert invoke("add-section", "--min-kernel", "6.1", "program").stdout.endswith("; has it already\n")
