"""DWARF expressions, evaluated down to a register and a number."""

from __future__ import annotations

from cfi.expression import CFA, MAX_SIZE, Term, evaluate
from tests.support.inputs.cfi_writer import sleb, uleb
from tests.support.loops import for_each

PC = 16
MINUS_1 = b"\x11\x7f"


def number(value: int) -> Term:
    return Term(None, value)


@for_each(
    ("expression", "expected"),
    [
        (b"\x77\x08", Term(7, 8)),
        (b"\x70\x01", Term(0, 1)),
        (b"\x8f\x01", Term(31, 1)),
        (b"\x90\x01", None),
        (b"\x92\x20" + sleb(-300), Term(32, -300)),
        (b"\x92" + uleb((1 << 64) - 1) + b"\x00", Term((1 << 64) - 1, 0)),  # not CFA
        (b"\x77\x08\x77\x00\x16\x13", Term(7, 0)),
        (b"\x31\x32\x33\x16\x13", number(3)),
        (b"\x31\x32\x33\x16\x13\x13", number(1)),
        (b"\x31\x32\x12\x22\x22", number(5)),
        (b"\x76\x00\x08\x10\x22", Term(6, 16)),
        (b"\x08\x10\x76\x00\x22", Term(6, 16)),
        (b"\x76\x00\x09\xf0\x22", Term(6, -16)),
        (b"\x76\x00\x0a\x00\x01\x22", Term(6, 256)),
        (b"\x76\x00\x0d\xff\xff\xff\xff\x22", Term(6, -1)),
        (b"\x76\x00\x11\x78\x1c", Term(6, 8)),
        (b"\x31\x76\x00\x1c", None),  # a number less a register
        (b"\x76\x08\x23\x90\x01", Term(6, 152)),
        (b"\x76\x78\x06", Term(6, -8, deref=True)),
        (b"\x76\x78\x06\x96", Term(6, -8, deref=True)),
        (b"\x76\x78\x06\x23\x01", Term(6, -8, deref=True, offset_after_deref=1)),
        (b"\x76\x78\x06\x34\x1c\x32\x22", Term(6, -8, deref=True, offset_after_deref=-2)),
        (b"\x76\x78\x06\x23\x01\x06", None),
        (b"\x31\x06", None),  # an address that is a number
        (b"\x76\x78\x06\x06", None),
        (b"\x76\x00\x77\x00\x22", None),
        (b"\x76\x00\x31\x1e", None),
        (b"\x31\x76\x00\x1a", None),
        (b"\x33\x24", None),
        (b"\x76", None),
        (b"\x0c\x01", None),
        (b"\x22", None),
        (b"\x13", None),
        (b"\xff", None),
        (b"", None),
        (b"\x76\x80", None),
        (b"\x76\xff\xff\xff\xff\xff\xff\xff\xff\xff\x00", Term(6, (1 << 63) - 1)),
        (b"\x76\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01", Term(6, 0)),  # bits from 64 on are lost
        (b"\x76\x01\x11" + sleb(-(1 << 63)) + b"\x22", Term(6, 1 - (1 << 63))),
        (b"\x76\x7f\x11" + sleb(-(1 << 63)) + b"\x22", Term(6, (1 << 63) - 1)),  # wraps
        (b"\x77\x00" + b"\x96" * (MAX_SIZE - 2), Term(7, 0)),
        (b"\x77\x00" + b"\x96" * (MAX_SIZE - 1), None),
    ],
)
def test_expressions_reduce_to_a_register_plus_a_number(expression: bytes, expected: Term | None) -> None:
    assert evaluate(expression, "little", PC) == expected


