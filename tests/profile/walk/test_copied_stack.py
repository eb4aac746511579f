"""Walks over copied stacks find what the tracer finds in the process itself; each limit of a step, a place before it and at it."""

from __future__ import annotations

import struct
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sframegen.base.errors import FormatError
from sframegen.elf.file import ElfFile
from sframegen.elf.records import PT, SHT, Phdr
from sframegen.format.abi import AARCH64, AMD64, S390X, Abi
from sframegen.format.model import OUTERMOST, FunctionTable, Kind, Rule, Where
from sframegen.profile.following.files import CodeSpan
from sframegen.profile.limits import MAX_DEPTH
from sframegen.profile.packed_frames import PACKED_ADDRESS, FileFrame, unpack_frame
from sframegen.profile.tables.decoded_table import ELEMENT_SIZE, RULE_ELEMENTS, DecodedTable, make_decoded_table
from sframegen.profile.walk import copied_stack
from sframegen.profile.walk.copied_stack import CopyWalker, Start, make_span_columns
from sframegen.profile.walk.steps import CodeKind
from sframegen.stack.abi.machines import ThreadRegisters, conventions_of
from sframegen.stack.objects.loaded_objects import Answers
from sframegen.stack.walking import walk as stack_walk
from sframegen.stack.walking.frames import End, Frame, RuleSource
from sframegen.stack.walking.step import GUESS_REACH
from sframegen.stack.walking.walk import CodeRule, code_rule
from tests.support.inputs.linker_inputs import Writer

MACHINES = (AMD64, AARCH64)
SP = 0x7000_0000
SIZE = 0x1000  # bytes of stack
BIAS = 0x40_0000
FUNCTION = 0x80  # bytes of code of each
FUNCTIONS = 8
CODE = range(BIAS + 0x1000, BIAS + 0x1000 + FUNCTION * FUNCTIONS)
FILE = 5
SPANS = make_span_columns([CodeSpan(CODE.start, CODE.stop, BIAS, FILE)])


def place(number: int, offset: int = 0x10) -> int:
    return CODE.start + number * FUNCTION + offset


def table_of_rules(rules: list[Rule | None], signals: frozenset[int] = frozenset()) -> DecodedTable:
    functions = FunctionTable(kinds=[Kind(), Kind(signal=True)], rules=[rule for rule in rules if rule])
    for number, rule in enumerate(rules):
        if rule:
            functions.append(place(number, 0) - BIAS, FUNCTION, number in signals, [(0, functions.rules.index(rule))])
    return make_decoded_table(functions)


def walker_with(abi: Abi, rules: list[Rule | None], signals: frozenset[int] = frozenset()) -> CopyWalker:
    walker = CopyWalker(abi, lambda _: None)
    walker.add_table(FILE, table_of_rules(rules, signals))
    return walker


def start_of(values: dict[int, int], pc: int, *, frames: tuple[int, ...] = (), exact: bool = True) -> Start:
    known = sum(1 << number for number in values)
    start = Start([values.get(number, 0) for number in range(32)], known, pc, frames=frames)
    return start if exact else start._replace(exact=False)


def stack_of(words: dict[int, int], size: int = SIZE) -> bytes:
    stack = bytearray(max(size, SIZE))
    for address, word in words.items():
        struct.pack_into("<Q", stack, address - SP, word)
    return bytes(stack[:size])


def addresses(walker: CopyWalker) -> list[int]:
    return [frame.address for frame in map(unpack_frame, walker.frames())]


class View:
    """The same code and stack, as the tracer's walk asks for them."""

    def __init__(self, abi: Abi, rules: list[Rule | None], signals: frozenset[int], stack: bytes) -> None:
        self.abi, self.rules, self.signals, self.stack = abi, rules, signals, stack
        self.answers: Answers = ({}, {})

    def word(self, address: int) -> int | None:
        at = address - SP
        return int.from_bytes(self.stack[at : at + 8], "little") if 0 <= at <= len(self.stack) - 8 else None

    def window(self, _address: int) -> tuple[int, bytes]:
        return SP, self.stack

    def describe(self, pc: int, exact: bool) -> CodeRule | End:
        address = pc if exact else pc - 1
        if address not in CODE:
            return End.NOT_CODE
        number = (address - CODE.start) // FUNCTION
        rule = self.rules[number]
        if rule is None:
            return stack_walk.guess(self.abi, End.NOT_COVERED)
        return code_rule(rule, self.abi, RuleSource.SFRAME, signal=number in self.signals)

    def stack_at(self, _address: int) -> tuple[int, int] | None:
        return SP, SP + len(self.stack)

    def starts_thread(self, _pc: int) -> bool:
        return False

    def returns_to(self, pc: int) -> bool:
        return pc - 1 in CODE


# The copy's words for what the tracer calls otherwise: it knows mappings and one stack instead of objects and all memory.
SAME = {
    End.NOT_CODE: {End.NO_MAPPING},
    End.BAD_RETURN: {End.NO_MAPPING},
    End.NOT_COVERED: {End.NO_RULE, End.GUESS_FAILED, End.COPY_TOO_SHORT},
    End.UNREADABLE: {End.UNREADABLE, End.COPY_TOO_SHORT},
    End.OFF_THE_STACK: {End.COPY_TOO_SHORT},
    # The latter where the CFA is beyond 64 bits: the frame lies above the copy.
    End.NOT_ASCENDING: {End.NOT_ASCENDING, End.COPY_TOO_SHORT},
    End.LOOP: {End.TOO_DEEP},
}


