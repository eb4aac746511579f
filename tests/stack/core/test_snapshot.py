"""Core files made by hand: what a snapshot of them has, and how hostile ones end."""

from __future__ import annotations

import random
import struct
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from cfi.errors import FormatError
from sframegen.cli.commands import cli
from sframegen.elf.file import open_elf
from sframegen.elf.notes import build_id_of
from sframegen.elf.records import PF_W, PT_DYNAMIC, PT_LOAD, RECORDS, Phdr
from sframegen.format.abi import AARCH64, ABIS, AMD64, S390X, Abi
from sframegen.stack.abi.machines import conventions_of
from sframegen.stack.core.core_process import Core
from sframegen.stack.core.process_notes import AT_ENTRY, AT_PHDR, AT_SYSINFO_EHDR
from sframegen.stack.snapshot.snapshot import StackError
from sframegen.stack.tracer import Tracer
from sframegen.stack.walking.ends import End
from tests.hostile.test_linear_cost import GROWTH, SLACK, work
from tests.support.inputs.core_writer import (
    CODE,
    CONSTANT,
    DATA,
    NT_ARM_PAC_MASK,
    NT_FILE,
    NT_PRFPREG,
    NT_PRSTATUS,
    PAGE,
    Load,
    auxiliary,
    core,
    files,
    note,
    process,
    status,
)

if TYPE_CHECKING:
    from pathlib import Path

    from sframegen.elf.file import ElfFile
    from tests.support.peers import Compiler

pytestmark = pytest.mark.once

TEXT, STACK = 0x400000, 0x70000000
LIBRARY = "int value = 1; int *pointer = &value; const char text[5000] = {1}; int f(int x) { return x + *pointer; }"
BASE = 0x7F0000000000


def words(abi: Abi, *values: int) -> bytes:
    return b"".join(value.to_bytes(8, abi.byte_order) for value in values)


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def chain(abi: Abi, frames: int) -> tuple[bytes, list[int]]:
    """A stack of frame records at STACK, with the return addresses in them."""
    ras = [TEXT + 16 * number for number in range(1, frames + 1)]
    records = [word for number, ra in enumerate(ras, 1) for word in (STACK + 16 * number, ra)]
    return words(abi, *records, 0, 0).ljust(PAGE, b"\0"), ras


def walkable(abi: Abi, frames: int = 20) -> bytes:
    """A core of code without a file, that has frame pointers."""
    stack, _ = chain(abi, frames)
    notes = status(abi, 7, TEXT, {abi.sp: STACK, abi.fp: STACK}) + process(abi, 7, "made up")
    return core(abi, [Load(TEXT, bytes(PAGE), CODE), Load(STACK, stack)], notes)


# -- what is in it


@pytest.mark.parametrize("abi", ABIS, ids=lambda abi: abi.name)
def test_registers_of_each_thread(abi: Abi, tmp_path: Path) -> None:
    numbers = sorted(conventions_of(abi).general.places)
    values = [{number: 0x1122334455660000 + 256 * tid + number for number in numbers} for tid in (3, 2)]
    notes = status(abi, 3, 0x400003, values[0]) + process(abi, 2, "first") + status(abi, 2, 0x400002, values[1])
    made = Core(write(tmp_path / "core", core(abi, [], notes)))
    assert list(made.threads()) == [3, 2]
    assert (made.pid, made.thread_name(2), made.thread_name(3)) == (2, "first", "")
    for tid, expected in zip((3, 2), values, strict=True):
        registers = made.registers(tid)
        assert registers.pc == 0x400000 + tid
        assert registers.values == expected
    assert Core(tmp_path / "core", tid=2).threads() == [2]
    with pytest.raises(StackError, match="thread 4: not in"):
        Core(tmp_path / "core", tid=4)