@for_each(
    ("opcode", "content", "value"),
    [
        (0x08, "ff", 255),
        (0x09, "ff", -1),
        (0x0A, "ff01", 0x1FF),
        (0x0B, "feff", -2),
        (0x0C, "fdffffff", 0xFFFFFFFD),
        (0x0D, "fdffffff", -3),
        (0x0E, "fcffffffffffff7f", (1 << 63) - 4),
        (0x0E, "fcffffffffffffff", -4),
        (0x0F, "fcffffffffffffff", -4),
    ],
)
def test_constants_of_each_size_in_both_byte_orders(opcode: int, content: str, value: int) -> None:
    data = bytes.fromhex(content)
    assert evaluate(bytes([opcode]) + data, "little", PC) == number(value)
    assert evaluate(bytes([opcode]) + data[::-1], "big", PC) == number(value)
    assert evaluate(bytes([opcode]) + data[:-1], "little", PC) is None


def test_small_numbers() -> None:
    assert [evaluate(bytes([0x30 + n]), "little", PC) for n in range(32)] == [number(n) for n in range(32)]
    assert evaluate(b"\x10\xff\x01", "little", PC) == number(255)
    assert evaluate(b"\x11\xff\x01", "little", PC) == number(255)
    assert evaluate(b"\x10\x7f", "little", PC) == number(127)
    assert evaluate(b"\x11\x7f", "little", PC) == number(-1)


@for_each(
    ("opcode", "a", "b", "result"),
    [
        (0x1A, 12, 10, 8),
        (0x1C, 12, 10, 2),
        (0x1E, 12, 10, 120),
        (0x21, 12, 10, 14),
        (0x22, 12, 10, 22),
        (0x24, 3, 2, 12),
        (0x24, 1, 0, 1),
        (0x24, 1, 63, -(1 << 63)),
        (0x24, 1, 64, 0),
        (0x24, 1, -1, 0),
        (0x25, 12, 2, 3),
        (0x25, -1, 63, 1),  # without its sign
        (0x25, -1, 32, 0xFFFFFFFF),
        (0x25, -1, 0, -1),
        (0x25, -1, 64, 0),
        (0x25, -1, -1, 0),
        *((0x29, a, b, a == b) for a, b in ((1, 1), (1, 2), (2, 1))),
        *((0x2A, a, b, a >= b) for a, b in ((1, 1), (1, 2), (2, 1))),
        *((0x2B, a, b, a > b) for a, b in ((1, 1), (1, 2), (2, 1))),
        *((0x2C, a, b, a <= b) for a, b in ((1, 1), (1, 2), (2, 1))),
        *((0x2D, a, b, a < b) for a, b in ((1, 1), (1, 2), (2, 1))),
        *((0x2E, a, b, a != b) for a, b in ((1, 1), (1, 2), (2, 1))),
    ],
)
def test_arithmetic(opcode: int, a: int, b: int, result: int) -> None:
    assert evaluate(b"\x11" + sleb(a) + b"\x11" + sleb(b) + bytes([opcode]), "little", PC) == number(int(result))


def test_only_the_low_four_bits_of_the_pc_are_known() -> None:
    pc_and = b"\x80\x03"  # PC + 3
    assert evaluate(pc_and + b"\x3f\x1a", "little", PC, 11) == number(14)
    assert evaluate(pc_and + b"\x3f\x1a", "little", PC, 15) == number(2)
    assert evaluate(pc_and + b"\x37\x1a", "little", PC, 14) == number(1)
    assert evaluate(pc_and + b"\x30\x1a", "little", PC, 14) == number(0)
    assert evaluate(pc_and + b"\x3f\x1a", "little", PC) is None
    assert evaluate(pc_and + b"\x40\x1a", "little", PC, 11) is None  # & 16
    assert evaluate(pc_and + MINUS_1 + b"\x1a", "little", PC, 11) is None
    assert evaluate(pc_and + b"\x06\x3f\x1a", "little", PC, 11) is None  # memory at the PC
    assert evaluate(b"\x77\x03\x3f\x1a", "little", PC, 11) is None  # another register


def test_a_register_s_expression_begins_with_the_cfa() -> None:
    assert evaluate(b"\x23\x08", "little", PC, on_cfa=True) == Term(CFA, 8)
    assert evaluate(b"\x38\x1c", "little", PC, on_cfa=True) == Term(CFA, -8)
    assert evaluate(b"\x38\x1c", "little", PC) is None
