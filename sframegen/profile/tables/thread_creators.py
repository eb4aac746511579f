"""Rules for who makes a thread, after the system call: C libraries have none there, because the new thread is in the same code.

It has no caller, and walks know it by the result of the call, 0, before they ask for a rule.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from sframegen.elf.code_bytes.machines import MACHINES
from sframegen.stack.objects.readable_code import found_in_code, once_per_file

if TYPE_CHECKING:
    from sframegen.elf.file import ElfFile
    from sframegen.elf.ranges import Range
    from sframegen.format.abi import Abi
    from sframegen.format.model import FunctionTable


def with_creators(functions: FunctionTable, elf: ElfFile, abi: Abi) -> FunctionTable:
    """The functions; the rule that one ends with before the system call holds up to the return after it."""
    places = _places(elf, abi)
    if not places:
        return functions
    order = sorted(range(len(functions)), key=functions.start.__getitem__)
    starts = [functions.start[function] for function in order]
    out = functions.select(range(len(functions)))
    for call, end in places:
        at = bisect_right(starts, call - 1) - 1
        if at < 0 or (at + 1 < len(order) and starts[at + 1] < end):
            continue
        before = order[at]
        begin = functions.start[before] + functions.size[before]
        if call <= begin < end and not functions.kinds[functions.kind[before]].mask:
            _, rule = list(functions.numbered_rows(before))[-1]
            out.append(begin, end - begin, functions.kind[before], [(0, rule)])
    return out


def creating_code_of(elf: ElfFile, abi: Abi) -> bytes:
    """Return all that decides what is added, except the functions."""
    places = _places(elf, abi)
    return repr(places).encode() if places else b""


@once_per_file
def _places(elf: ElfFile, abi: Abi) -> list[Range]:
    """Return where each system call begins, and where the code that returns from it ends."""
    found = found_in_code(MACHINES[abi.machine].new_thread_call, elf)
    return [(start + match.start(1), start + match.end(1)) for start, match in found]
