"""Removes rules that do not hold while an exception's handler is installed: see code/function/hazards.py."""

from __future__ import annotations

from bisect import bisect_right
from itertools import islice
from typing import TYPE_CHECKING

from sframegen.base.errors import FormatError
from sframegen.code.function.hazards import MAX_FUNCTION, Installation, installations_in, jumps_in
from sframegen.stack.objects.readable_code import readable_code

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sframegen.elf.file import ElfFile
    from sframegen.format.abi import Abi
    from sframegen.format.model import FunctionTable

MAX_JUMPS = 64  # of a file: libgcc has four


def without_installations(functions: FunctionTable, elf: ElfFile, abi: Abi) -> FunctionTable:
    """Return the functions; those that install handlers are split, with a gap where no rule holds."""
    jumps = _jumps(elf, abi)
    if not jumps:
        return functions
    order, starts = functions.by_start()
    chosen = {order[at - 1] for at in (bisect_right(starts, end - 1) for _, end in jumps) if at}
    found = {function: _installations(functions, function, elf, abi) for function in sorted(chosen)}
    found = {function: installations for function, installations in found.items() if installations}
    out = functions.select(function for function in range(len(functions)) if function not in found)
    for function, installations in found.items():
        _append_parts(out, functions, function, installations)
    return out


def _jumps(elf: ElfFile, abi: Abi) -> list[tuple[int, int]]:
    """Return (where its function may begin, address) for each address after what looks like a jump to a handler."""
    found = []
    for start, code in readable_code(elf):
        for _, last in islice(jumps_in(code, abi), MAX_JUMPS):
            found.append((max(start, start + last - MAX_FUNCTION), start + last))
    return found[:MAX_JUMPS]


def _installations(functions: FunctionTable, function: int, elf: ElfFile, abi: Abi) -> list[Installation]:
    start, size = functions.start[function], functions.size[function]
    if size > MAX_FUNCTION or functions.kinds[functions.kind[function]].mask:
        return []
    try:
        return installations_in(bytes(elf.at(start, size)), start, abi)
    except FormatError:  # the file is cut off there
        return []


def _append_parts(out: FunctionTable, functions: FunctionTable, function: int, installations: Iterable[Installation]) -> None:
    start, end = functions.start[function], functions.start[function] + functions.size[function]
    rows = functions.rows(function)
    offsets = [offset for offset, _ in rows]
    numbers = {rule: number for number, rule in enumerate(out.rules)}
    places = {start + offset for offset in offsets} | {place for one in installations for place in one}
    borders = sorted(place for place in places if start <= place < end)
    for at, limit in zip(borders, [*borders[1:], end], strict=True):
        row = bisect_right(offsets, at - start) - 1
        if row < 0 or any(one.copied <= at < one.end for one in installations):
            continue
        rule = rows[row][1]
        if rule not in numbers:
            numbers[rule] = len(out.rules)
            out.rules.append(rule)
        out.append(at, limit - at, functions.kind[function], [(0, numbers[rule])])
