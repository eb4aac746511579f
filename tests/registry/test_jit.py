"""The registry against a naive list. Tables of code made at run time: what is written is read, at every moment of the writing."""

from __future__ import annotations

import errno
import signal
import subprocess
from collections.abc import Callable
from itertools import count
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sframegen.base.errors import FormatError
from sframegen.format.abi import AARCH64, AMD64, S390X, Abi
from sframegen.format.model import OUTERMOST, Match, Rule, Where
from sframegen.program.signals import signals_held
from sframegen.registry import jit_tables
from sframegen.registry.jit_list import JitRegions, read_nodes
from sframegen.registry.jit_tables import TABLE_COST, TABLE_SIZE, Budget, JitTables, rule_of_entry
from sframegen.registry.regions import BudgetError, Region, Registry, RegistryError
from sframegen.registry.structures import CodeJitInfo, JitEntry, JitList, JitNode, JitTable, encode, struct_size
from tests.registry.jit_walks import FLAGS, INCLUDE, SOURCE, walk_producer
from tests.support.inputs.jit_writer import STRIDE, JitWriter, entry_of
from tests.support.loops import for_each
from tests.support.peers import Compiler
from tests.support.processes.memories import Pieces


def refused_with(number: int, call: Callable[..., object], *arguments: object) -> None:
    with pytest.raises(RegistryError) as caught:
        call(*arguments)
    assert errno.errorcode[caught.value.errno or 0] == errno.errorcode[number]


class Nothing:
    def look_up(self, pc: int) -> Match | None:
        raise AssertionError(pc)


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("register"), st.integers(-2, 40), st.integers(-2, 40), st.integers(0, 4)),
            st.tuples(st.just("unregister"), st.integers(0, 4), st.just(0), st.just(0)),
        ),
        max_size=30,
    )
)
def test_registry_is_as_a_list_would_be(calls: list[tuple[str, int, int, int]]) -> None:
    registry, model = Registry(), list[Region]()
    for what, first, end, key in calls:
        if what == "register":
            region = Region(first, end, key, Nothing())
            expected = errno.EINVAL if not 0 <= first < end else 0
            if not expected and any(set(range(first, end)) & set(range(r.start, r.end)) for r in model):
                expected = errno.EEXIST
            if expected:
                refused_with(expected, registry.register, region)
            else:
                registry.register(region)
                model.append(region)
        elif any(region.key == first for region in model):
            assert sorted(registry.unregister(first)) == sorted(region for region in model if region.key == first)
            model = [region for region in model if region.key != first]
        else:
            refused_with(errno.EINVAL, registry.unregister, first)
        assert list(registry) == sorted(model)
        for pc in range(-3, 43):
            assert registry.find(pc) == next((region for region in model if region.start <= pc < region.end), None)


def test_a_region_ends_with_the_address_space() -> None:
    registry = Registry()
    registry.register(Region((1 << 64) - 1, 1 << 64, 0, Nothing()))
    assert registry.find((1 << 64) - 1) is not None
    refused_with(errno.EINVAL, registry.register, Region(1, (1 << 64) + 1, 0, Nothing()))


TEXT, TABLES = 0x1000, 0x10_0000
INFO = CodeJitInfo(TEXT, TEXT + 0x1000, TABLES)
SAVED_RA = Where(None, -8, deref=True)
RULES = (
    Rule(Where(AMD64.sp, 8), SAVED_RA),
    Rule(Where(AMD64.sp, 2**31 - 1), SAVED_RA, Where(None, -(2**31), deref=True)),
    Rule(Where(AMD64.fp, 16), SAVED_RA, Where(None, -16, deref=True)),
    OUTERMOST,
)


class Followed(JitTables):
    """Tables that are read on before each look-up."""

    def look_up(self, pc: int) -> Match | None:
        self.refresh()
        return super().look_up(pc)


