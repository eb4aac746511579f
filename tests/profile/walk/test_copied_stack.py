"""Walks over copied stacks find what the tracer finds in the process itself, and end where a copy ends."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

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
from sframegen.profile.tables.decoded_table import make_decoded_table
from sframegen.profile.walk import copied_stack
from sframegen.profile.walk.copied_stack import CopyWalker, Start, make_span_columns
from sframegen.profile.walk.steps import CodeKind
from sframegen.stack.abi.machines import ThreadRegisters, conventions_of
from sframegen.stack.walking import walk as stack_walk
from sframegen.stack.walking.frames import End, RuleSource
from sframegen.stack.walking.step import GUESS_REACH
from sframegen.stack.walking.walk import CodeRule, code_rule
from tests.support.inputs.linker_inputs import Writer

if TYPE_CHECKING:
    from sframegen.profile.tables.decoded_table import DecodedTable
    from sframegen.stack.objects.loaded_objects import Answers
    from sframegen.stack.walking.frames import Frame

MACHINES = (AMD64, AARCH64)
SP = 0x7000_0000
SIZE = 0x1000  # bytes of stack
BIAS = 0x40_0000
FUNCTION = 0x80  # bytes of code of each
FUNCTIONS = 8
CODE = range(BIAS + 0x1000, BIAS + 0x1000 + FUNCTION * FUNCTIONS)
FILE = 5
SPANS = make_span_columns([CodeSpan(CODE.start, CODE.stop, BIAS, FILE)])
MASK = (1 << 64) - 1


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
    odd = st.sampled_from([0, 1, SP - 0x100, SP + 3, MASK])
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
