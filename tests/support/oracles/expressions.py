"""Evaluates the text of a DWARF expression, as GNU readelf prints it, into `register + n` or what is stored there."""

from __future__ import annotations

import re
from collections.abc import Callable
from operator import add, and_, eq, ge, gt, le, lt, mul, ne, or_, sub
from typing import NamedTuple

CFA = -1  # in the place of a register's number

OPERATION = re.compile(r"DW_OP_([a-z_]+)(?:(\d+)[su]?)?(?:: (-?\d+))?(?: \([^)]*\))?(?:: (-?\d+)| (-?\d+))?")


class Value(NamedTuple):
    """`register + number`, or the eight bytes stored at that address. `register` None: the plain number."""

    register: int | None
    number: int
    stored: bool = False


class OpaqueError(Exception):
    """The expression computes something else."""


def wrap(number: int) -> int:
    """64 bits, two's complement."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


def evaluate(text: str, initial: Value | None = None) -> Value | None:
    """What the expression leaves on top of its stack, on which `initial` lies first; None where that is no Value."""
    stack = [initial] if initial else []
    try:
        for operation in text.split("; "):
            step(operation, stack)
        return stack[-1]
    except (OpaqueError, IndexError):  # IndexError: the stack is empty
        return None


def step(operation: str, stack: list[Value]) -> None:
    found = OPERATION.fullmatch(operation)
    if not found:
        raise OpaqueError
    name, digits, first, behind_colon, behind_space = found.groups()
    operand = int(behind_colon or behind_space or first or 0)
    if name == "lit":
        stack.append(Value(None, int(digits)))
    elif name in {"const", "consts", "constu"}:
        stack.append(Value(None, wrap(operand)))
    elif name == "breg":
        stack.append(Value(int(digits), operand))
    elif name == "bregx":
        stack.append(Value(int(first), operand))
    elif name == "plus_uconst":
        stack.append(total(stack.pop(), Value(None, operand)))
    elif name == "deref":
        address = stack.pop()
        if address.stored or address.register is None:
            raise OpaqueError
        stack.append(address._replace(stored=True))
    elif name == "dup":
        stack.append(stack[-1])
    elif name == "drop":
        stack.pop()
    elif name == "swap":
        stack[-1], stack[-2] = stack[-2], stack[-1]
    elif name in BINARY:
        top = stack.pop()
        stack.append(binary(name, stack.pop(), top))
    elif name != "nop":
        raise OpaqueError


def total(one: Value, other: Value) -> Value:
    if one.register is None:
        one, other = other, one
    if one.stored or other.register is not None:
        raise OpaqueError
    return one._replace(number=wrap(one.number + other.number))


def binary(name: str, below: Value, top: Value) -> Value:
    if name == "plus":
        return total(below, top)
    if name == "minus" and top.register is None:
        return total(below, Value(None, -top.number))
    if below.register is not None or top.register is not None:
        raise OpaqueError
    return Value(None, wrap(int(BINARY[name](below.number, top.number))))


BINARY: dict[str, Callable[[int, int], int]] = {
    "plus": add, "minus": sub, "mul": mul, "and": and_, "or": or_,
    "shl": lambda number, by: number << by if 0 <= by < 64 else 0,
    "shr": lambda number, by: number % (1 << 64) >> by if 0 <= by < 64 else 0,
    "eq": eq, "ne": ne, "lt": lt, "le": le, "gt": gt, "ge": ge,
}  # fmt: skip
