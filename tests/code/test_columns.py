"""Code by columns and numbers: what the compiled modules say against a plain reading, instruction by instruction."""

from __future__ import annotations

import gc
import re
import weakref
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sframegen.code.decoding import decoded_code, instruction_columns
from sframegen.code.decoding.decoded_code import DecodedCode, decode
from sframegen.code.function import analysis, blocks
from sframegen.code.function.analysis import Surroundings
from sframegen.code.isa.disassembly import Instruction, make_disassembler
from sframegen.code.isa.effects import Flow, Lose, Point, Register
from sframegen.code.isa.machines import isa_of
from sframegen.code.whole_file.boundaries import may_be_cut
from sframegen.elf.file import open_elf
from sframegen.format.abi import AARCH64, AMD64, Abi
from tests.support.analysed import analyse
from tests.support.cross import ARM64
from tests.support.loops import for_each
from tests.support.peers import Compiler

START = 0x401000
CALLS_RETURN = Surroundings(lambda _target, _slot: True, lambda _piece, _point, _begins: ())
NUMBER = r"(0x[0-9a-f]+|\d+)$"
TAKES = {
    "lea": re.compile(r"\w+, \[rip ([+-]) (0x[0-9a-f]+|\d+)\]$"),
    "mov": re.compile(rf"\w+, {NUMBER}"),
    "adr": re.compile(rf"(x\d+), #{NUMBER}"),
    "adrp": re.compile(rf"(x\d+), #{NUMBER}"),
    "add": re.compile(rf"x\d+, (x\d+), #{NUMBER}"),
}


class Plain(NamedTuple):
    """A piece, read by nothing but capstone's texts."""

    instructions: list[Instruction]
    points: list[Point]
    taken: list[int]
    padding: list[int]


def plain(code: bytes, abi: Abi) -> Plain:
    isa = isa_of(abi)
    instructions = list(make_disassembler(*isa.capstone).texts(code, START))
    end = sum(instructions[-1][:2]) if instructions else START
    if end < START + len(code):
        instructions.append((end, START + len(code) - end, ".byte", ""))
    points = []
    for number, (address, size, mnemonic, operands) in enumerate(instructions):
        if mnemonic == ".byte":
            points.append(Point(address, address + size, (), Flow.STOP))
        elif point := isa.decode_point(address, address + size, mnemonic, operands, code[address - START]):
            if isa.resolve_register_add and point.effects == (Lose(Register.SP),):
                point = point._replace(effects=isa.resolve_register_add(instructions, number) or point.effects)
            points.append(point)
    padding = [address for address, _, mnemonic, operands in instructions if isa.is_padding(mnemonic, operands)]
    return Plain(instructions, points, list(taken(instructions)), padding)


def taken(instructions: list[Instruction]) -> Iterator[int]:
    pages: dict[str, int] = {}
    for address, size, mnemonic, operands in instructions:
        match = TAKES[mnemonic].match(operands) if mnemonic in TAKES else None
        if match is None:
            continue
        if mnemonic == "lea":
            yield (address + size + int(match[1] + match[2], 0)) % (1 << 64)
        elif mnemonic == "mov":
            yield int(match[1], 0)
        elif mnemonic == "add":
            yield pages.get(match[1], 0) + int(match[2], 0)
        else:
            pages[match[1]] = int(match[2], 0)
            yield pages[match[1]]


def by_columns(piece: DecodedCode) -> Plain:
    padding = [START + place for place, mark in enumerate(piece.marks) if mark == 2]
    instructions = [piece.instruction(number) for number in range(len(piece))]
    return Plain(instructions, list(piece.points()), list(piece.taken), padding)


@settings(max_examples=200, deadline=None)
@given(code=st.binary(min_size=1, max_size=300))
@example(code=bytes.fromhex("ff2d00000080"))
@example(code=bytes.fromhex("66c9 66558d05 f0ffffff 488d3d10000000 3effe0 f2ff2520000000 6690 660f1f440000 b810104000 eb"))
@pytest.mark.parametrize("abi", [AMD64, AARCH64])
def test_columns_say_what_a_plain_reading_does(abi: Abi, code: bytes) -> None:
    assert by_columns(decode(code, START, isa_of(abi))) == plain(code, abi)


