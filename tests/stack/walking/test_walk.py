"""A walk over memory, rules and registers that are made up, also hostile ones; and what is before a return address."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import NamedTuple

import capstone
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sframegen.elf.file import open_elf
from sframegen.elf.symbols import sorted_functions
from sframegen.format.abi import AARCH64, ABIS, AMD64, S390X, Abi, abi_of
from sframegen.format.model import OUTERMOST, Rule, Where
from sframegen.stack.abi.machines import ThreadRegisters, conventions_of, parse_registers
from sframegen.stack.objects.loaded_objects import Answers
from sframegen.stack.walking.frames import ADDRESS_MASK, End, RuleSource
from sframegen.stack.walking.step import numbers_of
from sframegen.stack.walking.walk import CodeRule, code_rule, guess, walk
from tests.support.loops import for_each
from tests.support.peers import Compiler

CODE = range(0x400000, 0x410000)
STACK = (0x70000000, 0x70100000)
OTHER_STACK = (0x50000000, 0x50010000)
SP = 0x70001000
FUNCTION = 0x100  # bytes of code of each made-up function
BYTES_IN_FRAME = 64
SAVED = (Where(None, -8, deref=True), Where(None, -16, deref=True))  # RA, FP
OTHER_REGISTER = 5  # no ABI's SP, FP or RA


def by_sp(abi: Abi, size: int = BYTES_IN_FRAME) -> Rule:
    return Rule(Where(abi.sp, size - abi.sp_offset), *SAVED)


class Space:
    def __init__(self, abi: Abi) -> None:
        self.abi = abi
        self.words: dict[int, int] = {}
        self.functions: dict[int, CodeRule] = {}
        self.stacks = [STACK, OTHER_STACK]
        self.asked: list[int] = []
        self.after_calls = range(CODE.stop)
        self.thread_starts: set[int] = set()
        self.answers: Answers = ({}, {})

    def word(self, address: int) -> int | None:
        return self.words.get(address)

    def window(self, address: int) -> tuple[int, bytes]:
        return address, b""

    def describe(self, pc: int, exact: bool) -> CodeRule | End:
        self.asked.append(pc if exact else pc - 1)
        if self.asked[-1] not in CODE:
            return End.NOT_CODE
        return self.functions.get(self.asked[-1] // FUNCTION, End.NOT_COVERED)

    def starts_thread(self, pc: int) -> bool:
        return pc in self.thread_starts

    def returns_to(self, pc: int) -> bool:
        return pc in self.after_calls

    def stack_at(self, address: int) -> tuple[int, int] | None:
        return next((stack for stack in self.stacks if stack[0] <= address < stack[1]), None)

    def function(self, number: int, rule: Rule, *, signal: bool = False, sp_is_cfa: bool = True) -> int:
        found = self.functions[CODE.start // FUNCTION + number] = code_rule(rule, self.abi, RuleSource.SFRAME, signal=signal)
        found.rule.sp_is_cfa = sp_is_cfa
        return CODE.start + number * FUNCTION

    def save(self, cfa: int, ra: int, fp: int = 0) -> None:
        self.words |= {cfa - 8: ra, cfa - 16: fp}

    def interrupt(self, sp: int, registers: ThreadRegisters, which: int = 0) -> None:
        """What the kernel leaves at `sp` when a signal comes."""
        context = conventions_of(self.abi).contexts[which]
        self.words |= {sp + place: registers.values.get(number, 0) for number, place in context.places.items()}
        self.words[sp + context.pc] = registers.pc

    def registers(self, pc: int, sp: int = SP, **more: int) -> ThreadRegisters:
        return ThreadRegisters(pc, {self.abi.sp: sp, self.abi.fp: 0} | {int(name[1:]): value for name, value in more.items()})


class Chain(NamedTuple):
    space: Space
    registers: ThreadRegisters
    pcs: list[int]
    cfas: list[int]


def chain(abi: Abi, callers: int = 3) -> Chain:
    """A function called by `callers` others, the last of which nobody called."""
    space = Space(abi)
    pcs, cfas = [], []
    sp = SP
    for number in range(callers + 1):
        start = space.function(number, by_sp(abi) if number < callers else OUTERMOST)
        pcs.append(start + (FUNCTION if number else 5))  # as the return address of a call that ends the function
        sp += BYTES_IN_FRAME
        cfas.append(sp - abi.sp_offset)
    for number in range(callers):
        space.save(cfas[number], pcs[number + 1])
    return Chain(space, space.registers(pcs[0]), pcs, cfas)


def pcs_and_end(registers: ThreadRegisters, abi: Abi, space: Space, max_depth: int = 1000) -> tuple[list[int], End]:
    found = walk(registers, abi, space, max_depth)
    return [frame.pc for frame in found.frames], found.end


each_abi = for_each("abi", ABIS, ids=lambda abi: abi.name)


@each_abi
def test_goes_from_caller_to_caller(abi: Abi) -> None:
    space, registers, pcs, cfas = chain(abi)
    found = walk(registers, abi, space)
    assert [frame.pc for frame in found.frames] == pcs
    assert [frame.cfa for frame in found.frames] == [*cfas[:-1], None]
    assert [frame.sp for frame in found.frames] == [SP, *(cfa + abi.sp_offset for cfa in cfas[:-1])]
    assert found.end is End.OUTERMOST
    assert space.asked == [pcs[0], *(pc - 1 for pc in pcs[1:])], "a return address is looked up in the call"


@each_abi
def test_a_new_thread_has_no_caller(abi: Abi) -> None:
    """Before its first instruction, where its creator goes on with another number in the first register."""
    space, registers, pcs, _ = chain(abi)
    space.thread_starts = {pcs[0]}
    for first, frames in ((0, 1), (5, len(pcs))):
        found = walk(registers._replace(values=registers.values | {0: first}), abi, space)
        assert (len(found.frames), found.end) == (frames, End.OUTERMOST)


@each_abi
def test_the_frame_pointer_comes_from_where_it_was_saved(abi: Abi) -> None:
    space, registers, _, cfas = chain(abi, 2)
    space.function(1, Rule(Where(abi.fp, 16), *SAVED))
    caller_cfa = cfas[1] + 0x100
    space.save(cfas[0], CODE.start + 2 * FUNCTION, caller_cfa - 16)
    space.save(caller_cfa, CODE.start + 3 * FUNCTION)
    assert [frame.cfa for frame in walk(registers, abi, space).frames][:2] == [cfas[0], caller_cfa]


@each_abi
def test_any_register_is_known_in_the_innermost_frame_only(abi: Abi) -> None:
    space, registers, pcs, cfas = chain(abi)
    rule = Rule(Where(OTHER_REGISTER, 24), *SAVED)
    space.function(0, rule)
    registers.values[OTHER_REGISTER] = cfas[0] - 24
    assert pcs_and_end(registers, abi, space) == (pcs, End.OUTERMOST)
    space.function(1, rule)
    assert pcs_and_end(registers, abi, space) == (pcs[:2], End.UNKNOWN_REGISTER)


@each_abi
def test_values_are_read_where_a_rule_says(abi: Abi) -> None:
    space, registers, pcs, cfas = chain(abi, 1)
    space.function(0, Rule(Where(abi.sp, 8, deref=True), Where(OTHER_REGISTER, 2), Where(abi.sp, 16, deref=True)))
    registers.values[OTHER_REGISTER] = pcs[1] - 2
    space.words |= {SP + 8: cfas[0], SP + 16: 0}
    found = walk(registers, abi, space)
    assert ([frame.pc for frame in found.frames], found.frames[0].cfa) == (pcs, cfas[0])


@for_each("abi", [AARCH64, S390X], ids=lambda abi: abi.name)
def test_a_leaf_returns_to_its_register(abi: Abi) -> None:
    space, registers, pcs, _ = chain(abi)
    leaf = space.function(9, Rule(Where(abi.sp, -abi.sp_offset))) + 4
    registers.values[abi.ra] = pcs[0] + 1
    found = walk(registers._replace(pc=leaf), abi, space)
    assert [frame.pc for frame in found.frames] == [leaf, pcs[0] + 1, *pcs[1:]]
    assert found.frames[0].sp == found.frames[1].sp == SP


@for_each("abi", [AARCH64, S390X], ids=lambda abi: abi.name)
def test_a_caller_has_no_return_address_in_a_register(abi: Abi) -> None:
    space, registers, pcs, _ = chain(abi)
    registers.values[abi.ra] = pcs[2]
    space.function(1, Rule(Where(abi.sp, BYTES_IN_FRAME - abi.sp_offset)))
    assert pcs_and_end(registers, abi, space) == (pcs[:2], End.UNKNOWN_REGISTER)


def test_s390x_keeps_return_address_and_frame_pointer_in_floating_point_registers() -> None:
    space, registers, pcs, cfas = chain(S390X, 1)
    space.function(0, Rule(Where(S390X.sp, BYTES_IN_FRAME + 160), Where(16, 0), Where(17, 0)))
    registers.values.update({16: pcs[1], 17: 0x1234})
    found = walk(registers, S390X, space)
    assert ([frame.pc for frame in found.frames], found.frames[0].cfa) == (pcs, cfas[0])


def test_a_signed_return_address_loses_its_signature() -> None:
    space, registers, pcs, cfas = chain(AARCH64)
    space.save(cfas[0], pcs[1] | 0x5A << 48)
    assert [frame.pc for frame in walk(registers._replace(ra_mask=(1 << 48) - 1), AARCH64, space).frames] == pcs
    assert walk(registers, AARCH64, space).end is End.BAD_RETURN


@for_each(
    ("abi", "which"),
    [(abi, which) for abi in ABIS for which in range(len(conventions_of(abi).contexts))],
    ids=lambda value: str(value)[:20],
)
def test_a_signal_handler_is_left_with_all_registers(abi: Abi, which: int) -> None:
    """The kernel's frame is on another stack, and what it interrupted needs a register that only the kernel saved."""
    space, registers, pcs, cfas = chain(abi)
    space.function(0, Rule(Where(OTHER_REGISTER, 0), *SAVED))
    registers.values[OTHER_REGISTER] = cfas[0]
    signal_sp = OTHER_STACK[0] + 0x1000
    space.interrupt(signal_sp, registers, which)
    trampoline = space.function(8, conventions_of(abi).contexts[which].rule(abi.sp, abi.fp), signal=True)
    handler = space.function(7, by_sp(abi)) + 3
    handler_cfa = signal_sp - abi.sp_offset
    space.save(handler_cfa, trampoline + 1)
    found = walk(space.registers(handler, signal_sp - BYTES_IN_FRAME), abi, space)
    assert [frame.pc for frame in found.frames] == [handler, trampoline + 1, *pcs]
    assert [frame.exact for frame in found.frames] == [True, False, True, False, False, False]
    assert [frame.signal for frame in found.frames] == [False, True, False, False, False, False]
    assert space.asked[2] == pcs[0]
    assert found.end is End.OUTERMOST


