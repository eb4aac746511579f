"""Where the call frame information of real files is found: by section, by segment, compressed, in separate debug files."""

from __future__ import annotations

import shutil
import struct
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from sframegen import Verdict, add_section, check, read
from sframegen.base.errors import FormatError
from sframegen.conversion.cfi_sections import find_sources
from sframegen.conversion.convert import convert
from sframegen.elf.file import ElfFile, open_elf
from sframegen.elf.notes import read_build_id
from sframegen.elf.records import PT, pack_records
from sframegen.elf.symbols import sorted_functions
from sframegen.format.abi import AMD64
from sframegen.format.model import FunctionTable
from tests.support.inputs.cfi_writer import assembled
from tests.support.loops import for_each
from tests.support.peers import Compiler, Peers
from tests.support.tables import content

SOURCE = """
#include <stdio.h>
__attribute__((noinline)) int leaf(int n) { char b[n]; b[0] = n; return puts(b); }
int main(int argc, char **argv) { return leaf(argc + 2) + leaf(argc); }
"""
# Enough functions for compression to make their .debug_frame smaller
MANY = SOURCE + "".join(f"int f{n}(int n) {{ char b[n]; b[0] = n; return puts(b); }}\n" for n in range(100))
# .debug_frame only: what the compiler writes where nobody wants unwinding at run time
DEBUG_FRAME = ("-O2", "-g", "-fno-asynchronous-unwind-tables", "-fno-unwind-tables", "-fno-exceptions")


def table_of(path: Path, debug_file: Path | None = None) -> FunctionTable:
    elf = open_elf(path)
    return convert(find_sources(elf, debug_file).sections, elf.executable_ranges(), AMD64).table


def symbol(path: Path, name: str) -> int:
    return next(one.address for one in sorted_functions(open_elf(path)) if one.name == name)


def without_section_headers(path: Path, out: Path) -> Path:
    data = bytearray(path.read_bytes())
    struct.pack_into("<Q", data, 40, 0)  # e_shoff
    struct.pack_into("<HHH", data, 58, 0, 0, 0)  # e_shentsize, e_shnum, e_shstrndx
    out.write_bytes(data[: max(segment.p_offset + segment.p_filesz for segment in open_elf(path).segments)])
    out.chmod(0o755)
    return out


def test_eh_frame_is_found_without_section_headers(compile_c: Compiler, tmp_path: Path) -> None:
    program = compile_c(SOURCE, "-O2")
    stripped = without_section_headers(program, tmp_path / "stripped")
    assert open_elf(stripped).sections == []
    assert content(table_of(stripped)) == content(table_of(program))
    summary = add_section(stripped, optimize="none")
    assert summary.section_bytes
    assert content(read(stripped).table) == content(table_of(program))
    assert (
        subprocess.run([stripped], check=False, stdout=subprocess.PIPE).stdout
        == subprocess.run([program], check=False, stdout=subprocess.PIPE).stdout
    )


def test_the_segment_counts_only_without_section_headers(compile_c: Compiler, peers: Peers, tmp_path: Path) -> None:
    program, hidden = compile_c(SOURCE, "-O2"), tmp_path / "hidden"
    subprocess.run([peers.tool("objcopy"), "--rename-section", ".eh_frame=.hidden", program, hidden], check=True)
    assert any(segment.p_type == PT.GNU_EH_FRAME for segment in open_elf(hidden).segments)
    assert find_sources(open_elf(hidden)).sections == []


def test_the_size_of_eh_frame_hdr_is_that_of_its_section_or_segment(compile_c: Compiler, tmp_path: Path) -> None:
    program = compile_c(SOURCE, "-O2")
    header = open_elf(program).section(".eh_frame_hdr")
    assert header is not None
    assert find_sources(open_elf(program)).eh_frame_hdr_bytes == header.header.sh_size > 0
    bare = without_section_headers(program, tmp_path / "bare")
    assert find_sources(open_elf(bare)).eh_frame_hdr_bytes == header.header.sh_size


def test_debug_frame_of_the_file_itself(compile_c: Compiler) -> None:
    program = compile_c(SOURCE, *DEBUG_FRAME)
    assert symbol(program, "leaf") in table_of(program).start


UNKNOWN_COMPRESSION = 99


def of_unknown_compression(file: Path) -> Path:
    """The file, with another type in the compression header of .debug_frame."""
    section = open_elf(file).section(".debug_frame")
    assert section is not None
    data = bytearray(file.read_bytes())
    data[section.header.sh_offset : section.header.sh_offset + 4] = UNKNOWN_COMPRESSION.to_bytes(4, "little")
    file.write_bytes(data)
    return file