# Each line: instructions that begin alike. What is said of one must not be said of the others.
ALIKE = [
    "488d3d10000000 488d3d00000000 488d3df0ffffff 66488d3d10000000 64488d3d10000000",  # lea rdi, [rip + n]
    "488d2d10000000 488d2d00000000 488d6c2408 488d6c2400",  # lea rbp
    "b810104000 b8ffffffff b800000000 66b8ffff 48b8ffffffffffffffff bd10104000",  # mov, a constant
    "48c7c010000000 48c7c0ffffffff c7c0ffffffff 66c7c0ffff c6c0ff b0ff b005 48b0ff c70510000000ffffffff",
    "ff1510000000 ff1500000000 ff15f0ffffff 3eff2510000000 ff2500000000 66ff1510000000 ff5510",  # through memory
    "e810000000 e8f0ffffff 66e810000000 48e810000000 f2e810000000 74fe 7410 6674fe e3fe c7f810000000 c6f810",  # targets
    "4883ec08 4883ec80 4881ec00010000 4883e4f0 c8100000 c20800 c3 6a08 6aff 68ffffff7f 666a08 6668ffff",
    "660f1f440000 0f1f00 666666662e0f1f840000000000 90 6690 f390 6691 cc cd03",  # padding
    "0fc2c100 0fc2c1ff 0f3a0fc108 c5f8c2c100 c5f8c2c1ff c5f877 c4e2f9f7c1 c4e37d4ac110 62f17c48c2c800 8fe97801c0 8fc0 0f0fc19e",
    "62f17c48c2c800 62f17c48c2c801 62f17c4811442401 62f17c4811442402 62f37d48440110 62f37d48440111 62f1fd48e70424",
    "f6c001 f6d0 f7c001000000 f7d0 66f7c00100 48f7c001000000 d5 06 f0ff00 f0c3 67e810000000 a0ffffffffffffffff",
]


@for_each("alike", ALIKE)
def test_instructions_that_begin_alike_are_told_apart(monkeypatch: pytest.MonkeyPatch, alike: str) -> None:
    codes = [bytes.fromhex(code) for code in alike.split()]
    for first in codes:
        monkeypatch.setattr(decoded_code, "_thread_frames", decoded_code._ThreadFrames())
        for code in [first * 2, *codes, b"".join(codes), first[:-1], first]:
            assert by_columns(decode(code, START, isa_of(AMD64))) == plain(code, AMD64)


@settings(max_examples=200, deadline=None)
@given(code=st.binary(min_size=1, max_size=200))
@example(code=bytes.fromhex("488d3d10000000 b810104000 c3 6690 66c9 eb"))
@pytest.mark.parametrize("abi", [AMD64, AARCH64])
def test_the_head_of_a_piece_is_what_is_decoded_alone(abi: Abi, code: bytes) -> None:
    isa = isa_of(abi)
    whole = decode(code, START, isa)
    for end in [*whole.offsets[1:], len(code)]:
        head, alone = whole.cut_at(START + end), decode(code[:end], START, isa)
        assert by_columns(head) == by_columns(alone)
        assert (head.code, head.end, head.code_end, head.marks) == (alone.code, alone.end, alone.code_end, alone.marks)
        assert (head.offsets, head.taken_at) == (alone.offsets, alone.taken_at)


@settings(max_examples=200, deadline=None)
@given(code=st.binary(min_size=1, max_size=100), limit=st.integers(1, 80))
@example(code=bytes.fromhex("90 90 48b8 0102030405060708 c3"), limit=5)
@pytest.mark.parametrize("abi", [AMD64, AARCH64])
def test_instructions_that_cross_a_limit_are_seen_in_what_is_before_it(abi: Abi, code: bytes, limit: int) -> None:
    """What is left of an instruction decodes to no instruction: only then is the code after the limit looked at."""
    isa = isa_of(abi)
    before, whole = decode(code[:limit], START, isa), decode(code, START, isa)
    assert may_be_cut(before, isa.longest) or limit >= len(code) or whole.begins(START + limit)


SOURCE = """
int other(int), table[100];
int one(int n) { char room[n]; for (int i = 0; i < n; i++) room[i] = other(i); return room[n / 2]; }
int two(int n) { char room[70000]; switch (n) { case 1: return 5; case 2: return other(3); case 3: return other(4) + 1; case 4: n++;
  case 5: return other(n) - 1; case 6: return table[n]; } return other(room[n]); }
int (*pointers[9])(int);
int three(int n) { return pointers[n](n) + one(n); }
"""


@for_each("chunk", [decoded_code.CHUNK, 64, 24])
@pytest.mark.parametrize("machine", ["x86-64", "AArch64"])
def test_compiled_code_in_chunks_of_any_size(
    compile_c: Compiler, monkeypatch: pytest.MonkeyPatch, machine: str, chunk: int
) -> None:
    compiler = ARM64.compiler(compile_c.peers, compile_c.directory) if machine == "AArch64" else compile_c
    elf = open_elf(compiler(SOURCE, "-O2", "-shared", "-fPIC", "-w"))
    text = elf.section(".text")
    assert text is not None
    code = bytes(elf.contents(text))
    monkeypatch.setattr("sframegen.code.decoding.decoded_code.CHUNK", chunk)
    abi = AARCH64 if machine == "AArch64" else AMD64
    assert by_columns(decode(code, START, isa_of(abi))) == plain(code, abi)


# push rbx; je over the rest; lea; call; pop; ret; two bytes of padding; pop; ret
CODE = bytes.fromhex("53 7409 55 4889e5 e800000000 5d 5b c3 6690 5b c3".replace(" ", ""))
LOOP = bytes.fromhex("55 75fd c3")  # push rbp; jne to it: a state is lost at each turn


def found(*codes: tuple[int, bytes], entries: tuple[int, ...] = ()) -> tuple[object, ...]:
    isa = isa_of(AMD64)
    result = analyse(
        [decode(code, start, isa) for start, code in codes], dict.fromkeys(entries or (codes[0][0],), isa.entry), isa, CALLS_RETURN
    )
    return [*result.rows], result.exits, result.calls, result.returns, result.contradiction


