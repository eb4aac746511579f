"""Compares a row of call frame information and a rule of SFrame by the values that they give, with made-up registers and memory.

Two rules that give the same values for random contents are taken to be the same, in whatever form they are written. So the rules
do not need a common form, and expressions are run, not analysed.
"""

from __future__ import annotations

from enum import StrEnum
from functools import cache, lru_cache
from hashlib import blake2b
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

WORD = 0xFFFFFFFFFFFFFFFF
WORLDS = range(2)
MAX_CODE = 256  # bytes of an expression: linkers and compilers write about ten
MAX_PLAIN = 1 << 24  # bytes: smaller offsets always fit into data words
NOWHERE = -1  # the value of a register that is lost


class Agreement(StrEnum):
    """The outcomes of comparing a section with a row of the CFI. The values are keys of `check --json`."""

    SAME = "same"
    OTHER = "other"
    LEFT_OUT = "left_out"
    UNJUDGED = "unjudged"


class UnjudgedError(Exception):
    """Raised for an expression with an unknown operation, and an offset of more than 32 bits, which `cfi` does not tell apart."""


class World(NamedTuple):
    """One set of made-up contents of registers and memory."""

    number: int
    pc: int
    pc_register: int | None  # the PC's DWARF number, if it has one

    def register(self, number: int) -> int:
        return self.pc if number == self.pc_register else _random(f"{self.number} register {number}")

    def memory(self, address: int) -> int:
        return _random(f"{self.number} memory {address & WORD}")


class Values(NamedTuple):
    """The caller's values of the CFA and registers; all None in an outermost frame."""

    cfa: int | None
    ra: int | None
    fp: int | None
    sp: int | None
    signed: bool = False


OUTERMOST = Values(None, None, None, None)


@lru_cache(1 << 12)
def _random(name: str) -> int:
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little")


def compare_rule(state: CfiRow, rule: Rule, abi: Abi, residue: int) -> Agreement:
    """Compare the values of a row and a rule. `residue`: the PC modulo 16."""
    try:
        for number in WORLDS:
            world = World(number, _random(f"{number} pc") & ~15 | residue, abi.pc)
            if _values_of_row(state, abi, world) != _values_of_rule(rule, abi, world):
                return Agreement.OTHER
    except UnjudgedError:
        return Agreement.UNJUDGED
    return Agreement.SAME


def depends_on_pc(state: CfiRow, abi: Abi) -> bool:
    """True if an expression may read the PC."""
    register = f"DW_OP_breg{abi.pc}"
    return any(said.code and _names(said.code, abi.byte_order, register) for said in (state.cfa, state.ra, state.fp, state.sp))


def is_plain(state: CfiRow, abi: Abi) -> bool:
    """True if SFrame can surely express a row: CFA = register + n, RA and FP stored at CFA + n, not saved, or in a register.

    For other rows, and rows whose CFA offset does not fit the ABI's scale, sframegen's own reader knows more.
    """
    if state.ra_column != abi.ra:
        return False
    if state.ra.kind == RegisterRule.UNDEFINED:
        return True
    stored, sp = RegisterRule.OFFSET, (state.sp.kind, state.sp.number)
    sp_is_implied = sp in (("", 0), (RegisterRule.VAL_OFFSET, abi.sp_offset)) or (state.sp.kind == stored and abi.sp_is_saved)
    return (
        state.cfa.kind == "CFA"
        and state.cfa.number in abi.base_registers
        and (state.fp.kind != RegisterRule.REGISTER or state.fp.number in abi.base_registers)
        and (state.cfa.offset - abi.cfa_adjustment) % abi.cfa_scale == 0
        and (state.ra.kind == stored or (state.ra.kind == "" and not abi.fixed_ra_offset))
        and state.fp.kind in ("", RegisterRule.SAME_VALUE, RegisterRule.REGISTER, stored)
        and sp_is_implied
        and (not state.signed or abi.ra_is_signed)
        and all(abs(number) < MAX_PLAIN for number in (state.cfa.offset, state.ra.number, state.fp.number))
    )


def _values_of_rule(rule: Rule, abi: Abi, world: World) -> Values:
    if rule.cfa is None:
        return OUTERMOST

    def value(where: Where | None, own: int, cfa: int) -> int:
        if where is None:
            return world.register(own)
        base = cfa if where.register is None else world.register(where.register)
        number = (base + where.offset) & WORD
        return world.memory(number) if where.deref else number

    cfa = value(rule.cfa, abi.sp, NOWHERE)
    return Values(cfa, value(rule.ra, abi.ra, cfa), value(rule.fp, abi.fp, cfa), (cfa + abi.sp_offset) & WORD, rule.ra_signed)


