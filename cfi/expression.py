"""Evaluates a DWARF expression symbolically: takes its bytes, and returns its value as a Term, or None.

A Term is a number, `register + n`, `*(register + n)` or `*(register + n) + m`; no register's value is known, except for the PC's
low bits. The operations run on a stack of Terms. An operation whose result is not a Term ends the evaluation.
"""

from __future__ import annotations

from functools import lru_cache

from sframegen.base.quick_typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

WORD_MASK = 0xFFFFFFFFFFFFFFFF  # DWARF computes with 64-bit numbers
MAX_SIZE = 256  # bytes; compilers and linkers write about ten. Limited, because thousands of rules can share one expression
PC_PERIOD = 16  # bytes: the size of PLT entries, whose expressions use the low four bits of the PC

CFA = -1  # stands for the CFA in place of a register number

DW_OP_DEREF = 0x06
DW_OP_CONSTU, DW_OP_CONSTS = 0x10, 0x11
DW_OP_DUP, DW_OP_DROP, DW_OP_SWAP = 0x12, 0x13, 0x16
DW_OP_AND, DW_OP_MINUS, DW_OP_MUL, DW_OP_OR, DW_OP_PLUS = 0x1A, 0x1C, 0x1E, 0x21, 0x22
DW_OP_PLUS_UCONST, DW_OP_SHL, DW_OP_SHR = 0x23, 0x24, 0x25
DW_OP_EQ, DW_OP_GE, DW_OP_GT, DW_OP_LE, DW_OP_LT, DW_OP_NE = range(0x29, 0x2F)
DW_OP_LIT0, DW_OP_BREG0, DW_OP_BREGX, DW_OP_NOP = 0x30, 0x70, 0x92, 0x96  # LIT0, BREG0: the first of 32, by number or register
# DW_OP_const1u .. DW_OP_const8s: size in bytes, signed
CONSTANTS = {0x08 + 2 * i + signed: (1 << i, bool(signed)) for i in range(4) for signed in range(2)}
ARITHMETIC: dict[int, Callable[[int, int], int]] = {
    DW_OP_AND: lambda a, b: a & b,
    DW_OP_MINUS: lambda a, b: a - b,
    DW_OP_MUL: lambda a, b: a * b,
    DW_OP_OR: lambda a, b: a | b,
    DW_OP_PLUS: lambda a, b: a + b,
    DW_OP_SHL: lambda a, b: a << b if 0 <= b < 64 else 0,
    DW_OP_SHR: lambda a, b: (a & WORD_MASK) >> b if 0 <= b < 64 else 0,
    DW_OP_EQ: lambda a, b: int(a == b),
    DW_OP_GE: lambda a, b: int(a >= b),
    DW_OP_GT: lambda a, b: int(a > b),
    DW_OP_LE: lambda a, b: int(a <= b),
    DW_OP_LT: lambda a, b: int(a < b),
    DW_OP_NE: lambda a, b: int(a != b),
}


class Term(NamedTuple):
    """The value of an expression: `register + offset`, or with `deref` `*(register + offset) + offset_after_deref`.

    `register` None: the value is the number `offset`.
    """

    register: int | None
    offset: int
    deref: bool = False
    offset_after_deref: int = 0


class _Unknown(Exception):  # noqa: N818 - not an error: the expression is valid, but cannot be written as a Term
    """Raised where an expression does not reduce to a Term."""


@lru_cache(1024)  # linkers write the same expression for every PLT, and it is evaluated for each value of the PC's low bits
def evaluate(
    expression: bytes,
    byte_order: Literal["little", "big"],
    pc_register: int | None,
    pc_residue: int | None = None,
    *,
    on_cfa: bool = False,
) -> Term | None:
    """Return the value that an expression computes; None if it does not reduce to a Term, or is longer than MAX_SIZE.

    `pc_residue`: the PC modulo PC_PERIOD, if the expression may use it. `on_cfa`: evaluation starts with the CFA on the stack.
    """
    if len(expression) > MAX_SIZE:
        return None
    try:
        return _run_operations(expression, byte_order, pc_register, pc_residue, [Term(CFA, 0)] if on_cfa else [])
    except (_Unknown, IndexError):  # IndexError: an operand is cut off, or the stack is empty
        return None


