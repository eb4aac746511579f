"""What both sides are read into: an unwind rule, and the table of the rules in force at every address.

A rule is written as SFrame's readers write it: CFA `sp+16`, `fp+16`, `r10+0`, `(fp-16)` (the value stored at fp-16);
FP and RA `same` (unchanged), `c-16` (saved at CFA-16), `v+8` (is CFA+8), `r3+0`, `(fp+0)`. `key`: `A` or `B` where the RA
is signed with that key.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain, repeat
from operator import lt
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")

NOTHING = 0  # id of "no rule here"
CONFLICT = 1  # id of "several descriptions cover this address and disagree"


class OracleError(Exception):
    """The judge cannot read what it was given: a tool failed, warned, or printed an unknown line."""


class Rule(NamedTuple):
    cfa: str
    fp: str
    ra: str
    signal: bool
    key: str = ""


OUTERMOST = Rule("", "", "undefined", signal=False)


class Abi(NamedTuple):
    registers: dict[str, int]  # readelf's name -> DWARF number
    sp: int
    fp: int
    ra: int
    ra_rules: str  # pattern of the RA rules, beside undefined, that a default FDE can say
    ra_before_fp: bool = False  # a default FDE that says where FP is must say where RA is
    sp_offset: int = 0  # the caller's SP is CFA + this
    sp_is_saved: bool = False  # a function saves SP, in a slot or a register, as it got it: that is the SP which SFrame implies
    bases: int = 32  # stack tracers know the registers below this one
    cfa_step: int = 1  # CFA offsets differ from -sp_offset by a multiple of this
    ra_is_signed: bool = False

    def base(self, register: int) -> str:
        return {self.sp: "sp", self.fp: "fp"}.get(register, f"r{register}")


def numbered(first: int, *names: str) -> dict[str, int]:
    return {name: number for number, name in enumerate(names, first)}


def series(letter: str, count: int, first: int = 0) -> list[str]:
    return [f"{letter}{number}" for number in range(first, first + count)]


S390_VECTORS = (0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15)  # the order of the DWARF numbers
AMD64_NAMES = ("rax", "rdx", "rcx", "rbx", "rsi", "rdi", "rbp", "rsp", *series("r", 8, 8), "rip", *series("xmm", 16))

# by ELF e_machine
ABIS = {
    62: Abi(
        {
            **numbered(0, *AMD64_NAMES, *series("st", 8), *series("mm", 8), "rflags", "es", "cs", "ss", "ds", "fs", "gs"),
            **numbered(58, "fs.base", "gs.base"),
            **numbered(62, "tr", "ldtr", "mxcsr", "fcw", "fsw", *series("xmm", 16, 16)),
            **numbered(118, *series("k", 8), *series("bnd", 4)),
        },
        sp=7, fp=6, ra=16, ra_rules="c-8", bases=16,
    ),
    183: Abi(
        {
            **numbered(0, *series("x", 31), "sp"),
            "elr": 33,
            **numbered(46, "vg", "ffr", *series("p", 16), *series("v", 32), *series("z", 32)),
        },
        sp=31, fp=29, ra=30, ra_rules=r"same|c[+-]\d+(?<!c[+-]0)", ra_before_fp=True, ra_is_signed=True,
    ),
    22: Abi(
        {
            **numbered(0, *series("r", 16), *(f"f{number}" for number in S390_VECTORS), *series("cr", 16), *series("a", 16)),
            **numbered(64, "pswm", "pswa"),
            **numbered(68, *(f"v{number + 16}" for number in S390_VECTORS)),
        },
        sp=15, fp=11, ra=14, ra_rules=r"same|c[+-]\d+(?<!c[+-]0)", sp_offset=-160, sp_is_saved=True, cfa_step=8,
    ),
}  # fmt: skip


class Interner(Generic[T]):
    """Small integers for equal values. `values[id]` gives the value back."""

    def __init__(self, nothing: T, conflict: T) -> None:
        self.values = [nothing, conflict]
        self._ids = {nothing: NOTHING, conflict: CONFLICT}

    def id(self, value: T) -> int:
        found = self._ids.get(value)
        if found is None:
            found = self._ids[value] = len(self.values)
            self.values.append(value)
        return found


class Table(NamedTuple):
    """A step function: rule `ids[i]` from `starts[i]` up to, not including, `starts[i + 1]`; NOTHING after the last."""

    starts: array[int]
    ids: array[int]

    def at(self, address: int) -> int:
        """Index of the step that holds `address`, or -1 before the first."""
        return bisect_right(self.starts, address) - 1


class Ranges:
    """Described address ranges (FDEs) with their rows, in any order; `table()` lays them out by address."""

    def __init__(self) -> None:
        self.locs = array("Q")
        self.ids = array("L")
        self._begins = array("Q")
        self._ends = array("Q")
        self._firsts = array("L")

    def close(self, begin: int, end: int, first: int) -> None:
        """The rows from index `first` on describe [begin, end); rows at or past the end say nothing."""
        self._begins.append(begin)
        self._ends.append(end)
        self._firsts.append(first)

    def table(self) -> Table:
        out = Table(array("Q"), array("L"))
        order = sorted((b, e, i) for i, (b, e) in enumerate(zip(self._begins, self._ends, strict=True)) if b < e)
        position = 0
        while position < len(order):
            begin, end, index = order[position]
            cluster = [index]
            position += 1
            while position < len(order) and order[position][0] < end:
                end = max(end, order[position][1])
                cluster.append(order[position][2])
                position += 1
            if len(out.starts) and out.starts[-1] == begin:
                out.starts.pop()
                out.ids.pop()
            if len(cluster) == 1:
                first, last = self._rows(index)
                if first == last or self.locs[first] != begin:
                    out.starts.append(begin)
                    out.ids.append(NOTHING)
                out.starts.extend(self.locs[first:last])
                out.ids.extend(self.ids[first:last])
            else:
                self._sweep(cluster, out)
            out.starts.append(end)
            out.ids.append(NOTHING)
        if not all(map(lt, out.starts, out.starts[1:])):
            raise OracleError("the rows of a range are not in the order of their addresses")
        return out

    def _rows(self, index: int) -> tuple[int, int]:
        first = self._firsts[index]
        last = self._firsts[index + 1] if index + 1 < len(self._firsts) else len(self.locs)
        while last > first and self.locs[last - 1] >= self._ends[index]:
            last -= 1
        return first, last

    def _sweep(self, cluster: list[int], out: Table) -> None:
        """Lay out ranges that overlap: where all that cover an address agree, that rule; else CONFLICT."""
        events: list[tuple[int, int, int]] = []
        for index in cluster:
            first, last = self._rows(index)
            bounds = [*self.locs[first:last], self._ends[index]]
            for row, begin, end in zip(range(first, last), bounds, bounds[1:], strict=False):
                events += ((begin, 1, self.ids[row]), (end, -1, self.ids[row]))
        events.sort()
        active: Counter[int] = Counter()
        for (begin, step, rule), following in zip(events, [*events[1:], None], strict=True):
            active[rule] += step
            if active[rule] == 0:
                del active[rule]
            if following is None or following[0] == begin:
                continue
            rules = list(active)
            out.starts.append(begin)
            out.ids.append(rules[0] if len(rules) == 1 else CONFLICT if rules else NOTHING)


def pieces(one: Table, two: Table) -> Iterator[tuple[int, int, int, int]]:
    """(start, end, id in one, id in two) for every address range in which neither table changes."""
    never = 1 << 64
    rest_one = chain(zip(one.starts, one.ids, strict=True), repeat((never, NOTHING)))
    rest_two = chain(zip(two.starts, two.ids, strict=True), repeat((never, NOTHING)))
    id_one = id_two = NOTHING
    next_one, after_one = next(rest_one)
    next_two, after_two = next(rest_two)
    end = min(next_one, next_two)
    while end != never:
        start = end
        if next_one == start:
            id_one = after_one
            next_one, after_one = next(rest_one)
        if next_two == start:
            id_two = after_two
            next_two, after_two = next(rest_two)
        end = min(next_one, next_two)
        if end != never:
            yield start, end, id_one, id_two


def overlay(first: Table, second: Table) -> Table:
    """`first`, and `second` where first says nothing."""
    out = Table(array("Q"), array("L"))
    reached = 0
    for start, end, one, two in pieces(first, second):
        rule = one or two
        if not out.ids or out.ids[-1] != rule:
            out.starts.append(start)
            out.ids.append(rule)
        reached = end
    out.starts.append(reached)
    out.ids.append(NOTHING)
    return out


def by_byte(table: Table) -> dict[int, int]:
    """Address -> id, for every address that a small table says something about."""
    nothing = Table(array("Q"), array("L"))
    return {at: one for start, end, one, _ in pieces(table, nothing) if one for at in range(start, end)}


def repeat_block(begin: int, end: int, size: int, rows: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """(address, id) of the rows, (offset, id), of a block of `size` bytes repeated over [begin, end)."""
    rows = list(rows)
    for block in range(begin, end, size):
        for offset, rule in rows:
            if block + offset < end:
                yield block + offset, rule