@st.composite
def rules_of(draw: st.DrawFn, abi: Abi) -> Rule | None:
    kind = draw(st.sampled_from(["none", "outermost", *["rule"] * 8]))
    if kind != "rule":
        return OUTERMOST if kind == "outermost" else None
    register = st.sampled_from([abi.sp, abi.sp, abi.sp, abi.fp, 3])
    cfa = Where(draw(register), 8 * draw(st.integers(2, 6)), draw(st.integers(0, 5)) == 0)
    ra = draw(st.sampled_from([Where(None, -8, deref=True)] * 4 + [Where(abi.sp, 8, deref=True), Where(abi.ra % 32, 0)]))
    saved = Where(abi.sp, 0, deref=True) if cfa.deref else Where(None, -16, deref=True)  # above SP
    return Rule(cfa, ra, draw(st.sampled_from([None, saved, saved, Where(abi.sp, 0, deref=True), Where(3, 8)])))


@pytest.mark.parametrize("abi", MACHINES, ids=lambda abi: abi.name)
@given(data=st.data())
def test_the_tracer_walks_the_same_frames(abi: Abi, data: st.DataObject) -> None:
    """Over random rules of all kinds and random stacks, most of whose words are return addresses and places in the stack."""
    rules = data.draw(st.lists(rules_of(abi), min_size=FUNCTIONS, max_size=FUNCTIONS))
    signals = data.draw(st.frozensets(st.integers(0, FUNCTIONS - 1), max_size=1))
    odd = st.sampled_from([0, 1, SP - 0x100, SP + 3, (1 << 64) - 1])
    words = st.one_of(st.integers(CODE.start, CODE.stop - 1), st.integers(0, 63).map(lambda n: SP + 8 * n), odd)
    stack = b"".join(word.to_bytes(8, "little") for word in data.draw(st.lists(words, min_size=8, max_size=64)))
    values = {abi.sp: SP, abi.fp: data.draw(words), 3: data.draw(words), abi.ra % 32: data.draw(words)}
    pc = data.draw(st.integers(CODE.start - 1, CODE.stop))
    same_frames(View(abi, rules, signals, stack), values, pc)


def test_a_frame_record_leads_on_from_code_of_signal_handlers() -> None:
    """Its rule needs SP, which a frame record does not give there; what the frame is called does not change by that."""
    rules: list[Rule | None] = [None] * FUNCTIONS
    rules[1] = Rule(Where(31, 16, deref=True), Where(None, -8, deref=True))
    stack = stack_of({SP + 16: SP + 24, SP + 24: place(1, 1), SP + 32: place(0, 1)}, 64)
    frames = same_frames(View(AARCH64, rules, frozenset({1}), stack), {31: SP, 29: SP + 16}, place(0))
    assert [frame.lookup_address for frame in frames] == [place(0), place(1, 1), place(0, 0)]


def same_frames(view: View, values: dict[int, int], pc: int) -> list[Frame]:
    abi = view.abi
    expected = stack_walk.walk(ThreadRegisters(pc, values, conventions_of(abi).ra_mask), abi, view, MAX_DEPTH)
    walker = walker_with(abi, view.rules, view.signals)
    end = walker.walk(SPANS, start_of(values, pc), SP, view.stack)
    frames = [
        FileFrame(FILE, code - BIAS, guessed) if code in CODE else FileFrame(0, code & PACKED_ADDRESS, guessed)
        for code, guessed in ((frame.lookup_address, frame.guessed) for frame in expected.frames)
    ]
    found = list(map(unpack_frame, walker.frames()))
    if end is End.COPY_TOO_SHORT and expected.frames[len(found) - 1].signal:
        # The interrupted code's frame pointer is not in the copy. The tracer has asked the process, and goes on without it.
        assert found == frames[: len(found)]
        return expected.frames
    elsewhere = {End.OTHER_STACK} if any(frame.signal for frame in expected.frames) else set()  # what a handler interrupted
    assert end in SAME.get(expected.end, {expected.end}) | elsewhere
    if expected.end is not End.LOOP:
        assert found == frames
    return expected.frames


def test_where_a_signal_frame_has_its_return_address_no_call_ends() -> None:
    """Not even where the code before it looks like a call, and in a frame that is the last."""
    for rule in (RETURN_AT_SP, OUTERMOST):
        walker = walker_with(AMD64, [RETURN_AT_SP, rule, OUTERMOST], frozenset({1}))
        stack = stack_of({SP + 8: place(1), SP + 24: place(2)})
        walker.walk(SPANS, start_of({7: SP}, place(0)), SP, stack)
        assert addresses(walker)[:2] == [place(0) - BIAS, place(1) - BIAS]


RETURN_AT_SP = Rule(Where(7, 16), Where(None, -8, deref=True))


@pytest.mark.parametrize("guessed", [False, True])
def test_a_first_frame_that_a_frame_pointer_led_to_is_marked(guessed: bool) -> None:
    """Also where nothing is mapped. The frames after it have rules."""
    walker = walker_with(AMD64, [RETURN_AT_SP, OUTERMOST])
    begin = start_of({7: SP}, place(0))._replace(guessed=guessed)
    assert walker.walk(SPANS, begin, SP, stack_of({SP + 8: place(1)})) is End.OUTERMOST
    assert list(map(unpack_frame, walker.frames())) == [
        FileFrame(FILE, place(0) - BIAS, guessed),
        FileFrame(FILE, place(1) - 1 - BIAS, guessed=False),
    ]
    assert walker.walk(SPANS, begin._replace(pc=CODE.stop), SP, bytes(SIZE)) is End.NO_MAPPING
    assert list(map(unpack_frame, walker.frames())) == [FileFrame(0, CODE.stop, guessed)]


