"""The content of an SFrame section, independent of version, byte order and encoding: columns with absolute addresses."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from dataclasses import dataclass, field
from enum import IntEnum

from sframegen.base.columns import is_ascending, make_columns, sort_indexes
from sframegen.base.quick_typing import TYPE_CHECKING, NamedTuple, cast
from sframegen.elf.records import ADDRESS_SPACE
from sframegen.format.columns import Functions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence


class FdeType(IntEnum):
    """How the data words of a function's rows are read (sfda_func_info2)."""

    DEFAULT = 0  #: offsets from the CFA, at places that the ABI fixes
    FLEX = 1  #: from any register, with or without a load from memory


class Where(NamedTuple):
    """`base + offset`, or with `deref` the 8 bytes at that address: `*(base + offset)`."""

    register: int | None  #: the base, by its DWARF number; None: the CFA
    offset: int  #: bytes
    deref: bool = False  #: True: the value is loaded from that address

    def text(self, name_of: Callable[[int], str]) -> str:
        value = "cfa" if self.register is None else name_of(self.register)
        if self.offset:
            value += f" {'-' if self.offset < 0 else '+'} {abs(self.offset)}"
        return f"*({value})" if self.deref else value


AT_CFA = Where(None, 0, deref=True)  # some readers take an offset of 0 in a default FDE for "unchanged"


class Rule(NamedTuple):
    """The rule of one row, which finds the caller's frame: the CFA, and the places of RA and FP."""

    cfa: Where | None  #: None: the outermost frame, with RA undefined and no other rule
    ra: Where | None = None  #: the return address; None: still in its register
    fp: Where | None = None  #: the caller's frame pointer; None: still in its register
    ra_signed: bool = False  #: AArch64: the return address is signed

    def equation(self, name_of: Callable[[int], str] = "r{}".format, ra: str = "ra", fp: str = "fp") -> str:
        """Return the rule as an equation. `name_of`: the name of a register; `ra`, `fp`: of those that are unchanged."""
        if self.cfa is None:
            return "outermost frame: ra undefined"
        cfa, ra, fp = (where.text(name_of) if where else name for where, name in ((self.cfa, ""), (self.ra, ra), (self.fp, fp)))
        return f"(cfa, ra, fp) = ({cfa}, {ra}{' signed' * self.ra_signed}, {fp})"

    def __str__(self) -> str:
        return self.equation()

    def __repr__(self) -> str:
        return f"<Rule {self}>"


OUTERMOST = Rule(None)


class Kind(NamedTuple):
    """The properties that all rows of a function share."""

    fde_type: FdeType = FdeType.DEFAULT  #: DEFAULT, or FLEX for flexible rules
    rep_size: int = 0  #: bytes; not 0 for PC type MASK, where rows repeat with that period
    mask: bool = False  #: PC type MASK
    signal: bool = False  #: a signal frame
    key_b: bool = False  #: AArch64: return addresses are signed with key B


class FunctionRow(NamedTuple):
    """A row of a function: its rule holds from `offset` to the next row's."""

    offset: int  #: bytes from the function's start, or from the repeated block's if rows repeat
    rule: Rule  #: how to find the caller's frame


class SframeFunction(NamedTuple):
    """A function of a section, or several adjacent functions that share an FDE, with the name of the first.

    Without rows it is the outermost frame, as a thread's first function is.
    """

    start: int  #: link-time address
    size: int  #: bytes
    name: str | None  #: from the file's symbol table; None without a symbol at its start
    kind: Kind  #: the properties that all its rows share
    rows: tuple[FunctionRow, ...]  #: in ascending order


