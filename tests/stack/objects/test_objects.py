"""What the tracer finds in a process's memory: objects, headers, sections, lists of tables; made up here, hostile ones too."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sframegen.base.errors import FormatError
from sframegen.elf.file import ElfFile
from sframegen.elf.records import (
    EHDR_SIZE,
    ET,
    PF,
    PHDR_SIZE,
    PN_XNUM,
    PT,
    RECORDS,
    SHDR_SIZE,
    SHF,
    SHT,
    Ehdr,
    Phdr,
    Shdr,
    pack_records,
)
from sframegen.format.abi import ABIS, AMD64, S390X, Abi
from sframegen.format.decode import open_section
from sframegen.format.encode import Encoder
from sframegen.format.model import OUTERMOST, FunctionTable, Kind, Rule, Where
from sframegen.registry import jit_tables
from sframegen.registry.jit_tables import TABLE_COST, Budget
from sframegen.registry.regions import BudgetError, Region, Registry
from sframegen.registry.structures import JitEntry, JitList, JitNode, JitTable, encode
from sframegen.stack import snapshot as memory
from sframegen.stack.abi.machines import Context, ThreadRegisters, conventions_of
from sframegen.stack.live.process import parse_mappings
from sframegen.stack.mappings import Mapping, Mappings
from sframegen.stack.objects import loaded_objects as objects_module
from sframegen.stack.objects import runtime_code
from sframegen.stack.objects.loaded_objects import LoadedObject, LoadedObjects
from sframegen.stack.objects.runtime_code import RuntimeCode
from sframegen.stack.snapshot import CachedMemory, CopiedMemory, MovedCode, NotCopiedError, Snapshot, StoppedThread
from sframegen.stack.tracer import Tracer
from sframegen.stack.walking.frames import End, RuleSource, Thread
from tests.support import zstandard
from tests.support.loops import for_each
from tests.support.processes.memories import Pieces

BASE = 0x7F0000000000
TEXT, SECTION, END = 0x1000, 0x3000, 0x5000  # link-time addresses and offsets in the file
STACK = 0x7FFF00000000
FRAME = 0x40


def section_bytes(abi: Abi, address: int = SECTION, start: int = TEXT) -> bytes:
    """Functions of 0x100 bytes at `start`, called by one another; the last one has no caller."""
    table = FunctionTable(kinds=[Kind()])
    saved = Where(None, abi.sp_offset - 8, deref=True)
    table.rules = [Rule(Where(abi.sp, FRAME - abi.sp_offset), saved), OUTERMOST]
    if not abi.fixed_ra_offset:
        table.rules[0] = table.rules[0]._replace(fp=Where(None, abi.sp_offset - 16, deref=True))
    for number in range(3):
        table.append(start + 0x100 * number, 0x100, 0, [(0, number // 2)])
    return bytes(Encoder(table, abi).encode(address))


def elf_bytes(
    abi: Abi = AMD64, *, phoff: int = EHDR_SIZE, phnum: int | None = None, section: bytes | None = None, filesz: int | None = None
) -> bytearray:
    """A library. `phnum`: what the header says, where section header 0 says the truth."""
    section = section_bytes(abi) if section is None else section
    size = len(section) if filesz is None else filesz
    segments = [
        Phdr(PT.LOAD, PF.R, 0, 0, 0, TEXT, TEXT, 0x1000),
        Phdr(PT.LOAD, PF.R | PF.X, TEXT, TEXT, TEXT, 0x1000, 0x1000, 0x1000),
        Phdr(PT.LOAD, PF.R, SECTION, SECTION, SECTION, 0x2000, 0x2000, 0x1000),
        Phdr(PT.GNU_SFRAME, PF.R, SECTION, SECTION, SECTION, size, size, 8),
    ]
    data = bytearray(END)
    ident = b"\x7fELF\2" + (b"\1" if abi.byte_order == "little" else b"\2") + b"\1" + bytes(9)
    shoff = END - SHDR_SIZE if phnum is not None else 0
    header = Ehdr(
        ident, ET.DYN, abi.machine, 1, 0, phoff, shoff, 0, EHDR_SIZE, PHDR_SIZE,
        len(segments) if phnum is None else phnum, SHDR_SIZE, int(phnum is not None), 0,
    )  # fmt: skip
    RECORDS[Ehdr, abi.byte_order].pack_into(data, 0, *header)
    for number, segment in enumerate(segments):
        RECORDS[Phdr, abi.byte_order].pack_into(data, phoff + number * PHDR_SIZE, *segment)
    if shoff:
        RECORDS[Shdr, abi.byte_order].pack_into(data, shoff, *Shdr(0, 0, 0, 0, 0, 0, 0, len(segments), 0, 0))
    data[SECTION : SECTION + len(section)] = section
    return data


def row(start: int, size: int, flags: str, offset: int = 0, inode: int = 77, path: str = "/lib/made.so") -> Mapping:
    return Mapping(start, start + size, "r" in flags, "w" in flags, "x" in flags, offset, "08:01", inode, path)


def loaded_rows(base: int = BASE, **more: object) -> list[Mapping]:
    return [
        row(base, TEXT, "r", 0, **more),  # type: ignore[arg-type]
        row(base + TEXT, 0x1000, "rx", TEXT, **more),  # type: ignore[arg-type]
        row(base + SECTION, 0x2000, "r", SECTION, **more),  # type: ignore[arg-type]
    ]


class Made:
    def __init__(self, data: bytes | bytearray, *, abi: Abi = AMD64, file: bytes | bytearray | None = None) -> None:
        self.abi = abi
        self.file = file
        self.contents: list[tuple[int, bytes]] = []
        self.mappings = Mappings()
        self.map(loaded_rows(), data)
        self.threads_registers: dict[int, ThreadRegisters] = {}
        self.memory = CachedMemory(self.read, abi.byte_order)

    def map(self, rows: Sequence[Mapping], data: bytes | bytearray) -> None:
        self.contents += [(row.start, bytes(data[row.offset : row.offset + row.end - row.start])) for row in rows]
        self.mappings = Mappings([*self.mappings, *rows])

    def read(self, address: int, size: int) -> bytes:
        for start, data in self.contents:
            if start <= address < start + len(data):
                return data[address - start : address - start + size]
        return b""

    @property
    def now(self) -> Snapshot:
        threads = [StoppedThread(tid, f"thread {tid}", found, tid == 5) for tid, found in self.threads_registers.items()]
        return Snapshot(self.abi, self.mappings, self.memory, self.file_of, threads, {})

    def file_of(self, mapping: Mapping) -> ElfFile | None:
        return None if self.file is None else ElfFile(memoryview(self.file), mapping.path)


def loaded_in(snapshot: Made, objects: LoadedObjects | None = None, at: int = BASE + TEXT) -> LoadedObject:
    objects = objects or LoadedObjects()
    objects.verify(snapshot.now)
    loaded = objects.at(at)
    assert loaded
    return loaded


def traced(snapshot: Made, pc: int, stack: bytes = b"", fp: int = 0, tid: int = 1) -> Thread:
    snapshot.threads_registers[tid] = ThreadRegisters(pc, {snapshot.abi.sp: STACK, snapshot.abi.fp: fp})
    snapshot.map([row(STACK, 0x1000, "rw", inode=0, path="[stack]")], b"")
    snapshot.contents.append((STACK, stack))
    (thread,) = Tracer().trace(snapshot.now)
    return thread


def functions_found(snapshot: Made, base: int = BASE) -> list[int | None]:
    """Where the functions are that are found at their addresses."""
    found = [loaded_in(snapshot, None, at).look_up(at) for at in (base + TEXT, base + TEXT + 0x1FF)]
    return [function.start - base if function else None for function in found]


@for_each("abi", ABIS, ids=lambda abi: abi.name)
def test_a_section_by_headers_in_memory(abi: Abi) -> None:
    for phoff in (EHDR_SIZE, 0xE00, SECTION + 0x1000):
        assert functions_found(Made(elf_bytes(abi, phoff=phoff), abi=abi)) == [TEXT, TEXT + 0x100]
    twice = Made(elf_bytes(abi), abi=abi)
    twice.map(loaded_rows(BASE + 0x10000), elf_bytes(abi))
    assert functions_found(twice) == functions_found(twice, BASE + 0x10000) == [TEXT, TEXT + 0x100]


def test_all_sections_together_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """One file, loaded three times: two are in memory at a time, and there is room for one."""
    data = elf_bytes()
    monkeypatch.setattr(objects_module, "MAX_SECTIONS", len(section_bytes(AMD64)))
    objects = LoadedObjects()
    damage = []
    for places in ([BASE, BASE + 0x10000], [BASE + 0x20000]):
        snapshot = Made(data)
        snapshot.contents, snapshot.mappings = [], Mappings()
        for base in places:
            snapshot.map(loaded_rows(base), data)
        objects.verify(snapshot.now)
        damage += [loaded.damage for base in places if (loaded := objects.at(base + TEXT))]
    assert [bool(text) for text in damage] == [False, True, False]
    assert "too many" in damage[1]


def with_unloaded(abi: Abi = AMD64, *, compressed: bool = False, ch_size: int | None = None, loaded: bool = False) -> bytearray:
    """A library whose file has a section that no segment has; with `loaded`, also one in memory, with functions elsewhere."""
    section = section_bytes(abi, 0)
    size = len(section)
    if compressed:
        stored = zstandard.compressed(section, abi.byte_order)
        section = stored if ch_size is None else stored[:8] + ch_size.to_bytes(8, abi.byte_order) + stored[16:]
    data = elf_bytes(abi, section=section_bytes(abi, start=TEXT + 0x200) if loaded else b"")
    names = b"\0.sframe\0.shstrtab\0"
    flags = SHF.COMPRESSED if compressed else 0
    headers = [
        Shdr(0, 0, 0, 0, 0, 0, 0, 0, 0, 0),
        Shdr(1, SHT.GNU_SFRAME, flags, 0, END, len(section), 0, 0, 8, 0),
        Shdr(9, SHT.STRTAB, 0, 0, END + len(section), len(names), 0, 0, 1, 0),
    ]
    assert size >= len(section) or not compressed
    header = Ehdr(*RECORDS[Ehdr, abi.byte_order].unpack_from(data))
    header = header._replace(e_shoff=END + len(section) + len(names), e_shnum=3, e_shstrndx=2)
    RECORDS[Ehdr, abi.byte_order].pack_into(data, 0, *header)
    return data + section + names + pack_records(headers, abi.byte_order)


@for_each("compressed", [False, True])
@for_each("abi", ABIS, ids=lambda abi: abi.name)
def test_a_section_that_is_not_loaded_is_read_from_the_file(abi: Abi, compressed: bool) -> None:
    data = with_unloaded(abi, compressed=compressed)
    assert functions_found(Made(data, abi=abi, file=data)) == [TEXT, TEXT + 0x100]
    assert functions_found(Made(data, abi=abi)) == [None, None]  # no file
    assert functions_found(Made(elf_bytes(abi, section=b""), abi=abi, file=data)) == [None, None]  # another file now
    loaded = with_unloaded(abi, compressed=compressed, loaded=True)
    assert functions_found(Made(loaded, abi=abi, file=loaded)) == [None, None]  # a loaded section comes first


@for_each(
    ("data", "message"),
    [
        (with_unloaded(compressed=True, ch_size=1 << 40), "1099511627776 bytes are too many"),
        (with_unloaded(compressed=True, ch_size=1 << 20), "compressed bytes cannot hold 1048576"),
        (with_unloaded(compressed=True, ch_size=60), "do not fit into 60 bytes"),
        (with_unloaded(AMD64).replace(section_bytes(AMD64, 0), b"\xff" * len(section_bytes(AMD64, 0))), "magic"),
    ],
)
def test_a_damaged_section_in_the_file(data: bytearray, message: str) -> None:
    loaded = loaded_in(Made(data, file=data), LoadedObjects(convert=True))
    with pytest.raises(FormatError, match=message):
        loaded.look_up(BASE + TEXT)


def test_program_headers_that_are_not_mapped_are_read_from_the_file() -> None:
    data = elf_bytes(phoff=0x2800)
    assert functions_found(Made(data, file=data)) == [TEXT, TEXT + 0x100]
    assert loaded_in(Made(data)).image is None


@for_each("mapped", [True, False])
def test_more_program_headers_than_the_header_can_count(mapped: bool) -> None:
    data = elf_bytes(phnum=PN_XNUM)
    snapshot = Made(data, file=None if mapped else data)
    if not mapped:
        snapshot.mappings = Mappings([*loaded_rows()[:2], row(BASE + SECTION, 0x1000, "r", SECTION)])
    assert functions_found(snapshot) == [TEXT, TEXT + 0x100]


def test_a_file_that_is_another_now_does_not_count() -> None:
    loaded = loaded_in(Made(elf_bytes(), file=elf_bytes(filesz=5)))
    assert loaded.section
    assert loaded.file is None


def test_code_in_anonymous_memory_is_compared_with_the_file_around_it_up_to_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, and in parts: a file can be sparse and endless, and so can memory that nobody has touched."""
    data = elf_bytes()
    RECORDS[Phdr, "little"].pack_into(data, EHDR_SIZE + PHDR_SIZE, PT.LOAD, PF.R | PF.X, *[TEXT - 0x400] * 3, *[0x1000] * 3)
    data[TEXT] = 1  # the segment begins before this page, and ends in it
    monkeypatch.setattr(memory, "READ_SIZE", 0x400)
    text = row(BASE + TEXT, 0x1000, "rx", TEXT, inode=0, path="")
    for most, parts, change, reads in ((0xC00, 8, 0, 3), (0xBFF, 8, 0, 0), (0xC00, 2, 0, 2), (0xC00, 8, 1, 3)):
        monkeypatch.setattr(memory, "MAX_CODE_SIZE", most)
        monkeypatch.setattr(memory, "MAX_READS", parts)
        made = Made(data, file=data)
        made.mappings = Mappings([text if other.start == text.start else other for other in made.mappings])
        made.contents[1] = text.start, bytes(data[TEXT : TEXT + 0xBFF]) + bytes([change])
        asked = Mock(wraps=made.read)
        made.memory = CachedMemory(asked, "little")
        objects = LoadedObjects()
        for _ in range(2):
            assert (loaded_in(made, objects, text.start).image is not None) == (reads == 3 and not change)
        sizes = [call.args[1] for call in asked.call_args_list if text.start <= call.args[0] < text.end]
        assert sizes.count(0x400) == reads
        assert max(sizes, default=0) <= 0x400