class Process:
    """A process with a chain of tables, written entry by entry."""

    def __init__(self, abi: Abi = AMD64, room: int = 3) -> None:
        self.abi, self.room = abi, room
        self.memory = Pieces({})
        self.writers: list[JitWriter] = []
        self.entries: list[JitEntry] = []
        self.extend()

    def extend(self) -> None:
        buffer = bytearray(32 + self.room * STRIDE)
        address = TABLES + 0x1000 * len(self.writers)
        self.memory.pieces[address] = buffer
        self.writers.append(JitWriter(buffer, address, self.abi.byte_order))
        if len(self.writers) > 1:
            self.writers[-2].extend(self.writers[-1])

    def append(self, entry: JitEntry) -> None:
        if self.writers[-1].is_full:
            self.extend()
        self.writers[-1].append(entry)
        self.entries.append(entry)

    def remove(self, offset: int) -> None:
        next(writer for writer in self.writers if writer.covers(offset)).remove(offset)
        self.entries = [entry for entry in self.entries if not entry.ip_off <= offset < entry.ip_off + entry.size]

    def expected(self, pc: int) -> tuple[int, int, bool, Rule] | None:
        for entry in self.entries:
            if entry.ip_off <= pc - TEXT < entry.ip_off + entry.size:
                rule = rule_of_entry(entry, self.abi)
                assert rule is not None
                return TEXT + entry.ip_off, entry.size, bool(entry.info & jit_tables.IS_SIGNAL), rule
        return None

    def describer(self) -> Followed:
        return Followed(self.memory, INFO, self.abi)


def plain(found: Match | None) -> tuple[int, int, bool, Rule] | None:
    return found and (found.start, found.size, found.kind.signal, found.rule)


def filled(count: int = 7, *, room: int = 3, apart: int = 24, rules: tuple[Rule, ...] = RULES) -> Process:
    process = Process(room=room)
    for number in range(count):
        process.append(entry_of(16, apart * number, rules[number % len(rules)], AMD64, signal=number == 5))
    return process


@for_each(
    ("rule", "abi", "entry"),
    [
        (RULES[0], AMD64, JitEntry(16, 32, 8, -8, 0, 0x03)),
        (RULES[2], AMD64, JitEntry(16, 32, 16, -8, -16, 0x06)),
        (RULES[1], AMD64, JitEntry(16, 32, 2**31 - 1, -8, -(2**31), 0x07)),
        (OUTERMOST, AMD64, JitEntry(16, 32, 0, 0, 0, 0x08)),
        (Rule(Where(31, 0)), AARCH64, JitEntry(16, 32, 0, 0, 0, 0x01)),
        (Rule(Where(29, 32), SAVED_RA, None, ra_signed=True), AARCH64, JitEntry(16, 32, 32, -8, 0, 0x82)),
        (Rule(Where(15, 160), None, SAVED_RA), S390X, JitEntry(16, 32, 160, 0, -8, 0x05)),
    ],
)
def test_entry_says_a_rule(rule: Rule, abi: Abi, entry: JitEntry) -> None:
    assert entry_of(16, 32, rule, abi) == entry
    assert rule_of_entry(entry, abi) == rule
    assert entry_of(16, 32, rule, abi, signal=True) == entry._replace(info=entry.info | 0x10)
    assert rule_of_entry(entry._replace(info=entry.info | 0x30), abi) == rule


@for_each("info", range(256))
def test_every_info_byte_is_one_rule_or_none(info: int) -> None:
    for abi in (AMD64, AARCH64, S390X):
        for offsets in ((0, 0, 0), (16, 0, 0), (16, -8, 0), (16, 0, -8), (16, -8, -16)):
            rule = rule_of_entry(JitEntry(1, 0, *offsets, info), abi)
            if rule is not None:
                again = entry_of(1, 0, rule, abi, signal=bool(info & jit_tables.IS_SIGNAL))
                assert again == JitEntry(1, 0, *offsets, info & ~jit_tables.REMOVED)
            if info & 0x40 or (info & 0x80 and abi is not AARCH64):
                assert rule is None


steps = st.one_of(
    st.tuples(st.just("append"), st.integers(0, 9), st.integers(1, 9)),
    st.tuples(st.just("remove"), st.integers(0, 200), st.just(0)),
    st.tuples(st.just("extend"), st.just(0), st.just(0)),
    st.tuples(st.just("look"), st.integers(-3, 250), st.just(0)),
)


