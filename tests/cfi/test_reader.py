from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from elftools.dwarf import constants
from hypothesis import given
from hypothesis import strategies as st

from cfi import reader
from cfi.machine import Cursor
from cfi.opcodes import INSTRUCTIONS, PACKED_INSTRUCTIONS, Action, CfiInstruction, Operand, RuleKind
from cfi.reader import read_cfi_sections
from cfi.rules import UNKNOWN_START, CfiRule, FdeTable, RegisterRule
from cfi.section import MAX_REMEMBERED, MAX_REPORTED, MAX_STATES, CfiSection, FollowedRegisters
from sframegen.base.errors import FormatError
from tests import ROOT
from tests.support.inputs.cfi_writer import INITIAL, Frames, sleb, uleb
from tests.support.loops import for_each

AMD64, AARCH64, S390X = FollowedRegisters(6, 7, -1), FollowedRegisters(29, 31, 34), FollowedRegisters(11, 15, -1)
RBP, RSP, RA = 6, 7, 16
UNSPECIFIED = RegisterRule(RuleKind.UNSPECIFIED)
AT_8 = RegisterRule(RuleKind.OFFSET, -8)
BY_EXPRESSION = RegisterRule(RuleKind.VAL_EXPRESSION, expression=b"\x77\x08")


def rows(table: FdeTable, fde: int = 0) -> list[tuple[int, CfiRule]]:
    return [
        (table.row_start[row], table.rules[table.row_rule[row]]) for row in range(table.first_row[fde], table.first_row[fde + 1])
    ]


def one_fde(program: bytes = b"", initial: bytes = INITIAL, *, eh: bool = True, size: int = 16, **cie: Any) -> CfiSection:
    frames = Frames(eh=eh)
    frames.plain_fde(frames.cie(initial, **cie), 0x4000, size, program)
    return frames.section()


def run(program: bytes, *, size: int = 0x100, **cie: Any) -> list[tuple[int, CfiRule]]:
    return rows(read_cfi_sections([one_fde(program, size=size, **cie)], AMD64))


def cfa(register: int, offset: int) -> RegisterRule:
    return RegisterRule(RuleKind.REGISTER, register, offset)


# program, what is not as usual, (offset, CFA) of each row
CFA_ROWS: dict[str, tuple[bytes, dict[str, Any], list[tuple[int, RegisterRule]]]] = {
    "advance_loc": (b"\x45\x0e\x10", {}, [(0, cfa(RSP, 8)), (5, cfa(RSP, 16))]),
    "advance_loc1": (b"\x02\x05\x0e\x10", {}, [(0, cfa(RSP, 8)), (5, cfa(RSP, 16))]),
    "advance_loc2": (b"\x03\x05\x00\x0e\x10", {}, [(0, cfa(RSP, 8)), (5, cfa(RSP, 16))]),
    "advance_loc4": (b"\x04\x05\x00\x00\x00\x0e\x10", {}, [(0, cfa(RSP, 8)), (5, cfa(RSP, 16))]),
    "MIPS_advance_loc8": (b"\x1d\x05" + bytes(7) + b"\x0e\x10", {}, [(0, cfa(RSP, 8)), (5, cfa(RSP, 16))]),
    "set_loc": (b"\x01" + (0x4005).to_bytes(8, "little") + b"\x0e\x10", {}, [(0, cfa(RSP, 8)), (5, cfa(RSP, 16))]),
    "scaled by the code alignment": (b"\x42\x0e\x10", {"code_alignment": 4}, [(0, cfa(RSP, 8)), (8, cfa(RSP, 16))]),
    "by nothing": (b"\x40\x0e\x10", {"code_alignment": 1 << 24}, [(0, cfa(RSP, 16))]),
    "much by nothing": (b"\x1d" + b"\xff" * 8 + b"\x0e\x10", {"code_alignment": 0}, [(0, cfa(RSP, 16))]),
    "def_cfa": (b"\x0c\x0a\x10", {}, [(0, cfa(10, 16))]),
    "def_cfa_register": (b"\x0d\x06", {}, [(0, cfa(RBP, 8))]),
    "def_cfa_offset": (b"\x0e\x20", {}, [(0, cfa(RSP, 32))]),
    "def_cfa_sf": (b"\x12\x06" + sleb(-2), {}, [(0, cfa(RBP, 16))]),
    "def_cfa_offset_sf": (b"\x13" + sleb(-4), {}, [(0, cfa(RSP, 32))]),
    "def_cfa_expression": (b"\x0f\x02\x77\x08", {}, [(0, BY_EXPRESSION)]),
    "a rule that comes back at once": (b"\x41\x0e\x10\x0e\x08\x41\x83\x03\x41\x0e\x18", {}, [(0, cfa(RSP, 8)), (3, cfa(RSP, 24))]),
    "states are a stack": (
        b"\x0a\x0e\x10\x41\x0a\x0e\x18\x41\x0b\x41\x0b\x0e\x30",
        {},
        [(0, cfa(RSP, 16)), (1, cfa(RSP, 24)), (2, cfa(RSP, 16)), (3, cfa(RSP, 48))],
    ),
    "after the function": (b"\x41\x0e\x10\x44\x0e\x18\x44\x0e\x20", {"size": 5}, [(0, cfa(RSP, 8)), (1, cfa(RSP, 16))]),
    **{f"a function of {size} bytes": (b"\x41\x0e\x10", {"size": size}, []) for size in (0, 1 << 32, (1 << 64) - 1)},
    # libgcrypt's assembly: an expression for a while, then back to rsp with the offset of before.
    "register and offset outlast an expression": (
        b"\x0e\x38\x41\x0f\x02\x77\x08\x41\x0d\x07\x41\x0f\x02\x77\x08\x0e\x40\x41\x0d\x06",
        {},
        [(0, cfa(RSP, 56)), (1, BY_EXPRESSION), (2, cfa(RSP, 56)), (3, BY_EXPRESSION), (4, cfa(RBP, 64))],
    ),
}