def test_a_section_that_is_none() -> None:
    sizes = {0x4000: "not in readable memory", 1 << 60: "too many", 5: "bytes of header"}
    sections = {b"\0" * 100: "magic number", section_bytes(S390X): "for s390x"}
    cases = [(elf_bytes(filesz=size), message) for size, message in sizes.items()]
    for data, message in [*cases, *((elf_bytes(section=section), message) for section, message in sections.items())]:
        thread = traced(Made(data), BASE + TEXT)
        assert (thread.end, message in thread.detail) == (End.DAMAGED_SECTION, True), message


@given(st.integers(0, EHDR_SIZE + 4 * PHDR_SIZE - 1), st.integers(0, 255))
def test_whatever_the_headers_say_it_is_an_answer(at: int, byte: int) -> None:
    data = elf_bytes()
    data[at] = byte
    assert len(traced(Made(data), BASE + TEXT, bytes(0x1000)).frames) == 1


def test_an_object_in_the_place_of_another_is_noticed() -> None:
    """The mappings are the same, what is in them is not."""
    snapshot = Made(elf_bytes())
    objects = LoadedObjects()
    assert loaded_in(snapshot, objects) is loaded_in(snapshot, objects)
    changed = Made(elf_bytes(section=section_bytes(AMD64, start=TEXT + 0x80)))
    changed.mappings = snapshot.mappings
    function = loaded_in(changed, objects, BASE + TEXT + 0x80).look_up(BASE + TEXT + 0x80)
    assert function
    assert function.start == BASE + TEXT + 0x80