@each_abi
def test_a_signal_may_interrupt_a_call_to_anywhere(abi: Abi) -> None:
    space = Space(abi)
    space.interrupt(SP, ThreadRegisters(0x666, {abi.sp: SP + 0x1000}))
    trampoline = space.function(0, conventions_of(abi).contexts[0].rule(abi.sp, abi.fp), signal=True)
    assert [frame.pc for frame in walk(space.registers(trampoline), abi, space).frames] == [trampoline, 0x666]


def test_frame_pointers_lead_to_callers() -> None:
    for abi in (AMD64, AARCH64):
        record = conventions_of(abi).frame_record
        assert record
        space = Space(abi)
        fps = [SP + 0x20, SP + 0x60, SP + 0x100]
        pcs = [space.function(number, record.rule, sp_is_cfa=record.sp_is_cfa) + 8 for number in range(3)]
        for fp, ra, caller in zip(fps, [*pcs[1:], 0], [*fps[1:], 0], strict=True):
            space.save(fp + 16, ra, caller)
        found = walk(ThreadRegisters(pcs[0], {abi.sp: SP, abi.fp: fps[0]}), abi, space)
        assert [frame.pc for frame in found.frames] == pcs
        assert [frame.cfa for frame in found.frames] == [fp + 16 for fp in fps]
        assert found.end is End.NO_RETURN
    assert guess(S390X, End.NOT_COVERED) is End.NOT_COVERED  # it has no frame pointers to guess by