def compressed(kind: str, compile_c: Compiler, peers: Peers, tmp_path: Path) -> tuple[Path, Path]:
    """A program and the same with compressed debug sections."""
    program, out = compile_c(MANY, *DEBUG_FRAME), tmp_path / kind
    subprocess.run([peers.tool("objcopy"), f"--compress-debug-sections={kind}", program, out], check=True)
    return program, out


@for_each(("kind", "name"), [("zlib", ".debug_frame"), ("zlib-gnu", ".zdebug_frame")])
def test_compressed_debug_frame(kind: str, name: str, compile_c: Compiler, peers: Peers, tmp_path: Path) -> None:
    program, out = compressed(kind, compile_c, peers, tmp_path)
    plain, small = open_elf(program).section(".debug_frame"), open_elf(out).section(name)
    assert plain is not None
    assert small is not None
    assert small.header.sh_size < plain.header.sh_size
    assert content(table_of(out)) == content(table_of(program))


def test_a_compression_that_is_not_read_is_named_with_the_remedy(compile_c: Compiler, peers: Peers, tmp_path: Path) -> None:
    out = of_unknown_compression(compressed("zlib", compile_c, peers, tmp_path)[1])
    [warning] = find_sources(open_elf(out)).warnings
    assert "compression type 99 is not read; use objcopy --decompress-debug-sections" in warning
    with pytest.raises(FormatError, match="compression type 99 is not read"):
        find_sources(open_elf(out), out)


@pytest.fixture
def split(compile_c: Compiler, peers: Peers, tmp_path: Path) -> tuple[Path, Path]:
    """(stripped program, its debug file), linked by .gnu_debuglink and by build-id."""
    program, debug = tmp_path / "program", tmp_path / "debug" / "program.debug"
    debug.parent.mkdir()
    shutil.copy(compile_c(SOURCE, *DEBUG_FRAME, "-Wl,--build-id"), program)
    subprocess.run([peers.tool("objcopy"), "--only-keep-debug", program, debug], check=True)
    subprocess.run([peers.tool("strip"), program], check=True)
    subprocess.run([peers.tool("objcopy"), f"--add-gnu-debuglink={debug}", program], check=True)
    return program, debug


def test_a_debug_file_by_name_or_by_debug_link(split: tuple[Path, Path], compile_c: Compiler) -> None:
    program, debug = split
    leaf = symbol(compile_c(SOURCE, *DEBUG_FRAME, "-Wl,--build-id"), "leaf")
    assert leaf not in table_of(program).start
    assert leaf in table_of(program, debug).start
    assert leaf in table_of(program, debug.parent).start


@pytest.mark.parametrize("folder", [".build-id", "."])
def test_a_debug_file_by_build_id(folder: str, split: tuple[Path, Path], tmp_path: Path) -> None:
    program, debug = split
    build_id = read_build_id(open_elf(program))
    assert build_id is not None
    home = tmp_path / "store" / folder / build_id.hex()[:2] / f"{build_id.hex()[2:]}.debug"
    home.parent.mkdir(parents=True)
    shutil.move(debug, home)
    assert content(table_of(program, tmp_path / "store")) == content(table_of(program, home))


def test_the_debug_file_of_another_program_is_refused(split: tuple[Path, Path], compile_c: Compiler) -> None:
    _, debug = split
    other = compile_c(SOURCE, "-O1", "-Wl,--build-id")
    with pytest.raises(FormatError, match=r"program\.debug is not its debug file"):
        table_of(other, debug)
    with pytest.raises(FormatError, match="no debug file for it in"):
        table_of(other, debug.parent)


@for_each("has_id", ["neither", "program", "debug"])
def test_without_two_build_ids_the_crc_decides(has_id: str, compile_c: Compiler, peers: Peers, tmp_path: Path) -> None:
    """One in one file only says nothing."""
    program, debug = tmp_path / "program", tmp_path / "program.debug"
    shutil.copy(compile_c(SOURCE, *DEBUG_FRAME, "-Wl,--build-id"), program)
    without = ["--remove-section=.note.gnu.build-id"]
    subprocess.run([peers.tool("objcopy"), "--only-keep-debug", *(without * (has_id != "debug")), program, debug], check=True)
    subprocess.run([peers.tool("strip"), *(without * (has_id != "program")), program], check=True)
    subprocess.run([peers.tool("objcopy"), f"--add-gnu-debuglink={debug}", program], check=True)
    assert [read_build_id(open_elf(file)) is not None for file in (program, debug)] == [has_id == "program", has_id == "debug"]
    assert len(table_of(program, debug)) > len(table_of(program))
    debug.write_bytes(debug.read_bytes() + b"\0")
    with pytest.raises(FormatError, match="CRC differ"):
        table_of(program, debug)


def test_a_debug_file_that_is_not_there(compile_c: Compiler, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="no such file"):
        table_of(compile_c(SOURCE, "-O2"), tmp_path / "nothing")