def test_no_changed_byte_of_a_header_goes_unnoticed() -> None:
    """What was right before is not used any more."""
    snapshot, objects = Made(elf_bytes()), LoadedObjects()
    for at in range(28):
        data = elf_bytes()
        data[SECTION + at] ^= 0xFF
        changed = Made(data)
        assert loaded_in(snapshot, objects).look_up(BASE + TEXT)
        assert loaded_in(changed, objects).section != loaded_in(snapshot, objects).section
        assert loaded_in(changed, objects).damage == loaded_in(changed).damage


@pytest.mark.parametrize("beside", [None, "/lib/other.so"])
def test_code_that_is_mapped_elsewhere_without_its_section(beside: str | None) -> None:
    """As V8 does with its functions. Where the section would be is nothing, or something else: that is no damaged section."""
    data = elf_bytes()
    data[TEXT + 0x20B] = 0xE8  # a call
    snapshot = Made(data)
    copy = BASE + 0x100000
    snapshot.map([row(copy + TEXT, 0x1000, "rx", TEXT)], data)
    if beside:
        snapshot.map([row(copy + SECTION, 0x2000, "r", SECTION, inode=5, path=beside)], elf_bytes())
    words = (bytes(0x28) + (BASE + TEXT + 0x210).to_bytes(8, "little")).ljust(0x1000, b"\0")
    thread = traced(snapshot, copy + TEXT, words, STACK + 0x20)
    how = [(frame.pc - BASE, frame.how) for frame in thread.frames]
    assert how == [(0x100000 + TEXT, RuleSource.FRAME_POINTER), (TEXT + 0x210, RuleSource.SFRAME)]
    assert thread.end is End.OUTERMOST