def _run_operations(
    expression: bytes, byte_order: Literal["little", "big"], pc_register: int | None, pc_residue: int | None, stack: list[Term]
) -> Term:
    """Return the Term on top of the stack after the last operation. Raises _Unknown and IndexError."""
    pos = 0
    while pos < len(expression):
        opcode = expression[pos]
        pos += 1
        if opcode in CONSTANTS:
            size, signed = CONSTANTS[opcode]
            if pos + size > len(expression):
                raise _Unknown
            stack.append(Term(None, _to_signed_64(int.from_bytes(expression[pos : pos + size], byte_order, signed=signed))))
            pos += size
        elif opcode in (DW_OP_CONSTU, DW_OP_CONSTS):
            value, pos = _read_leb128(expression, pos, signed=opcode == DW_OP_CONSTS)
            stack.append(Term(None, value))
        elif DW_OP_LIT0 <= opcode < DW_OP_LIT0 + 32:
            stack.append(Term(None, opcode - DW_OP_LIT0))
        elif DW_OP_BREG0 <= opcode < DW_OP_BREG0 + 32:
            value, pos = _read_leb128(expression, pos, signed=True)
            stack.append(Term(opcode - DW_OP_BREG0, value))
        elif opcode == DW_OP_BREGX:
            register, pos = _read_leb128(expression, pos, signed=False)
            value, pos = _read_leb128(expression, pos, signed=True)
            stack.append(Term(register & WORD_MASK, value))  # masked: a negative number would stand for the CFA
        elif opcode == DW_OP_PLUS_UCONST:
            value, pos = _read_leb128(expression, pos, signed=False)
            stack.append(_add_terms(stack.pop(), Term(None, value)))
        elif opcode == DW_OP_DEREF:
            top = stack.pop()
            if top.deref or top.register is None:
                raise _Unknown
            stack.append(top._replace(deref=True))
        elif opcode == DW_OP_AND:
            b, a = stack.pop(), stack.pop()
            is_pc = pc_register is not None and a.register == pc_register and not a.deref
            # (PC + n) & a constant below 16 is a number if the PC modulo 16 is known. GNU ld writes (PC & 15) >= 11 for a PLT.
            if is_pc and pc_residue is not None and b.register is None and 0 <= b.offset < PC_PERIOD:
                a = Term(None, (pc_residue + a.offset) & (PC_PERIOD - 1))
            stack.append(_apply_operator(DW_OP_AND, a, b))
        elif opcode in ARITHMETIC:
            b, a = stack.pop(), stack.pop()
            stack.append(_apply_operator(opcode, a, b))
        elif opcode == DW_OP_DUP:
            stack.append(stack[-1])
        elif opcode == DW_OP_DROP:
            stack.pop()
        elif opcode == DW_OP_SWAP:
            stack[-1], stack[-2] = stack[-2], stack[-1]
        elif opcode != DW_OP_NOP:
            raise _Unknown
    return stack[-1]


def _add_terms(a: Term, b: Term) -> Term:
    if a.register is None:
        a, b = b, a
    if b.register is not None:
        raise _Unknown
    if a.deref:
        return a._replace(offset_after_deref=_to_signed_64(a.offset_after_deref + b.offset))
    return a._replace(offset=_to_signed_64(a.offset + b.offset))


def _apply_operator(opcode: int, a: Term, b: Term) -> Term:
    if a.register is None and b.register is None:
        return Term(None, _to_signed_64(ARITHMETIC[opcode](a.offset, b.offset)))
    if opcode == DW_OP_PLUS:
        return _add_terms(a, b)
    if opcode == DW_OP_MINUS and b.register is None:
        return _add_terms(a, Term(None, -b.offset))
    raise _Unknown


def _to_signed_64(value: int) -> int:
    value &= WORD_MASK
    return value - (1 << 64) if value >> 63 else value


def _read_leb128(expression: bytes, pos: int, *, signed: bool) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = expression[pos]
        pos += 1
        if shift < 64:
            value |= (byte & 0x7F) << shift
            shift += 7
        if not byte & 0x80:
            break
    if signed and byte & 0x40:
        value -= 1 << shift
    return _to_signed_64(value), pos
