"""add-section and check on kernel modules: what an arm64 kernel's module loader and its unwinder find in them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from linker.objects.laid_out import lay_out
from sframegen import Verdict, add_section, check, remove
from sframegen.base.errors import FormatError
from sframegen.elf.file import open_elf
from sframegen.elf.records import SHDR_SIZE, SHF, SHT
from sframegen.elf.symbols import find_functions_named
from sframegen.format.abi import abi_of
from sframegen.format.decode import SframeSection, decode
from sframegen.format.layouts import F_FDE_SORTED
from tests.support.commands import run as invoke
from tests.support.cross import ARM64, S390X, Machine
from tests.support.peers import Compiler, Peers

MODULE = """
    __attribute__((section(".gnu.linkonce.this_module"))) char this_module[64] = {1};
    int outside(int *);
    #define IN(section_name) __attribute__((noinline, section(section_name)))
    IN(".exit.text") int leave(int n) { int room[9] = {n}; return outside(room) + 1; }
    IN(".init.text") int enter(int n) { int room[5] = {n}; return outside(room) + 2; }
    IN(".text.unlikely") int cold(int n) { int room[7] = {n}; return outside(room) + 3; }
    int work(int n) { int room[3] = {n}; return outside(room) + cold(n); }
    int more(int n) { int room[2] = {n}; return outside(room) + 4; }
"""
LASTING = ("leave", "cold", "work", "more")  # where a loader leaves them as long as the module is loaded
# .debug_frame alone, as arm64 kernels are made.
FLAGS = ("-O1", "-g", "-c", "-fno-asynchronous-unwind-tables", "-fno-unwind-tables")


@pytest.fixture(params=[ARM64, S390X], ids=lambda machine: machine.name)
def machine(request: pytest.FixtureRequest) -> Machine:
    found: Machine = request.param
    return found


@pytest.fixture
def compiled(machine: Machine, peers: Peers, tmp_path: Path) -> Path:
    return machine.compiler(peers, tmp_path)(MODULE, *FLAGS, name="module.o")


@pytest.fixture
def module(machine: Machine, compiled: Path, tmp_path: Path) -> Path:
    path = tmp_path / "module.ko"
    subprocess.run([f"{machine.prefix}ld", "-r", "--build-id", "-o", path, compiled], check=True)
    return path


def objcopy(machine: Machine, *arguments: str | Path) -> None:
    subprocess.run([f"{machine.prefix}objcopy", *arguments], check=True)


def sections(path: Path) -> list[SframeSection]:
    elf = open_elf(path)
    image = lay_out(elf, abi_of(elf)).image
    return [decode(image.contents(one), one.header.sh_addr) for one in image.sections if one.header.sh_type == SHT.GNU_SFRAME]


def described(path: Path) -> set[str]:
    """Names of the functions that the module's only section describes; its functions must ascend as the loader places them."""
    elf = open_elf(path)
    image = lay_out(elf, abi_of(elf)).image
    [section] = sections(path)
    assert section.header.flags & F_FDE_SORTED
    assert list(section.table.start) == sorted(section.table.start)
    names = (*LASTING, "enter")
    return {name for name in names for symbol in find_functions_named(image, name.encode()) if section.rule_at(symbol.address)}


def test_all_lasting_code_is_in_one_section_in_the_loaders_order(machine: Machine, module: Path) -> None:
    before = module.read_bytes()
    summary = add_section(module)
    assert described(module) == set(LASTING)
    assert summary.ignored_fdes == {"in code that the kernel frees or runs at another address": 1}
    elf = open_elf(module)
    [section] = [one for one in elf.sections if one.header.sh_type == SHT.GNU_SFRAME]
    assert (section.header.sh_flags, section.header.sh_addralign) == (SHF.ALLOC, 8)
    data, count = elf.contents(section), sections(module)[0].header.num_fdes
    # Else an x86-64 kernel, which wants zeros under relocations, refuses the module.
    assert {bytes(data[at : at + 8]) for at in range(28, 28 + 16 * count, 16)} == {bytes(8)}
    assert not check(module).findings
    assert [one.rule for one in check(module, consumer="arm64-kernel").findings] == ["arm64-kernel-other-kind"] * (machine is S390X)
    remove(module)
    assert module.read_bytes() == before


@pytest.mark.parametrize("change", ["--only-keep-debug", "--strip-unneeded"])
def test_a_debug_file_of_other_section_numbers(machine: Machine, module: Path, tmp_path: Path, change: str) -> None:
    debug, plain, out = tmp_path / "module.ko.debug", tmp_path / "plain.ko", tmp_path / "out.ko"
    # One more section before all others moves every number; linkers' scripts cannot, so the module is linked again with it.
    script = tmp_path / "first.ld"
    script.write_text("SECTIONS { .first 0 : { LONG(1) } }\n")
    subprocess.run([f"{machine.prefix}ld", "-r", "-T", script, "-o", debug, module], check=True)
    numbers = [[one.name for one in open_elf(path).sections].index(".text") for path in (module, debug)]
    assert numbers[0] != numbers[1]
    if change == "--only-keep-debug":
        objcopy(machine, change, debug)
    objcopy(machine, "--strip-debug", module, plain)
    assert add_section(plain, output=out).section_bytes == 0
    add_section(plain, output=out, debug_file=debug)
    assert described(out) == set(LASTING)
    report = check(out, debug_file=debug)
    assert (report.findings, report.code[Verdict.WRONG], report.code[Verdict.ABSENT]) == ((), 0, 0)
    with_debug = tmp_path / "with-debug.ko"
    add_section(module, output=with_debug)
    assert sections(out)[0].table == sections(with_debug)[0].table