@for_each("readable", [0, 20])
def test_a_section_that_is_there_later(readable: int) -> None:
    """ld.so maps a library part by part: the code is mapped, the section is not yet, or not all of it."""
    snapshot = Made(elf_bytes())
    whole = snapshot.contents[-1]
    snapshot.contents[-1] = (whole[0], whole[1][:readable])
    objects = LoadedObjects()
    assert "not in readable memory" in loaded_in(snapshot, objects).damage
    snapshot.contents[-1] = whole
    loaded = loaded_in(snapshot, objects)
    assert not loaded.damage
    assert loaded.look_up(BASE + TEXT)


def test_an_object_that_was_closed_is_forgotten() -> None:
    objects = LoadedObjects()
    assert loaded_in(Made(elf_bytes()), objects)
    gone = Made(b"")
    gone.mappings = Mappings()
    objects.verify(gone.now)
    assert objects.at(BASE + TEXT) is None


def stack(abi: Abi, ras: list[int]) -> bytes:
    return b"".join(bytes(FRAME - 8) + ra.to_bytes(8, abi.byte_order) for ra in ras).ljust(0x1000, b"\0")


@for_each("abi", ABIS, ids=lambda abi: abi.name)
def test_a_whole_trace(abi: Abi) -> None:
    ras = [BASE + TEXT + 0x110, BASE + TEXT + 0x210]
    thread = traced(Made(elf_bytes(abi), abi=abi), BASE + TEXT + 1, stack(abi, ras), tid=5)
    assert (thread.tid, thread.name, thread.idle, thread.end) == (5, "thread 5", True, End.OUTERMOST)
    assert [frame.pc for frame in thread.frames] == [BASE + TEXT + 1, *ras]
    assert {frame.how for frame in thread.frames} == {RuleSource.SFRAME}