@dataclass(repr=False)
class FunctionTable:
    """Functions by columns, in ascending order of address and without overlaps where sframegen made them.

    Function i covers addresses [start[i], start[i] + size[i]) with rows first_row[i] .. first_row[i + 1] - 1; a row holds from
    its offset `row_start` (bytes from the function's start; the first is 0) to the next row's.
    """

    start: array[int] = field(default_factory=lambda: array("Q"))  #: link-time address of each function
    size: array[int] = field(default_factory=lambda: array("I"))  #: its size in bytes
    kind: array[int] = field(default_factory=lambda: array("H"))  #: its kind: index into `kinds`
    first_row: array[int] = field(default_factory=lambda: array("I", [0]))  #: its first row; one entry more than functions
    row_start: array[int] = field(default_factory=lambda: array("I"))  #: each row's offset
    row_rule: array[int] = field(default_factory=lambda: array("I"))  #: each row's rule: index into `rules`
    kinds: list[Kind] = field(default_factory=list)  #: different kinds of functions
    rules: list[Rule] = field(default_factory=list)  #: different rules

    def __len__(self) -> int:
        return len(self.start)

    def __repr__(self) -> str:
        return f"<FunctionTable: {len(self):,} functions, {len(self.row_start):,} rows, {len(self.rules):,} rules>"

    @classmethod
    def with_room(cls, functions: int, rows: int, kinds: list[Kind], rules: list[Rule]) -> FunctionTable:
        """Return a table of that many functions and rows, all zeros, for compiled code to fill. It cannot grow."""
        start, first_row, size, kind = cast("list[array[int]]", make_columns("QIIH", functions + 1))
        row_start, row_rule = cast("list[array[int]]", make_columns("II", rows))
        return cls(start[:functions], size[:functions], kind[:functions], first_row, row_start, row_rule, kinds, rules)

    def columns(self) -> Functions:
        """Return the columns for compiled code. While they exist, the table cannot grow or shrink."""
        return Functions(self.start, self.size, self.kind, self.first_row, self.row_start, self.row_rule)

    def shrink(self, functions: int, rows: int) -> None:
        """Keep only the first `functions` functions and `rows` rows."""
        self.start, self.size, self.kind = self.start[:functions], self.size[:functions], self.kind[:functions]
        self.first_row, self.row_start, self.row_rule = self.first_row[: functions + 1], self.row_start[:rows], self.row_rule[:rows]

    def append(self, start: int, size: int, kind: int, rows: Iterable[tuple[int, int]]) -> None:
        """Add a function. `kind`, and the rule in each row (offset, rule), are indexes into `kinds` and `rules`."""
        self.start.append(start)
        self.size.append(size)
        self.kind.append(kind)
        for offset, rule in rows:
            self.row_start.append(offset)
            self.row_rule.append(rule)
        self.first_row.append(len(self.row_start))

    def extend(self, table: FunctionTable, first: int = 0, end: int | None = None) -> None:
        """Add functions first .. end - 1 of a table whose kinds and rules have the same numbers."""
        end = len(table) if end is None else end
        rows = slice(table.first_row[first], table.first_row[end])
        first_row = table.first_row[first + 1 : end + 1]
        shift = len(self.row_start) - rows.start
        for column, added in (
            (self.start, table.start[first:end]),
            (self.size, table.size[first:end]),
            (self.kind, table.kind[first:end]),
            (self.first_row, array("I", [row + shift for row in first_row]) if shift else first_row),
            (self.row_start, table.row_start[rows]),
            (self.row_rule, table.row_rule[rows]),
        ):
            column.frombytes(memoryview(added).cast("B"))

    def sort_by_start(self) -> tuple[list[int], list[int]]:
        """Return (the functions' numbers, their starts), both sorted by start."""
        order = list(sort_indexes(self.start, 0, len(self)))
        return order, [self.start[function] for function in order]

    def searchable_ranges(self) -> Iterator[tuple[int, int, int]]:
        """Yield (function, start, end), ascending: the code for which a search by address finds the function."""
        order: Sequence[int] = range(len(self)) if is_ascending(self.start) else sort_indexes(self.start, 0, len(self))
        following = [*(self.start[function] for function in order[1:]), ADDRESS_SPACE]
        for function, limit in zip(order, following, strict=False):
            start = self.start[function]
            end = min(start + self.size[function], limit)
            if start < end:
                yield function, start, end

    def select(self, functions: Iterable[int]) -> FunctionTable:
        """Return a table of only these functions, in that order."""
        out = FunctionTable(kinds=self.kinds, rules=self.rules)
        for first, end in _consecutive_runs(functions):
            out.extend(self, first, end)
        return out

    def numbered_rows(self, function: int) -> Iterator[tuple[int, int]]:
        """Return (offset from the function's start, index of the rule) for each row of one function."""
        rows = slice(self.first_row[function], self.first_row[function + 1])
        return zip(self.row_start[rows], self.row_rule[rows], strict=True)

    def rows(self, function: int) -> list[tuple[int, Rule]]:
        """Return (offset from the function's start, rule) for each row of one function."""
        return [(offset, self.rules[rule]) for offset, rule in self.numbered_rows(function)]


def _consecutive_runs(numbers: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield [first, end) of each run of consecutive numbers."""
    first = end = -1
    for number in numbers:
        if number != end:
            if first >= 0:
                yield first, end
            first = number
        end = number + 1
    if first >= 0:
        yield first, end


class Match(NamedTuple):
    """The function and the row that cover an address."""

    start: int
    size: int
    kind: Kind
    row_offset: int | None  # start of the row, bytes from the function's start or the repeated block's; None without rows
    rule: Rule


def look_up_in(table: FunctionTable, pc: int) -> Match | None:
    """Return the function and row that cover `pc` in a table with ascending functions, or None."""
    function = bisect_right(table.start, pc) - 1
    if function < 0 or pc - table.start[function] >= table.size[function]:
        return None
    kind = table.kinds[table.kind[function]]
    offset = pc - table.start[function]
    first, end = table.first_row[function], table.first_row[function + 1]
    start_size_kind = (table.start[function], table.size[function], kind)
    if first == end:
        return Match(*start_size_kind, None, OUTERMOST) if kind.fde_type is FdeType.DEFAULT else None
    row = bisect_right(table.row_start, offset % kind.rep_size if kind.mask and kind.rep_size else offset, first, end) - 1
    return None if row < first else Match(*start_size_kind, table.row_start[row], table.rules[table.row_rule[row]])