def _values_of_row(state: CfiRow, abi: Abi, world: World) -> Values:
    if state.ra_column != abi.ra:
        return Values(NOWHERE, NOWHERE, NOWHERE, NOWHERE)
    if state.ra.kind == RegisterRule.UNDEFINED:
        return OUTERMOST
    cfa = _value(state.cfa, NOWHERE, NOWHERE, world, abi)
    sp = (cfa + abi.sp_offset) & WORD
    said = state.sp.kind and not (abi.sp_is_saved and state.sp.kind in (RegisterRule.OFFSET, RegisterRule.REGISTER))
    return Values(
        cfa,
        _value(state.ra, abi.ra, cfa, world, abi),
        _value(state.fp, abi.fp, cfa, world, abi),
        _value(state.sp, abi.sp, cfa, world, abi) if said else sp,
        state.signed,
    )


def _value(said: RegisterRow, own: int, cfa: int, world: World, abi: Abi) -> int:
    if max(abs(said.number), abs(said.offset)) >> 31:
        raise UnjudgedError
    match said.kind:
        case "" | RegisterRule.SAME_VALUE:
            return world.register(own)
        case "CFA":
            return (world.register(said.number) + said.offset) & WORD
        case RegisterRule.OFFSET:
            return world.memory(cfa + said.number)
        case RegisterRule.VAL_OFFSET:
            return (cfa + said.number) & WORD
        case RegisterRule.REGISTER:
            return world.register(said.number)
        case RegisterRule.VAL_EXPRESSION:
            return _run_expression(said.code, [] if cfa == NOWHERE else [cfa], world, abi)
        case RegisterRule.EXPRESSION:
            return world.memory(_run_expression(said.code, [cfa], world, abi))
    return NOWHERE


@cache
def _parser(*, little: bool) -> DWARFExprParser:
    return DWARFExprParser(DWARFStructs(little_endian=little, dwarf_format=32, address_size=8))


@lru_cache(1 << 10)
def _parse(code: bytes, byte_order: str) -> tuple[DWARFExprOp, ...] | None:
    """Return the operations; None if pyelftools cannot read them. Its exceptions do not have a common base."""
    try:
        return tuple(_parser(little=byte_order == "little").parse_expr(code)) if len(code) <= MAX_CODE else None
    except Exception:  # noqa: BLE001
        return None


def _names(code: bytes, byte_order: str, operation: str) -> bool:
    return any(one.op_name == operation for one in _parse(code, byte_order) or ())


def _run_expression(code: bytes, stack: list[int], world: World, abi: Abi) -> int:
    operations = _parse(code, abi.byte_order)
    if operations is None:
        raise UnjudgedError
    try:
        for one in operations:
            _run_operation(one, stack, world)
        return stack[-1]
    except IndexError:
        raise UnjudgedError from None


def _run_operation(one: DWARFExprOp, stack: list[int], world: World) -> None:
    name = one.op_name.removeprefix("DW_OP_")
    if name.startswith("lit"):
        stack.append(int(name[3:]))
    elif name.startswith("const") and len(one.args) == 1:
        stack.append(one.args[0] & WORD)
    elif name == "bregx":
        stack.append((world.register(one.args[0]) + one.args[1]) & WORD)
    elif name.startswith("breg"):
        stack.append((world.register(int(name[4:])) + one.args[0]) & WORD)
    elif name == "plus_uconst":
        stack.append((stack.pop() + one.args[0]) & WORD)
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
        stack.append(OPERATIONS[name](a, b) & WORD)
    elif name != "nop":
        raise UnjudgedError


def _signed(number: int) -> int:
    return number - (number >> 63 << 64)


OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "plus": lambda a, b: a + b,
    "minus": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "shl": lambda a, b: a << min(b, 64),
    "shr": lambda a, b: a >> min(b, 64),
    "eq": lambda a, b: int(a == b),
    "ne": lambda a, b: int(a != b),
    "ge": lambda a, b: int(_signed(a) >= _signed(b)),
    "gt": lambda a, b: int(_signed(a) > _signed(b)),
    "le": lambda a, b: int(_signed(a) <= _signed(b)),
    "lt": lambda a, b: int(_signed(a) < _signed(b)),
}
