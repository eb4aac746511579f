"""Turns the functions of a file into its decoded table, which the kernel program and the walker of copied stacks search.

The kernel program searches with ../bpf/table.h, whose constants must equal those here.

The table is an array of little-endian 64-bit elements, as a BPF array needs:

| first element | contents |
| --- | --- |
| index_at | u32 for each page of 256 bytes of text, and one more: the number of the first row in that page or after it |
| rows_at | u32 for each row: the low byte of its offset in the page, and in the upper half its rule's number |
| rules_at | 16 bytes for each rule: i32 cfa_offset, ra_offset, fp_offset; u8 cfa_register, ra_register, fp_register, flags |

The three parts may come in any order. A row's rule holds until the next row, even on a later page. Code before the first row has no
rule, and rule number 0 means "no rule". Flags are stack/walking/step.RuleFlag. An offset is a link-time address minus `base`.
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

    from sframegen.elf.ranges import Range

PAGE_BITS = 8
ROW_RULE_SHIFT = 16
MAX_RULES = 1 << 16
ELEMENT_SIZE = 8  # bytes
RULE_ELEMENTS = 2


class DecodedTable(NamedTuple):
    """The rules of a file. `base`: link-time address of the first page; `*_at`: indices of elements in `data`.

    `left_out`: the number of functions and rules that the layout cannot express; their code has no rule. `functions`: the offsets
    (u32) at which functions with proven rules begin, ascending, followed by their ends, so that unnamed ones can be told apart.
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
        """Return the link-time start of the function that contains an address; None if unknown."""
        words = memoryview(self.functions).cast("B").cast("I")
        count = len(words) // 2
        at = bisect_right(words, address - self.base, 0, count) - 1
        return self.base + words[at] if at >= 0 and address - self.base < words[count + at] else None


RULE_BYTES = struct.Struct("<iiiBBBB")
NO_RULE = bytes(RULE_BYTES.size)
MAX_TEXT_BYTES = 1 << 31  # the index of so much text takes 32 MiB
MAX_REPEATED = 1 << 20  # rows of PC type MASK, because a hostile function could repeat a row 4 billion times
OFFSETS = range(-(1 << 31), 1 << 31)
REGISTER_NUMBERS = range(1 << 8)


def make_decoded_table(functions: FunctionTable) -> DecodedTable:
    """Return the table of these functions, which may be in any order. Where they overlap, the one that begins last applies.

    Addresses are the functions' own: link-time ones, except for code without a file.
    """
    numbering = _RuleNumbering(functions)
    rules = len(numbering.packed)
    if not len(functions):
        only_rules = bytes(ELEMENT_SIZE) + numbering.data
        return DecodedTable(0, 0, index_at=0, rows_at=1 + numbering.elements, rules_at=1, rows=0, rules=rules, data=only_rules)
    starts, rule_numbers = functions.start, numbering.make_rule_numbers()
    order = array("I", range(len(starts))) if is_ascending(starts) else sort_indexes(starts, 0, len(starts))
    paginator = Paginator(functions.columns(), rule_numbers, order, max_bytes=MAX_TEXT_BYTES, max_repeated=MAX_REPEATED)
    paginator.measure()
    base, pages = paginator.base, paginator.pages
    index_at, rules_at = 0, pages // 2 + 1
    rows_at = rules_at + numbering.elements
    data = bytearray(ELEMENT_SIZE * (rows_at + (paginator.rows + 1) // 2))
    data[ELEMENT_SIZE * rules_at : ELEMENT_SIZE * rows_at] = numbering.data
    with memoryview(data) as view, view.cast("I") as words, words[: pages + 1] as index, words[2 * rows_at :] as row_words:
        paginator.fill(index, row_words)
    rows, left_out = paginator.rows, paginator.left_out + numbering.left_out
    del data[ELEMENT_SIZE * (rows_at + (rows + 1) // 2) :]
    return DecodedTable(base, pages, index_at, rows_at, rules_at, rows, rules, data, left_out)


def attach_function_ranges(table: DecodedTable, code: Sequence[Range]) -> DecodedTable:
    """Return the table with `functions` set to these ascending code ranges, without those that its offsets cannot reach."""
    limit = table.base + MAX_TEXT_BYTES
    ranges = [(start - table.base, end - table.base) for start, end in code if table.base <= start < end < limit]
    return table._replace(functions=array("I", [*(start for start, _ in ranges), *(end for _, end in ranges)]).tobytes())


def pack_rule(rule: Rule, *, signal: bool = False) -> bytes | None:
    """Return a rule's 16 bytes; None if an offset or a register does not fit."""
    cfa_offset, ra_offset, fp_offset, cfa_register, ra_register, fp_register, flags = numbers_of(rule, LINK_REGISTER, signal=signal)
    if rule.cfa is not None and rule.cfa.deref and rule.ra is not None and rule.ra.register is None:
        # A saved CFA: corrected_rules.py put the addend above the offset's 32 bits. It takes the byte of the unused RA register.
        low = (cfa_offset + (1 << 31)) % (1 << 32) - (1 << 31)  # the low 32 bits, with their sign
        cfa_offset, ra_register = low, (cfa_offset - low) >> 32
    offsets, registers = (cfa_offset, ra_offset, fp_offset), (cfa_register, ra_register, fp_register)
    if not all(offset in OFFSETS for offset in offsets) or not all(register in REGISTER_NUMBERS for register in registers):
        return None
    return RULE_BYTES.pack(*offsets, *registers, flags)


class _RuleNumbering:
    """Numbers the distinct packed rules of a FunctionTable. `packed`: the numbers by rule bytes, in ascending order."""

    def __init__(self, functions: FunctionTable) -> None:
        self.kinds = functions.kinds
        self.packed = {NO_RULE: 0}
        self.left_out = 0
        self.outermost = [self._number_rule(OUTERMOST, signal) for signal in (False, True)]
        self.by_rule = zeros("H", 2 * len(functions.rules))  # for each rule, without and with the signal flag
        for signal in {functions.kinds[kind].signal for kind in set(functions.kind)}:
            for number, rule in enumerate(functions.rules):
                self.by_rule[2 * number + signal] = self._number_rule(rule, signal)

    def make_rule_numbers(self) -> RuleNumbers:
        """Return the numbers in the form that Paginator takes."""
        kinds = self.kinds
        return RuleNumbers(
            self.by_rule,
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

    def _number_rule(self, rule: Rule, signal: bool) -> int:
        """Return the rule's number; 0, which means "no rule", if it cannot be packed, or if there are too many rules."""
        packed = pack_rule(rule, signal=signal)
        if packed is None or (packed not in self.packed and len(self.packed) == MAX_RULES):
            self.left_out += 1
            return 0
        return self.packed.setdefault(packed, len(self.packed))
