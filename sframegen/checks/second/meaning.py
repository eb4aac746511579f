"""Compares a row of call frame information with a rule of SFrame by evaluating both on made-up registers and memory.

Two rules that give the same values for random contents are taken to be the same, in whatever form they are written. So the rules
do not need a common form, and expressions are run instead of analysed.
"""

from __future__ import annotations

from enum import StrEnum
from functools import cache, lru_cache
from hashlib import blake2b
from operator import add, and_, eq, mul, ne, or_, sub, xor
from typing import TYPE_CHECKING, NamedTuple

from elftools.dwarf.callframe import RegisterRule
from elftools.dwarf.dwarf_expr import DWARFExprParser
from elftools.dwarf.structs import DWARFStructs

if TYPE_CHECKING:
    from collections.abc import Callable

    from elftools.dwarf.dwarf_expr import DWARFExprOp

    from sframegen.checks.second.pyelftools_cfi import CfiRow, RegisterRow
    from sframegen.format.abi import Abi
    from sframegen.format.model import Rule, Where

WORD_MASK = 0xFFFFFFFFFFFFFFFF
WORLD_NUMBERS = range(2)  # rules must give the same values in each of these worlds
MAX_CODE = 256  # bytes of an expression: linkers and compilers write about ten
MAX_PLAIN_OFFSET = 1 << 24  # bytes; smaller offsets always fit into data words
LOST = -1  # instead of a caller's value that cannot be recovered: no rule of SFrame gives it


class Agreement(StrEnum):
    """The outcomes of comparing a section with a row of the CFI. The values are keys of `check --json`."""

    SAME = "same"
    OTHER = "other"
    LEFT_OUT = "left_out"  #: the section has no rule, though SFrame can surely express the row
    UNJUDGED = "unjudged"  #: pyelftools or this module cannot evaluate the row


class UnjudgedError(Exception):
    """Raised for an expression with an unknown operation, and for an offset of more than 32 bits, which `cfi` truncates."""


class World(NamedTuple):
    """One set of made-up contents of registers and memory."""

    number: int
    pc: int
    pc_register: int | None  # the PC's DWARF number, if it has one

    def register(self, number: int) -> int:
        return self.pc if number == self.pc_register else _made_up_word(f"{self.number} register {number}")

    def memory(self, address: int) -> int:
        return _made_up_word(f"{self.number} memory {address & WORD_MASK}")


class Values(NamedTuple):
    """The caller's values of the CFA and registers; all None in an outermost frame."""

    cfa: int | None
    ra: int | None
    fp: int | None
    sp: int | None
    signed: bool = False


OUTERMOST = Values(None, None, None, None)


@lru_cache(1 << 12)
def _made_up_word(name: str) -> int:
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little")


def compare_rule(row: CfiRow, rule: Rule, abi: Abi, residue: int) -> Agreement:
    """Compare the values of a row and a rule. `residue`: the PC modulo 16, which expressions of PLT entries use."""
    try:
        for number in WORLD_NUMBERS:
            world = World(number, _made_up_word(f"{number} pc") & ~15 | residue, abi.pc)  # its other bits are made up
            if _evaluate_row(row, abi, world) != _evaluate_rule(rule, abi, world):
                return Agreement.OTHER
    except UnjudgedError:
        return Agreement.UNJUDGED
    return Agreement.SAME


def depends_on_pc(row: CfiRow, abi: Abi) -> bool:
    """Return True if an expression of the row may read the PC."""
    register = f"DW_OP_breg{abi.pc}"
    expressions = (_parse_expression(rule.code, abi.byte_order) for rule in (row.cfa, row.ra, row.fp, row.sp) if rule.code)
    return any(operation.op_name == register for operations in expressions for operation in operations or ())


def is_surely_expressible(row: CfiRow, abi: Abi) -> bool:
    """Return True if SFrame can surely express a row: CFA = register + n, RA and FP at CFA + n, unchanged, or in a register.

    False does not mean that it cannot: sframegen's own reader decides about other rows.
    """
    if row.ra_column != abi.ra:
        return False
    if row.ra.kind == RegisterRule.UNDEFINED:
        return True
    stored, sp = RegisterRule.OFFSET, (row.sp.kind, row.sp.number)
    # SFrame always implies SP = CFA + sp_offset.
    sp_is_implied = sp in (("", 0), (RegisterRule.VAL_OFFSET, abi.sp_offset)) or (row.sp.kind == stored and abi.sp_is_saved)
    return (
        row.cfa.kind == "CFA"
        and row.cfa.number in abi.base_registers
        and (row.fp.kind != RegisterRule.REGISTER or row.fp.number in abi.base_registers)
        and (row.cfa.offset - abi.cfa_adjustment) % abi.cfa_scale == 0
        and (row.ra.kind == stored or (row.ra.kind == "" and not abi.fixed_ra_offset))
        and row.fp.kind in ("", RegisterRule.SAME_VALUE, RegisterRule.REGISTER, stored)
        and sp_is_implied
        and (not row.signed or abi.ra_is_signed)
        and all(abs(number) < MAX_PLAIN_OFFSET for number in (row.cfa.offset, row.ra.number, row.fp.number))
    )


def _evaluate_rule(rule: Rule, abi: Abi, world: World) -> Values:
    if rule.cfa is None:
        return OUTERMOST
    cfa = _evaluate_where(rule.cfa, None, world)
    ra = _evaluate_where(rule.ra, cfa, world) if rule.ra else world.register(abi.ra)
    fp = _evaluate_where(rule.fp, cfa, world) if rule.fp else world.register(abi.fp)
    return Values(cfa, ra, fp, (cfa + abi.sp_offset) & WORD_MASK, rule.ra_signed)