def test_registers_that_have_notes_of_their_own(tmp_path: Path) -> None:
    floats = bytes(8) + b"".join(struct.pack(">Q", 0x100 + number) for number in range(16))
    notes = status(S390X, 1, 0, {}) + note(S390X, NT_PRFPREG, floats) + status(S390X, 2, 0, {})
    made = Core(write(tmp_path / "s390x", core(S390X, [], notes)))
    named = {abi_name: made.registers(1).values[number] for number, abi_name in enumerate(S390X.register_names) if number >= 16}
    assert named == {f"f{number}": 0x100 + number for number in range(16)}
    floating = conventions_of(S390X).floating
    assert floating
    assert not set(floating.places) & set(made.registers(2).values)

    pac = note(AARCH64, NT_ARM_PAC_MASK, struct.pack("<QQ", 0x7F << 48, 0xFF << 44), b"LINUX\0")
    notes = status(AARCH64, 1, 0, {}) + pac + status(AARCH64, 2, 0, {})
    made = Core(write(tmp_path / "arm64", core(AARCH64, [], notes)))
    assert made.registers(1).ra_mask & (1 << 64) - 1 == ~(0xFF << 44) & (1 << 64) - 1
    assert made.registers(2).ra_mask == (1 << 48) - 1


@pytest.mark.parametrize("abi", ABIS, ids=lambda abi: abi.name)
def test_memory(abi: Abi, tmp_path: Path) -> None:
    loads = [
        Load(0x10000, words(abi, *range(512)), DATA),
        Load(0x11000, words(abi, *range(512, 1024)), CONSTANT),
        Load(0x12000, b"", CODE, PAGE),
        Load((1 << 64) - PAGE, words(abi, 5).ljust(PAGE, b"\0"), DATA),
    ]
    made = Core(write(tmp_path / "core", core(abi, loads[::-1], auxiliary(abi, {AT_SYSINFO_EHDR: 0x12000}))))
    memory = made.memory
    assert [memory.word(0x10000 + 8 * number) for number in range(1024)] == list(range(1024))
    assert memory.word(0x10FFC) == int.from_bytes((words(abi, 511) + words(abi, 512))[4:12], abi.byte_order)
    assert [memory.word(address) for address in (0xFFF8, 0x11FFC, 0x12000, 0x12FF8)] == [None] * 4
    assert memory.word((1 << 64) - PAGE) == 5
    assert memory.word((1 << 64) - 4) is None
    assert memory.read(0x11000, 2 * PAGE) == words(abi, *range(512, 1024))
    assert [(row.start, row.end, row.readable, row.writable, row.executable, row.path) for row in made.mappings] == [
        (0x10000, 0x11000, True, True, False, ""),
        (0x11000, 0x12000, True, False, False, ""),
        (0x12000, 0x13000, True, False, True, "[vdso]"),
        ((1 << 64) - PAGE, 1 << 64, True, True, False, ""),
    ]


@pytest.mark.parametrize("abi", [AMD64, AARCH64], ids=lambda abi: abi.name)
def test_a_walk(abi: Abi, tmp_path: Path) -> None:
    threads = Tracer().trace(Core(write(tmp_path / "core", walkable(abi))))
    assert [frame.pc for frame in threads[0].frames] == [TEXT, *chain(abi, 20)[1]]
    assert threads[0].end is End.NO_RETURN


@pytest.mark.parametrize("before", [0, 8])
def test_a_walk_through_a_signal_handler(before: int, tmp_path: Path) -> None:
    """It returns to code that no file has, and that may begin a mapping: what is before it is then no code."""
    context = conventions_of(AMD64).contexts[0]
    back, interrupted, sp = 0x10000 + before, TEXT + 128, STACK + 16
    stack = bytearray(PAGE)
    for place, value in ((context.pc, interrupted), (context.places[7], STACK + 2048), (context.places[6], STACK + 2048)):
        at = sp - STACK + place
        stack[at : at + 8] = words(AMD64, value)
    stack[:16] = words(AMD64, sp, back)  # the handler's frame record
    trampoline = (bytes(before) + context.code).ljust(PAGE, b"\0")
    loads = [Load(0x10000, trampoline, CODE), Load(TEXT, bytes(PAGE), CODE), Load(STACK, bytes(stack))]
    notes = status(AMD64, 7, TEXT, {7: STACK, 6: STACK})
    [thread] = Tracer().trace(Core(write(tmp_path / "core", core(AMD64, loads, notes))))
    assert [(frame.pc, frame.signal) for frame in thread.frames] == [(TEXT, False), (back, True), (interrupted, False)]
    assert thread.end is End.NO_RETURN


