"""Finds code whose rules the Linux kernel accepts, but cannot follow or misinterprets."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate, compress

from sframegen.base.quick_typing import TYPE_CHECKING, NamedTuple
from sframegen.base.text import format_count
from sframegen.checks.finding import Finding, Severity
from sframegen.format.model import AT_CFA, FdeType, FunctionTable, Rule

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sframegen.elf.ranges import Range
    from sframegen.format.abi import Abi


class Limit(NamedTuple):
    """A kind of rule that the Linux kernel cannot use. `name`: the finding's rule. `description`: goes on after "bytes of code"."""

    name: str
    description: str
    severity: Severity = Severity.NOTE


MEMORY = Limit("kernel-cfa-memory", "whose CFA is read from memory, *(sp + n) or *(fp + n): the Linux kernel ends the trace there")
REGISTER = Limit(
    "kernel-register", "whose CFA, RA or FP comes from another register: the Linux kernel has its value in the topmost frame only"
)
OUTERMOST = Limit(
    "kernel-outermost", "whose frame is the outermost: the Linux kernel's look-up fails there, and it goes on with frame pointers"
)
UNCHANGED = Limit(
    "kernel-fp-at-cfa",
    "whose FP is saved at CFA + 0, which a default FDE cannot express for the Linux kernel: it takes FP for unchanged",
    Severity.ERROR,
)
LIMITS = (MEMORY, REGISTER, OUTERMOST, UNCHANGED)


class Unusable(NamedTuple):
    """The bytes of code by Limit.name, zero for limits that do not occur, and the findings about them."""

    code: dict[str, int]
    notes: list[Finding]


def find_unusable_code(table: FunctionTable, code: Sequence[Range], abi: Abi, consumer: str = "kernel") -> Unusable:
    """Return the code in the table whose rules the kernel cannot use. `code`: (start, end) of the executable ranges, ascending.

    `consumer`: the name for findings, "kernel" for sections of programs or "arm64-kernel" for a kernel's own section.
    """
    executable = _ExecutableCode(code)
    counts = dict.fromkeys((limit.name for limit in LIMITS), 0)
    lowest: dict[str, int] = {}
    for limit, start, size in _find_limited_ranges(table, [_find_limit(rule, abi) for rule in table.rules]):
        byte_count = executable.count_within(start, start + size)
        counts[limit.name] += byte_count
        if byte_count:
            lowest[limit.name] = min(start, lowest.get(limit.name, start))
    notes = [
        Finding(name, severity, f"{format_count(counts[name], 'byte')} of code {description}", consumer, address=lowest[name])
        for name, description, severity in LIMITS
        if name in lowest
    ]
    return Unusable(counts, notes)


def _find_limit(rule: Rule, abi: Abi) -> Limit | None:
    if rule.cfa is None:
        return OUTERMOST
    if rule.cfa.register not in (abi.sp, abi.fp):
        return REGISTER
    if rule.cfa.deref:
        return MEMORY
    if any(where and where.register is not None for where in (rule.ra, rule.fp)):  # even SP and FP, known only in the topmost frame
        return REGISTER
    return UNCHANGED if rule.fp == AT_CFA else None


def _find_limited_ranges(table: FunctionTable, limits: list[Limit | None]) -> Iterator[tuple[Limit, int, int]]:
    """Yield (limit, start, bytes) for each row with a limit. `start` is the function's for the repeated rows of PC type MASK."""
    if any(limits):
        for row in compress(range(len(table.row_rule)), map(limits.__getitem__, table.row_rule)):
            function = bisect_right(table.first_row, row) - 1
            size, kind, limit = table.size[function], table.kinds[table.kind[function]], limits[table.row_rule[row]]
            if limit is UNCHANGED and kind.fde_type is FdeType.FLEX:  # which can express it
                continue
            is_last = row + 1 == table.first_row[function + 1]
            low = table.row_start[row]
            if kind.mask and kind.rep_size:
                high = kind.rep_size if is_last else table.row_start[row + 1]
                repetitions, last_bytes = divmod(size, kind.rep_size)
                span = repetitions * max(0, high - low) + max(0, min(last_bytes, high) - low)
                low = 0
            else:
                span = max(0, min(size, size if is_last else table.row_start[row + 1]) - low)
            assert limit is not None
            yield limit, table.start[function] + low, span
    for function, (low, high) in enumerate(zip(table.first_row, table.first_row[1:], strict=False)):
        if low == high and table.kinds[table.kind[function]].fde_type is FdeType.DEFAULT:
            yield OUTERMOST, table.start[function], table.size[function]


class _ExecutableCode:
    """Executable ranges, ascending and disjoint, with running totals so that `count_within` needs no loop over them."""

    def __init__(self, ranges: Sequence[Range]) -> None:
        self.starts = [low for low, _ in ranges]
        self.bytes_before = list(accumulate((high - low for low, high in ranges), initial=0))

    def count_within(self, start: int, end: int) -> int:
        """Return the number of executable bytes in [start, end)."""
        return self._count_below(end) - self._count_below(start)

    def _count_below(self, address: int) -> int:
        number = bisect_right(self.starts, address)
        if not number:
            return 0
        return min(self.bytes_before[number], self.bytes_before[number - 1] + address - self.starts[number - 1])
