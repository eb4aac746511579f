"""Programs with fixed addresses: pages before the first segment hold the headers; what other tools and old bytes make of that."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from linker.existing.original import restore_original
from linker.inject import undo_record
from linker.inject.before_layout import MAX_PAGE, MIN_ADDRESS
from linker.inject.gaps import Gap
from linker.inject.plan import plan_injection
from linker.inject.verify import verify_injection as verify_with
from sframegen import add_section, remove
from sframegen.checks.placement import check_placement
from sframegen.elf.file import ElfFile, open_elf
from sframegen.elf.notes import read_build_id
from sframegen.elf.records import PT
from tests.support.inputs.linker_inputs import inject, restored, section_named
from tests.support.loops import for_each
from tests.support.peers import Compiler, Peers

PROGRAM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
int answer(void) { return 42; }
extern const char __ehdr_start[];
int main(void) {
    int (*found)(void) = dlsym(RTLD_DEFAULT, "answer");
    printf("%d %d\n", found ? found() : 0, memcmp(__ehdr_start, "\177ELF", 4));
    return 0;
}
"""
FLAGS = ("-g", "-O1", "-fno-pie", "-no-pie", "-rdynamic", "-Wl,--build-id", "-Wl,-rpath,/opt")
PATCHES = (
    ["--set-rpath", "/o"],
    ["--set-rpath", "/" + "long" * 900],
    ["--page-size", "65536", "--set-rpath", "/o"],
    ["--add-needed", "libm.so.6"],
    ["--no-default-lib", "--set-rpath", "/lib:/lib64:/usr/lib/x86_64-linux-gnu"],
)


def answer_of(file: Path) -> str:
    file.chmod(0o755)
    return subprocess.run([file], capture_output=True, text=True, check=True).stdout


def test_every_old_byte_is_where_it_was(compile_c: Compiler, tmp_path: Path) -> None:
    original, result = compile_c(PROGRAM, *FLAGS), tmp_path / "result"
    plan = inject(original, result)
    before, after = open_elf(original), open_elf(result)
    assert plan.layout == "before"
    symbols = section_named(before, ".symtab")
    for offset, size in plan.changed():
        assert symbols.header.sh_offset <= offset < offset + size <= symbols.header.sh_offset + symbols.header.sh_size
    for load in (s for s in before.segments if s.p_type == PT.LOAD):
        assert after.at(load.p_vaddr, load.p_filesz) == before.data[load.p_offset : load.p_offset + load.p_filesz]
    assert restored(result.read_bytes()) == original.read_bytes()
    assert answer_of(result) == answer_of(original) == "42 0\n"
    build_id = read_build_id(after)
    assert build_id is not None
    assert build_id == read_build_id(before)
    assert build_id in bytes(after.data[:0x1000])
    [interpreter] = (s for s in after.segments if s.p_type == PT.INTERP)
    assert interpreter.p_offset + interpreter.p_filesz <= 0x1000
    first = next(s for s in after.segments if s.p_type == PT.LOAD)
    assert [s.p_type for s in after.segments].index(PT.INTERP) < after.segments.index(first)


VENDOR = r"""
#include <stdio.h>
__attribute__((section(".note.vendor"), aligned(4), used))
static const struct { unsigned owner, size, type; char name[8]; unsigned value; } note = {7, 4, 1, "Vendor", 42};
int main(void) { printf("%u\n", *(const volatile unsigned *) &note.value); return 0; }
"""


@for_each("flags", [("-no-pie",), ("-static",), ("-no-pie", "-fuse-ld=lld")], ids=" ".join)
@for_each("tool", ["", "strip", "eu-strip"])
def test_a_build_id_among_notes_that_stay(
    tool: str, flags: tuple[str, ...], compile_c: Compiler, peers: Peers, tmp_path: Path
) -> None:
    """It alone is in the first page; in the PT_NOTE of a vendor's own note it is, too, and every note has its old address."""
    original, result = compile_c(VENDOR, *flags, "-Wl,--build-id=sha1"), tmp_path / "result"
    add_section(original, output=result)
    if tool:
        subprocess.run([peers.tool(tool), result], check=True)
    elf, build_id = open_elf(result), read_build_id(open_elf(original))
    assert build_id is not None
    assert build_id in bytes(elf.data[:0x1000])
    own, vendors = sorted((s for s in elf.segments if s.p_type == PT.NOTE and s.p_align == 4), key=lambda s: s.p_vaddr)
    assert [build_id in elf.at(s.p_vaddr, s.p_filesz).tobytes() for s in (own, vendors)] == [True, True]
    assert vendors in [s._replace(p_offset=s.p_offset + MAX_PAGE) for s in open_elf(original).segments]
    assert answer_of(result) == "42\n"
    assert remove(result).restored or tool
    assert answer_of(result) == "42\n"


