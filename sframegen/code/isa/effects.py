"""The effects of an instruction on the stack and on the flow of control: the same few for every ABI."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple, TypeAlias


class Register(IntEnum):
    """The registers that the analysis follows."""

    SP = 0
    FP = 1
    RA = 2  #: the return address's; only ABIs whose calls leave it in a register have one
    OTHER = 3  #: any register that is not followed


class Add(NamedTuple):
    """`target = source + offset`."""

    target: Register
    source: Register
    offset: int


class Lose(NamedTuple):
    """The register gets an unknown value."""

    target: Register


class Store(NamedTuple):
    """`size` bytes at `base + offset` are overwritten, with the register's 8 bytes or with something else (OTHER)."""

    what: Register
    base: Register
    offset: int
    size: int


class Load(NamedTuple):
    """`target = *(base + offset)`."""

    target: Register
    base: Register
    offset: int


class Sign(NamedTuple):
    """The return address's register is signed with a key, or with `on` false authenticated."""

    on: bool
    key_b: bool


Effect: TypeAlias = Add | Lose | Store | Load | Sign
Effects: TypeAlias = tuple[Effect, ...]


class Flow(IntEnum):
    """Where control goes after an instruction."""

    NEXT = 0
    JUMP = 1
    BRANCH = 2  #: to its target or on
    INDIRECT = 3  #: a jump through a register or through memory
    CALL = 4
    RETURN = 5
    STOP = 6  #: a trap: nothing follows


class Take(IntEnum):
    """How an instruction may put an address into a register."""

    NOT = 0
    RELATIVE = 1  #: `lea rax, [rip + 5]`
    CONSTANT = 2  #: `mov eax, 0x401000`
    PAGE = 3  #: `adrp x0, #0x1000`
    IN_PAGE = 4  #: `add x0, x0, #16`


class Point(NamedTuple):
    """An instruction that touches the stack or the flow of control."""

    address: int
    end: int
    effects: Effects
    flow: Flow = Flow.NEXT
    target: int | None = None  #: of a direct jump or call
    slot: int | None = None  #: the memory that an indirect jump or call reads its target from, if its address is fixed
