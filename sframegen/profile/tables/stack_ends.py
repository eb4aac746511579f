"""Where stacks end, found in the bytes of runtimes and C libraries, with symbols or without, whatever their CFI says.

A new thread begins in the code after the system call that made it, a coroutine in the code that glibc's makecontext has pushed.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from sframegen.elf.code_bytes.machines import MACHINES
from sframegen.format.model import OUTERMOST, Kind
from sframegen.stack.objects.go_ends import StackEnd, go_ends
from sframegen.stack.objects.readable_code import found_in_code
from sframegen.stack.walking.step import OTHER_STACK

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sframegen.elf.file import ElfFile
    from sframegen.format.abi import Abi
    from sframegen.format.model import FunctionTable


def with_stack_ends(functions: FunctionTable, elf: ElfFile, abi: Abi) -> FunctionTable:
    """Return the functions, without a caller where stacks end; unchanged for files without such code."""
    ends = [*go_ends(elf, abi), *_library_ends(elf, abi)]
    if not ends:
        return functions
    borders = {start + size for start, size in zip(functions.start, functions.size, strict=True)}
    # A walk asks for the byte before the address that a coroutine returns to. If another function ends with it, that one keeps it.
    return _without_callers(functions, [end for end in ends if not (end.is_put and end.end in borders)])


def _library_ends(elf: ElfFile, abi: Abi) -> Iterator[StackEnd]:
    form = MACHINES[abi.machine]
    for start, match in found_in_code(form.new_thread, elf):
        yield StackEnd(start + match.start(1), start + match.end(1))
    for start, match in found_in_code(form.coroutine, elf):
        begin = match.start() if match[1] is None else match.start(1)
        if begin:
            yield StackEnd(start + begin - 1, start + begin, is_put=True)
        yield StackEnd(start + begin, start + match.end())


def _without_callers(functions: FunctionTable, ends: list[StackEnd]) -> FunctionTable:
    """Return the functions, cut at the ranges, which become functions without a caller, or with one on another stack."""
    order, starts = functions.by_start()
    cut: dict[int, list[StackEnd]] = {}
    for one in ends:
        at = bisect_right(starts, one.start) - 1
        while at < len(order) and (at < 0 or starts[at] < one.end):
            if at >= 0 and starts[at] + functions.size[order[at]] > one.start:
                cut.setdefault(order[at], []).append(one)
            at += 1
    out = functions.select(function for function in range(len(functions)) if function not in cut)
    out.kinds, out.rules = list(out.kinds), list(out.rules)
    for function, ranges in cut.items():
        _append_rest(out, functions, function, ranges)
    out.kinds += [kind for kind in (Kind(), Kind(signal=True)) if kind not in out.kinds]
    out.rules += [rule for rule in (OUTERMOST, OTHER_STACK) if rule not in out.rules]
    for start, end, is_put, other_stack in ends:
        rule = out.rules.index(OTHER_STACK if other_stack else OUTERMOST)
        out.append(start, end - start, out.kinds.index(Kind(signal=is_put)), [(0, rule)])
    return out


def _append_rest(out: FunctionTable, functions: FunctionTable, function: int, ranges: list[StackEnd]) -> None:
    """Append what is left of a function outside the ranges, with the rules that hold there."""
    start, end = functions.start[function], functions.start[function] + functions.size[function]
    if functions.kinds[functions.kind[function]].mask:
        return
    rows = list(functions.numbered_rows(function))
    here = start
    for low, high, *_ in [*sorted(ranges), StackEnd(end, end)]:
        if here < low:
            inside = [(max(0, start + offset - here), rule) for offset, rule in rows if start + offset < low]
            before = max((place for place, (offset, _) in enumerate(inside) if offset == 0), default=0)
            out.append(here, low - here, functions.kind[function], inside[before:])
        here = max(here, min(high, end))
