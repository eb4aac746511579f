"""What an SFrame section says, free of version, byte order and encoding: absolute addresses and plain offsets in flat columns."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple


class FdeType(IntEnum):
    """How the data words of a function's rows are read (sfda_func_info2)."""

    DEFAULT = 0
    FLEX = 1


class Where(NamedTuple):
    """`base + offset`, or with `deref` the 8 bytes at that address: `*(base + offset)`. `register` None: the base is the CFA."""

    register: int | None
    offset: int
    deref: bool = False


class Rule(NamedTuple):
    """How to find the caller's frame from one row's code: CFA, and where RA and FP are.

    `cfa` None marks the outermost frame: RA is undefined, nothing else is said. `ra` or `fp` None: still in its register.
    """

    cfa: Where | None
    ra: Where | None = None
    fp: Where | None = None
    ra_signed: bool = False


OUTERMOST = Rule(None)


class Kind(NamedTuple):
    """What all rows of a function have in common."""

    fde_type: FdeType = FdeType.DEFAULT
    rep_size: int = 0  # bytes; not 0 for PC type MASK, where rows repeat with that period
    mask: bool = False
    signal: bool = False
    key_b: bool = False  # AArch64 return addresses signed with key B


def column(code: str) -> array[int]:
    return array(code)


@dataclass
class FunctionTable:
    """Functions by columns, in ascending order of address and without overlaps where sframegen made them.

    Function i covers addresses [start[i], start[i] + size[i]) with rows first_row[i] .. first_row[i + 1] - 1; a row holds from
    its offset `row_start` (bytes from the function's start; the first is 0) to the next row's.
    """

    start: array[int] = field(default_factory=lambda: column("Q"))
    size: array[int] = field(default_factory=lambda: column("I"))
    kind: array[int] = field(default_factory=lambda: column("H"))  # index into `kinds`
    first_row: array[int] = field(default_factory=lambda: array("I", [0]))  # one entry more than functions
    row_start: array[int] = field(default_factory=lambda: column("I"))
    row_rule: array[int] = field(default_factory=lambda: column("I"))  # index into `rules`
    kinds: list[Kind] = field(default_factory=list)
    rules: list[Rule] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.start)

    def rows(self, function: int) -> list[tuple[int, Rule]]:
        """(offset from the function's start, rule) of each row of one function."""
        span = range(self.first_row[function], self.first_row[function + 1])
        return [(self.row_start[row], self.rules[self.row_rule[row]]) for row in span]