@given(st.lists(steps, max_size=40), st.randoms(use_true_random=False))
def test_tables_answer_as_a_list_would(steps: list[tuple[str, int, int]], random: Random) -> None:
    process = Process()
    describer = process.describer()
    end = 0
    for what, number, size in steps:
        if what == "append":
            process.append(entry_of(size, end + number, random.choice(RULES), AMD64))
            end += number + size
        elif what == "extend":
            process.extend()
        elif what == "look":
            assert plain(describer.look_up(TEXT + number)) == process.expected(TEXT + number)
        elif process.expected(TEXT + number) is not None:
            process.remove(number)
            describer = process.describer()  # what was read stays
    for pc in range(TEXT - 1, TEXT + end + 2):
        assert plain(describer.look_up(pc)) == plain(process.describer().look_up(pc)) == process.expected(pc)


class Film:
    """A memory of which each read sees a later picture than the one before; the last stays."""

    def __init__(self, pictures: list[Pieces]) -> None:
        self.pictures = pictures
        self.reads = 0

    def read(self, address: int, size: int) -> bytes:
        picture = self.pictures[min(self.reads, len(self.pictures) - 1)]
        self.reads += 1
        return picture.read(address, size)


def picture(process: Process) -> Pieces:
    return Pieces({address: bytes(piece) for address, piece in process.memory.pieces.items()})


def stores(before: Pieces, after: Pieces) -> list[Pieces]:
    """The pictures in between, a byte at a time, in the order in which a writer stores: entries first, lengths and chains last."""
    pictures = [before]
    changed = [
        (address, at)
        for address, piece in after.pieces.items()
        for at in range(len(piece))
        if address not in before.pieces or before.pieces[address][at] != piece[at]
    ]

    def order(change: tuple[int, int]) -> tuple[int, int, int]:
        address, at = change
        is_length, is_chain = 8 <= at < 16, 16 <= at < 24
        return address in before.pieces and is_chain, is_length, at

    for address, at in sorted(changed, key=order):
        last = pictures[-1]
        data = bytearray(last.pieces.get(address, bytes(len(after.pieces[address]))))
        data[at] = after.pieces[address][at]
        pictures.append(Pieces(last.pieces | {address: bytes(data)}))
    return pictures


@for_each("start", range(9))
def test_a_table_that_grows_between_reads(start: int) -> None:
    """At every byte of what is stored for one more entry, and for one more table: the answer of before, or that of after."""
    process = filled(start, room=4, apart=16)
    before, was = picture(process), list(process.entries)
    process.append(entry_of(16, 16 * start, RULES[start % 3], AMD64))
    pictures = stores(before, picture(process))
    assert len(pictures) > 4
    questions = [TEXT + 16 * number + 3 for number in range(start + 2)]
    after = [process.expected(pc) for pc in questions]
    process.entries = was
    earlier = [process.expected(pc) for pc in questions]
    for first in range(len(pictures)):
        for stride in (1, 2, 5):
            for known in (False, True):
                film = Film([before])
                describer = Followed(film, INFO, AMD64)
                if known:
                    describer.refresh()
                film.pictures, film.reads = [*pictures[first::stride], pictures[-1]], 0
                answers = [plain(describer.look_up(pc)) for pc in questions]
                assert all(answer in both for answer, both in zip(answers, zip(earlier, after, strict=True), strict=True))
                film.reads = len(pictures)
                assert [plain(describer.look_up(pc)) for pc in questions] == after


def test_a_length_that_is_read_in_two_halves() -> None:
    """10 entries are 0xf0 bytes, 11 are 0x108: half of each is 0x08 or 0x1f0."""
    process = filled(10, room=30, apart=16)
    describer = process.describer()
    describer.refresh()
    process.append(entry_of(16, 160, RULES[0], AMD64))
    whole = picture(process)
    for torn in (0x08, 0x1F0):
        data = bytearray(whole.pieces[TABLES])
        data[8:16] = torn.to_bytes(8, "little")
        describer._memory = Film([Pieces({TABLES: bytes(data)}), whole])
        assert plain(describer.look_up(TEXT + 165)) == process.expected(TEXT + 165)


