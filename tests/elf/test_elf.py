from __future__ import annotations

import os
import struct
import subprocess
from pathlib import Path
from threading import Thread
from zlib import crc32

import pytest

from sframegen import add_section
from sframegen.base.errors import FormatError, Refusal, RefusedError
from sframegen.elf.file import ElfFile, open_elf, open_text
from sframegen.elf.notes import read_build_id, read_debug_link, read_notes_at
from sframegen.elf.records import PF, PT, SHT
from sframegen.elf.symbols import sorted_functions
from tests.support.loops import for_each
from tests.support.peers import Compiler, Peers


def header(*, bits: int = 2, order: int = 1, phnum: int = 0, shnum: int = 0, shoff: int = 0, shstrndx: int = 0) -> bytes:
    fields = (3, 62, 1, 0, 64 if phnum else 0, shoff, 0, 64, 56, phnum, 64, shnum, shstrndx)
    return b"\x7fELF" + bytes([bits, order, 1]) + bytes(9) + struct.pack("<HHIQQQIHHHHHH", *fields)


@for_each(
    ("data", "message"),
    [
        (header()[:63], "expected 64 bytes, have 63"),
        (header(bits=3), "unknown ELF class 3"),
        (header(order=3), "unknown byte order 3"),
        (header(phnum=1), "program header table: 56 bytes at file offset 0x40 reach past the end"),
        (header(shnum=1, shoff=64, shstrndx=5) + bytes(64), "names are in section 5 of 1"),
        (header(shoff=64, shstrndx=5) + bytes(63), "expected 64 bytes, have 63"),
    ],
)
def test_what_is_no_readable_elf_file(data: bytes, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        ElfFile(memoryview(data))


def test_counts_that_do_not_fit_the_header_are_in_section_header_0() -> None:
    first = struct.pack("<IIQQQQIIQQ", 0, SHT.NULL, 0, 0, 0, 2, 1, 1, 0, 0)  # sh_size: shnum, sh_link: shstrndx, sh_info: phnum
    names = struct.pack("<IIQQQQIIQQ", 1, SHT.STRTAB, 0, 0, 64 + 56 + 128, 8, 0, 0, 0, 0)
    load = struct.pack("<IIQQQQQQ", PT.LOAD, PF.R | PF.X, 0, 0x1000, 0x1000, 256, 256, 0x1000)
    elf = ElfFile(memoryview(header(phnum=0xFFFF, shoff=64 + 56, shstrndx=0xFFFF) + load + first + names + b"\0.names\0"))
    assert [section.name for section in elf.sections] == ["", ".names"]
    assert len(elf.segments) == 1
    assert elf.executable_ranges() == [(0x1000 + 64 + 56, 0x1000 + 256)]  # no code where the header and the table are


def named(table: bytes, places: list[int]) -> ElfFile:
    """A file of sections with names at these places of the table."""
    sections = [(place, SHT.STRTAB, 0, 0, 64, len(table), 0, 0, 0, 0) for place in places]
    rows = b"".join(struct.pack("<IIQQQQIIQQ", *section) for section in sections)
    return ElfFile(memoryview(header(shnum=len(places), shoff=64 + len(table), shstrndx=1) + table + rows))


def test_names_of_sections_are_whole_however_long_and_all_together_limited() -> None:
    long = b".text." + b"f" * 100_000
    elf = named(b"\0.rela" + long + b"\0", [0, 1, 6])
    assert [section.name for section in elf.sections] == ["", ".rela" + long.decode(), long.decode()]
    with pytest.raises(FormatError, match="section names: 100 names share 100000 bytes"):
        named(b"f" * 100_000, list(range(100)))


def test_a_segment_that_ends_behind_all_addresses_is_refused() -> None:
    load = struct.pack("<IIQQQQQQ", PT.LOAD, PF.R | PF.X, 0, (1 << 64) - 120, 0, 120, 120, 0x1000)
    with pytest.raises(FormatError, match="PT_LOAD at 0xffffffffffffff88 has no valid size"):
        ElfFile(memoryview(header(phnum=1) + load)).executable_ranges()


def test_segments_need_not_ascend(compile_c: Compiler, tmp_path: Path) -> None:
    """As those of vmlinux, where that of each CPU's data is at 0. Every address is found; only an unloaded section fits."""
    before = open_elf(compile_c("int main(void) { return 0; }", "-no-pie"))
    numbers = [number for number, segment in enumerate(before.segments) if segment.p_type == PT.LOAD]
    table = list(before.segments)
    for number, other in zip(numbers, reversed(numbers), strict=True):
        table[number] = before.segments[other]
    file = tmp_path / "file"
    headers = b"".join(struct.pack("<IIQQQQQQ", *segment) for segment in table)
    file.write_bytes(bytes(before.data[:64]) + headers + bytes(before.data[64 + len(headers) :]))
    elf = open_elf(file)
    assert elf.executable_ranges() == before.executable_ranges()
    for segment in before.segments:
        if segment.p_type == PT.LOAD:
            for address in (segment.p_vaddr, segment.p_vaddr + segment.p_filesz - 1):
                assert elf.at(address, 1) == before.at(address, 1)
    with pytest.raises(RefusedError, match=r"PT_LOAD at 0x4\w+ is out of order: the one before it ends at 0x4") as refused:
        add_section(file)
    assert refused.value.reason is Refusal.NO_ROOM_LOADED
    assert add_section(file, unloaded=True).unloaded


def test_a_text_from_a_pipe(tmp_path: Path) -> None:
    def write_rest() -> None:
        os.write(writing, b"o\n\xff")
        os.close(writing)

    reading, writing = os.pipe()
    try:
        os.write(writing, b"one\r\ntw")
        rest = Thread(target=write_rest)
        rest.start()
        with open_text(f"/dev/fd/{reading}", 12, newline="\n") as text:
            assert list(text) == ["one\r\n", "two\n", "\udcff"]
        rest.join()
        with open_text(f"/dev/fd/{reading}", 12) as text:  # the command may have ended, and printed nothing
            assert not text.read()
    finally:
        os.close(reading)
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with pytest.raises(FormatError, match="nobody writes to this FIFO"):
        open_text(fifo, 12)
    written = os.open(fifo, os.O_RDWR)
    try:
        os.write(written, b"more than 13 characters")
        with pytest.raises(FormatError, match="more than 12 bytes come from this pipe: write them to a file"):
            open_text(fifo, 12)
    finally:
        os.close(written)


def test_a_writer_that_has_nothing_to_write_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "fifo")
    writing = os.open(tmp_path / "fifo", os.O_RDWR)
    monkeypatch.setattr(os, "set_blocking", lambda *_: os.close(writing))  # it ends while its bytes are waited for
    with open_text(tmp_path / "fifo", 12) as text:
        assert not text.read()