def test_forgetting_what_was_met_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also between the pieces of one function: each then has numbers of its own."""
    parts = (START, CODE), (START + 0x100, CODE), (START + 0x200, LOOP)
    entries = START, START + 0x100, START + 0x200
    before = found(*parts, entries=entries)
    assert before[0]
    monkeypatch.setattr(decoded_code, "MAX_NUMBERS", -1)
    monkeypatch.setattr(decoded_code, "MAX_STEPS", 1)
    isa = isa_of(AMD64)
    assert decode(CODE, START, isa).frames is not decode(CODE, START, isa).frames
    assert found(*parts, entries=entries) == before


def test_what_was_met_of_much_code_is_not_kept() -> None:
    """Nothing but the piece has the frames, and no collector of circles is needed to be rid of them."""
    isa = isa_of(AMD64)
    piece = decode(CODE * (decoded_code.MAX_SHARED_CODE // len(CODE) + 1), START, isa)
    assert piece.frames is not decode(CODE, START, isa).frames
    gone = weakref.ref(piece.frames)
    gc.disable()
    try:
        del piece
        assert gone() is None
    finally:
        gc.enable()


def test_code_that_does_too_much_different_to_the_stack_is_not_read_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoded_code, "_thread_frames", decoded_code._ThreadFrames())  # those before read larger chunks
    monkeypatch.setattr(decoded_code, "CHUNK", 64)
    monkeypatch.setattr(decoded_code, "MAX_EFFECTS", 20)
    monkeypatch.setattr(decoded_code, "MAX_NUMBERS", 0)
    code = b"".join(b"\x48\x81\xec" + number.to_bytes(4, "little") for number in range(8, 800, 8))  # sub rsp, number
    piece = decode(code, START, isa_of(AMD64))
    assert 20 <= len(piece) < 40
    assert piece.point(len(piece) - 1) == Point(START + piece.offsets[-1], piece.end, (), Flow.STOP)


@for_each(("count", "is_costly"), [(blocks.MAX_STATES - 1, False), (5 * blocks.MAX_STATES, True)])
def test_a_function_of_too_many_states_has_no_rows(count: int, is_costly: bool) -> None:
    isa = isa_of(AMD64)
    piece = decode(b"\x53" * count + b"\x0f\x0b", START, isa)  # push rbx; ud2
    known = len(piece.frames.states)
    result = analyse([piece], {START: isa.entry}, isa, CALLS_RETURN)
    assert (result.too_costly, len(result.rows)) == (is_costly, 0 if is_costly else count + 1)
    assert analyse([piece], {START: isa.entry}, isa, CALLS_RETURN) == result, "states that are known by now decide it"
    assert len(piece.frames.states) <= known + 2 * blocks.MAX_STATES + 1


def test_equal_tuples_of_other_effects_are_kept_apart() -> None:
    """`lea rbp, [rsp + 8]` and `mov rbp, [rsp + 8]` have the same three numbers."""
    effects = [next(decode(bytes.fromhex(code), START, isa_of(AMD64)).points()).effects for code in ("488d6c2408", "488b6c2408")]
    assert effects[0] == effects[1]
    assert type(effects[0][0]) is not type(effects[1][0])


def test_a_function_that_takes_too_many_steps_has_no_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    isa = isa_of(AMD64)
    monkeypatch.setattr(analysis, "STEPS_PER_BYTE", 0)
    for steps, is_costly in ((3, True), (100, False)):
        monkeypatch.setattr(analysis, "MIN_STEPS", steps)
        result = analyse([decode(LOOP, START, isa)], {START: isa.entry}, isa, CALLS_RETURN)
        assert result.too_costly is is_costly
        assert (result.contradiction is None, bool(result.rows)) == (not is_costly, not is_costly)
        assert result.returns


def test_an_entry_inside_of_an_instruction() -> None:
    """Two rows may begin at the same place, then; none is where nothing is."""
    rows, *_ = found((START, bytes.fromhex("66c9 4889e5 c3")), entries=(START, START + 3))
    assert isinstance(rows, list)
    assert [row[:2] for row in rows] == sorted(row[:2] for row in rows)
    assert len({row[0] for row in rows}) < len(rows)


def test_padding_belongs_to_the_row_before_it_only_where_the_next_follows() -> None:
    first = bytes.fromhex("7400 c3 6690")  # je; ret; padding
    second = bytes.fromhex("53 5b c3")
    apart, near = (
        found((START, first), (START + len(first) + gap, second), entries=(START, START + len(first) + gap))[0] for gap in (16, 0)
    )
    assert isinstance(apart, list)
    assert isinstance(near, list)
    assert max(row.end for row in apart if row.start < START + len(first)) == START + 3
    assert max(row.end for row in near if row.start < START + len(first)) == START + len(first)


def test_literals_of_compiled_loops() -> None:
    assert (instruction_columns.IDS, instruction_columns.MNEMONIC_SIZE) == (16384, 32)
