"""The description of an instruction set: the types of the tables in the files of the machines."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from sframegen.code.isa.disassembly import Instruction
    from sframegen.code.isa.effects import Effects, FrameState, Point, Take


class Stub(NamedTuple):
    """Code of `size` bytes; its rows (offset, n): CFA = SP + n. Without rows, no rule can describe it.

    If it `repeats`, all that follow one another are one function.
    """

    code: re.Pattern[bytes]
    size: int
    rows: tuple[tuple[int, int], ...]
    repeats: bool = True


class Stubs(NamedTuple):
    """`first`: those that a section can only begin with. `others` follow in any order, the first that matches counts."""

    first: tuple[Stub, ...]
    others: tuple[Stub, ...]


def stub(code: str, *rows: tuple[int, int], repeats: bool = True) -> Stub:
    """`code`: hexadecimal bytes, `..` any byte, `a&m` those bytes that are `a` under the mask `m`."""
    words = code.split()
    return Stub(re.compile(b"".join(map(_pattern, words)), re.DOTALL), len(words), rows, repeats)


def _pattern(word: str) -> bytes:
    if word == "..":
        return b"."
    value, _, mask = word.partition("&")
    if not mask:
        return re.escape(bytes.fromhex(value))
    fits = [byte for byte in range(256) if byte & int(mask, 16) == int(value, 16)]
    return b"[" + b"".join(re.escape(bytes([byte])) for byte in fits) + b"]"


class SystemCall(NamedTuple):
    """The system calls clone and clone3, which return twice, once on another stack."""

    code: bytes  #: the instruction that makes a system call
    chooses_clone: re.Pattern[str]  #: an instruction that loads the number of one of the two


class Copies(NamedTuple):
    """How instructions copy a register that holds a caller's value. The patterns match "mnemonic operands"."""

    name: re.Pattern[str]  #: the register, in operands
    returns: re.Pattern[str]  #: instructions that may load the value from a place that the analysis does not follow


class Copying(NamedTuple):
    """The patterns of copies of the caller's FP and return address. `ra` is None if calls leave no return address in a register."""

    fp: Copies
    ra: Copies | None
    followed: re.Pattern[str]  #: copies to places that the analysis follows
    writes: frozenset[str]  #: instructions that only write their first operand
    loads: tuple[str, ...] = ()  #: prefixes of instructions that write all registers outside of brackets


class JumpTable(NamedTuple):
    """A jump table: entries of `width` bytes at `address`, each `base + (entry << shift)`.

    `certain`: the instructions of one path show the address, and nothing else writes its register there.
    """

    address: int
    width: int
    signed: bool
    base: int
    shift: int
    counter: str  #: the register that counts, as a text
    load: int  #: the place of the instruction that reads the table
    certain: bool = False


class CodeBefore(Protocol):
    """The code that leads to an indirect jump."""

    def walk_back(self, number: int) -> Iterator[tuple[int, Instruction]]:
        """Yield (place, instruction) of those that run before one, the last first, along a path that leads there."""

    def scan_back(self, number: int) -> Iterator[Instruction]:
        """Yield the instructions that stand before one, the last first."""


class JumpTables(NamedTuple):
    """How compilers jump through tables."""

    find: Callable[[CodeBefore, int, str], JumpTable | None]  #: the table of the jump at a place, from its operands
    ends: frozenset[str]  #: instructions that the next one does not follow
    limits: Mapping[str, int]  #: branches that follow the comparison of an index with n -> entries beyond n
    compares: frozenset[str]
    copies: frozenset[str]  #: instructions that copy the index
    whole_register: Callable[[str], str]  #: the whole register, from the name of one of its parts
    chooses: tuple[str, ...] = ()  #: how instructions begin that write one of two values
    label: Callable[[Instruction], int | None] | None = None  #: the address that an instruction puts into its first operand
    explicit: frozenset[str] = frozenset()  #: registers that only instructions that name them write
    second: tuple[str, ...] = ()  #: how instructions begin that write their second operand, too
    reads: frozenset[str] = frozenset()  #: instructions that do not write their first operand, or give it back to the caller


class Isa(NamedTuple):
    """An instruction set, and what holds where a function is entered."""

    capstone: tuple[str, str]  #: the names of capstone's constants for architecture and mode
    point: Callable[[int, int, str, str, int], Point | None]  #: (address, end, mnemonic, operands, first byte)
    entry: FrameState
    longest: int  #: bytes of an instruction
    pads: Callable[[str, str], bool]  #: (mnemonic, operands): true if it fills the space between functions
    matters: Callable[[str], bool]  #: (mnemonic): true if each such instruction is looked at
    needles: tuple[str, ...]  #: two letters each: operands that contain one are looked at
    takes: Mapping[str, Take]  #: by mnemonic
    program_entry: re.Pattern[bytes]  #: how C libraries begin the code that runs first: it clears the frame pointer
    system_call: SystemCall
    copying: Copying
    jump_tables: JumpTables
    prefix: int = -1  #: a first byte that changes what an instruction of the same text does
    by_register: Callable[[Sequence[Instruction], int], Effects | None] | None = None
    #: the effects of the last instruction, if it adds to SP a register that instructions before it set
    slot: Callable[[Iterable[Instruction], int], int | None] | None = None
    #: the address of the pointer that a PLT entry's jump at an address goes through, if the jump itself does not say
    refers: re.Pattern[bytes] | None = None
    #: instructions that call, or take the address of, what is at their end + their last 4 bytes