def test_more_segments_than_the_elf_header_can_say(tmp_path: Path) -> None:
    many = [Load(TEXT + number * PAGE, b"", CONSTANT, PAGE) for number in range(1, 65_600)]
    notes = status(AMD64, 7, TEXT, {7: STACK, 6: STACK})
    loads = [Load(TEXT, bytes(PAGE), CODE), *many, Load(STACK, chain(AMD64, 3)[0])]
    made = Core(write(tmp_path / "core", core(AMD64, loads, notes, extended=True)))
    assert len(list(made.mappings)) == 65_601
    assert [frame.pc for frame in Tracer().trace(made)[0].frames] == [TEXT, *chain(AMD64, 3)[1]]


# -- what is not in it


def ranges_of(elf: ElfFile, path: str, base: int = BASE) -> list[tuple[int, int, int, str]]:
    """What the kernel maps of a file, one row for each PT_LOAD."""
    rows = []
    for load in elf.segments:
        if load.p_type == PT_LOAD:
            start, end = load.p_vaddr & -PAGE, load.p_vaddr + load.p_filesz + PAGE - 1 & -PAGE
            rows.append((base + start, base + end, load.p_offset & -PAGE, path))
    return rows


def mapped_core(elf: ElfFile, path: str, *, first_page: bool = True, dumped: bytes | None = None) -> bytes:
    """A core as the kernel writes it: of files, what was written to, and the first page."""
    loads = []
    segments = [segment for segment in elf.segments if segment.p_type == PT_LOAD]
    for segment, (start, end, offset, _) in zip(segments, ranges_of(elf, path), strict=True):
        data = b""
        if offset == 0 and first_page:
            data = bytes(elf.data[:PAGE]) if dumped is None else dumped
        if segment.p_flags & PF_W:
            data = bytes(elf.data[offset : offset + end - start]).ljust(end - start, b"\0")
        loads.append(Load(start, data, segment.p_flags, end - start))
    where = auxiliary(AMD64, {AT_PHDR: BASE + 64, AT_ENTRY: BASE + elf.header.e_entry})
    return core(AMD64, loads, status(AMD64, 1, 0, {}) + where + files(AMD64, ranges_of(elf, path)))


@pytest.fixture(scope="module")
def library(compile_c: Compiler) -> Path:
    return compile_c(LIBRARY, "-O1", "-shared", "-fPIC", "-Wl,--build-id", name="libcore.so")


@pytest.fixture(scope="module")
def other(compile_c: Compiler) -> Path:
    """Of the same shape."""
    return compile_c(LIBRARY.replace("{1}", "{2}"), "-O1", "-shared", "-fPIC", "-Wl,--build-id", name="libcore.so")


def text_of(elf: ElfFile) -> tuple[int, int]:
    """Address and size of the constants that make the pages that cores leave out."""
    section = elf.section(".rodata")
    assert section is not None
    return section.header.sh_addr, section.header.sh_size


def test_what_is_left_out_is_read_from_the_file(library: Path, tmp_path: Path) -> None:
    elf = open_elf(library)
    at, size = text_of(elf)
    made = Core(write(tmp_path / "core", mapped_core(elf, str(library))))
    assert made.memory.read(BASE + at, size) == elf.data[at : at + size]
    row = made.mappings.find(BASE + at)
    assert row is not None
    assert row.path == str(library)
    assert made.file_of(row) is not None
    assert made.executable == str(library)
    assert made.remarks() == []