@for_each(("program", "unusual", "expected"), CFA_ROWS.values(), ids=CFA_ROWS)
def test_where_rows_begin_and_their_cfa(program: bytes, unusual: dict[str, Any], expected: list[tuple[int, RegisterRule]]) -> None:
    assert [(offset, rule.cfa) for offset, rule in run(program, **unusual)] == expected


def test_each_row_has_all_rules() -> None:
    found = run(b"\x41\x0e\x10\x86\x02\x43\x0d\x06")  # advance 1, def_cfa_offset 16, rbp at cfa-16, advance 3, cfa rbp
    assert [(offset, rule.cfa, rule.fp) for offset, rule in found] == [
        (0, cfa(RSP, 8), UNSPECIFIED),
        (1, cfa(RSP, 16), RegisterRule(RuleKind.OFFSET, -16)),
        (4, cfa(RBP, 16), RegisterRule(RuleKind.OFFSET, -16)),
    ]
    assert all(rule.ra == AT_8 and rule.ra_column == RA for _, rule in found)


@for_each(
    ("program", "expected"),
    [
        (b"\x86\x03", (RuleKind.OFFSET, -24)),
        (b"\x05\x06\x03", (RuleKind.OFFSET, -24)),
        (b"\x11\x06" + sleb(-3), (RuleKind.OFFSET, 24)),
        (b"\x2f\x06\x03", (RuleKind.OFFSET, 24)),
        (b"\x14\x06\x03", (RuleKind.VAL_OFFSET, -24)),
        (b"\x15\x06" + sleb(-3), (RuleKind.VAL_OFFSET, 24)),
        (b"\x09\x06\x0a", (RuleKind.REGISTER, 10)),
        (b"\x07\x06", (RuleKind.UNDEFINED, 0)),
        (b"\x08\x06", (RuleKind.SAME_VALUE, 0)),
        (b"\x86\x03\xc6", (RuleKind.UNSPECIFIED, 0)),
        (b"\x86\x03\x06\x06", (RuleKind.UNSPECIFIED, 0)),
    ],
    ids=[
        "offset", "offset_extended", "offset_extended_sf", "GNU_negative_offset_extended", "val_offset", "val_offset_sf",
        "register", "undefined", "same_value", "restore", "restore_extended",
    ],
)  # fmt: skip
def test_register_rules(program: bytes, expected: tuple[RuleKind, int]) -> None:
    [(_, rule)] = run(program)
    assert (rule.fp.kind, rule.fp.a) == expected
    assert rule.ra == AT_8
    assert rule.sp == UNSPECIFIED