@pytest.mark.parametrize("exact", [False, True])
def test_only_code_that_runs_may_have_the_sp_of_its_caller(exact: bool) -> None:
    """A call pushes its return address, or the caller saved it: SP grows, except from a leaf."""
    walker = walker_with(AMD64, [Rule(Where(7, 0), Where(7, 0, deref=True)), OUTERMOST])
    end = walker.walk(SPANS, start_of({7: SP}, place(0, 0x10 + (not exact)), exact=exact), SP, stack_of({SP: place(1)}))
    assert end is (End.OUTERMOST if exact else End.NOT_ASCENDING)
    assert addresses(walker) == [place(0) - BIAS, place(1) - 1 - BIAS][: 1 + exact]


def elf_with(content: bytes) -> tuple[ElfFile, int]:
    """(a file with that code, its link-time address)."""
    writer = Writer("little", 1)
    base = writer.put(".text", SHT.PROGBITS, 6, content, 0x100).sh_addr
    segment = Phdr(PT.LOAD, 5, base, base, base, len(content), len(content), 0x100)
    return ElfFile(memoryview(writer.finish([segment]))), base


def test_what_code_says_where_no_rule_applies() -> None:
    """The end of a call, where a handler returns to, neither. Without a file, any place may be a call's end."""
    [context, *_] = conventions_of(AMD64).contexts
    call = b"\xe8\0\0\0\0"
    elf, base = elf_with(bytes(16) + call + b"\xcc" * 11 + context.code + bytes(16))
    code = copied_stack._CodeKindCache(conventions_of(AMD64), {1: elf}.get)
    handler = base + 32 + context.instructions[0]
    assert [code.kind(1, base + 16 + len(call) + at) for at in (-1, 0, 9)] == [0, CodeKind.RETURNS, 0]
    assert code.kind(1, handler) == CodeKind.RETURNS_FROM_SIGNAL
    assert code.kind(1, handler - 1) == 0
    assert code.kind(2, base) == CodeKind.RETURNS


@pytest.mark.parametrize("abi", MACHINES, ids=lambda abi: abi.name)
@pytest.mark.parametrize("beyond", [0, 8])
def test_a_guess_reaches_no_farther_than_one_stack_may(abi: Abi, beyond: int) -> None:
    """Between the frame pointer's frame and SP another stack may begin, though all the memory can be read."""
    record = conventions_of(abi).frame_record
    assert record
    assert record.rule.cfa
    cfa = SP + GUESS_REACH + beyond
    fp = cfa - record.rule.cfa.offset
    stack = stack_of({fp: 0, fp + 8: place(1)}, 2 * GUESS_REACH)
    values, rules = {abi.sp: SP, abi.fp: fp}, [None, OUTERMOST]
    expected = stack_walk.walk(ThreadRegisters(place(0), values), abi, View(abi, rules, frozenset(), stack))
    walker = walker_with(abi, rules)
    end = walker.walk(SPANS, start_of(values, place(0)), SP, stack)
    assert (expected.end, end) == ((End.NOT_COVERED, End.GUESS_FAILED) if beyond else (End.OUTERMOST, End.OUTERMOST))
    assert len(expected.frames) == len(walker.frames()) == (1 if beyond else 2)


def test_a_frame_pointer_saved_below_the_copy_is_lost_not_wrong() -> None:
    """Epilogues leave it below SP without a new row: the register has its value already, or not."""
    lost = Rule(Where(7, 8), Where(None, -8, deref=True), Where(None, -16, deref=True))
    by_fp = Rule(Where(6, 16), Where(None, -8, deref=True), Where(None, -16, deref=True))
    walker = walker_with(AMD64, [lost, by_fp, OUTERMOST])
    stack = stack_of({SP: place(1), SP + 0x48: place(2)})
    assert walker.walk(SPANS, start_of({7: SP, 6: SP + 0x40}, place(0)), SP, stack) is End.UNKNOWN_REGISTER
    assert addresses(walker) == [place(0) - BIAS, place(1) - 1 - BIAS]


def test_signed_return_addresses_are_stripped() -> None:
    walker = walker_with(AARCH64, [Rule(Where(31, 0), Where(30, 0)), OUTERMOST])
    assert walker.walk(SPANS, start_of({31: SP, 30: 0xAB << 56 | place(1)}, place(0)), SP, b"") is End.OUTERMOST
    assert addresses(walker) == [place(0) - BIAS, place(1) - 1 - BIAS]


def test_a_table_that_comes_later_is_not_a_table_that_says_nothing() -> None:
    walker = CopyWalker(AMD64, lambda _: None)
    walker.add_table(FILE - 1, table_of_rules([OUTERMOST]))
    start, stack = start_of({7: SP, 6: SP + 0x10}, place(0)), stack_of({SP + 0x18: place(1)})
    assert (walker.walk(SPANS, start, SP, stack), walker.missing) == (End.NO_TABLE, FILE)
    walker.add_table(FILE, None)
    assert walker.walk(SPANS, start, SP, stack) is End.GUESS_FAILED
    assert [frame.guessed for frame in map(unpack_frame, walker.frames())][:2] == [False, True]
    walker.add_table(FILE, table_of_rules([OUTERMOST]))
    assert walker.walk(SPANS, start, SP, stack) is End.OUTERMOST
    walker.forget(FILE)
    assert walker.walk(SPANS, start, SP, stack) is End.NO_TABLE