def test_a_file_that_goes_on_from_one_segment_into_the_next(library: Path, tmp_path: Path) -> None:
    """As the core of a process that changed what may be done with a part of a mapping."""
    elf = open_elf(library)
    rows = ranges_of(elf, str(library))
    start, end, *_ = rows[0]
    loads = [
        Load(start - PAGE, bytes(PAGE)),
        Load(start, bytes(elf.data[:PAGE]), CONSTANT, end - start),
        Load(end, b"", CODE, 9 * PAGE),
    ]
    notes = files(AMD64, [(start, end + PAGE, 0, str(library)), (end + 2 * PAGE, end + 3 * PAGE, PAGE, "/nowhere")])
    made = Core(write(tmp_path / "core", core(AMD64, loads, notes)))
    assert [(row.start, row.end, row.offset, row.path) for row in made.mappings] == [
        (start - PAGE, start, 0, ""),
        (start, end, 0, str(library)),
        (end, end + PAGE, end - start, str(library)),
        (end + PAGE, end + 2 * PAGE, 0, ""),
        (end + 2 * PAGE, end + 3 * PAGE, PAGE, "/nowhere"),
        (end + 3 * PAGE, end + 9 * PAGE, 0, ""),
    ]
    assert made.memory.read(end + 2 * PAGE, 8) == b""
    assert made.remarks() == ["/nowhere: No such file or directory"]


def test_another_file_is_not_used(library: Path, other: Path, tmp_path: Path) -> None:
    """Nor is it silently left out."""
    elf, different = open_elf(library), open_elf(other)
    at, size = text_of(elf)
    path = write(tmp_path / "lib.so", bytes(different.data))
    made = Core(write(tmp_path / "core", mapped_core(elf, str(path))))
    assert made.memory.read(BASE + at, size) == b""
    mine, theirs = build_id_of(elf), build_id_of(different)
    assert mine is not None
    assert theirs is not None
    assert made.remarks() == [f"{path}: another file: its build-id is {theirs.hex()}, the core has {mine.hex()}"]
    with pytest.raises(StackError, match=r"lib\.so: another file: its build-id"):
        Core(tmp_path / "core", exe=path)
    assert Core(tmp_path / "core", exe=library).memory.read(BASE + at, size) == elf.data[at : at + size]


@pytest.mark.parametrize("change", [0, 16, 24])
def test_the_dynamic_section_tells_files_apart(library: Path, tmp_path: Path, change: int) -> None:
    elf = open_elf(library)
    dynamic = next(segment for segment in elf.segments if segment.p_type == PT_DYNAMIC)
    data = bytearray(elf.data)
    at, size = text_of(elf)
    moved = dynamic.p_offset + change
    data[moved : moved + 8] = (int.from_bytes(data[moved : moved + 8], "little") + BASE).to_bytes(8, "little")
    changed = write(tmp_path / "changed.so", bytes(data))
    made = Core(write(tmp_path / "core", mapped_core(open_elf(changed), str(library), first_page=False)))
    if change == 24:  # the value of an entry, which the dynamic linker moves
        assert made.memory.read(BASE + at, size) == elf.data[at : at + size]
        assert made.remarks() == [f"{library}: the core does not have its build-id; its dynamic section is the same"]
    else:
        assert made.memory.read(BASE + at, size) == b""
        assert made.remarks() == [f"{library}: another file: its dynamic section is not the one in the core"]


def test_a_file_without_a_build_id_is_known_by_its_first_page(compile_c: Compiler, tmp_path: Path) -> None:
    source = "void _start(void) { __builtin_trap(); } const char text[5000] = {1};"
    elf = open_elf(compile_c(source, "-static", "-nostdlib", "-Wl,--build-id=none", name="plain"))
    start = min(segment.p_vaddr for segment in elf.segments if segment.p_type == PT_LOAD)
    at = next(segment.p_vaddr for segment in elf.segments if segment.p_type == PT_LOAD and segment.p_vaddr > start)
    base = BASE + at - start
    path = write(tmp_path / "plain", bytes(elf.data))

    def made(*, first_page: bytes) -> Core:
        rows = ranges_of(elf, str(path), BASE - start)
        loads = [Load(row[0], first_page if row[2] == 0 else b"", CONSTANT, row[1] - row[0]) for row in rows]
        return Core(write(tmp_path / "core", core(AMD64, loads, files(AMD64, rows))))

    same = made(first_page=bytes(elf.data[:PAGE]))
    assert len(same.memory.read(base, 16)) == 16
    assert same.remarks() == []
    unknown = made(first_page=b"")
    assert len(unknown.memory.read(base, 16)) == 16
    assert unknown.remarks() == [f"{path}: the core has nothing by which to tell whether it is the same file"]