def test_code_without_a_file_is_walked_by_what_is_registered() -> None:
    code = 0x600000000000
    snapshot = Made(elf_bytes())
    snapshot.map([row(code, 0x1000, "rx", inode=0, path=""), row(STACK, 0x1000, "rw", inode=0, path="[stack]")], b"")
    snapshot.contents.append((STACK, stack(AMD64, [code + 0x110, BASE + TEXT + 0x210])))
    snapshot.threads_registers[1] = ThreadRegisters(code + 1, {AMD64.sp: STACK, AMD64.fp: 0})
    registry = Registry()
    tracer = Tracer(registry=registry)
    assert [thread.end for thread in tracer.trace(snapshot.now)] == [End.NO_FRAME_POINTER]
    section = open_section(section_bytes(AMD64, code + 0x800, code), code + 0x800)
    registry.register(Region(code, code + 0x800, "jit", section))
    (thread,) = tracer.trace(snapshot.now)
    assert ([frame.how for frame in thread.frames], thread.end) == (
        [RuleSource.REGISTERED, RuleSource.REGISTERED, RuleSource.SFRAME],
        End.OUTERMOST,
    )


@for_each(
    ("abi", "context"),
    [(abi, context) for abi in ABIS for context in conventions_of(abi).contexts],
    ids=lambda value: str(value)[:20],
)
def test_code_that_returns_from_a_handler_is_known_by_itself(abi: Abi, context: Context) -> None:
    """No section covers it. It may have been interrupted between its instructions, or be where a handler returns to."""
    data = elf_bytes(abi)
    data[TEXT + 0x800 : TEXT + 0x800 + len(context.code)] = context.code
    for at in context.instructions:
        saved = dict.fromkeys(context.places, 0) | {abi.sp: STACK + 0x900, context.pc: 0}
        memory = bytearray(stack(abi, []))
        for number, place in context.places.items():
            memory[place : place + 8] = saved[number].to_bytes(8, abi.byte_order)
        memory[context.pc : context.pc + 8] = (BASE + TEXT + 0x200).to_bytes(8, abi.byte_order)
        thread = traced(Made(data, abi=abi, file=data), BASE + TEXT + 0x800 + at, bytes(memory))
        frames = [(frame.pc - BASE - TEXT, frame.exact, frame.signal) for frame in thread.frames]
        assert frames == [(0x800 + at, True, True), (0x200, True, False)]
        assert (thread.frames[0].how, thread.frames[1].sp, thread.end) == (RuleSource.SIGNAL, STACK + 0x900, End.OUTERMOST)


