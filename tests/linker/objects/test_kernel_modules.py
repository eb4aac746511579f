"""add-section and check on kernel modules, and on images that a linker script lays out: what an arm64 kernel finds in them."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from elftools.elf.elffile import ELFFile

from linker.objects.laid_out import lay_out
from sframegen import Verdict, add_section, check, read, remove
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


# -- add-section --object: the section of an image, right in a later link that moves its parts

IMAGE = """
    int outside(int *n) { return *n; }
    #define IN(section_name) __attribute__((noinline, section(section_name)))
    IN(".init.text") int enter(int n) { int room[5] = {n}; return outside(room) + 2; }
    IN(".hyp.text") int elsewhere(int n) { int room[4] = {n}; return outside(room) + 5; }
    int work(int n) { int room[3] = {n}; return outside(room) + 1; }
    int start(int n) { return work(n) + enter(n) + elsewhere(n); }
"""
BUILD = ("-O1", "-g", "-c", "-fno-asynchronous-unwind-tables", "-fno-unwind-tables", "-fno-inline", "-fno-pic", "-mcmodel=large")
SCRIPT = """
    ENTRY(start)
    PHDRS { text PT_LOAD FLAGS(5); rest PT_LOAD FLAGS(7); }
    SECTIONS {
        . = 0xffff800080000000;
        .text : { TEXT *(.text*) HYP(*(.hyp.text)) END } : text
        .rodata : { *(.rodata*) } : rest
        .image_sframe : { KEEP(*(.image_sframe)) }
        .init.text : { INIT *(.init.text) }
        .data : { *(.data*) }
        .bss : { *(.bss*) }
    }
