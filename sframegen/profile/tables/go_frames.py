"""Rules for Go's code, from the table of SP that the Go linker puts in each program, stripped or not.

The linker makes a program's call frame information from the same numbers. They say where the CFA is; where a caller's frame pointer
is, neither says.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from sframegen.code.whole_file.proven_code import with_others
from sframegen.elf.code_bytes.machines import MACHINES
from sframegen.elf.ranges import Range, is_within, merge_ranges
from sframegen.format.model import OUTERMOST, FunctionTable, Kind, Rule, Where
from sframegen.stack.abi.machines import conventions_of
from sframegen.stack.objects.go_ends import go_table_in
from sframegen.stack.objects.readable_code import found_in_code

if TYPE_CHECKING:
    from sframegen.elf.file import ElfFile
    from sframegen.format.abi import Abi

# A signal's handler makes the interrupted code seem to call it, at any instruction: the return address is that of the next one.
PUT = "runtime.asyncPreempt"
# Where C calls Go back, the runtime puts this one's address on the goroutine's stack: in old versions that of its first byte.
SWITCH = "runtime.systemstack_switch"


def with_go_functions(functions: FunctionTable, elf: ElfFile, abi: Abi) -> tuple[FunctionTable, list[Range]]:
    """Return the functions, with Go's that they lack, and with corrections of those that are never called.

    Also return the ranges of all functions in Go's table. For files that are not Go's, the functions are unchanged.
    """
    table = go_table_in(elf, abi)
    if table is None:
        return functions, []
    unruled = set(_restorers(elf, abi))
    found, ranges = FunctionTable(kinds=[Kind(), Kind(signal=True)]), merge_ranges(elf.executable_ranges())
    rules: dict[Rule, int] = {}
    rows_of: dict[tuple[tuple[int, int], ...], list[tuple[int, int]]] = {}
    for frame in table.frames():
        if frame.start in unruled or not is_within((frame.start, frame.end), ranges):
            continue
        if frame.name == PUT:
            unruled.add(frame.start)
        # On machines with a link register the linker says so, too.
        steps = () if frame.first and not abi.fixed_ra_offset else frame.steps
        if steps not in rows_of:
            of_steps = _rules(steps, abi) or [(0, OUTERMOST)]
            rows_of[steps] = [(offset, rules.setdefault(rule, len(rules))) for offset, rule in of_steps]
        if frame.name == SWITCH and rows_of[steps]:  # a walk asks for the byte before it, which is padding
            found.append(frame.start - 1, 1, 1, rows_of[steps][:1])
        found.append(frame.start, frame.end - frame.start, int(frame.name == PUT), rows_of[steps])
    found.rules = list(rules)
    kept = functions.select(number for number in range(len(functions)) if functions.start[number] not in unruled)
    described = [(start, start + size) for start, size in zip(found.start, found.size, strict=True)]
    return with_others(kept, found), described


def _restorers(elf: ElfFile, abi: Abi) -> frozenset[int]:
    """Return the starts of functions that signal handlers return to: walks recognise their bytes if no rule holds there."""
    form = MACHINES[abi.machine].go
    code = b"|".join(re.escape(context.code) for context in conventions_of(abi).contexts)
    places = [start + match.start() for start, match in found_in_code(code, elf)]
    return frozenset(place for place in places if form and place % form.alignment == 0)


def _rules(steps: tuple[tuple[int, int], ...], abi: Abi) -> list[tuple[int, Rule]]:
    """Return (offset, rule) for each step. AArch64 has the return address in its register, and at SP once stack is taken."""
    found = []
    for offset, size in steps:
        ra = abi.fixed_ra_offset or -size
        found.append((offset, Rule(Where(abi.sp, size - abi.fixed_ra_offset), Where(None, ra, deref=True) if ra else None)))
    return found