def test_build_id_and_debug_link_as_readelf_prints_them(compile_c: Compiler, peers: Peers, tmp_path: Path) -> None:
    program = compile_c("int main(void) { return 0; }", "-Wl,--build-id")
    linked, debug = tmp_path / "linked", tmp_path / "some.debug"
    debug.write_bytes(b"any")
    subprocess.run([peers.tool("objcopy"), f"--add-gnu-debuglink={debug}", program, linked], check=True)
    elf = open_elf(linked)
    notes = subprocess.run([peers.tool("readelf"), "-n", linked], check=True, capture_output=True, text=True).stdout
    build_id = read_build_id(elf)
    assert build_id is not None
    assert f"Build ID: {build_id.hex()}" in notes
    assert read_debug_link(elf) == ("some.debug", crc32(b"any"))
    assert read_debug_link(open_elf(program)) is None


@for_each("padding", [0, 4])
def test_notes_of_either_alignment_in_one_segment(padding: int) -> None:
    """mold 1 puts a build-id and an ABI tag, aligned to 4, after the properties, aligned to 8; others pad all to 8."""
    kinds = [(5, bytes(16)), (3, bytes(20)), (1, bytes(16))]
    notes = [struct.pack("<III", 4, len(desc), kind) + b"GNU\0" + desc for kind, desc in kinds]
    data = header() + bytes(padding).join([notes[0] + notes[1], notes[2]])
    assert [(note.type, note.desc) for note in read_notes_at(ElfFile(memoryview(data)), 64, len(data) - 64, 8)] == kinds


def test_function_symbols_as_nm_prints_them(compile_c: Compiler, peers: Peers) -> None:
    program = compile_c("int f(void) { return 1; }\nint main(void) { return f(); }", "-O0")
    lines = subprocess.run([peers.tool("nm"), program], check=True, capture_output=True, text=True).stdout.splitlines()
    theirs = {int(line.split()[0], 16) for line in lines if line.split()[1] in "Tt" and line.split()[2] in {"f", "main", "_start"}}
    ours = {one.address for one in sorted_functions(open_elf(program)) if one.name in {"f", "main", "_start"}}
    assert ours == theirs
    assert len(ours) == 3