def test_what_relocation_changes_is_not_read_from_the_file(library: Path, tmp_path: Path) -> None:
    """A core can be made without what processes write; the pages that they make read-only afterwards have the file's offset too."""
    elf = open_elf(library)
    rows = ranges_of(elf, str(library))
    start, end, offset, path = rows[-1]
    before = rows[-2]
    assert before[2] <= offset < before[2] + before[1] - before[0]  # the page is mapped twice, with other contents
    rows = [*rows[:-1], (start, start + PAGE, offset, path), (start + PAGE, end, offset + PAGE, path)]
    loads = [Load(row[0], bytes(elf.data[:PAGE]) if row[2] == 0 else b"", CONSTANT, row[1] - row[0]) for row in rows]
    made = Core(write(tmp_path / "core", core(AMD64, loads, files(AMD64, rows))))
    assert made.memory.read(rows[-3][0], 16) == elf.data[rows[-3][2] : rows[-3][2] + 16]
    assert made.memory.read(start, 16) == b""


def test_files_are_looked_for_in_the_sysroot_first(library: Path, other: Path, tmp_path: Path) -> None:
    elf = open_elf(library)
    at, size = text_of(elf)
    root = tmp_path / "root"
    (root / "lib").mkdir(parents=True)
    write(root / "lib/libcore.so", bytes(elf.data))
    write(tmp_path / "libcore.so", bytes(open_elf(other).data))
    for path in ("/lib/libcore.so", "/lib/libcore.so (deleted)"):
        data = mapped_core(elf, path)
        assert Core(write(tmp_path / "core", data)).memory.read(BASE + at, size) == b""
        assert Core(tmp_path / "core", sysroot=root).memory.read(BASE + at, size) == elf.data[at : at + size]
    data = mapped_core(elf, str(library))  # not in it
    assert Core(write(tmp_path / "core", data), sysroot=root).memory.read(BASE + at, size) == elf.data[at : at + size]


def test_a_file_of_another_machine_is_not_used(library: Path, tmp_path: Path) -> None:
    rows = ranges_of(open_elf(library), str(library))
    loads = [Load(start, b"", CONSTANT, end - start) for start, end, *_ in rows]
    made = Core(write(tmp_path / "core", core(S390X, loads, files(S390X, rows))))
    assert made.memory.read(rows[1][0], 8) == b""
    assert made.remarks() == [f"{library}: not a file of s390x"]


# -- hostile ones


def ends(path: Path) -> str:
    """How a trace of it ends; never otherwise than this."""
    try:
        made = Core(path)
        threads = Tracer(convert=True, limit=1000).trace(made)
    except (FormatError, StackError) as error:
        return str(error)
    assert all(isinstance(thread.end, End) for thread in threads)
    made.remarks()
    return ", ".join(thread.end.words for thread in threads)


@pytest.mark.dear
@pytest.mark.parametrize("abi", [AMD64, S390X], ids=lambda abi: abi.name)
def test_a_core_that_is_cut_off(abi: Abi, tmp_path: Path) -> None:
    data = walkable(abi)
    stack = len(data) - PAGE
    for size in (*range(1, 64 + 3 * 56), *range(64 + 3 * 56, len(data), 97)):
        told = ends(write(tmp_path / "core", data[:size]))
        if size < 64 + 3 * 56:
            assert "expected 64 bytes" in told or "not an ELF file" in told or "program header table" in told
    made = Core(write(tmp_path / "core", data[: stack + 24]))
    assert made.remarks()[0] == f"cut off: {PAGE - 24} bytes of memory are missing"
    assert made.memory.read(STACK, PAGE) == data[stack : stack + 24]
    if abi == AMD64:
        assert ends(tmp_path / "core") == End.NO_FRAME_POINTER.words