def test_a_debug_file_without_debug_frame(compile_c: Compiler) -> None:
    program = compile_c(SOURCE, "-O2", "-Wl,--build-id")
    with pytest.raises(FormatError, match=r"has no \.debug_frame"):
        table_of(program, program)


def test_a_debug_frame_that_nobody_asked_for_is_no_obstacle(compile_c: Compiler, peers: Peers, tmp_path: Path) -> None:
    """It only adds to .eh_frame: a warning says that it is not used."""
    program = compile_c(MANY, "-O2", "-g", "-Wa,--gdwarf-5")
    plain = add_section(program, output=tmp_path / "plain")
    assert plain.warnings == ()
    framed = compile_c(MANY + '__asm__(".cfi_sections .eh_frame, .debug_frame");', "-O2", "-g")
    section = open_elf(framed).section(".debug_frame")
    assert section is not None
    data = bytearray(framed.read_bytes())
    data[section.header.sh_offset] ^= 0xFF
    damaged, out = tmp_path / "damaged", tmp_path / "out"
    damaged.write_bytes(data)
    summary = add_section(damaged, output=out)
    assert [".debug_frame+0x" in warning and "not used" in warning for warning in summary.warnings] == [True]
    assert len(read(out).table) >= 100
    small = tmp_path / "small"
    subprocess.run([peers.tool("objcopy"), "--compress-debug-sections=zlib", framed, small], check=True)
    assert "decompress-debug-sections; not used" in add_section(of_unknown_compression(small), output=out).warnings[0]


def test_a_count_of_fdes_that_no_file_has_room_for_is_no_count(compile_c: Compiler) -> None:
    """Found by fuzzing: 2 ** 64 - 1 did not fit into the compiled reader's numbers."""
    data = bytearray(compile_c("int main(void) { return 0; }").read_bytes())
    elf = ElfFile(memoryview(bytes(data)))
    [header] = [segment for segment in elf.segments if segment.p_type == PT.GNU_EH_FRAME]
    data[header.p_offset + 2] = 0x04  # DW_EH_PE_udata8
    data[header.p_offset + 8 : header.p_offset + 16] = b"\xff" * 8
    data[0x28:0x30], data[0x3C:0x40] = bytes(8), bytes(4)  # no section headers
    stripped = ElfFile(memoryview(bytes(data)))
    [section] = find_sources(stripped).sections
    assert section.fde_count <= len(data)
    with suppress(FormatError):  # what follows .eh_frame is none
        convert([section], stripped.executable_ranges(), AMD64)


# -- several sections, and pointers that the loader fills

TWO = {name: f".text\n{{}}\n.type {name}, %function\n{name}: .cfi_startproc\nnop\nret\n.cfi_endproc\n" for name in ("_start", "f")}


def assembled_object(peers: Peers, source: str, out: Path) -> Path:
    subprocess.run([peers.tool("as"), "-o", out, "-"], input=source.encode(), check=True)
    return out


@for_each("name", [".eh_frame", ".debug_frame"])
def test_all_sections_of_a_name_are_read(name: str, peers: Peers, tmp_path: Path) -> None:
    """Such objects come of `ld -r --unique`, and some linkers' scripts make such files of them."""
    parts = [
        assembled_object(peers, source.format(f".cfi_sections {name}"), tmp_path / f"{function}.o")
        for function, source in TWO.items()
    ]
    joined, script, linked = tmp_path / "joined.o", tmp_path / "script", tmp_path / "linked"
    subprocess.run([peers.tool("ld"), "-r", f"--unique={name}", "-o", joined, *parts], check=True)
    places = "".join(
        f"{name}{number} {'' if name == '.eh_frame' else 0} : {{ {part.name}({name}) }}" for number, part in enumerate(parts)
    )
    script.write_text(f"SECTIONS {{ . = 0x400000 + SIZEOF_HEADERS; .text : {{ *(.text) }} . = ALIGN(0x1000); {places} }}")
    subprocess.run([peers.tool("ld"), "-T", script, "-o", linked, *(part.name for part in parts)], check=True, cwd=tmp_path)
    rename = [f"--rename-section={name}{number}={name}" for number in range(2)]
    subprocess.run([peers.tool("objcopy"), *rename, linked], check=True)
    for file in (joined, linked):
        assert [section.name for section in open_elf(file).sections].count(name) == 2
        summary = add_section(file, output=tmp_path / "out", verify=False)
        assert (summary.functions, summary.coverage, summary.code_bytes) == (2, 100, 4)
        report = check(tmp_path / "out", consumer="kernel", second_reader=file == linked)
        assert (report.findings, report.code[Verdict.EQUAL]) == ((), 4)