def _evaluate_where(where: Where, cfa: int | None, world: World) -> int:
    """Evaluate `where`. `cfa`: None for the CFA itself, which is relative to a register."""
    base = cfa if where.register is None else world.register(where.register)
    assert base is not None
    address_or_value = (base + where.offset) & WORD_MASK
    return world.memory(address_or_value) if where.deref else address_or_value


def _evaluate_row(row: CfiRow, abi: Abi, world: World) -> Values:
    if row.ra_column != abi.ra:  # SFrame has one fixed RA register
        return Values(LOST, LOST, LOST, LOST)
    if row.ra.kind == RegisterRule.UNDEFINED:
        return OUTERMOST
    cfa = _evaluate_cfa(row.cfa, world, abi)
    sp = (cfa + abi.sp_offset) & WORD_MASK
    # The rule with which s390x saves SP says no more than SFrame implies.
    sets_sp = row.sp.kind and not (abi.sp_is_saved and row.sp.kind in (RegisterRule.OFFSET, RegisterRule.REGISTER))
    return Values(
        cfa,
        _evaluate_register(row.ra, abi.ra, cfa, world, abi),
        _evaluate_register(row.fp, abi.fp, cfa, world, abi),
        _evaluate_register(row.sp, abi.sp, cfa, world, abi) if sets_sp else sp,
        row.signed,
    )


def _evaluate_cfa(rule: RegisterRow, world: World, abi: Abi) -> int:
    if max(abs(rule.number), abs(rule.offset)) >> 31:
        raise UnjudgedError
    if rule.kind == "CFA":
        return (world.register(rule.number) + rule.offset) & WORD_MASK
    return _run_expression(rule.code, [], world, abi)


def _evaluate_register(rule: RegisterRow, own_register: int, cfa: int, world: World, abi: Abi) -> int:
    """Evaluate the rule for a register. An expression for a register begins with the CFA on its stack."""
    if abs(rule.number) >> 31:
        raise UnjudgedError
    match rule.kind:
        case "" | RegisterRule.SAME_VALUE:
            return world.register(own_register)
        case RegisterRule.OFFSET:
            return world.memory(cfa + rule.number)
        case RegisterRule.VAL_OFFSET:
            return (cfa + rule.number) & WORD_MASK
        case RegisterRule.REGISTER:
            return world.register(rule.number)
        case RegisterRule.VAL_EXPRESSION:
            return _run_expression(rule.code, [cfa], world, abi)
        case RegisterRule.EXPRESSION:
            return world.memory(_run_expression(rule.code, [cfa], world, abi))
    return LOST


@cache
def _expression_parser(*, little: bool) -> DWARFExprParser:
    return DWARFExprParser(DWARFStructs(little_endian=little, dwarf_format=32, address_size=8))


@lru_cache(1 << 10)
def _parse_expression(code: bytes, byte_order: str) -> tuple[DWARFExprOp, ...] | None:
    """Return the operations; None if pyelftools cannot read them. Its exceptions do not have a common base."""
    try:
        return tuple(_expression_parser(little=byte_order == "little").parse_expr(code)) if len(code) <= MAX_CODE else None
    except Exception:  # noqa: BLE001
        return None


def _run_expression(code: bytes, stack: list[int], world: World, abi: Abi) -> int:
    operations = _parse_expression(code, abi.byte_order)
    if operations is None:
        raise UnjudgedError
    try:
        for operation in operations:
            _run_operation(operation, stack, world)
        return stack[-1]
    except IndexError:
        raise UnjudgedError from None


def _run_operation(operation: DWARFExprOp, stack: list[int], world: World) -> None:
    name = operation.op_name.removeprefix("DW_OP_")
    if name.startswith("lit"):
        stack.append(int(name[3:]))
    elif name.startswith("const") and len(operation.args) == 1:
        stack.append(operation.args[0] & WORD_MASK)
    elif name == "bregx":
        stack.append((world.register(operation.args[0]) + operation.args[1]) & WORD_MASK)
    elif name.startswith("breg"):
        stack.append((world.register(int(name[4:])) + operation.args[0]) & WORD_MASK)
    elif name == "plus_uconst":
        stack.append((stack.pop() + operation.args[0]) & WORD_MASK)
    elif name == "deref":
        stack.append(world.memory(stack.pop()))
    elif name == "dup":
        stack.append(stack[-1])
    elif name == "drop":
        stack.pop()
    elif name == "swap":
        stack[-1], stack[-2] = stack[-2], stack[-1]
    elif name in OPERATIONS:
        b, a = stack.pop(), stack.pop()
        stack.append(OPERATIONS[name](a, b) & WORD_MASK)
    elif name != "nop":
        raise UnjudgedError


def _signed(number: int) -> int:
    return number - (number >> 63 << 64)


OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "and": and_, "or": or_, "xor": xor, "plus": add, "minus": sub, "mul": mul, "eq": eq, "ne": ne,
    "shl": lambda a, b: a << min(b, 64), "shr": lambda a, b: a >> min(b, 64),
    "ge": lambda a, b: _signed(a) >= _signed(b), "gt": lambda a, b: _signed(a) > _signed(b),
    "le": lambda a, b: _signed(a) <= _signed(b), "lt": lambda a, b: _signed(a) < _signed(b),
}  # fmt: skip