@for_each(("opcode", "kind"), [(0x10, RuleKind.EXPRESSION), (0x16, RuleKind.VAL_EXPRESSION)])
def test_expressions_keep_their_bytes(opcode: int, kind: RuleKind) -> None:
    [(_, rule)] = run(bytes([opcode, 6, 3]) + b"\x76\x78\x06")
    assert rule.fp == RegisterRule(kind, expression=b"\x76\x78\x06")


def test_other_registers_are_decoded_and_dropped() -> None:
    program = b"\x80\x02" + b"\x83\x02" + b"\x05\x20\x02" + b"\x10\x0c\x02\x77\x08" + b"\x2e\x10" + b"\x00"
    assert len(run(program)) == 1
    assert run(program) == run(b"")


def test_restore_goes_back_to_the_cie() -> None:
    [(_, rule)] = run(b"\x86\x02\xc6", initial=INITIAL + b"\x86\x05")
    assert rule.fp == RegisterRule(RuleKind.OFFSET, -40)


def test_aarch64_ra_state_is_a_part_of_the_row() -> None:
    found = run(b"\x41\x2d\x41\x2c\x41\x2d")
    assert [(offset, *rule.ra_state[:2]) for offset, rule in found] == [(0, 0, 0), (1, 0, 1), (2, 0, 3), (3, 0, 2)]


def written(one: CfiInstruction, register: int) -> bytes:
    """An instruction that gives a register a rule."""
    head = bytes([one.opcode | register]) if one.operand_a is Operand.LOW6 else bytes([one.opcode]) + uleb(register)
    return head + {Operand.NONE: b"", Operand.BLOCK: b"\x01\x31"}.get(one.operand_b, b"\x02")


@for_each(("registers", "ra"), [(AMD64, 16), (AARCH64, 30), (S390X, 14)])
def test_each_way_to_set_a_register_that_rules_depend_on_is_followed(registers: FollowedRegisters, ra: int) -> None:
    """Cranelift sets RA_SIGN_STATE by DW_CFA_val_expression, others negate it; each rule may also be taken back."""
    names = {"ra": ra, **{name: number for name, number in registers._asdict().items() if number >= 0}}
    frames = Frames()
    cie = frames.cie(b"\x0c\x07\x08", ra=ra)
    ways = [(name, one) for name in names for one in INSTRUCTIONS if one.action is Action.SET_RULE]
    for name, one in ways:
        program = written(one, names[name])
        back = (b"\x06" + uleb(names[name]), bytes([0xC0 | names[name]]))
        steps = (program, back[0], program + back[1], b"\x0a" + program, b"\x0b", program + program)
        frames.plain_fde(cie, 0x4000, 0x100, b"\x41".join(steps))
    table = read_cfi_sections([frames.section()], registers)
    for fde, (name, one) in enumerate(ways):
        kinds = [(offset, getattr(rule, name).kind) for offset, rule in rows(table, fde)]
        assert kinds == [(0, one.kind), (1, RuleKind.UNSPECIFIED), (3, one.kind), (4, RuleKind.UNSPECIFIED), (5, one.kind)]


@for_each("negate", [b"\x2c", b"\x2d"])
def test_a_negated_rule_of_ra_sign_state_is_not_known(negate: bytes) -> None:
    program = b"\x41".join((b"\x16\x22\x01\x31", negate, b"\x06\x22", negate, b"\x16\x22\x01\x30"))
    states = [rule.ra_state for _, rule in rows(read_cfi_sections([one_fde(program, ra=30)], AARCH64))]
    by = RuleKind.VAL_EXPRESSION
    assert [state.kind for state in states] == [by, RuleKind.UNDEFINED, RuleKind.UNSPECIFIED, RuleKind.UNSPECIFIED, by]