def test_sections_that_share_bytes_are_refused(compile_c: Compiler) -> None:
    data = bytearray(compile_c("int main(void) { return 0; }").read_bytes())
    elf = ElfFile(memoryview(bytes(data)))
    [frames] = [section.header for section in elf.sections if section.name == ".eh_frame"]
    large = frames._replace(sh_offset=0, sh_size=len(data))
    table = pack_records([*(section.header for section in elf.sections), large, large], "little")
    struct.pack_into("<Q", data, 40, len(data))
    struct.pack_into("<H", data, 60, len(elf.sections) + 2)
    with pytest.raises(FormatError, match=r"\.eh_frame: 3 sections of that name overlap"):
        find_sources(ElfFile(memoryview(bytes(data) + table)))


ABSOLUTE, RELATIVE, INDIRECT = 0, 0x1B, 0x9B
CODE = ".type f, %function; .type _start, %function; .globl _start; _start: ret; f: nop; ret\n"
SLOT = '.section .data.rel.ro,"aw"\nslot: .quad {}\n'
INDIRECTLY = assembled((RELATIVE, ".long _start-., 1"), (INDIRECT, ".long slot-., 2"))


@for_each(
    ("frames", "known"),
    [
        (assembled((ABSOLUTE, ".quad _start, 1"), (ABSOLUTE, ".quad f, 2"), flags="aw"), ["_start", "f"]),
        (INDIRECTLY + SLOT.format("f"), ["_start", "f"]),
        (INDIRECTLY + SLOT.format("elsewhere"), ["_start"]),
    ],
)
def test_pointers_that_the_loader_fills(frames: str, known: list[str], peers: Peers, tmp_path: Path) -> None:
    """lld makes RELA of them, with zeros in place. One that is not known costs its FDE."""
    made, linked = assembled_object(peers, CODE + frames, tmp_path / "made.o"), tmp_path / "linked"
    options = ("-shared", "-Bsymbolic", "-e", "0", "-z", "notext", "--eh-frame-hdr")
    subprocess.run([peers.tool("ld.lld"), *options, "-o", linked, made], check=True)
    table = table_of(linked)
    assert list(table.start) == [symbol(linked, name) for name in known]
    assert content(table_of(without_section_headers(linked, tmp_path / "without"))) == content(table)
    summary = add_section(linked, output=tmp_path / "out", optimize="none")
    assert (summary.functions, sum(summary.ignored_fdes.values())) == (len(known), 2 - len(known))
    assert set(summary.ignored_fdes) <= {"at an address that is not known"}
    assert check(tmp_path / "out", consumer="kernel").findings == ()


UNKNOWN_FIELDS = (
    ".long f-., elsewhere",
    ".long f-., 2; .byte 0, 4; .long elsewhere",  # DW_CFA_advance_loc4
    ".long f-., 2; .byte 0, 1; .reloc ., R_X86_64_GOTPCREL, f; .long 0",  # DW_CFA_set_loc
)


@for_each(
    ("encoding", "pointers"),
    [
        (INDIRECT, ".long slot-., 2"),
        (2, ".short f, 2"),
        (RELATIVE, ".long 0x100, 2"),
        *((RELATIVE, field) for field in UNKNOWN_FIELDS),
    ],
)
def test_an_fde_of_an_object_whose_address_is_not_known(encoding: int, pointers: str, peers: Peers, tmp_path: Path) -> None:
    source = CODE + assembled((RELATIVE, ".long _start-., 1"), (encoding, pointers)) + SLOT.format("f")
    summary = add_section(assembled_object(peers, source, tmp_path / "made.o"))
    assert (summary.functions, summary.ignored_fdes) == (1, {"at an address that is not known": 1})


def test_what_exception_handlers_need_may_be_elsewhere(peers: Peers, tmp_path: Path) -> None:
    source = CODE + assembled((RELATIVE, ".long _start-., 1"), (RELATIVE, ".long f-., 2; .byte 4; .long elsewhere-."))
    assert add_section(assembled_object(peers, source, tmp_path / "made.o")).functions == 2


def test_an_fde_of_code_that_a_linker_dropped(peers: Peers, tmp_path: Path) -> None:
    """`lld -r` leaves a relocation of type R_NONE."""
    comdat = '.section .text.g, "axG", @progbits, g, comdat; .weak g; g: .cfi_startproc; ret; .cfi_endproc'
    parts = [assembled_object(peers, comdat, tmp_path / f"{number}.o") for number in range(2)]
    subprocess.run([peers.tool("ld.lld"), "-r", "-o", tmp_path / "joined.o", *parts], check=True)
    summary = add_section(tmp_path / "joined.o")
    assert (summary.functions, summary.ignored_fdes) == (1, {"outside of executable segments": 1})