def test_entries_that_come_while_the_next_table_is_found_are_not_lost() -> None:
    """The header is read with an old length and a new chain."""
    process = filled(1)
    mixed = bytearray(process.memory.pieces[TABLES])
    for number in range(1, 5):
        process.append(entry_of(16, 16 * number, RULES[0], AMD64))
    mixed[16:24] = process.memory.pieces[TABLES][16:24]
    after = picture(process)
    describer = Followed(Film([after, Pieces(after.pieces | {TABLES: bytes(mixed)}), after]), INFO, AMD64)
    for pc in range(TEXT, TEXT + 80, 16):
        assert plain(describer.look_up(pc)) == process.expected(pc)


def test_tables_that_begin_anew_are_read_anew() -> None:
    describer = filled().describer()
    describer.refresh()
    fresh = filled(3, room=5, apart=40, rules=RULES[2::-1])  # another first rule
    describer._memory = fresh.memory
    for pc in range(TEXT, TEXT + 130):
        assert plain(describer.look_up(pc)) == fresh.expected(pc)


def with_header(header: JitTable, entries: bytes = b"", next_at: int = 0) -> Followed:
    pieces = {TABLES: encode(header) + entries}
    if next_at:
        pieces[next_at] = encode(JitTable(24, 0, TABLES, 24, 21)).ljust(80, b"\0")
    return Followed(Pieces(pieces), INFO, AMD64)


ENTRY = encode(JitEntry(16, 0, 8, -8, 0, 3))


@for_each(
    ("header", "message"),
    [
        (JitTable(24, 25, 0, 24, 21), "used"),
        (JitTable(2**64 - 1, 0, 0, 24, 21), "no table has"),
        (JitTable(24, 2**64 - 24, 0, 24, 21), "used"),
        (JitTable(2**40, 24 * (2**20 + 1), 0, 24, 21), "more than 1048576 entries"),
        (JitTable(2**40, 24 * 2**19, 0, 24, 21), "cannot be read"),
        (JitTable(24, 24, 0, 24, 20), "entries of 20 bytes"),
        (JitTable(24, 24, 0, 0, 0), "entries of 0 bytes"),
        (JitTable(24, 24, 0, 22, 21), "22 apart"),
        (JitTable(260, 260, 0, 260, 21), "260 apart"),
        (JitTable(24, 24, TABLES, 24, 21), "comes back"),
        (JitTable(24, 24, TABLES + 0x1000, 24, 21), "comes back"),
        (JitTable(24, 24, TABLES + 4, 24, 21), "no table has|entries of|cannot be read"),
        (JitTable(24, 24, 2**64 - 8, 24, 21), "cannot be read"),
    ],
)
def test_headers_that_are_refused(header: JitTable, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        with_header(header, ENTRY, TABLES + 0x1000).look_up(TEXT)


def test_entries_that_are_refused() -> None:
    wrong = [(0, 0, 0, 3), (0x1001, 0, 0, 3), (1, 0x1000, 0, 3), (2**32 - 1, 2**32 - 1, 0, 3), (16, 0, 0, 0x43), (16, 0, 1, 3)]
    for size, start, fp, info in wrong:
        with pytest.raises(FormatError):
            with_header(JitTable(24, 24, 0, 24, 21), encode(JitEntry(size, start, 8, -8, fp, info))).look_up(TEXT)
    for start in (15, 0):  # out of order
        with pytest.raises(FormatError, match="after 0x10"):
            with_header(JitTable(48, 48, 0, 24, 21), ENTRY + encode(JitEntry(16, start, 8, -8, 0, 3))).look_up(TEXT)


def test_longer_entries_are_read_while_their_new_fields_are_zero() -> None:
    header = JitTable(32, 32, 0, 32, 29)
    assert with_header(header, ENTRY + bytes(8)).look_up(TEXT) is not None
    assert with_header(header, ENTRY + bytes(5) + b"\xff" * 3).look_up(TEXT) is not None, "padding"
    for at in range(21, 29):
        entry = bytearray(ENTRY + bytes(8))
        entry[at] = 1
        with pytest.raises(FormatError, match="no rule"):
            with_header(header, bytes(entry)).look_up(TEXT)


class Endless:
    """A chain of empty tables without end, or of some; with the addresses that were read."""

    def __init__(self, tables: int = 0) -> None:
        self.last = tables * TABLE_SIZE
        self.opened: set[int] = set()

    def read(self, address: int, size: int) -> bytes:
        self.opened.add(address)
        following = address + TABLE_SIZE
        return encode(JitTable(0, 0, 0 if following == self.last else following, 24, 21))[:size]


def chain(memory: Endless, first: int = 0) -> JitTables:
    return JitTables(memory, INFO._replace(unwind_head=first), AMD64)


def test_a_chain_without_end_is_refused() -> None:
    memory = Endless()
    with pytest.raises(BudgetError, match="more than 65,536 tables"):
        chain(memory).refresh(Budget(entries=100 * TABLE_COST, clock=lambda: 0.0))
    assert len(memory.opened) == 100


def test_time_is_looked_at_between_tables_and_the_next_reading_goes_on() -> None:
    memory = Endless(tables=25)
    one = chain(memory)
    for reading in (1, 2):
        seconds = count()
        with pytest.raises(BudgetError, match="longer than 10 seconds"):
            one.refresh(Budget(10, clock=seconds.__next__))  # each look at the clock takes a second
        assert len(memory.opened) == 10 * reading
    one.refresh(Budget(10, clock=count().__next__))
    assert len(memory.opened) == 25
    assert one.look_up(0) is None


def test_a_long_table_is_read_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jit_tables, "ENTRIES_PER_READ", 2)
    one = JitTables(filled(room=7).memory, INFO, AMD64)
    with pytest.raises(BudgetError):
        one.refresh(Budget(entries=TABLE_COST + 4, clock=lambda: 0.0))
    assert len(one) == 4
    one.refresh(Budget(clock=lambda: 0.0))
    assert len(one) == 7