@pytest.mark.dear
@pytest.mark.parametrize("abi", ABIS, ids=lambda abi: abi.name)
def test_flipped_bits(abi: Abi, tmp_path: Path) -> None:
    """Of the headers and notes, for one ABI all; each is an error with a place, or a walk that ends."""
    rows = [(TEXT, TEXT + PAGE, 0, "/nowhere")]
    notes = (
        status(abi, 7, TEXT, {abi.sp: STACK, abi.fp: STACK}) + process(abi, 7, "x") + auxiliary(abi, {3: TEXT}) + files(abi, rows)
    )
    data = core(abi, [Load(TEXT, bytes(PAGE), CODE), Load(STACK, chain(abi, 5)[0])], notes)
    told = set()
    rng = random.Random(9)
    for at in range(0, 64 + 3 * 56 + len(notes), 1 if abi is AMD64 else 7):
        changed = bytearray(data)
        changed[at] ^= 1 << rng.randrange(8)
        told.add(ends(write(tmp_path / "core", bytes(changed))))
    assert len(told) > 10
    assert all("\n" not in text for text in told)


def test_random_headers(tmp_path: Path) -> None:
    data = walkable(AMD64)
    for seed in range(150):
        rng = random.Random(seed)
        changed = bytearray(data)
        for _ in range(rng.randrange(1, 6)):
            at = 64 + 8 * rng.randrange(3 * 7)
            changed[at : at + 8] = rng.choice(
                [0, 1, PAGE, TEXT, STACK, len(data), (1 << 64) - 1, 1 << 63, rng.getrandbits(64)]
            ).to_bytes(8, "little")
        ends(write(tmp_path / "core", bytes(changed)))


def with_segment(data: bytes, number: int, **fields: int) -> bytes:
    code = RECORDS[Phdr, "little"]
    at = 64 + 56 * number
    return data[:at] + code.pack(*Phdr(*code.unpack_from(data, at))._replace(**fields)) + data[at + 56 :]