def test_sections_of_one_name_and_size_are_not_guessed(machine: Machine, module: Path, tmp_path: Path) -> None:
    debug, plain, out = tmp_path / "module.ko.debug", tmp_path / "plain.ko", tmp_path / "out.ko"
    objcopy(machine, "--rename-section", ".exit.text=.text.unlikely", module, debug)  # as large as the other one
    assert len({one.header.sh_size for one in open_elf(debug).sections if one.name == ".text.unlikely"}) == 1
    objcopy(machine, "--strip-debug", debug, plain)
    add_section(plain, output=out, debug_file=debug)
    assert described(out) == {"work", "more"}


def test_a_section_that_only_the_debug_file_loads(machine: Machine, module: Path, tmp_path: Path) -> None:
    """A debug file whose call frame information is elsewhere is refused."""
    debug = tmp_path / "module.debug"
    objcopy(machine, "--only-keep-debug", module, debug)
    subprocess.run([f"{machine.prefix}strip", "--strip-debug", module], check=True)
    good, elf, before = debug.read_bytes(), open_elf(debug), module.read_bytes()
    [frames] = [section for section in elf.sections if section.name == ".debug_frame"]
    at = elf.header.e_shoff + frames.number * SHDR_SIZE + 24  # sh_offset
    debug.write_bytes(good[:at] + (1 << 50).to_bytes(8, elf.byte_order) + good[at + 8 :])
    with pytest.raises(FormatError, match=r"\.debug_frame: .* past the end of the file"):
        add_section(module, debug_file=debug)
    assert module.read_bytes() == before
    debug.write_bytes(good)
    objcopy(machine, "--set-section-flags", ".data=contents", module)
    add_section(module, debug_file=debug)
    assert described(module) == set(LASTING)


def test_the_debug_file_of_another_module(machine: Machine, compiled: Path, module: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.ko"
    subprocess.run([f"{machine.prefix}ld", "-r", "--build-id=0x1234", "-o", other, compiled], check=True)
    with pytest.raises(FormatError, match="is not its debug file"):
        add_section(module, debug_file=other)


def test_a_function_that_the_kernel_never_looks_up(machine: Machine, module: Path, tmp_path: Path) -> None:
    """As GNU as writes it: with all functions."""
    path, name = tmp_path / "object.o", ".gnu.linkonce.this_module"
    objcopy(machine, "--rename-section", f"{name}=.other", module, path)
    add_section(path)
    objcopy(machine, "--rename-section", f".other={name}", path)
    assert "arm64-kernel-outside-text" in {finding.rule for finding in check(path).findings}


def test_eh_frame_that_a_kernel_frees(machine: Machine, peers: Peers, tmp_path: Path) -> None:
    """Kernels that patch PAC into a shadow call stack read a module's .eh_frame once, under another name."""
    made = machine.compiler(peers, tmp_path)(MODULE, "-O1", "-c", "-fasynchronous-unwind-tables", name="module.o")
    path = tmp_path / "module.ko"
    objcopy(machine, "--rename-section", ".eh_frame=.init.eh_frame", made, path)
    assert add_section(path).cfi_sections == (".init.eh_frame",)
    assert described(path) == set(LASTING)
    assert not check(path).findings


def test_notes_and_refusals(machine: Machine, module: Path, compile_c: Compiler, tmp_path: Path) -> None:
    objcopy(machine, "--strip-debug", module, tmp_path / "plain.ko")
    assert add_section(tmp_path / "plain.ko").note == "nothing to add: no call frame information"
    if machine is ARM64:
        assert "nothing was compared" in check(tmp_path / "plain.ko", instructions=True).one_line()
    assert add_section(module).note == ("" if machine is ARM64 else "no s390x kernel reads the section of a module")
    assert "ORC" in add_section(compile_c(MODULE, "-c", name="other.o"), output=tmp_path / "other.ko").note
    objcopy(machine, "--rename-section", ".gnu.linkonce.this_module=.other", module, tmp_path / "object.o")
    assert not add_section(tmp_path / "object.o", replace=True).note
    objcopy(machine, "--strip-debug", module)
    assert check(module).one_line().endswith(", no CFI to compare with")
    subprocess.run(["xz", "-k", module], check=True)
    result = invoke("add-section", tmp_path / "module.ko.xz")
    assert result.exit_code == 1
    assert "unxz" in result.stderr


def test_a_damaged_section_has_all_findings(module: Path) -> None:
    add_section(module)
    header = next(one.header for one in open_elf(module).sections if one.header.sh_type == SHT.GNU_SFRAME)
    data = bytearray(module.read_bytes())
    data[header.sh_offset] ^= 0xFF
    module.write_bytes(data)
    assert {"magic", "arm64-kernel-magic"} <= {finding.rule for finding in check(module).findings}
