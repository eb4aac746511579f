"""What an SFrame section says, free of version, byte order and encoding: absolute addresses and plain offsets in flat columns."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple


class FdeType(IntEnum):
    """How the data words of a function's rows are read (sfda_func_info2)."""

    DEFAULT = 0  #: offsets from the CFA, at places that the ABI fixes
    FLEX = 1  #: any register as the base, and what is stored there


class Where(NamedTuple):
    """`base + offset`, or with `deref` the 8 bytes at that address: `*(base + offset)`."""

    register: int | None  #: the base, by its DWARF number; None: the CFA
    offset: int  #: bytes
    deref: bool = False  #: what is stored there


class Rule(NamedTuple):
    """How to find the caller's frame from one row's code: CFA, and where RA and FP are."""

    cfa: Where | None  #: None: the outermost frame; RA is undefined, and nothing else is said
    ra: Where | None = None  #: the return address; None: still in its register
    fp: Where | None = None  #: the caller's frame pointer; None: still in its register
    ra_signed: bool = False  #: AArch64: the return address is signed


OUTERMOST = Rule(None)


class Kind(NamedTuple):
    """What all rows of a function have in common."""

    fde_type: FdeType = FdeType.DEFAULT  #: DEFAULT, or FLEX for flexible rules
    rep_size: int = 0  #: bytes; not 0 for PC type MASK, where rows repeat with that period
    mask: bool = False  #: PC type MASK
    signal: bool = False  #: a signal frame
    key_b: bool = False  #: AArch64: return addresses are signed with key B


def column(code: str) -> array[int]:
    return array(code)


@dataclass
class FunctionTable:
    """Functions by columns, in ascending order of address and without overlaps where sframegen made them.

    Function i covers addresses [start[i], start[i] + size[i]) with rows first_row[i] .. first_row[i + 1] - 1; a row holds from
    its offset `row_start` (bytes from the function's start; the first is 0) to the next row's.
    """

    start: array[int] = field(default_factory=lambda: column("Q"))  #: link-time address of each function
    size: array[int] = field(default_factory=lambda: column("I"))  #: its bytes
    kind: array[int] = field(default_factory=lambda: column("H"))  #: its kind: index into `kinds`
    first_row: array[int] = field(default_factory=lambda: array("I", [0]))  #: its first row; one entry more than functions
    row_start: array[int] = field(default_factory=lambda: column("I"))  #: each row's offset
    row_rule: array[int] = field(default_factory=lambda: column("I"))  #: each row's rule: index into `rules`
    kinds: list[Kind] = field(default_factory=list)  #: different kinds of functions
    rules: list[Rule] = field(default_factory=list)  #: different rules

    def __len__(self) -> int:
        return len(self.start)

    def rows(self, function: int) -> list[tuple[int, Rule]]:
        """(offset from the function's start, rule) of each row of one function."""
        span = range(self.first_row[function], self.first_row[function + 1])
        return [(self.row_start[row], self.rules[self.row_rule[row]]) for row in span]