def test_what_is_kept_counts() -> None:
    """Else a process could have all of it read little by little."""
    first, second = (chain(Endless(tables=5)) for _ in "12")
    for _ in range(2):
        room = Budget(entries=8 * TABLE_COST, clock=lambda: 0.0)
        first.refresh(room)
        with pytest.raises(BudgetError):
            second.refresh(room)


def test_a_signal_that_waits_ends_the_reading() -> None:
    memory = Endless()
    with signals_held():
        signal.raise_signal(signal.SIGTERM)
        try:
            with pytest.raises(BudgetError, match="a signal came"):
                chain(memory).refresh(Budget(clock=lambda: 0.0))
        finally:
            assert signal.sigtimedwait([signal.SIGTERM], 0) is not None
    assert not memory.opened


def test_members_of_lists_count_too() -> None:
    class List:
        reads = 0

        def read(self, address: int, size: int) -> bytes:
            self.reads += 1
            return (encode(JitList(1, 0, 8)) if size == struct_size(JitList) else encode(JitNode(address + 64, 0, 0, 0, 0)))[:size]

    memory = List()
    with pytest.raises(BudgetError):
        read_nodes(memory, 1 << 32, AMD64, Budget(entries=100 * TABLE_COST, clock=lambda: 0.0))
    assert memory.reads == 200  # each twice


LIST, NODE = 0x20_0000, 0x21_0000


def listed(*nodes: JitNode, version: int = 1) -> Pieces:
    memory = picture(filled())
    memory.pieces[LIST] = encode(JitList(version, 0, NODE if nodes else 0))
    memory.pieces |= {NODE + 64 * number: encode(node) for number, node in enumerate(nodes)}
    return memory


def node(serial: int = 1, following: int = 0, start: int = TEXT) -> JitNode:
    return JitNode(following, serial, start, start + 0x1000, TABLES)


