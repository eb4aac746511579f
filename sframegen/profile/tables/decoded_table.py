"""The decoded table of a file, made from its functions: the kernel program and the walker of copied stacks search it.

../bpf/table.h, with which the kernel program searches, has the same numbers.

The table is an array of little-endian 64-bit elements, as a BPF array needs:

| elements from | what |
| --- | --- |
| index_at | u32 for each page of 256 bytes of text, and one more: the number of the first row in that page or after it |
| rows_at | u32 for each row: the low byte of its offset in the page, and in the upper half its rule's number |
| rules_at | 16 bytes for each rule: i32 cfa_offset, ra_offset, fp_offset; u8 cfa_register, ra_register, fp_register, flags |

The parts are in any order. A row holds until the next one, across pages; before the first there is no rule, and rule 0 is none.
Flags are stack/walking/step.RuleFlag. Offset = link-time address - base.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_right
from typing import TYPE_CHECKING, NamedTuple

from sframegen.base.columns import is_ascending, sort_indexes, zeros
from sframegen.format.model import OUTERMOST, FdeType, FunctionTable, Rule
from sframegen.profile.machines import LINK_REGISTER
from sframegen.profile.tables.paginate import Paginator, RuleNumbers
from sframegen.stack.walking.step import numbers_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sframegen.base.columns import Column
    from sframegen.elf.ranges import Range

PAGE_BITS = 8
ROW_RULE_SHIFT = 16
MAX_RULES = 1 << 16
ELEMENT = 8  # bytes
RULE_ELEMENTS = 2
RULE = "<iiiBBBB"


class DecodedTable(NamedTuple):
    """The rules of a file. `base`: link-time address of the first page; `pages`: their number; places are in elements of `data`.

    `left_out`: number of functions and rules that the layout cannot express; their code has no rule. `functions`: u32 offsets where
    functions with proven rules begin, ascending, and then where each ends: for names of those without a symbol.
    """

    base: int
    pages: int
    index_at: int
    rows_at: int
    rules_at: int
    rows: int
    rules: int
    data: bytes | bytearray | memoryview
    left_out: int = 0
    functions: bytes | memoryview = b""

    def function_at(self, address: int) -> int | None:
        """Return the link-time address where the function that holds an address begins; None if unknown."""
        words = memoryview(self.functions).cast("B").cast("I")
        count = len(words) // 2
        at = bisect_right(words, address - self.base, 0, count) - 1
        return self.base + words[at] if at >= 0 and address - self.base < words[count + at] else None


RULE_BYTES = struct.Struct(RULE)
NO_RULE = bytes(RULE_BYTES.size)
MAX_BYTES = 1 << 31  # of text: its index then takes 32 MiB
MAX_REPEATED = 1 << 20  # rows of PC type MASK: a hostile function could repeat a row 4 billion times
OFFSETS = range(-(1 << 31), 1 << 31)
REGISTER_NUMBERS = range(1 << 8)


def table_of(functions: FunctionTable) -> DecodedTable:
    """Return the table of these functions. At an address, the last function that begins at or before it has the rule.

    Addresses are link-time ones, or run-time ones where the functions' are. Functions may be in any order. Functions and rules
    that the layout cannot express are counted in `left_out`.
    """
    rules = _Rules(functions)
    if not len(functions):
        return DecodedTable(0, 0, 0, 1 + rules.elements, 1, 0, len(rules.packed), bytes(ELEMENT) + rules.data, 0)
    paginator = Paginator(functions.columns(), rules.numbers(), _order(functions.start), MAX_BYTES, MAX_REPEATED)
    paginator.measure()
    pages = paginator.pages
    rules_at = pages // 2 + 1
    rows_at = rules_at + rules.elements
    data = bytearray(ELEMENT * (rows_at + (paginator.rows + 1) // 2))
    data[ELEMENT * rules_at : ELEMENT * rows_at] = rules.data
    with memoryview(data) as view, view.cast("I") as numbers, numbers[: pages + 1] as index, numbers[2 * rows_at :] as rows:
        paginator.fill(index, rows)
    del data[ELEMENT * (rows_at + (paginator.rows + 1) // 2) :]
    left_out = paginator.left_out + rules.left_out
    return DecodedTable(paginator.base, pages, 0, rows_at, rules_at, paginator.rows, len(rules.packed), data, left_out)


def with_function_code(table: DecodedTable, code: Sequence[Range]) -> DecodedTable:
    """Return the table with `functions` set to these code ranges, ascending, as far as the table reaches."""
    found = [(start - table.base, end - table.base) for start, end in code if table.base <= start < end < table.base + MAX_BYTES]
    return table._replace(functions=array("I", [*(start for start, _ in found), *(end for _, end in found)]).tobytes())


def packed_rule(rule: Rule, *, signal: bool = False) -> bytes | None:
    """Return a rule's 16 bytes; None if an offset or a register does not fit."""
    numbers = numbers_of(rule, LINK_REGISTER, signal=signal)
    if rule.cfa is not None and rule.cfa.deref and rule.ra is not None and rule.ra.register is None:  # see corrected_rules
        offset = (numbers[0] + (1 << 31)) % (1 << 32) - (1 << 31)
        numbers = (offset, *numbers[1:4], (numbers[0] - offset) >> 32, *numbers[5:])
    if any(offset not in OFFSETS for offset in numbers[:3]) or any(register not in REGISTER_NUMBERS for register in numbers[3:6]):
        return None
    return RULE_BYTES.pack(*numbers)


class _Rules:
    """The rules of a FunctionTable as the layout numbers them."""

    def __init__(self, functions: FunctionTable) -> None:
        self.kinds = functions.kinds
        self.packed = {NO_RULE: 0}
        self.left_out = 0
        self.outermost = [self._number(OUTERMOST, signal) for signal in (False, True)]
        self.of_rule = zeros("H", 2 * len(functions.rules))
        for signal in {functions.kinds[kind].signal for kind in set(functions.kind)}:
            for number, rule in enumerate(functions.rules):
                self.of_rule[2 * number + signal] = self._number(rule, signal)

    def numbers(self) -> RuleNumbers:
        kinds = self.kinds
        return RuleNumbers(
            self.of_rule,
            bytes(kind.signal for kind in kinds),
            bytes(kind.rep_size if kind.mask else 0 for kind in kinds),
            array("H", [self.outermost[kind.signal] if kind.fde_type is FdeType.DEFAULT else 0 for kind in kinds]),
        )

    @property
    def data(self) -> bytes:
        return b"".join(self.packed)

    @property
    def elements(self) -> int:
        return RULE_ELEMENTS * len(self.packed)

    def _number(self, rule: Rule, signal: bool) -> int:
        packed = packed_rule(rule, signal=signal)
        if packed is None or (packed not in self.packed and len(self.packed) == MAX_RULES):
            self.left_out += 1
            return 0
        return self.packed.setdefault(packed, len(self.packed))


def _order(starts: array[int]) -> Column:
    return array("I", range(len(starts))) if is_ascending(starts) else sort_indexes(starts, 0, len(starts))