def test_numbers_that_no_frame_has_do_not_wrap() -> None:
    [(_, rule)] = run(b"\x0e" + uleb(1 << 63) + b"\x86" + uleb((1 << 61) // 8))
    assert rule.cfa.b >= 1 << 31
    assert rule.fp.a >= 1 << 31


@for_each("eh", [True, False])
def test_terminators_in_the_middle_end_nothing(eh: bool) -> None:
    """In .debug_frame Go's linker leaves them."""
    frames = Frames(eh=eh)
    cie = frames.cie()
    frames.plain_fde(cie, 0x4000, 16)
    frames.data += bytes(4)
    frames.plain_fde(cie, 0x5000, 16)
    section = frames.section()
    ended = section._replace(data=bytes(frames.data) + bytes(8))
    assert list(read_cfi_sections([ended], AMD64).start) == [0x4000, 0x5000]
    if eh:  # without an end the FDE count tells which terminator is the last
        counted = section._replace(fde_count=2, data=bytes(frames.data) + bytes(4) + b"what follows is no CFI")
        assert list(read_cfi_sections([counted], AMD64).start) == [0x4000, 0x5000]
        assert list(read_cfi_sections([section._replace(fde_count=0, data=bytes(4) + b"no CFI")], AMD64).start) == []


@for_each("version", [1, 3, 4])
@for_each("big", [False, True])
@for_each("dwarf64", [False, True])
@for_each("eh", [False, True])
def test_versions_byte_orders_and_dwarf_formats(version: int, big: bool, dwarf64: bool, eh: bool) -> None:
    frames = Frames(eh=eh, big=big, dwarf64=dwarf64)
    frames.cie(b"", version=version)
    second = frames.cie(version=version)
    frames.plain_fde(second, 0x123456789A, 0x40, b"\x41\x0e\x10")
    table = read_cfi_sections([frames.section()], AMD64)
    assert (list(table.start), list(table.size), list(table.cie)) == ([0x123456789A], [0x40], [1])
    assert [(offset, rule.cfa) for offset, rule in rows(table)] == [(0, cfa(RSP, 8)), (1, cfa(RSP, 16))]


@for_each("version", [1, 3])
def test_the_return_address_column_is_a_byte_in_version_1(version: int) -> None:
    [(_, rule)] = run(b"", initial=b"\x0c\x07\x08" + b"\x05\xc8\x01\x01", version=version, ra=200)
    assert (rule.ra_column, rule.ra) == (200, AT_8)


TARGET = 0x2345
FORMS: dict[str, tuple[int, Callable[[int], bytes]]] = {
    "absptr": (0x00, lambda value: (value % (1 << 64)).to_bytes(8, "little")),
    "uleb128": (0x01, uleb),
    "udata2": (0x02, lambda value: value.to_bytes(2, "little")),
    "udata4": (0x03, lambda value: value.to_bytes(4, "little")),
    "udata8": (0x04, lambda value: (value % (1 << 64)).to_bytes(8, "little")),
    "signed": (0x08, lambda value: value.to_bytes(8, "little", signed=True)),
    "sleb128": (0x09, sleb),
    "sdata2": (0x0A, lambda value: value.to_bytes(2, "little", signed=True)),
    "sdata4": (0x0B, lambda value: value.to_bytes(4, "little", signed=True)),
    "sdata8": (0x0C, lambda value: value.to_bytes(8, "little", signed=True)),
}
BASES = {"absolute": 0x00, "pcrel": 0x10, "textrel": 0x20, "datarel": 0x30, "funcrel": 0x40}
TEXT_BASE, DATA_BASE = 0x2000, 0x2100


def pointer_section(encoding: int, start: bytes, size: bytes) -> CfiSection:
    frames = Frames(address=0x1000)
    cie = frames.cie(augmentation="zR", data=bytes([encoding]))
    frames.fde(cie, start, size, b"\x41\x0e\x10")
    return frames.section()._replace(text_base=TEXT_BASE, data_base=DATA_BASE)


@for_each("form", FORMS)
@for_each("base", BASES)
def test_pointer_encodings(form: str, base: str) -> None:
    code, write = FORMS[form]
    origin = {"absolute": 0, "pcrel": 0, "textrel": TEXT_BASE, "datarel": DATA_BASE, "funcrel": 0}[base]
    if base == "pcrel":  # where the FDE's pointer will stand: after the CIE, a length and a CIE pointer
        frames = Frames()
        frames.cie(augmentation="zR", data=b"\0")
        origin = 0x1000 + len(frames.data) + 8
    table = read_cfi_sections(
        [pointer_section(code | BASES[base], write(TARGET - origin), write(0x40) if code & 7 else (0x40).to_bytes(8, "little"))],
        AMD64,
    )
    assert (list(table.start), list(table.size)) == ([TARGET], [0x40])
    assert len(rows(table)) == 2


@for_each("form", ["absptr", "udata8", *(form for form in FORMS if form.startswith("s"))])
@for_each("distance", [-1, -0x100, -0x8000])
def test_negative_pointers_are_relative_backwards(form: str, distance: int) -> None:
    code, write = FORMS[form]
    size = write(0x40) if code & 7 else (0x40).to_bytes(8, "little")
    section = pointer_section(0x30 | code, write(distance), size)._replace(data_base=0x9000)
    assert list(read_cfi_sections([section], AMD64).start) == [0x9000 + distance]


@for_each("base", [0x20, 0x30])
def test_a_base_that_is_not_known_is_0(base: int) -> None:
    assert list(read_cfi_sections([one_fde(augmentation="zR", data=bytes([base]))], AMD64).start) == [0x4000]


@for_each(("form", "value"), [("sdata2", 0x7FFF), ("sdata4", 0x7FFFFFFF), ("udata2", 0xFFFF), ("udata4", 0xFFFFFFFF)])
def test_the_largest_numbers_of_a_size_are_not_negative(form: str, value: int) -> None:
    code, write = FORMS[form]
    assert list(read_cfi_sections([pointer_section(code, write(value), write(0x40))], AMD64).start) == [value]


def test_aligned_pointers() -> None:
    frames = Frames(address=0x1001)
    cie = frames.cie(augmentation="zR", data=b"\x50")
    padding = bytes(-(frames.address + len(frames.data) + 8) % 8)
    frames.fde(cie, padding + frames.number(0x4000, 8), frames.number(16, 8))
    assert list(read_cfi_sections([frames.section()], AMD64).start) == [0x4000]


def test_indirect_pointers_are_followed() -> None:
    section = pointer_section(0x80 | 0x03, (0x7000).to_bytes(4, "little"), (0x40).to_bytes(4, "little"))
    assert list(read_cfi_sections([section._replace(memory={0x7000: 0x2345}.__getitem__)], AMD64).start) == [0x2345]
    assert list(read_cfi_sections([section], AMD64).start) == [UNKNOWN_START]  # it leads nowhere: that costs this FDE


def test_pointers_that_are_not_understood_cost_their_fde() -> None:
    frames = Frames(eh=False)
    cie = frames.cie(version=4, segment_size=2)
    places = [frames.fde(cie, bytes(2) + frames.number(start, 8), frames.number(16, 8)) for start in (0x4000, 0x5000)]
    table = read_cfi_sections([frames.section()._replace(has_known_pointer={places[1] + 8 + 2}.__contains__)], AMD64)
    assert list(table.start) == [UNKNOWN_START, 0x5000]


def test_augmentations() -> None:
    frames = Frames()
    data = b"\x9b" + bytes(4) + b"\x1b" + b"\x1b"  # P: indirect pcrel sdata4; L; R
    cie = frames.cie(augmentation="zPLRSB", data=data)
    frames.fde(cie, bytes(4), b"\x10\0\0\0", data=bytes(4))
    other = frames.cie(augmentation="zRG?", data=b"\x1b\xff\xff")  # an unknown letter: what follows it is skipped
    frames.fde(other, bytes(4), b"\x10\0\0\0", b"\x0e\x10")
    table = read_cfi_sections([frames.section()], AMD64)
    assert [(one.signal, one.key_b, one.fde_encoding) for one in table.cies] == [(True, True, 0x1B), (False, False, 0x1B)]
    assert rows(table, 1)[0][1].cfa == cfa(RSP, 16)


def test_several_sections_share_rules_and_keep_their_cies_apart() -> None:
    one, two = Frames(), Frames(eh=False)
    one.plain_fde(one.cie(), 0x4000, 16, b"\x0f\x02\x77\x08")
    two.plain_fde(two.cie(version=4), 0x5000, 16, b"\x0f\x02\x77\x10")
    two.plain_fde(0, 0x6000, 16)
    table = read_cfi_sections([one.section(), two.section()], AMD64)
    assert list(table.cie) == [0, 1, 1]
    assert table.list_ends == [1, 3]
    table = read_cfi_sections([one.section(), two.section(), two.section()._replace(continues=True)], AMD64)
    assert (list(table.cie), table.list_ends, list(table.start[2:])) == ([0, 1, 1, 2, 2], [1, 5], [0x6000, 0x5000, 0x6000])
    assert [rows(table, fde)[0][1].cfa.expression for fde in range(5)] == [b"\x77\x08", b"\x77\x10", b"", b"\x77\x10", b""]
    assert [rows(table, fde)[0][1].cfa.expression for fde in range(3)] == [b"\x77\x08", b"\x77\x10", b""]


FAULTY = {
    "unknown": (b"\x41\x3f", "unknown call frame instruction"),
    "operand": (b"\x41\x41\x0e\x80", "instruction or operand is cut off"),
    "block": (b"\x0f\x7f", "instruction or operand is cut off"),
    "restore": (b"\x0b", "DW_CFA_restore_state without a remembered state"),
    "remember": (b"\x0a" * (MAX_REMEMBERED + 1), f"more than {MAX_REMEMBERED} remembered states"),
    "back": (b"\x43\x01" + (0x4001).to_bytes(8, "little"), "DW_CFA_set_loc moves backwards"),
    "before": (b"\x43\x01" + (0x3000).to_bytes(8, "little"), "DW_CFA_set_loc moves backwards"),
}


@for_each("eh", [True, False])
@for_each("name", FAULTY)
def test_faulty_instructions_cost_their_fde_only(name: str, eh: bool) -> None:
    program, what = FAULTY[name]
    frames = Frames(eh=eh)
    cie = frames.cie()
    frames.plain_fde(cie, 0x3000, 16, b"\x41\x0e\x10")
    first = frames.plain_fde(cie, 0x4000, 16, program)
    second = frames.plain_fde(cie, 0x5000, 16, program.replace(b"\1\x40", b"\1\x50").replace(b"\0\x30", b"\0\x10"))
    frames.plain_fde(cie, 0x6000, 16, b"\x42\x0e\x18")
    table = read_cfi_sections([frames.section()], AMD64)
    assert [[rule.cfa for _, rule in rows(table, fde)] for fde in range(4)] == [
        [cfa(RSP, 8), cfa(RSP, 16)],
        [RegisterRule(RuleKind.UNREADABLE)],
        [RegisterRule(RuleKind.UNREADABLE)],
        [cfa(RSP, 8), cfa(RSP, 24)],
    ]
    assert (table.faulty, [fault.start for fault in table.faults]) == (2, [0x4000, 0x5000])
    assert first < table.faults[0].offset <= second < table.faults[1].offset
    assert str(table.faults[0]) == f"{frames.section().name}+{table.faults[0].offset:#x}: {what}"


def test_faulty_instructions_of_no_code_make_no_rows() -> None:
    frames = Frames()
    cie = frames.cie()
    for size in (0, 1 << 32):
        frames.plain_fde(cie, 0x4000, size, b"\x0b")
    table = read_cfi_sections([frames.section()], AMD64)
    assert (list(table.first_row), table.faulty) == ([0, 0, 0], 2)


def test_of_many_faulty_fdes_the_first_are_kept_and_all_counted() -> None:
    frames = Frames()
    cie = frames.cie()
    for function in range(3 * MAX_REPORTED):
        frames.plain_fde(cie, 0x4000 + 16 * function, 16, b"\x0b")
    table = read_cfi_sections([frames.section()], AMD64)
    assert (table.faulty, len(table.faults), len(table.rules)) == (3 * MAX_REPORTED, MAX_REPORTED, 1)


@for_each(
    ("section", "message"),
    [
        (one_fde(initial=b"\x0b"), r"^\.eh_frame\+0x\w+: DW_CFA_restore_state without"),
        (one_fde(version=2), "unknown CIE version 2"),
        (one_fde(augmentation="?"), "unknown augmentation"),
        (one_fde(augmentation="zR", data=b"\x0d"), "unknown pointer encoding"),
        (one_fde(augmentation="zR", data=b"\x6b"), "unknown pointer encoding"),
    ],
)
def test_faults_say_where(section: CfiSection, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        read_cfi_sections([section], AMD64)


@for_each(
    ("damage", "message"),
    [
        (lambda data: data[:-1], r"\.eh_frame\+0x14: entry reaches past the end"),
        (lambda data: data[:22], r"\.eh_frame\+0x14: entry's length is cut off"),
        (lambda data: data[:20] + b"\x02\0\0\0\0\0", r"\.eh_frame\+0x14: entry is too short"),
        (lambda data: data[:24] + b"\x17\0\0\0" + data[28:], r"\.eh_frame\+0x14: FDE's CIE pointer leads to 0x1, where no CIE is"),
        (lambda data: data[:24] + b"\x19\0\0\0" + data[28:], r"\.eh_frame\+0x14: FDE's CIE pointer leads out"),
    ],
)
def test_entries_that_do_not_fit(damage: Callable[[bytes], bytes], message: str) -> None:
    section = one_fde()
    assert len(section.data) == 20 + 28
    with pytest.raises(FormatError, match=message):
        read_cfi_sections([section._replace(data=damage(bytes(section.data)))], AMD64)


def test_cies_without_fdes_are_read_and_no_fde_goes_without_a_cie() -> None:
    cies = Frames()
    cies.cie()
    assert len(read_cfi_sections([cies.section()], AMD64).cies) == 1
    for pointer, message in (
        (0, "leads to 0x0, where no CIE is"),
        (27, "leads to 0x1b, where no"),
        (28, "leads out of the section"),
    ):
        fde = Frames(eh=False)
        fde.entry(pointer, bytes(20))
        assert len(fde.data) == 28
        with pytest.raises(FormatError, match=rf"\.debug_frame\+0x0: FDE's CIE pointer {message}"):
            read_cfi_sections([fde.section()], AMD64)


@for_each(("size", "is_read"), [(3, True), (4, False)])
def test_augmentation_data_ends_within_its_fde(size: int, is_read: bool) -> None:
    frames = Frames()
    cie = frames.cie(augmentation="z")
    frames.entry(cie, frames.number(0x4000, 8) + frames.number(16, 8) + bytes([size, 1, 2, 3]))  # of a length without padding
    if is_read:
        assert len(rows(read_cfi_sections([frames.section()], AMD64))) == 1
    else:
        with pytest.raises(FormatError, match="cut off"):
            read_cfi_sections([frames.section()], AMD64)


@given(
    st.lists(st.sampled_from([bytes([one.opcode]) for one in INSTRUCTIONS] + [bytes([n]) for n in range(8)]), max_size=60).map(
        b"".join
    )
)
def test_any_program_gives_ascending_rows_or_one_error(program: bytes) -> None:
    try:
        found = run(program)
    except FormatError:
        return
    offsets = [offset for offset, _ in found]
    assert offsets[0] == 0
    assert offsets == sorted(set(offsets))
    assert offsets[-1] < 0x100
    assert all(before != after for (_, before), (_, after) in pairwise(found))


def test_every_opcode_of_the_table_is_known_once() -> None:
    assert len({one.opcode for one in INSTRUCTIONS}) == len({one.name for one in INSTRUCTIONS}) == len(INSTRUCTIONS)
    assert len(PACKED_INSTRUCTIONS) == 5 * 256
    theirs = {one.name: getattr(constants, one.name) for one in INSTRUCTIONS if hasattr(constants, one.name)}
    assert len(theirs) > 25
    assert theirs == {one.name: one.opcode for one in INSTRUCTIONS if one.name in theirs}


@for_each(
    ("encoded", "value"),
    [
        *((sleb(value), value) for bits in (6, 7, 13, 14, 34, 35, 41, 42, 48, 55) for value in (-(1 << bits), (1 << bits) - 1)),
        (b"\xfe\xff\xff\xff\x7f", -2),
        (b"\xfe" + b"\xff" * 8 + b"\x7f", -2),
        (b"\x82" + b"\x80" * 8 + b"\x00", 2),
        (b"\x90" + b"\x80" * 7 + b"\xff\x00", 1 << 62),  # ones, then zeros: no padding
        (b"\x90" + b"\x80" * 7 + b"\x80\x7f", -(1 << 62)),
        (sleb(1 << 60), 1 << 62),
        (sleb(-(1 << 60)), -(1 << 62)),
        (sleb(-(1 << 70)), -(1 << 62)),
    ],
)
def test_signed_numbers_of_any_length(encoded: bytes, value: int) -> None:
    cursor = Cursor(encoded, 0, False, 0, 0, None)
    assert (cursor.read_sleb(), cursor.fault, cursor.pos) == (value, 0, len(encoded))


@for_each("value", [(1 << bits) - less for bits in (7, 14, 35, 49, 56) for less in (1, 2)] + [1 << 56, 1 << 63, 1 << 90])
def test_unsigned_numbers_of_any_length(value: int) -> None:
    cursor = Cursor(uleb(value), 0, False, 0, 0, None)
    assert cursor.read_uleb() == (value if value < 1 << 56 else 1 << 62)


def test_signal_frames_without_augmentation_data() -> None:
    """GNU as writes them for `.cfi_sections .debug_frame` and `.cfi_signal_frame`."""
    assert [one.signal for one in read_cfi_sections([one_fde(eh=False, augmentation="S")], AMD64).cies] == [True]


def test_more_different_rows_than_any_program_has() -> None:
    program = b"".join(b"\x0e" + uleb(8 * n) + b"\x41" for n in range(MAX_STATES + 2))
    with pytest.raises(FormatError, match="different rows"):
        run(program, size=MAX_STATES + 2)


@for_each(
    ("code", "data", "is_read"),
    [
        (1 << 24, -8, True),
        ((1 << 24) + 1, -8, False),
        (1, 0x7FFFFFFF, True),
        (1, -0x7FFFFFFF, True),
        (1, 0x80000000, False),
        (1, -0x80000000, False),
    ],
)
def test_alignments_that_no_machine_has(code: int, data: int, is_read: bool) -> None:
    section = one_fde(code_alignment=code, data_alignment=data)
    if is_read:
        assert len(read_cfi_sections([section], AMD64).start) == 1
    else:
        with pytest.raises(FormatError, match="alignment"):
            read_cfi_sections([section], AMD64)


@for_each(
    ("one", "other", "expected"),
    [
        (b"\x0e" + uleb(16), b"\x0e" + uleb(16 + 8192), [cfa(RSP, 16), cfa(RSP, 16 + 8192)]),
        (b"\x0c\x07" + uleb(1000), b"\x0c\x14" + uleb(903), [cfa(RSP, 1000), cfa(20, 903)]),
        (b"\x0d\x03", b"\x0d" + uleb(3 + 8192), [cfa(3, 8), cfa(3 + 8192, 8)]),
        (b"\x0e" + uleb(20), b"\x0d\x03", [cfa(RSP, 20), cfa(3, 8)]),
    ],
)
def test_instructions_that_share_a_place_in_the_cache(one: bytes, other: bytes, expected: list[RegisterRule]) -> None:
    """Equal hashes, from the same state: what the first did is not what the second does, and both come again."""
    found = run(b"".join(b"\x0a" + step + b"\x41\x0b" for step in (one, other, other, one)))
    assert [rule.cfa for _, rule in found] == [expected[0], expected[1], expected[0], cfa(RSP, 8)]


@for_each(("size", "is_read"), [(2, True), (8, True), (9, False)])
def test_segment_selectors(size: int, is_read: bool) -> None:
    frames = Frames(eh=False)
    cie = frames.cie(version=4, segment_size=size)
    frames.fde(cie, bytes(size) + frames.number(0x4000, 8), frames.number(16, 8))
    if is_read:
        assert list(read_cfi_sections([frames.section()], AMD64).start) == [0x4000]
    else:
        with pytest.raises(FormatError, match="segment selector size 9"):
            read_cfi_sections([frames.section()], AMD64)


def test_more_rows_than_any_program_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """There must be room for a row a byte of the longest program, and for one more."""
    program = b"\x41\x0e\x10\x41\x0e\x08\x41\x0e\x18\x00\x00\x00"  # of a length that needs no padding
    monkeypatch.setattr(reader, "MAX_ROWS", len(program) + 1)
    assert len(run(program)) == 4
    monkeypatch.setattr(reader, "MAX_ROWS", len(program))
    with pytest.raises(FormatError, match=f"more than {len(program)} rows"):
        run(program)


def test_opcodes_in_the_machine_are_those_written_beside_them() -> None:
    found = re.findall(r"(0x\w+) (?:<= byte|and slots).*?# (DW_CFA_\w+)", (ROOT / "cfi" / "machine.py").read_text())
    assert len(found) > 1
    opcodes_of = {one.name: one.opcode for one in INSTRUCTIONS}
    assert {name: int(number, 0) for number, name in found} == {name: opcodes_of[name] for _, name in found}