def test_mappings_of_the_kernels_text() -> None:
    """A path cannot make a row: of the characters that end lines elsewhere, the kernel escapes the newline only."""
    text = (
        b"55d0a0000000-55d0a0001000 r-xp 00001000 fe:00 42                         /usr/bin/a b (deleted)\n"
        b"7f0000000000-7f0000001000 rw-p 00000000 00:00 0 \n"
        b"7ffd00000000-7ffd00002000 r-xp 00000000 00:00 0                          [vdso]\n"
        b"not a row\n"
    )
    first, second, third = parse_mappings(text)
    assert first == Mapping(0x55D0A0000000, 0x55D0A0001000, True, False, True, 0x1000, "fe:00", 42, "/usr/bin/a b (deleted)")
    assert (second.path, second.writable, third.path) == ("", True, "[vdso]")
    path = b"/a\r7ffd00000000-7ffd00002000 rw-p 00000000 00:00 0 [stack]"
    (only,) = parse_mappings(b"55d0a0000000-55d0a0001000 r-xp 00001000 fe:00 42 " + path + b"\n")
    assert only.path == path.decode()


def test_a_stack_of_several_mappings() -> None:
    """Parts may have other flags; what cannot be written is not a part. Of mappings that overlap, the first counts."""
    mappings = Mappings([row(0, 4, "r"), row(4, 4, "rw"), row(8, 8, "rw"), row(16, 4, "rx"), row(20, 4, "rw")])
    stacks = [mappings.stack_at(address) for address in (3, 4, 8, 15, 16, 20, 24)]
    assert stacks == [None, *[(4, 16)] * 3, None, (20, 24), None]
    assert [mappings.covers(0, size) for size in (4, 24, 25)] == [True, True, False]
    first, second, third = row(0, 8, "r"), row(4, 8, "rw"), row(8, 8, "rx")
    assert list(Mappings([third, second, first, row(20, 0, "r")])) == [first, third]