@given(st.data())
def test_damaged_tables_do_no_harm(data: st.DataObject) -> None:
    table = table_of_rules([RETURN_AT_SP, None, OUTERMOST])
    raw = bytearray(table.data)
    for _ in range(data.draw(st.integers(1, 8))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    walker = CopyWalker(AMD64, lambda _: None)
    walker.add_table(FILE, table._replace(data=bytes(raw)))
    assert isinstance(walker.walk(SPANS, start_of({7: SP, 6: SP}, place(0)), SP, bytes(64)), End)


def test_columns_of_spans_are_made_once_and_are_the_spans() -> None:
    """Also when those of more processes are asked for than are kept."""
    walker = walker_with(AMD64, [RETURN_AT_SP, OUTERMOST])
    processes = [[CodeSpan(CODE.start, CODE.stop, BIAS, file)] for file in range(copied_stack.MAX_COLUMNS + 1)]
    kept = [walker.find_columns(spans) for spans in processes[:-1]]
    assert all(walker.find_columns(spans) is columns for spans, columns in zip(processes, kept, strict=False))
    assert [walker.find_columns(spans).file[0] for spans in processes] == [*range(len(processes))]


def test_machines_without_frame_records_are_refused() -> None:
    with pytest.raises(FormatError, match="s390x are not walked"):
        CopyWalker(S390X, lambda _: None)


RAX, RBX, RBP, RSP = 0, 3, 6, 7
BY_RBP = Rule(Where(RBP, 16), Where(None, -8, deref=True))
PAGE = 0x100
HOLE = 0x1000


def end_of(walker: CopyWalker, start: Start, stack: bytes) -> End:
    return walker.walk(SPANS, start, SP, stack)


def depth(walker: CopyWalker) -> int:
    return len(walker.frames())


def walk(
    rules: list[Rule | None], words: dict[int, int], values: dict[int, int] | None = None, size: int = SIZE
) -> tuple[End, int]:
    """(the end, depth) of a walk from the first of some functions, with a copy of `size` bytes. Without values only SP is known."""
    walker = walker_with(AMD64, rules)
    return end_of(walker, start_of({RSP: SP} if values is None else values, place(0)), stack_of(words, size)), depth(walker)


def test_an_address_belongs_to_the_span_that_holds_it() -> None:
    """Two spans touch, a third lies apart. The same walker asks up and down, as the span found last is tried first."""
    ends = [(0x1000, 0x2000, 1), (0x2000, 0x3000, 2), (0x5000, 0x6000, 3)]
    spans = make_span_columns([CodeSpan(start, end, 0x100 * file, file) for start, end, file in reversed(ends)])
    walker = CopyWalker(AMD64, lambda _: None)
    places = {0xFFF: 0, 0x1000: 1, 0x1FFF: 1, 0x2000: 2, 0x2FFF: 2, 0x3000: 0, 0x4FFF: 0, 0x5000: 3, 0x5FFF: 3, 0x6000: 0}
    for pc in [*places, *reversed(places)]:
        end = walker.walk(spans, start_of({RSP: SP}, pc), SP, b"")
        file = places[pc]
        assert end is (End.NO_TABLE if file else End.NO_MAPPING)
        assert list(map(unpack_frame, walker.frames())) == [FileFrame(file, pc - 0x100 * file)]
        assert not file or walker.missing == file


def test_a_return_to_the_first_byte_of_a_span_is_a_call_before_it() -> None:
    walker = walker_with(AMD64, [OUTERMOST])
    assert end_of(walker, start_of({RSP: SP}, CODE.start, exact=False), b"") is End.NO_MAPPING
    assert depth(walker) == 0
    assert end_of(walker, start_of({RSP: SP}, CODE.start + 1, exact=False), b"") is End.OUTERMOST
    assert addresses(walker) == [CODE.start - BIAS]
    assert end_of(walker, start_of({RSP: SP}, CODE.stop, exact=False), b"") is not End.NO_MAPPING


def test_a_frame_is_added_only_if_there_is_room() -> None:
    """Also of code that runs where nothing is mapped."""
    walker = walker_with(AMD64, [OUTERMOST])
    for pc, ends in ((place(0), (End.OUTERMOST, End.TOO_DEEP, End.TOO_DEEP)), (CODE.stop, (End.NO_MAPPING,) * 3)):
        for count, end in zip(range(MAX_DEPTH - 1, MAX_DEPTH + 2), ends, strict=True):
            assert end_of(walker, start_of({RSP: SP}, pc, frames=tuple(range(1, count + 1))), b"") is end
            assert depth(walker) == MAX_DEPTH
            assert (walker.frames()[-1] == MAX_DEPTH) is (count >= MAX_DEPTH)


def test_of_an_address_48_bits_are_kept() -> None:
    """More would reach into the number of the file. One before the file's first address has them all."""
    walker = CopyWalker(AMD64, lambda _: None)
    assert end_of(walker, start_of({RSP: SP}, 1 << 63 | 0x1234), b"") is End.NO_MAPPING
    assert list(map(unpack_frame, walker.frames())) == [FileFrame(0, 0x1234)]
    spans = make_span_columns([CodeSpan(0x1000, 0x2000, 0x3000, FILE)])
    assert walker.walk(spans, start_of({RSP: SP}, 0x1000), SP, b"") is End.NO_TABLE
    assert list(map(unpack_frame, walker.frames())) == [FileFrame(FILE, (1 << 48) - 0x2000)]


@pytest.mark.parametrize("part", ["index", "rows", "rules"])
def test_each_part_of_a_table_may_reach_the_end_of_its_data(part: str) -> None:
    table = table_of_rules([RETURN_AT_SP, None, OUTERMOST])
    assert len(table.data) % ELEMENT_SIZE == 0
    rows = table.rows + table.rows % 2
    pages = table.pages + 1 - table.pages % 2  # both fill whole elements
    elements = {"index": (pages + 1) // 2, "rows": rows // 2, "rules": table.rules * RULE_ELEMENTS}[part]
    at = len(table.data) // ELEMENT_SIZE - elements

    def placed(at: int) -> DecodedTable:
        moved = table._replace(pages=pages, rows=rows)
        return {"index": moved._replace(index_at=at), "rows": moved._replace(rows_at=at), "rules": moved._replace(rules_at=at)}[
            part
        ]

    walker = CopyWalker(AMD64, lambda _: None)
    walker.add_table(FILE, placed(at))
    short = placed(at)._replace(data=bytes(table.data)[:-ELEMENT_SIZE])
    huge = ({"rows": 1 << 40}, {"rules": 1 << 40}, {"pages": 1 << 40}, {"rows_at": -1}, {"data": b""})
    for wrong in (placed(at + 1), short, *(table._replace(**fields) for fields in huge)):
        with pytest.raises(FormatError, match="cut off"):
            walker.add_table(FILE, wrong)


WITHOUT_RULES = {
    "before the table": CODE.start - 1,
    "before the first row, in its page": CODE.start + FUNCTION - 1,
    "rule 0": place(2),
    "the last page's end": CODE.start + 2 * PAGE - 1,
    "after the last page": CODE.start + 2 * PAGE,
}


@pytest.mark.parametrize("where", WITHOUT_RULES)
def test_a_walk_waits_where_a_rule_may_come(where: str) -> None:
    walker = CopyWalker(AMD64, lambda _: None)
    table = table_of_rules([None, OUTERMOST, None])
    walker.add_table(FILE, table, final=False)
    spans = make_span_columns([CodeSpan(CODE.start - PAGE, CODE.stop, BIAS, FILE)])
    start, stack = start_of({RSP: SP, RBP: SP + 0x10}, WITHOUT_RULES[where]), stack_of({SP + 0x18: place(1)})
    assert (walker.walk(spans, start, SP, stack), walker.missing) == (End.NO_TABLE, FILE)
    assert walker.walk(spans, start_of({RSP: SP}, place(1)), SP, stack) is End.OUTERMOST
    walker.add_table(FILE, table)
    assert (walker.walk(spans, start, SP, stack), depth(walker)) == (End.OUTERMOST, 2), "the frame pointer leads on"


def test_rows_and_rules_that_a_table_does_not_have_are_damage() -> None:
    """The first row's rule, and the rows of the first page, at the limit and one more."""
    table = table_of_rules([OUTERMOST])
    index, rows = 2 * table.index_at, 2 * table.rows_at
    data = array("I", bytes(table.data))
    first, end = data[index : index + 2]
    last = table.rules - 1
    cases = [
        (rows, last << 16, False),
        (rows, table.rules << 16, True),
        (index + 1, table.rows, False),
        (index + 1, table.rows + 1, True),
        (index, end, False),
        (index, end + 1, True),
    ]
    assert first == 0
    for at, word, damaged in cases:
        walker = CopyWalker(AMD64, lambda _: None)
        changed = array("I", [*data[:at], word, *data[at + 1 :]])
        walker.add_table(FILE, table._replace(data=changed.tobytes()))
        assert (end_of(walker, start_of({RSP: SP}, place(0)), b"") is End.DAMAGED_TABLE) is damaged


@pytest.mark.parametrize("number", [0, 1, 2, 3])
def test_a_rule_holds_for_the_first_and_the_last_byte_of_its_function(number: int) -> None:
    """Also where a page begins between two functions."""
    rules: list[Rule | None] = [Rule(Where(RSP, 8 * n), Where(RSP, 8 * n, deref=True)) for n in range(1, 5)]
    walker = walker_with(AMD64, [*rules, OUTERMOST])
    stack = stack_of({SP + 8 * n: place(4) + n for n in range(1, 5)})
    for offset in (0, FUNCTION - 1):
        assert end_of(walker, start_of({RSP: SP}, place(number, offset)), stack) is End.OUTERMOST
        assert addresses(walker) == [place(number, offset) - BIAS, place(4) + number - BIAS]


def test_what_a_step_needs_may_be_at_the_end_of_the_copy_and_no_farther() -> None:
    """The last word, also where it is the only one; the caller's SP; a saved frame pointer."""
    for rule, at, size in (
        (RETURN_AT_SP, SP + 8, 16),
        (Rule(Where(RSP, 8), Where(None, -8, deref=True)), SP, 8),
        (Rule(Where(RSP, 24), Where(RSP, 0, deref=True)), SP, 24),
        (RETURN_AT_SP._replace(fp=Where(RSP, 16, deref=True)), SP + 8, 24),
    ):
        assert walk([rule, OUTERMOST], {at: place(1)}, size=size) == (End.OUTERMOST, 2)
        assert walk([rule, OUTERMOST], {at: place(1)}, size=size - 1) == (End.COPY_TOO_SHORT, 1)


def test_what_is_below_the_copy_cannot_be_read() -> None:
    for rule in (Rule(Where(RSP, 16), Where(RSP, -8, deref=True)), Rule(Where(RSP, -32), Where(None, -8, deref=True))):
        assert walk([rule], {}) == (End.UNREADABLE, 1)


@pytest.mark.parametrize("first", [0, HOLE - 16])
def test_a_page_that_is_not_in_the_copy_cannot_be_read_and_what_follows_can(first: int) -> None:
    """Nor a part of it. The copy begins with a page or within one: the second page is missing, the third one is there."""
    missing = (HOLE - 4, HOLE, 2 * HOLE - 8, 2 * HOLE - 4)
    for at in (HOLE - 8, *missing, 2 * HOLE):
        walker = walker_with(AMD64, [Rule(Where(RSP, at + 8 - first), Where(None, -8, deref=True)), OUTERMOST])
        stack = stack_of({SP + at: place(1)}, 3 * HOLE)
        here = start_of({RSP: SP + first}, place(0))
        end = walker.walk(SPANS, here, SP + first, stack[first:HOLE] + stack[2 * HOLE :], holes=0b10)
        assert end is (End.UNREADABLE if at in missing else End.OUTERMOST)
        assert walker.walk(SPANS, here, SP + first, stack[first:]) is End.OUTERMOST  # holes are those of one copy


def test_no_frame_pointer_leads_over_a_missing_page() -> None:
    """It may be the end of the stack, and another one follows. The kernel program does the same."""
    walker = walker_with(AMD64, [None, OUTERMOST])
    here = start_of({RSP: SP, RBP: SP + 2 * HOLE}, place(0))
    stack = stack_of({SP + 2 * HOLE + 8: place(1)}, 3 * HOLE)
    assert walker.walk(SPANS, here, SP, stack[:HOLE] + stack[2 * HOLE :], holes=0b10) is End.GUESS_FAILED
    assert walker.walk(SPANS, here, SP, stack) is End.OUTERMOST


def test_an_sp_that_is_not_known_ascends_from_the_begin_of_the_copy() -> None:
    """Then only the frame pointer says where the frame is."""
    words = {SP: place(1), SP + 8: place(1)}
    for rule, below, end in ((BY_RBP, 16, End.UNREADABLE), (None, 24, End.GUESS_FAILED)):
        assert walk([rule, OUTERMOST], words, {RBP: SP - 8}) == (End.OUTERMOST, 2)
        assert walk([rule, OUTERMOST], words, {RBP: SP - below}) == (end, 1)


def test_a_return_address_of_0_ends_the_stack() -> None:
    for ra, end in ((0, End.NO_RETURN), (1, End.NO_MAPPING), (1 << 63, End.NO_MAPPING)):
        assert walk([RETURN_AT_SP], {SP + 8: ra}) == (end, 1)


def test_an_sp_that_is_known_ascends_from_itself() -> None:
    for rbp, end in ((SP + 0xF8, End.OUTERMOST), (SP + 0xE8, End.NOT_ASCENDING)):
        assert walk([BY_RBP, OUTERMOST], {rbp + 8: place(1)}, {RSP: SP + 0x100, RBP: rbp})[0] is end


@pytest.mark.parametrize("rule", [Rule(Where(RBX, 16), Where(None, -8, deref=True)), Rule(Where(RSP, 16), Where(RBX, 0))])
def test_where_a_register_is_not_known_the_frame_pointer_leads_on(rule: Rule) -> None:
    walker = walker_with(AMD64, [rule, OUTERMOST])
    stack = stack_of({SP + 0x18: place(1)})
    assert end_of(walker, start_of({RSP: SP, RBP: SP + 0x10}, place(0)), stack) is End.OUTERMOST
    assert list(map(unpack_frame, walker.frames()))[1:] == [FileFrame(FILE, place(1) - 1 - BIAS, guessed=True)]
    for lost in ({RSP: SP}, {RSP: SP, RBP: SP + 0x20}):
        assert walk([rule, OUTERMOST], {SP + 0x18: place(1)}, lost) == (End.UNKNOWN_REGISTER, 1)


def test_only_sp_and_fp_are_known_in_the_caller() -> None:
    by_rbx = Rule(Where(RBX, 16), Where(None, -8, deref=True))
    assert walk([by_rbx, by_rbx, OUTERMOST], {SP + 8: place(1)}, {RSP: SP, RBX: SP}) == (End.UNKNOWN_REGISTER, 2)


def test_a_return_address_in_a_register_is_not_read_from_the_stack() -> None:
    """Also where the CFA is; if the rule says so, the register has its place."""
    stack = stack_of({SP + 0x10: SP + 0x40, SP + 0x20: place(2)})
    for ra, value in ((Where(RBX, 0), place(2)), (Where(RBX, 8, deref=True), SP + 0x18)):
        walker = walker_with(
            AMD64, [Rule(Where(RSP, 16, deref=True), ra), Rule(Where(RSP, 8), Where(None, -8, deref=True)), OUTERMOST]
        )
        assert end_of(walker, start_of({RSP: SP, RBX: value}, place(0)), stack) is End.OUTERMOST
        assert addresses(walker) == [place(0) - BIAS, place(2) - 1 - BIAS]


def test_a_frame_pointer_is_where_the_rule_says() -> None:
    """At a CFA that is read from the stack, or itself next to that; in a register; in one that is not known: then it is lost."""
    by_cfa = Rule(Where(RSP, 16, deref=True), Where(None, -8, deref=True), Where(None, -16, deref=True))
    beside_cfa = by_cfa._replace(fp=Where(None, 0x40))
    in_rbx = Rule(Where(RSP, 16), Where(None, -8, deref=True), Where(RBX, 8))
    for rule, values in ((by_cfa, {}), (beside_cfa, {}), (in_rbx, {RBX: SP + 0x78}), (in_rbx, {})):
        words = {SP + 8: place(1), SP + 0x10: SP + 0x40, SP + 0x38: place(1), SP + 0x30: SP + 0x80, SP + 0x88: place(2)}
        lost = rule is in_rbx and not values
        found = walk([rule, BY_RBP, OUTERMOST], words, {RSP: SP, RBP: 0, **values})
        assert found == ((End.UNKNOWN_REGISTER, 2) if lost else (End.OUTERMOST, 3))


@pytest.mark.parametrize(("abi", "end"), [(AMD64, End.OUTERMOST), (AARCH64, End.UNKNOWN_REGISTER)], ids=["amd64", "aarch64"])
def test_after_a_guess_sp_is_known_where_the_frame_record_is_next_to_it(abi: Abi, end: End) -> None:
    record = conventions_of(abi).frame_record
    assert record
    assert record.rule.cfa
    assert record.rule.ra
    walker = walker_with(abi, [None, Rule(Where(abi.sp, 16), Where(abi.sp, 8, deref=True)), OUTERMOST])
    fp = SP + 0x20
    cfa = fp + record.rule.cfa.offset
    words = {cfa + record.rule.ra.offset: place(1), cfa + 8: place(2)}
    assert end_of(walker, start_of({abi.sp: SP, abi.fp: fp}, place(0)), stack_of(words)) is end
    assert [frame.guessed for frame in map(unpack_frame, walker.frames())] == [False, True, False][: 2 + (end is End.OUTERMOST)]


def test_how_a_guess_ends() -> None:
    cases = [
        ({SP + 0x10: place(1)}, SP + 8, End.OUTERMOST),
        ({SP + 0x10: 0}, SP + 8, End.GUESS_FAILED),  # perhaps no frame pointer at all
        ({SP + 0x10: CODE.stop + 1}, SP + 8, End.GUESS_FAILED),  # no call is there
        ({SP + 0x14: place(1)}, SP + 0xC, End.GUESS_FAILED),  # not aligned
        ({}, SP + SIZE - 8, End.COPY_TOO_SHORT),
        ({SP: place(1)}, SP - 8, End.OUTERMOST),
        ({SP: place(1)}, SP - 0x18, End.GUESS_FAILED),  # below SP
    ]
    for words, fp, end in cases:
        assert walk([None, OUTERMOST], words, {RSP: SP, RBP: fp})[0] is end, (words, fp)
    assert walk([None, OUTERMOST], {SP + 8: place(1)}) == (End.NO_RULE, 1)  # no frame pointer


def test_code_without_a_file_is_walked_with_frame_pointers() -> None:
    """To it and from it: nothing says where its calls are."""
    walker = walker_with(AMD64, [None, OUTERMOST])
    spans = make_span_columns([CodeSpan(0x1000, 0x2000, 0, 0), CodeSpan(CODE.start, CODE.stop, BIAS, FILE)])
    stack = stack_of({SP + 8: 0x1000 + 1, SP: SP + 0x10, SP + 0x18: place(1)})
    assert walker.walk(spans, start_of({RSP: SP, RBP: SP}, place(0)), SP, stack) is End.OUTERMOST
    assert list(map(unpack_frame, walker.frames())) == [
        FileFrame(FILE, place(0) - BIAS),
        FileFrame(0, 0x1000, guessed=True),
        FileFrame(FILE, place(1) - 1 - BIAS, guessed=True),
    ]


def test_code_in_no_file_that_only_returns_needs_no_rule_and_no_frame_pointer() -> None:
    """As CPython's trampolines, read from the process; code with other instructions is crossed with frame pointers."""
    walker = walker_with(AMD64, [RETURN_AT_SP, None, OUTERMOST])
    spans = make_span_columns([CodeSpan(0x1000, 0x2000, 0, 0), CodeSpan(CODE.start, CODE.stop, BIAS, FILE)])
    start = start_of({RSP: SP, RBP: 0x99}, place(0))
    stack = stack_of({SP + 8: 0x1006, SP + 24: place(2)})
    for code, end, depth in (("4883c408c3", End.OUTERMOST, 3), ("4883c410c3", End.GUESS_FAILED, 2)):
        made = {(0x1006, 5): bytes.fromhex(code)}
        assert walker.walk(spans, start, SP, stack, 0, lambda *place: made.get(place, b"")) is end  # noqa: B023 - called at once
        assert len(walker.frames()) == depth
        assert not any(frame.guessed for frame in map(unpack_frame, walker.frames()))


@pytest.mark.parametrize("abi", [AMD64, AARCH64], ids=lambda abi: abi.name)
def test_where_a_handler_returns_to_needs_no_rule(abi: Abi) -> None:
    """The kernel's code for that is known by its bytes. What it interrupted is exact, and has all its registers."""
    context = conventions_of(abi).contexts[0]
    elf, base = elf_with(context.code + bytes(16))
    walker = CopyWalker(abi, {9: elf}.get)
    walker.add_table(9, None)
    walker.add_table(FILE, table_of_rules([None, Rule(Where(3, 16), Where(None, -8, deref=True)), OUTERMOST]))
    spans = make_span_columns([CodeSpan(0x1000, 0x2000, 0x1000 - base, 9), CodeSpan(CODE.start, CODE.stop, BIAS, FILE)])
    words = {context.pc: place(1, 0), context.places[abi.sp]: SP + 0xC00, context.places[3]: SP + 0xD00}
    stack = stack_of({SP + at: word for at, word in words.items()} | {SP + 0xD08: place(2)})
    handler = 0x1000 + context.instructions[0]
    assert walker.walk(spans, start_of({abi.sp: SP}, handler), SP, stack) is End.OUTERMOST
    assert addresses(walker) == [base + context.instructions[0], place(1, 0) - BIAS, place(2) - 1 - BIAS]
    assert not any(frame.guessed for frame in map(unpack_frame, walker.frames()))


def test_code_that_a_handler_returns_to_is_no_call_though_a_no_op_is_before_it() -> None:
    """As in musl: one byte before it another function ends."""
    context = conventions_of(AMD64).contexts[0]
    elf, base = elf_with(b"\x90" * 16 + context.code)
    walker = CopyWalker(AMD64, {9: elf}.get)
    walker.add_table(9, None)
    walker.add_table(FILE, table_of_rules([RETURN_AT_SP, OUTERMOST]))
    spans = make_span_columns([CodeSpan(0x1000, 0x2000, 0x1000 - base, 9), CodeSpan(CODE.start, CODE.stop, BIAS, FILE)])
    places = {context.pc: place(1, 0), context.places[RSP]: SP + 0xC00}
    stack = stack_of({SP + 8: 0x1010} | {SP + 16 + at: word for at, word in places.items()})
    assert walker.walk(spans, start_of({RSP: SP}, place(0)), SP, stack) is End.OUTERMOST
    assert addresses(walker)[1:] == [base + 16, place(1, 0) - BIAS]


SIGNAL_RETURN = Rule(Where(RSP, 160, deref=True), Where(RSP, 168, deref=True), Where(RSP, 120, deref=True))


def interrupted(register: int, words: dict[int, int], ra: Where | None = None, sp: int = SP + 0x400) -> tuple[End, int]:
    """(the end, depth) of a walk from a handler's return to code that needs a register."""
    rule = SIGNAL_RETURN._replace(ra=ra) if ra else SIGNAL_RETURN
    by_register = Rule(Where(register, 0), Where(None, -8, deref=True))
    walker = walker_with(AMD64, [rule, by_register, OUTERMOST], frozenset({0}))
    context = conventions_of(AMD64).contexts[0]
    stack = stack_of({SP + context.pc: place(1), SP + context.places[RSP]: sp, SP + 0x7F8: place(2)} | words)
    return end_of(walker, start_of({RSP: SP}, place(0)), stack), depth(walker)


def test_interrupted_code_has_each_register_and_no_other() -> None:
    places = conventions_of(AMD64).contexts[0].places
    found = {register: interrupted(register, {SP + places[register]: SP + 0x800}, sp=SP + 0x800) for register in range(16)}
    found |= {register: interrupted(register, {}) for register in (16, 17, 31)}
    assert found == {register: (End.OUTERMOST, 3) if register < 16 else (End.UNKNOWN_REGISTER, 2) for register in found}


def test_registers_that_belong_to_another_pc_are_not_taken() -> None:
    """Of the context only SP and the frame pointer, as the rule says."""
    at = SP + conventions_of(AMD64).contexts[0].places[RBX]
    assert interrupted(RBX, {SP + 0x500: place(1), at: SP + 0x800}, Where(RSP, 0x500, deref=True)) == (End.OUTERMOST, 3)
    assert interrupted(RBX, {SP + 0x500: place(1) + 1, at: SP + 0x800}, Where(RSP, 0x500, deref=True)) == (End.UNKNOWN_REGISTER, 2)
    assert interrupted(RSP, {SP + 0x500: place(1) + 1}, Where(RSP, 0x500, deref=True), sp=SP + 0x800) == (End.OUTERMOST, 3)


@pytest.mark.parametrize(
    ("sp", "end"),
    [(SP, End.OUTERMOST), (SP + SIZE, End.OUTERMOST), (SP + SIZE + 1, End.OTHER_STACK), (SP - 0x10000, End.OTHER_STACK)],
)
def test_the_interrupted_code_s_stack_is_the_copy_up_to_its_end(sp: int, end: End) -> None:
    """Code on another stack, whose memory the copy has not, is not called unreadable."""
    below = Rule(Where(RSP, 0), Where(RAX, 0))
    unreadable = Rule(Where(RSP, 8), Where(RSP, 0, deref=True))
    context = conventions_of(AMD64).contexts[0]
    words = {SP + context.pc: place(1), SP + context.places[RSP]: sp, SP + context.places[RAX]: place(2)}
    walker = walker_with(AMD64, [SIGNAL_RETURN, unreadable if end is End.OTHER_STACK else below, OUTERMOST], frozenset({0}))
    assert end_of(walker, start_of({RSP: SP}, place(0)), stack_of(words)) is end


def test_every_register_can_be_the_cfa_s() -> None:
    """A table may name any of 256; those beyond the last are never known."""
    for register in (*range(32), 32, 255):
        rule, words = Rule(Where(register, 16), Where(None, -8, deref=True)), {SP + 8: place(1)}
        if register < 32:
            assert walk([rule, OUTERMOST], words, {register: SP})[0] is End.OUTERMOST
        others = dict.fromkeys((number for number in range(32) if number not in (register, RBP)), SP)
        assert walk([rule, OUTERMOST], words, others)[0] is End.UNKNOWN_REGISTER


def test_a_thread_begins_where_its_first_register_is_known_to_be_0(monkeypatch: pytest.MonkeyPatch) -> None:
    walker = walker_with(AMD64, [RETURN_AT_SP, OUTERMOST])
    monkeypatch.setattr(walker._code_kinds, "kind", lambda *_: int(CodeKind.STARTS_THREAD))
    for values, exact, frames in (({RAX: 0}, True, 1), ({RAX: 1}, True, 2), ({1: 0}, True, 2), ({RAX: 0}, False, 2)):
        start = start_of({RSP: SP, **values}, place(0), exact=exact)
        assert end_of(walker, start, stack_of({SP: place(1), SP + 8: place(1)})) is End.OUTERMOST
        assert depth(walker) == frames
