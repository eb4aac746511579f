"""Defines the types with which the module of each machine describes its instruction set."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from sframegen.code.isa.disassembly import Instruction
    from sframegen.code.isa.effects import Effects, FrameState, Point, Take


class Stub(NamedTuple):
    """The form of a PLT entry: `size` bytes of code. A row (offset, n) is CFA = SP + n. Without rows, no rule can describe it.

    If it `repeats`, adjacent entries of this form are one function.
    """

    code: re.Pattern[bytes]
    size: int
    rows: tuple[tuple[int, int], ...]
    repeats: bool = True


class Stubs(NamedTuple):
    """The forms of a machine's PLT entries. Only `others` may follow the first entry; the first form that matches counts."""

    first: tuple[Stub, ...]
    others: tuple[Stub, ...]


def stub(code: str, *rows: tuple[int, int], repeats: bool = True) -> Stub:
    """Make a form from a pattern of hexadecimal bytes; `..` is any byte, `a&m` any byte that is `a` under the mask `m`."""
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
    chooses_clone: re.Pattern[str]  #: an instruction that loads the number of clone or clone3


class CopyForms(NamedTuple):
    """How instructions copy a register that holds a caller's value. The patterns match "mnemonic operands"."""

    names_register: re.Pattern[str]  #: the register, in operands
    reloads: re.Pattern[str]  #: instructions that may load the value from a place that the analysis does not follow


class Copying(NamedTuple):
    """The patterns of copies of the caller's FP and return address. `ra` is None if calls leave no return address in a register."""

    fp: CopyForms
    ra: CopyForms | None
    followed_copies: re.Pattern[str]  #: copies to places that the analysis follows
    only_write_first: frozenset[str]  #: instructions that only write their first operand
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
    counter: str  #: the name of the index register
    load: int  #: the number of the instruction that reads the table
    certain: bool = False


class CodeBefore(Protocol):
    """The code that leads to an indirect jump. Its instructions have numbers, in the order of addresses."""

    def walk_back(self, number: int) -> Iterator[tuple[int, Instruction]]:
        """Yield (number, instruction) of those that run before one, the last first, along a path that leads there."""

    def scan_back(self, number: int) -> Iterator[Instruction]:
        """Yield the instructions at lower addresses than one, the last first."""


class JumpTables(NamedTuple):
    """How compilers jump through tables."""

    find: Callable[[CodeBefore, int, str], JumpTable | None]  #: (code, number of the jump, its operands) -> its table
    flow_ends: frozenset[str]  #: instructions after which control does not continue
    limit_branches: Mapping[str, int]  #: branches after a comparison of the index with n -> number of entries minus n
    compares: frozenset[str]  #: instructions that compare the index
    copies: frozenset[str]  #: instructions that copy the index
    whole_register: Callable[[str], str]  #: the whole register, from the name of one of its parts
    selects: tuple[str, ...] = ()  #: prefixes of instructions that write one of two values
    label: Callable[[Instruction], int | None] | None = None  #: the address that an instruction puts into its first operand
    label_registers: frozenset[str] = frozenset()  #: registers that only instructions that name them write
    write_second: tuple[str, ...] = ()  #: prefixes of instructions that also write their second operand
    keep_first: frozenset[str] = frozenset()  #: instructions that do not write their first operand, or give it back to the caller


class Isa(NamedTuple):
    capstone: tuple[str, str]  #: the names of capstone's constants for architecture and mode
    decode_point: Callable[[int, int, str, str, int], Point | None]  #: (address, end, mnemonic, operands, first byte)
    entry: FrameState  #: the frame that functions are entered with
    longest: int  #: bytes of an instruction
    is_padding: Callable[[str, str], bool]  #: (mnemonic, operands): true if it fills the space between functions
    always_matters: Callable[[str], bool]  #: (mnemonic): true if each such instruction is looked at
    needles: tuple[str, ...]  #: two letters each: an instruction is also looked at if its operands contain one
    takes: Mapping[str, Take]  #: by mnemonic: how it may put an address into a register
    program_entry: re.Pattern[bytes]  #: how C libraries begin the code that runs first: it clears the frame pointer
    system_call: SystemCall
    copying: Copying
    jump_tables: JumpTables
    prefix: int = -1  #: a first byte that changes what an instruction of the same text does
    resolve_register_add: Callable[[Sequence[Instruction], int], Effects | None] | None = None
    #: the effects of the last instruction, if it adds to SP a register that instructions before it set
    find_plt_slot: Callable[[Iterable[Instruction], int], int | None] | None = None
    #: the address of the pointer that a PLT entry's jump at an address goes through, if the jump itself does not say
    references: re.Pattern[bytes] | None = None
    #: instructions that call, or take the address of, the code at their end + their last 4 bytes