def test_endless_memory_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "MAX_PAGES", 64)
    endless = CachedMemory(lambda _, size: bytes(size), "little")
    tracemalloc.start()
    try:
        for number in range(1000):
            assert endless.word(number << 20) == 0
        assert tracemalloc.get_traced_memory()[1] < 200 * memory.PAGE_SIZE
    finally:
        tracemalloc.stop()


def test_words_across_pages_and_ends() -> None:
    data = bytes(range(256)) * 64
    memory = CachedMemory(lambda address, size: data[address : address + size], "little")
    for address in (0, 8, 4090, 4095, 8190, len(data) - 8):
        assert memory.word(address) == int.from_bytes(data[address : address + 8], "little")
    assert memory.word(len(data) - 7) is None
    assert memory.word(1 << 63) is None


def test_what_was_not_copied_is_asked_of_the_process() -> None:
    memory = CopiedMemory([(0x1000, bytes(range(16))), (0x3000, bytes(8))], Mappings([row(0x1000, 0x3000, "rw")]), "big")
    assert (memory.word(0x1008), memory.word(0x3000)) == (0x08090A0B0C0D0E0F, 0)
    assert memory.word(0x9000) is None
    for address in (0x1009, 0xFFF + 1 + 0x800):
        with pytest.raises(NotCopiedError):
            memory.word(address)


MADE_CODE, LIST, NODE, TABLE = 0x1000, 0x20_0000, 0x21_0000, 0x22_0000
LIBRARY = Mapping(0x10_0000, 0x11_0000, True, False, True, 0, "1:1", 7, "/lib/a.so")
MADE = Mapping(0x1000, 0x2000, True, True, True, 0, "0:0", 0, "")
ANOTHER = LIBRARY._replace(start=0x30_0000, end=0x31_0000, inode=8)


def stopped(memory: Pieces, mappings: Mappings) -> Any:
    return SimpleNamespace(memory=memory, mappings=mappings, abi=AMD64)


def process() -> Pieces:
    return Pieces(
        {
            LIST: encode(JitList(1, 0, NODE)),
            NODE: encode(JitNode(0, 1, MADE_CODE, MADE_CODE + 64, TABLE)),
            TABLE: encode(JitTable(24, 24, 0, 24, 21)) + encode(JitEntry(16, 0, 8, -8, 0, 3)),
        }
    )


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[Mapping]:
    looked: list[Mapping] = []

    def list_address(_: Snapshot, row: Mapping, _moved: MovedCode) -> int | None:
        looked.append(row)
        return LIST if row == LIBRARY else None

    monkeypatch.setattr(runtime_code, "_find_list_address", list_address)
    return looked


