"""Adds rules for Go code, made from the table of SP offsets (pclntab) that the Go linker puts in each program, stripped or not.

The Go linker makes call frame information from the same numbers. Both give the CFA, but not the caller's frame pointer.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from sframegen.code.whole_file.proven_code import merge_functions
from sframegen.elf.code_bytes.machines import MACHINES
from sframegen.elf.ranges import Range, is_within, merge_ranges
from sframegen.format.model import OUTERMOST, FunctionTable, Kind, Rule, Where
from sframegen.stack.abi.machines import conventions_of
from sframegen.stack.objects.go_ends import cached_go_table
from sframegen.stack.objects.readable_code import search_code

if TYPE_CHECKING:
    from sframegen.elf.file import ElfFile
    from sframegen.format.abi import Abi

# The runtime's signal handler makes the interrupted code appear to call this function. The return address is then that of the
# interrupted instruction and not one after a call, so frames of this function are marked as signal frames.
ASYNC_PREEMPT = "runtime.asyncPreempt"
# Where C calls Go back, the runtime pushes this function's address on the goroutine's stack; old versions push its first byte's.
SYSTEMSTACK_SWITCH = "runtime.systemstack_switch"


def add_go_functions(functions: FunctionTable, elf: ElfFile, abi: Abi) -> tuple[FunctionTable, list[Range]]:
    """Return the functions plus the Go functions that they lack, and the ranges of all functions in Go's table.

    Functions that no code calls get corrected rules. For a file without Go code, the functions are unchanged.
    """
    table = cached_go_table(elf, abi)
    if table is None:
        return functions, []
    dropped = set(_find_signal_returns(elf, abi))  # starts of functions whose given rules are not used
    added, ranges = FunctionTable(kinds=[Kind(), Kind(signal=True)]), merge_ranges(elf.executable_ranges())
    rules: dict[Rule, int] = {}
    rows_of: dict[tuple[tuple[int, int], ...], list[tuple[int, int]]] = {}
    for frame in table.frames():
        if frame.start in dropped or not is_within((frame.start, frame.end), ranges):
            continue
        if frame.name == ASYNC_PREEMPT:
            dropped.add(frame.start)
        # Only on machines with a link register does the linker mark outermost functions as without a caller, and so do we.
        steps = () if frame.is_outermost and not abi.fixed_ra_offset else frame.steps
        if steps not in rows_of:
            offsets_and_rules = _make_rules(steps, abi) or [(0, OUTERMOST)]
            rows_of[steps] = [(offset, rules.setdefault(rule, len(rules))) for offset, rule in offsets_and_rules]
        if frame.name == SYSTEMSTACK_SWITCH and rows_of[steps]:  # a walk looks up the byte before it, which is padding
            added.append(frame.start - 1, size=1, kind=1, rows=rows_of[steps][:1])
        added.append(frame.start, frame.end - frame.start, int(frame.name == ASYNC_PREEMPT), rows_of[steps])
    added.rules = list(rules)
    remaining = functions.select(number for number in range(len(functions)) if functions.start[number] not in dropped)
    described = [(start, start + size) for start, size in zip(added.start, added.size, strict=True)]
    return merge_functions(remaining, added), described


def _find_signal_returns(elf: ElfFile, abi: Abi) -> frozenset[int]:
    """Return the starts of functions that signal handlers return to. They get no rule, so that walks recognise their bytes."""
    form = MACHINES[abi.machine].go
    pattern = b"|".join(re.escape(context.code) for context in conventions_of(abi).contexts)
    starts = (start + match.start() for start, match in search_code(pattern, elf))
    return frozenset(start for start in starts if form and start % form.alignment == 0)


def _make_rules(steps: tuple[tuple[int, int], ...], abi: Abi) -> list[tuple[int, Rule]]:
    """Return (offset, rule) for each (offset, frame size). Without stack, AArch64 has the return address in the link register."""
    rules = []
    for offset, size in steps:
        ra = abi.fixed_ra_offset or -size
        rules.append((offset, Rule(Where(abi.sp, size - abi.fixed_ra_offset), Where(None, ra, deref=True) if ra else None)))
    return rules
