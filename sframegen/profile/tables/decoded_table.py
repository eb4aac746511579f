"""The decoded table of a file, as the kernel program and the walker of copied stacks search it.

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

from bisect import bisect_right
from typing import NamedTuple

PAGE_BITS = 8
ROW_RULE_SHIFT = 16
MAX_RULES = 1 << 16
ELEMENT = 8  # bytes
RULE_ELEMENTS = 2
RULE = "<iiiBBBB"


class DecodedTable(NamedTuple):
    """`base`: link-time address of the first page; `pages`: number of pages; places are in elements of `data`.

    `left_out`: how many functions and rules the layout cannot say; their code has no rule. `functions`: u32 offsets where
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
        """The link-time address where the function begins that holds an address; None if that is not known."""
        words = memoryview(self.functions).cast("B").cast("I")
        count = len(words) // 2
        at = bisect_right(words, address - self.base, 0, count) - 1
        return self.base + words[at] if at >= 0 and address - self.base < words[count + at] else None