def test_a_list_is_followed_while_its_object_is_there(looked_at: list[Mapping]) -> None:
    memory, registry = process(), Registry()
    code = RuntimeCode(registry, MovedCode())
    code.update(stopped(memory, Mappings([LIBRARY, ANOTHER])))
    assert not len(registry)
    assert not looked_at, "all code is of files"
    both, alone = Mappings([MADE, LIBRARY, ANOTHER]), Mappings([MADE, ANOTHER])
    code.update(stopped(memory, both))
    [region] = registry
    assert region.rule_source.look_up(MADE_CODE) is not None
    code.update(stopped(memory, both))
    assert list(registry) == [region]
    assert looked_at == [MADE, LIBRARY, ANOTHER], "each is looked at once"

    memory.pieces[NODE] = encode(JitNode(0, 2, MADE_CODE, MADE_CODE + 64, TABLE))
    code.update(stopped(memory, both))
    assert not len(registry)
    memory.pieces[NODE] = encode(JitNode(0, 3, MADE_CODE, MADE_CODE + 32, TABLE))
    code.update(stopped(memory, both))
    assert [found.end for found in registry] == [MADE_CODE + 32]

    code.update(stopped(memory, alone))
    assert not len(registry)
    assert looked_at == [MADE, LIBRARY, ANOTHER]
    code.update(stopped(memory, both))
    assert len(registry) == 1
    assert looked_at == [MADE, LIBRARY, ANOTHER, LIBRARY]


def test_answers_are_those_of_the_moment_and_of_a_damaged_list_nothing_stays(looked_at: list[Mapping]) -> None:
    """The process may run again before its stacks are walked."""
    memory, registry, mappings = process(), Registry(), Mappings([MADE, LIBRARY])
    code = RuntimeCode(registry, MovedCode())
    code.update(stopped(memory, mappings))
    tables = memory.pieces.pop(TABLE)
    [region] = registry
    found = region.rule_source.look_up(MADE_CODE + 15)
    assert found is not None
    assert (found.start, found.size) == (MADE_CODE, 16)
    code.update(stopped(memory, mappings))
    with pytest.raises(FormatError, match="cannot be read"):
        region.rule_source.look_up(MADE_CODE)
    memory.pieces[TABLE] = tables
    code.update(stopped(memory, mappings))
    assert region.rule_source.look_up(MADE_CODE) == found
    assert len(registry) == 1
    memory.pieces[NODE] = encode(JitNode(8, 1, MADE_CODE, MADE_CODE + 64, TABLE))
    code.update(stopped(memory, mappings))
    assert not len(registry)
    memory.pieces[NODE] = encode(JitNode(0, 1, MADE_CODE, MADE_CODE + 64, TABLE))
    code.update(stopped(memory, mappings))
    assert len(registry) == 1
    assert looked_at == [MADE, LIBRARY]


def test_all_chains_together_have_a_limit(looked_at: list[Mapping], monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ranges of code; when one's table and entry are read, that was enough."""
    memory, registry, mappings = process(), Registry(), Mappings([MADE, LIBRARY])
    memory.pieces[NODE] = encode(JitNode(NODE + 0x100, 1, MADE_CODE, MADE_CODE + 64, TABLE))
    memory.pieces[NODE + 0x100] = encode(JitNode(0, 1, MADE_CODE + 64, MADE_CODE + 128, TABLE))
    code = RuntimeCode(registry, MovedCode())
    for tables, readable in ((5, True), (4, False)):  # of these, three are for the list
        room = Budget(entries=tables * TABLE_COST + 2, clock=lambda: 0.0)
        monkeypatch.setattr(jit_tables, "Budget", lambda *_, room=room: room)
        code.update(stopped(memory, mappings))
        first, second = registry
        assert first.rule_source.look_up(MADE_CODE) is not None
        if readable:
            assert second.rule_source.look_up(MADE_CODE + 64) is not None
        else:
            with pytest.raises(BudgetError, match="the process has more than"):
                second.rule_source.look_up(MADE_CODE + 64)
    assert looked_at == [MADE, LIBRARY]