@for_each(
    ("memory", "message"),
    [
        (Pieces({}), "cannot be read"),
        (listed(version=2), "version 2"),
        (listed(node(1, NODE)), "comes back"),
        (listed(node(1, 8)), "cannot be read"),
        (listed(node(1, 2**64 - 1)), "cannot be read"),
        (listed(node(1, NODE + 64), node()), "overlaps"),
        (listed(JitNode(0, 1, 8, 8, TABLES)), "no code"),
    ],
)
def test_lists_that_are_refused(memory: Pieces, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        JitRegions(memory, LIST, AMD64).update(Registry())


# Reads calls from stdin, does them to a chain of tables of three entries each, prints what came back and then the tables' bytes.
WRITER = r"""
#include <stdio.h>
#include <stdlib.h>
#include "sframegen_jit.h"
#ifdef __cplusplus
#define ALIGNED alignas(8)
#else
#define ALIGNED _Alignas(8)
#endif
ALIGNED static unsigned char memory[8][32 + 3 * 24];
int main(void) {
    char what;
    long a, b, c, d, e, f;
    int count = 0;
    while (scanf(" %c %ld %ld %ld %ld %ld %ld", &what, &a, &b, &c, &d, &e, &f) == 7) {
        struct sframegen_jit_table *last = count ? (struct sframegen_jit_table *)(void *)memory[count - 1] : NULL;
        struct sframegen_jit_table *first = (struct sframegen_jit_table *)(void *)memory[0];
        struct sframegen_jit_fre entry = {(uint32_t)a, (uint32_t)b, (int32_t)c, (int32_t)d, (int32_t)e, (uint8_t)f, {1, 2, 3}};
        int result = 0;
        if (what == 'a') result = sframegen_jit_append(last, entry);
        if (what == 'r') result = sframegen_jit_remove(first, (uint32_t)a);
        if (what == 't') {
            struct sframegen_jit_table *table = sframegen_jit_init(memory[count++], sizeof memory[0]);
            if (last) result = sframegen_jit_extend(last, table);
        }
        printf("%d ", result);
    }
    printf("\n%p\n", (void *)memory);
    for (int table = 0; table < count; table++)
        for (size_t at = 0; at < sizeof memory[0]; at++) printf("%02x", memory[table][at]);
    return 0;
}
"""
WARNINGS = ("-Wall", "-Wextra", "-pedantic", "-Wconversion", "-Wshadow", "-Werror")
LANGUAGES = {"c11": (), "c17": (), "c++11": ("-x", "c++", "-lstdc++"), "c++17": ("-x", "c++", "-lstdc++")}


@pytest.mark.parametrize("standard", LANGUAGES)
@pytest.mark.sampled
def test_header_writes_what_python_writes(compile_c: Compiler, standard: str) -> None:
    program = compile_c(WRITER, f"-std={standard}", *LANGUAGES[standard], *WARNINGS, f"-I{INCLUDE}")
    random, calls, results = Random(standard), [], []
    tables: list[tuple[bytearray, JitWriter]] = []
    end = 0

    def call(what: str, *numbers: int) -> bool:
        calls.append(" ".join(map(str, (what, *numbers, *[0] * (6 - len(numbers))))))
        try:
            if what == "t":
                buffer = bytearray(32 + 3 * 24)
                tables.append((buffer, JitWriter(buffer, 104 * len(tables))))
                if len(tables) > 1:
                    tables[-2][1].extend(tables[-1][1])
            elif what == "a":
                tables[-1][1].append(JitEntry(*numbers))
            else:
                next((writer for _, writer in tables if writer.covers(numbers[0])), tables[0][1]).remove(numbers[0])
        except ValueError:
            results.append("-1")
            return False
        results.append("0")
        return True

    call("t")
    while len(tables) < 7 or not tables[-1][1].is_full:
        start = end + random.randrange(-1 if len(tables[-1][1]) else 0, 3)
        entry = JitEntry(random.randrange(5), start, random.randrange(-99, 99), -8, -(2**31), random.randrange(256))
        if call("a", *entry):
            end = entry.ip_off + entry.size
        elif tables[-1][1].is_full:
            call("t")
        call("r", random.randrange(end + 5))
    call("t")
    call("a", 1, 2**32 - 1, 0, 0, 0, 8)
    output = subprocess.run([program], input="\n".join(calls), check=True, capture_output=True, text=True).stdout
    answers, address, data = output.split("\n")
    assert answers.split() == results
    assert {"0", "-1"} <= set(results)
    for buffer, writer in tables:  # addresses are the program's
        following = int.from_bytes(buffer[16:24], "little")
        buffer[16:24] = (following and following + int(address, 16)).to_bytes(8, "little")
        assert data[: 2 * len(buffer)] == buffer.hex(), writer.address
        data = data[2 * len(buffer) :]
    assert not data


@pytest.mark.sampled
def test_walks_through_code_that_is_made_meanwhile(compile_c: Compiler) -> None:
    counts = walk_producer(compile_c(SOURCE.read_text(), *FLAGS), 300)
    assert counts.frames > 1000
    assert counts.removed > 100
    assert len(counts.tops) > 5