def test_behind_a_frame_record_of_aarch64_sp_is_not_known() -> None:
    record = conventions_of(AARCH64).frame_record
    assert record
    space = Space(AARCH64)
    pc = space.function(0, record.rule, sp_is_cfa=record.sp_is_cfa)
    caller = space.function(1, by_sp(AARCH64)) + 4
    space.save(SP + 16, caller, SP + 0x100)
    found = walk(ThreadRegisters(pc, {31: SP, 29: SP}), AARCH64, space)
    assert ([frame.pc for frame in found.frames], found.end) == ([pc, caller], End.UNKNOWN_REGISTER)


def guessing(abi: Abi, *, covered: int) -> tuple[Space, ThreadRegisters, list[int]]:
    """Four functions with frame records; a section covers one of them and says the same."""
    space = Space(abi)
    record = conventions_of(abi).frame_record
    assert record
    guessed = guess(abi, End.NOT_COVERED)
    assert isinstance(guessed, CodeRule)
    pcs = []
    for number in range(4):
        pcs.append(space.function(number, record.rule, sp_is_cfa=record.sp_is_cfa) + 8)
        if number != covered:
            space.functions[CODE.start // FUNCTION + number] = guessed
    fps = [SP + 0x20, SP + 0x60, SP + 0x100, SP + 0x140]
    for fp, ra, caller in zip(fps, [*pcs[1:], 0], [*fps[1:], 0], strict=True):
        space.save(fp + 16, ra, caller)
    return space, space.registers(pcs[0], **{f"r{abi.fp}": fps[0]}), pcs


@for_each("abi", [AMD64, AARCH64], ids=lambda abi: abi.name)
def test_code_that_nothing_describes_is_left_by_frame_pointers(abi: Abi) -> None:
    """What a guess led to is marked, and only that; the walk goes on."""
    space, registers, pcs = guessing(abi, covered=1)
    found = walk(registers, abi, space)
    assert [frame.pc for frame in found.frames] == pcs
    assert [frame.guessed for frame in found.frames] == [False, True, False, True]
    by_pointer, by_section = RuleSource.FRAME_POINTER, RuleSource.SFRAME
    assert [frame.how for frame in found.frames] == [by_pointer, by_section, by_pointer, by_pointer]
    assert found.end is End.NOT_COVERED  # a frame record may be none


@for_each("abi", [AMD64, AARCH64], ids=lambda abi: abi.name)
@for_each("why", ["no call", "not aligned", "downwards", "off the stack"])
def test_a_guess_has_to_lead_to_a_caller(abi: Abi, why: str) -> None:
    """Else the walk ends as if nothing had been guessed: a wrong frame is worse than none."""
    space, registers, pcs = guessing(abi, covered=1)
    wrong = {"not aligned": SP + 0x104, "downwards": SP - 0x100, "off the stack": STACK[1]}.get(why)
    if wrong:
        space.save(SP + 0x70, pcs[2], wrong)
        space.save(wrong + 16, pcs[3], 0)
    else:
        space.after_calls = range(pcs[3])
    found = walk(registers, abi, space)
    assert ([frame.pc for frame in found.frames], found.end) == (pcs[:3], End.NOT_COVERED)
    assert found.frames[-1].cfa is None


def test_a_rule_on_a_register_that_is_lost_gives_way_to_a_guess() -> None:
    """Which code with a realigned stack has; it has a frame pointer, too."""
    space, registers, pcs, cfas = chain(AMD64)
    space.function(1, Rule(Where(OTHER_REGISTER, 24), *SAVED))
    space.save(cfas[0], pcs[1], cfas[1] - 16)
    found = walk(registers, AMD64, space)
    assert ([frame.pc for frame in found.frames], found.end) == (pcs, End.OUTERMOST)
    assert [frame.guessed for frame in found.frames] == [False, False, True, False]
    assert [frame.how is RuleSource.FRAME_POINTER for frame in found.frames] == [False, True, False, False]


@each_abi
def test_ends_where_code_is_not_covered_or_memory_cannot_be_read_or_sp_is_nowhere(abi: Abi) -> None:
    for end, frames in ((End.NOT_COVERED, 3), (End.UNREADABLE, 2), (End.NO_STACK, 1)):
        space, registers, pcs, cfas = chain(abi)
        if end is End.NOT_COVERED:
            del space.functions[CODE.start // FUNCTION + 2]
        elif end is End.UNREADABLE:
            del space.words[cfas[1] - 8]
        else:
            space.stacks = []
        found = walk(registers, abi, space)
        assert ([frame.pc for frame in found.frames], found.end) == (pcs[:frames], end)
        assert found.frames[-1].cfa is None or end is not End.UNREADABLE
    space, registers, pcs, _ = chain(abi, 200)
    assert pcs_and_end(registers, abi, space, 100) == (pcs[:100], End.TOO_DEEP)


@for_each(
    ("ra", "end"),
    [(0, End.NO_RETURN), (CODE.stop + 1, End.BAD_RETURN), (CODE.start, End.BAD_RETURN), (ADDRESS_MASK, End.BAD_RETURN)],
)
@each_abi
def test_ends_at_a_return_address_that_is_none(abi: Abi, ra: int, end: End) -> None:
    space, registers, pcs, cfas = chain(abi)
    space.save(cfas[1], ra)
    found = walk(registers, abi, space)
    assert ([frame.pc for frame in found.frames], found.end) == (pcs[:2], end)
    assert found.frames[-1].cfa == cfas[1]


@each_abi
def test_a_frame_pointer_that_cannot_be_read_is_lost(abi: Abi) -> None:
    space, registers, pcs, cfas = chain(abi)
    del space.words[cfas[1] - 16]
    assert pcs_and_end(registers, abi, space) == (pcs, End.OUTERMOST)
    space.function(2, Rule(Where(abi.fp, 16), *SAVED))
    assert pcs_and_end(registers, abi, space) == (pcs[:3], End.UNKNOWN_REGISTER)


@for_each("size", [0, -8, -SP, 1 << 40])
@each_abi
def test_ends_where_the_caller_would_not_be_above(abi: Abi, size: int) -> None:
    space, registers, pcs, _ = chain(abi)
    space.function(1, Rule(by_sp(abi, size).cfa, Where(abi.sp, 0, deref=True)))
    space.words[SP + BYTES_IN_FRAME] = pcs[2]
    found = walk(registers, abi, space)
    assert [frame.pc for frame in found.frames] == pcs[:2]
    assert found.end is (End.OFF_THE_STACK if size > 0 else End.NOT_ASCENDING)


@each_abi
def test_ends_in_a_loop_of_signal_frames(abi: Abi) -> None:
    space = Space(abi)
    trampoline = space.function(0, conventions_of(abi).contexts[0].rule(abi.sp, abi.fp), signal=True)
    space.interrupt(SP, ThreadRegisters(trampoline, {abi.sp: SP + 0x1000}))
    space.interrupt(SP + 0x1000, ThreadRegisters(trampoline, {abi.sp: SP}))
    found = walk(space.registers(trampoline), abi, space)
    assert (len(found.frames), found.end) == (3, End.LOOP)


@each_abi
def test_registers_of_the_kernels_bytes(abi: Abi) -> None:
    known = conventions_of(abi).general
    raw = b"".join((8 * at).to_bytes(8, abi.byte_order) for at in range(known.words))
    registers = parse_registers(abi, raw)
    assert registers is not None
    assert registers.pc == 8 * known.pc
    assert set(range(16)) <= set(registers.values)
    assert (registers.values[abi.sp], registers.values[abi.fp]) == {
        62: (152, 32),  # user_regs_struct: RSP, RBP
        183: (248, 232),  # user_pt_regs: SP after X30, X29
        22: (136, 104),  # R15, R11 after the PSW
    }[abi.machine]
    assert parse_registers(abi, raw[:68]) is None


@for_each("rule", [OUTERMOST, Rule(Where(7, 16)), Rule(Where(7, 16), *SAVED)])
def test_the_numbers_of_a_rule_are_plain(rule: Rule) -> None:
    """Compiled with Cython 3.1, as in the Debian package, CallerRule refuses a RuleFlag: every walk failed."""
    assert {type(number) for number in numbers_of(rule, 16)} == {int}


START = 0x1000


def ends(code: bytes, abi: Abi) -> bool:
    """True if a call ends where `code` does, which is all that can be read."""

    def read(address: int, size: int) -> bytes:
        return code[address - START :][:size] if address >= START else b""

    return conventions_of(abi).ends_call(read, START + len(code))


@for_each(
    "code",
    [
        "e8 01 02 03 04",  # call rel32
        "ff d0",  # call *%rax
        "41 ff d7",  # call *%r15
        "ff 10",  # call *(%rax)
        "ff 14 c8",  # call *(%rax,%rcx,8)
        "ff 14 25 01 02 03 04",  # call *0x4030201
        "ff 15 01 02 03 04",  # call *0x4030201(%rip)
        "ff 50 08",  # call *8(%rax)
        "ff 54 c8 08",
        "ff 90 01 02 03 04",
        "ff 94 c8 01 02 03 04",
        "3e 41 ff 94 24 01 02 03 04",  # notrack call *0x4030201(%r12)
        "90",  # Go's goexit
    ],
)
def test_calls_of_x86_64(code: str) -> None:
    assert all(ends(bytes.fromhex(before + code), AMD64) for before in ("", "00", "48 89 e5 53 48 81 ec"))


def test_other_instructions_of_x86_64() -> None:
    """Jumps, a call and one more instruction, padding, returns, nothing."""
    jumps, calls = ("e9 01 02 03 04", "ff e0", "ff 25 01 02 03 04"), ("ff 50 08 c3", "e8 01 02 03 04 c3")
    for code in (*jumps, *calls, "0f 1f 84 00 00 00 00 00", "f3 0f 1e fa", "c3", ""):
        assert not ends(bytes.fromhex(code), AMD64), code


@for_each(
    ("word", "expected"),
    [
        (0x94000001, True),  # bl
        (0x97FFFFFF, True),
        (0xD63F0200, True),  # blr x16
        (0xD63F081F, True),  # blraaz x0
        (0xD73F0A11, True),  # blraa x16, x17
        (0xAA0003E0, True),  # mov x0, x0: Go's goexit
        (0x14000001, False),  # b
        (0xD61F0200, False),  # br
        (0xD65F03C0, False),  # ret
        (0xA9BF7BFD, False),  # stp x29, x30, [sp, #-16]!
    ],
)
def test_calls_of_aarch64(word: int, expected: bool) -> None:
    assert ends(word.to_bytes(4, "little"), AARCH64) is expected


def test_all_code_of_other_machines_may_be_a_call() -> None:
    assert ends(b"\x07\xfe", S390X)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the compiler's code is another")
def test_all_calls_that_a_compiler_makes(compile_c: Compiler) -> None:
    """Of a static program, C library and all: read by capstone from each function's start."""
    path: Path = compile_c("int main(void) { return 0; }", "-static")
    elf = open_elf(path)
    abi = abi_of(elf)
    disassembler = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
    calls = others = 0
    for symbol in sorted_functions(elf)[:400]:
        code = bytes(elf.at(symbol.address, symbol.size))
        for address, size, mnemonic, _ in disassembler.disasm_lite(code, symbol.address):
            end = conventions_of(abi).ends_call(lambda at, count: bytes(elf.at(at, count)), address + size)
            if mnemonic.split()[-1] == "call":
                assert end, hex(address)
                calls += 1
            else:
                others += not end
    assert calls > 1000
    assert others > 20 * calls / 3


@given(st.binary(max_size=8), st.sampled_from([AMD64, AARCH64]))
def test_whatever_is_there_it_is_an_answer(code: bytes, abi: Abi) -> None:
    assert ends(code, abi) in (True, False)