HOSTILE = {
    "overlap in memory": (2, {"p_vaddr": TEXT + PAGE - 8}, "PT_LOAD at 0x400ff8: overlaps the one before, which ends at 0x401000"),
    "no end": (2, {"p_memsz": (1 << 64) - 1}, "no valid size"),
    "more in the file than in memory": (
        2,
        {"p_memsz": 8},
        "PT_LOAD at 0x70000000: no valid size: 0x1000 bytes in the file, 0x8 in memory",
    ),
    "notes beyond the end": (0, {"p_offset": 1 << 40}, "note: "),
    "notes without end": (0, {"p_filesz": (1 << 64) - 1}, "note: "),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_damage_is_told_with_its_place(case: str, tmp_path: Path) -> None:
    number, fields, message = HOSTILE[case]
    path = write(tmp_path / "core", with_segment(walkable(AMD64), number, **fields))
    with pytest.raises(FormatError) as caught:
        Core(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)


NOTES = {
    "no registers": (note(AMD64, NT_PRSTATUS, bytes(327)), "NT_PRSTATUS at file offset 0xb0: expected 328 bytes, have 327"),
    "count of files": (
        note(AMD64, NT_FILE, struct.pack("<QQ", 1 << 60, 1)),
        "NT_FILE at file offset 0xb0: 1152921504606846976 mappings",
    ),
    "names of files": (note(AMD64, NT_FILE, struct.pack("<QQQQQ", 1, 1, 0, 1, 0)[:40]), None),
    "missing names": (note(AMD64, NT_FILE, struct.pack("<8Q", 2, 1, 0, 1, 0, 1, 2, 1)), "2 mappings, 1 names"),
    "overlap": (
        files(AMD64, [(0, 2 * PAGE, 0, "a"), (PAGE, 3 * PAGE, 0, "b")]),
        "'b' at 0x1000 to 0x3000 overlaps another mapping",
    ),
}


@pytest.mark.parametrize("case", NOTES)
def test_a_bad_note_is_told_with_its_place(case: str, tmp_path: Path) -> None:
    notes, message = NOTES[case]
    path = write(tmp_path / "core", core(AMD64, [Load(TEXT, b"x")], notes))
    if message is None:
        assert Core(path).executable == ""
        return
    with pytest.raises(FormatError) as caught:
        Core(path)
    assert message in str(caught.value)


def test_bytes_of_the_file_are_memory_once(tmp_path: Path) -> None:
    """Else a thousand segments of one megabyte would be a gigabyte."""
    loads = [Load(TEXT, bytes(PAGE)), Load(TEXT + PAGE, bytes(PAGE)), Load(TEXT + 2 * PAGE, bytes(PAGE))]
    data = core(AMD64, loads, b"")
    for number in (1, 2, 3):
        data = with_segment(data, number, p_offset=0, p_filesz=len(data) // 2, p_memsz=len(data), p_vaddr=TEXT + number * len(data))
    with pytest.raises(FormatError, match="overlap"):
        Core(write(tmp_path / "core", data))


def costly(size: int, *, one_file: bool) -> bytes:
    """A thread and a frame for each of this many mappings of code, of one file or of as many."""
    rows = [(TEXT + 2 * PAGE * i, TEXT + 2 * PAGE * i + PAGE, 0, f"/nowhere/{0 if one_file else i}") for i in range(size)]
    records = [word for i, row in enumerate(rows, 1) for word in (STACK + 16 * i, row[0] + 16)]
    loads = [
        *(Load(start, b"", CODE, PAGE) for start, *_ in rows),
        Load(STACK, words(AMD64, *records, 0, 0).ljust(16 * PAGE, b"\0")),
    ]
    threads = (status(AMD64, tid, TEXT, {7: STACK + 16 * size - 16, 6: STACK + 16 * size - 16}) for tid in range(2, size))
    return core(AMD64, loads, status(AMD64, 1, TEXT, {7: STACK, 6: STACK}) + b"".join(threads) + files(AMD64, rows))


@pytest.mark.full
@pytest.mark.parametrize("one_file", [False, True])
def test_four_times_the_size_is_about_four_times_the_work(tmp_path: Path, *, one_file: bool) -> None:
    def run(data: bytes) -> None:
        first, *rest = Tracer().trace(Core(write(tmp_path / "core", data)))
        assert (len(first.frames), first.end) == (len(rest) + 3, End.NO_RETURN)

    small, large = (work(run, costly(size, one_file=one_file)) for size in (100, 100 * GROWTH))
    assert large[0] < SLACK * GROWTH * small[0]
    assert large[1] < SLACK * GROWTH * small[1]


@pytest.mark.parametrize("what", ["not ELF", "no core", "32-bit", "unknown machine", "empty", "nowhere"])
def test_what_is_no_core(what: str, tmp_path: Path) -> None:
    data = walkable(AMD64)
    made: dict[str, bytes] = {
        "not ELF": b"text",
        "no core": data[:16] + b"\3" + data[17:],
        "32-bit": data[:4] + b"\1" + data[5:],
        "unknown machine": data[:18] + b"\7" + data[19:],
        "empty": b"",
    }
    path = tmp_path / "core"
    if what in made:
        path.write_bytes(made[what])
    result = CliRunner().invoke(cli, ["stack", "--core", str(path)])
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.startswith(f"sframegen: {path}: ")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("arguments", [[], ["--core", "core", "1"], ["--exe", "x", "1"], ["--sysroot", "x", "1"]], ids=" ".join)
def test_usage(arguments: list[str]) -> None:
    assert CliRunner().invoke(cli, ["stack", *arguments]).exit_code == 2