"""
KERNEL = {"TEXT": "_stext = .;", "END": "_etext = .;", "INIT": "_sinittext = .;"}
KERNEL_HYP = ("HYP(*(.hyp.text))", "__hyp_text_start = .; *(.hyp.text) __hyp_text_end = .;")
FIRMWARE = {"TEXT": "firmware_text = .;", "END": "", "INIT": "firmware_init = .;"}
HYP = ("HYP(*(.hyp.text))", "*(.hyp.text)")


class Image(NamedTuple):
    machine: Machine
    object: Path
    script: Path

    def link(self, name: str, *objects: Path) -> Path:
        out = self.script.with_name(name)
        linker = (f"{self.machine.prefix}ld", "--no-warn-rwx-segments")
        files = ("-T", self.script, "-o", out, self.object, *objects)
        assert not subprocess.run([*linker, *map(str, files)], check=True, capture_output=True, text=True).stderr
        return out


def image(machine: Machine, peers: Peers, directory: Path, words: dict[str, str], hyp: tuple[str, str]) -> Image:
    flags = [flag for flag in BUILD if machine is ARM64 or "mcmodel" not in flag]
    made = machine.compiler(peers, directory)(IMAGE, *flags, name="image.o")
    text = SCRIPT.replace(*hyp)
    for word, meaning in words.items():
        text = text.replace(f"{word} ", f"{meaning} ")
    script = directory / "image.ld"
    script.write_text(text)
    return Image(machine, made, script)


def described_in(path: Path) -> set[str]:
    elf, section = open_elf(path), read(path)
    names = ("outside", "enter", "elsewhere", "work", "start")
    return {name for name in names for symbol in find_functions_named(elf, name.encode()) if section.rule_at(symbol.address)}


@pytest.mark.parametrize("machine", [ARM64, S390X], ids=lambda machine: machine.name)
def test_a_later_link_moves_what_follows(machine: Machine, peers: Peers, tmp_path: Path) -> None:
    """The section grows .rodata, so that .init.text is elsewhere in the second link."""
    firmware = image(machine, peers, tmp_path, FIRMWARE, HYP)
    first = firmware.link("first")
    before, section = first.read_bytes(), tmp_path / "section.o"
    summary = add_section(first, object_file=section)
    assert (summary.output, first.read_bytes()) == (str(section), before)
    second = firmware.link("second", section)
    places = [next(find_functions_named(open_elf(path), b"enter")).address for path in (first, second)]
    assert places[0] != places[1]
    assert described_in(second) == {"outside", "enter", "elsewhere", "work", "start"}
    code = check(second).code
    assert (code[Verdict.WRONG], code[Verdict.ABSENT]) == (0, 0)
    assert code[Verdict.EQUAL] == summary.covered_bytes


def test_a_kernel_has_what_its_unwinder_looks_up(peers: Peers, tmp_path: Path) -> None:
    kernel = image(ARM64, peers, tmp_path, KERNEL, KERNEL_HYP)
    first, section = kernel.link("first"), tmp_path / "section.o"
    summary = add_section(first, object_file=section)
    assert summary.ignored_fdes == {"in code that the kernel frees or runs at another address": 2}
    vmlinux = kernel.link("vmlinux", section)
    assert described_in(vmlinux) == {"outside", "work", "start"}
    assert [one.rule for one in check(vmlinux).findings if one.severity] == []
    assert [one.rule for one in check(vmlinux, consumer="arm64-kernel").findings if one.severity] == []
    data = bytearray(vmlinux.read_bytes())
    data[18:20] = (243).to_bytes(2, "little")  # RISC-V, which has no ABI in the format
    vmlinux.write_bytes(data)
    rules = {one.rule for one in check(vmlinux, consumer="arm64-kernel").findings}
    assert rules == {"machine", "arm64-kernel-other-kind"}


def test_code_that_changed_between_the_links_is_found(peers: Peers, tmp_path: Path) -> None:
    kernel = image(ARM64, peers, tmp_path, KERNEL, KERNEL_HYP)
    section, more = tmp_path / "section.o", tmp_path / "more"
    add_section(kernel.link("first"), object_file=section)
    more.mkdir()
    other = ARM64.compiler(peers, more)("int first(int n) { return n * 3; }", *BUILD, name="more.o")
    vmlinux = kernel._replace(object=other).link("vmlinux", kernel.object, section)
    assert invoke("check", "--consumer", "arm64-kernel", vmlinux).exit_code == 1


def test_the_object_is_one_that_old_linkers_take(peers: Peers, tmp_path: Path) -> None:
    section = tmp_path / "section.o"
    add_section(image(ARM64, peers, tmp_path, KERNEL, KERNEL_HYP).link("first"), object_file=section)
    with section.open("rb") as stream:
        file: Any = ELFFile(stream)
        found = file.get_section_by_name(".image_sframe")
        assert (found["sh_type"], found["sh_flags"], found["sh_addralign"]) == ("SHT_PROGBITS", 2, 8)
        relocations = list(file.get_section_by_name(".rela.image_sframe").iter_relocations())
        symbols = file.get_section_by_name(".symtab")
        assert {symbols.get_symbol(one["r_info_sym"]).name for one in relocations} == {"_stext"}
        assert all(found.data()[one["r_offset"] : one["r_offset"] + 8] == bytes(8) for one in relocations)


def test_what_lacks_symbols_is_refused(peers: Peers, compile_c: Compiler, tmp_path: Path) -> None:
    section = tmp_path / "section.o"

    def refuse(file: Path, why: str) -> None:
        with pytest.raises(FormatError, match=why):
            add_section(file, object_file=section)
        assert not section.exists()

    refuse(compile_c("int f(void) { return 1; }", "-c", name="one.o"), "only linked files")
    without = FIRMWARE | {"INIT": "LONG(0) firmware_init = .;"}
    refuse(image(ARM64, peers, tmp_path, without, HYP).link("first"), r"\.init\.text: no global symbol at its start")
    first = image(ARM64, peers, tmp_path, FIRMWARE, HYP).link("first")
    data = first.read_bytes()
    first.write_bytes(data.replace(b"\0firmware_text\0", b"\0\0irmware_text\0").replace(b"\0outside\0", b"\0\0utside\0"))
    refuse(first, r"\.text: no global symbol at its start")
    first.write_bytes(data)
    subprocess.run([f"{ARM64.prefix}strip", "--keep-section=.debug_frame", first], check=True)
    refuse(first, "no symbol table: give the image that its first link made")
    subprocess.run([f"{ARM64.prefix}strip", first], check=True)
    refuse(first, "section.o was not written: no call frame information")
    first.write_bytes(data.replace(b"\0outside\0", b"\0\xff\xfetsid\xc0\0"))
    add_section(first, object_file=section)
    assert b"\0\xff\xfetsid\xc0\0" in section.read_bytes()


def test_the_object_is_written_once(peers: Peers, tmp_path: Path) -> None:
    first, section = image(ARM64, peers, tmp_path, FIRMWARE, HYP).link("first"), tmp_path / "section.o"
    written = invoke("add-section", "--object", section, first)
    assert (written.exit_code, written.stderr) == (0, "")
    mtime = section.stat().st_mtime_ns
    assert "has it already" in invoke("add-section", "--object", section, first).stdout
    assert section.stat().st_mtime_ns == mtime