@for_each("arguments", PATCHES, ids=" ".join)
def test_patchelf_and_then_the_program_runs(arguments: list[str], compile_c: Compiler, peers: Peers, tmp_path: Path) -> None:
    """.dynamic stays where ld.so can write, whatever patchelf puts before it: also if a section is added to patchelf's output."""
    original, result, patched = compile_c(PROGRAM, *FLAGS), tmp_path / "result", tmp_path / "patched"
    add_section(original, output=result)
    subprocess.run([peers.tool("patchelf"), *arguments, result], check=True)
    assert answer_of(result) == "42 0\n"
    assert check_placement(open_elf(result)) == []
    remove(result)
    assert answer_of(result) == "42 0\n"
    subprocess.run([peers.tool("patchelf"), *arguments, "--output", patched, original], check=True)
    assert plan_injection(open_elf(patched), 28).layout == "before"
    result.unlink()
    add_section(patched, output=result)
    assert answer_of(result) == answer_of(patched)
    assert restored(result.read_bytes()) == patched.read_bytes()


@pytest.mark.parametrize("kind", [FLAGS, ("-g", "-fPIE", "-pie"), ("-g", "-fPIC", "-shared")], ids=["exec", "pie", "so"])
def test_dwz_takes_the_result(kind: tuple[str, ...], compile_c: Compiler, tmp_path: Path) -> None:
    if shutil.which("dwz") is None:
        pytest.skip("no dwz on this machine")
    result = tmp_path / "result"
    add_section(compile_c(PROGRAM, *kind), output=result)
    subprocess.run(["dwz", result], check=True)
    assert check_placement(open_elf(result)) == []


def test_no_pages_before_a_low_address(compile_c: Compiler, tmp_path: Path) -> None:
    """Kernels map nothing below vm.mmap_min_addr: the metadata moves instead, as in programs without fixed addresses."""
    original, result = compile_c(PROGRAM, *FLAGS, f"-Wl,-Ttext-segment={MIN_ADDRESS + MAX_PAGE - 0x1000:#x}"), tmp_path / "result"
    plan = inject(original, result)
    assert plan.layout == "front"
    assert answer_of(result) == "42 0\n"
    assert verify_with(plan, open_elf(original), result, "elftools") == []


def test_data_that_is_all_zero(tmp_path: Path) -> None:
    """GNU ld gives its segment, which has no bytes in the file, the offset 0: it is not the one with the headers."""
    source = ".globl _start\n.comm common,64,16\n_start: .cfi_startproc\nmov $60,%eax\nxor %edi,%edi\nsyscall\n.cfi_endproc\n"
    (tmp_path / "source.s").write_text(source)
    original, result = tmp_path / "original", tmp_path / "result"
    subprocess.run(["as", "-o", tmp_path / "a.o", tmp_path / "source.s"], check=True)
    subprocess.run(["ld", "-o", original, tmp_path / "a.o"], check=True)
    add_section(original, output=result)
    assert answer_of(result) == ""
    remove(result)
    assert result.read_bytes() == original.read_bytes()


def test_a_record_with_a_gap_in_code_restores_nothing(compile_c: Compiler, tmp_path: Path) -> None:
    """Its checksum is right; the bytes that it would take out are loaded."""
    result = tmp_path / "result"
    add_section(compile_c(PROGRAM, *FLAGS), output=result)
    data = result.read_bytes()
    record = undo_record.read_verified(memoryview(data))
    assert record is not None
    last = record.gaps[-1]
    forged = record._replace(gaps=(*record.gaps[:-1], Gap(last.at - 0x10, last.size)))
    covered = [data[start:end] for start, end in forged.covered]
    result.write_bytes(data[: record.start] + undo_record.encode_record(forged, covered))
    assert undo_record.read_verified(memoryview(result.read_bytes())) == forged
    assert restore_original(open_elf(result)) is None


def test_a_note_segment_over_bytes_that_are_no_notes(compile_c: Compiler, tmp_path: Path) -> None:
    """objcopy --remove-section .note.* may leave one; the program runs."""
    original = Path(shutil.copy(compile_c(PROGRAM, *FLAGS), tmp_path / "original"))
    data = bytearray(original.read_bytes())
    note = next(s for s in open_elf(original).segments if s.p_type == PT.NOTE)
    data[note.p_offset + 4 : note.p_offset + 8] = (1 << 20).to_bytes(4, "little")
    plan_injection(ElfFile(memoryview(bytes(data))), 28)
    original.write_bytes(data)
    add_section(original, output=tmp_path / "result")
    assert answer_of(tmp_path / "result") == "42 0\n"
