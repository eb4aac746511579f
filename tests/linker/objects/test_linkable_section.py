"""add-section --object: the section of an image that a linker script lays out, right in a later link that moves its parts."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from elftools.elf.elffile import ELFFile

from sframegen import Verdict, add_section, check, read
from sframegen.base.errors import FormatError
from sframegen.elf.file import open_elf
from sframegen.elf.symbols import find_functions_named
from tests.support.commands import run as invoke
from tests.support.cross import ARM64, S390X, Machine
from tests.support.peers import Compiler, Peers

SOURCE = """
    int outside(int *n) { return *n; }
    #define IN(section_name) __attribute__((noinline, section(section_name)))
    IN(".init.text") int enter(int n) { int room[5] = {n}; return outside(room) + 2; }
    IN(".hyp.text") int elsewhere(int n) { int room[4] = {n}; return outside(room) + 5; }
    int work(int n) { int room[3] = {n}; return outside(room) + 1; }
    int start(int n) { return work(n) + enter(n) + elsewhere(n); }
"""
FLAGS = ("-O1", "-g", "-c", "-fno-asynchronous-unwind-tables", "-fno-unwind-tables", "-fno-inline", "-fno-pic", "-mcmodel=large")
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
    flags = [flag for flag in FLAGS if machine is ARM64 or "mcmodel" not in flag]
    made = machine.compiler(peers, directory)(SOURCE, *flags, name="image.o")
    text = SCRIPT.replace(*hyp)
    for word, meaning in words.items():
        text = text.replace(f"{word} ", f"{meaning} ")
    script = directory / "image.ld"
    script.write_text(text)
    return Image(machine, made, script)


def described(path: Path) -> set[str]:
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
    assert described(second) == {"outside", "enter", "elsewhere", "work", "start"}
    code = check(second).code
    assert (code[Verdict.WRONG], code[Verdict.ABSENT]) == (0, 0)
    assert code[Verdict.EQUAL] == summary.covered_bytes


def test_a_kernel_has_what_its_unwinder_looks_up(peers: Peers, tmp_path: Path) -> None:
    kernel = image(ARM64, peers, tmp_path, KERNEL, KERNEL_HYP)
    first, section = kernel.link("first"), tmp_path / "section.o"
    summary = add_section(first, object_file=section)
    assert summary.ignored_fdes == {"in code that the kernel frees or runs at another address": 2}
    vmlinux = kernel.link("vmlinux", section)
    assert described(vmlinux) == {"outside", "work", "start"}
    assert [one.rule for one in check(vmlinux).findings if one.severity] == []
    assert [one.rule for one in check(vmlinux, consumer="arm64-kernel").findings if one.severity] == []
    data = bytearray(vmlinux.read_bytes())
    data[18:20] = (243).to_bytes(2, "little")  # RISC-V, which has no ABI in the format
    vmlinux.write_bytes(data)
    assert [one.rule for one in check(vmlinux).findings if one.severity] == ["machine"]


def test_code_that_changed_between_the_links_is_found(peers: Peers, tmp_path: Path) -> None:
    kernel = image(ARM64, peers, tmp_path, KERNEL, KERNEL_HYP)
    section, more = tmp_path / "section.o", tmp_path / "more"
    add_section(kernel.link("first"), object_file=section)
    more.mkdir()
    other = ARM64.compiler(peers, more)("int first(int n) { return n * 3; }", *FLAGS, name="more.o")
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
