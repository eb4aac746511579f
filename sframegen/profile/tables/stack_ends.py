"""Marks the code where stacks end as having no caller, whatever its call frame information says.

A process begins at the entry address of the ELF header, a new thread in the code after the system call that created it, and a
coroutine in the code whose address glibc's makecontext pushes. They are found by their bytes, so that no symbols are needed.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from sframegen.base.errors import FormatError
from sframegen.elf.code_bytes.machines import MACHINES
from sframegen.elf.dynamic import Role, determine_role, read_dynamic
from sframegen.format.model import OUTERMOST, FunctionTable, Kind
from sframegen.stack.objects.go_ends import StackEnd, find_go_ends
from sframegen.stack.objects.readable_code import search_code
from sframegen.stack.walking.step import OTHER_STACK

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sframegen.elf.file import ElfFile
    from sframegen.elf.ranges import Range
    from sframegen.format.abi import Abi


def mark_stack_ends(functions: FunctionTable, elf: ElfFile, abi: Abi) -> FunctionTable:
    """Return the functions, with rules without a caller in the code of runtimes and C libraries where stacks end."""
    ends = [*find_go_ends(elf, abi), *_find_library_ends(elf, abi)]
    if not ends:
        return functions
    borders = {start + size for start, size in zip(functions.start, functions.size, strict=True)}
    # A walk looks up the byte before the address that a coroutine returns to. If another function ends with that byte, it keeps it.
    return _replace_end_ranges(functions, [end for end in ends if not (end.is_pushed and end.end in borders)])


def _find_library_ends(elf: ElfFile, abi: Abi) -> Iterator[StackEnd]:
    """Yield the ranges where new threads and coroutines begin in C libraries, and the byte before a coroutine's."""
    form = MACHINES[abi.machine]
    for start, match in search_code(form.new_thread, elf):
        yield StackEnd(start + match.start(1), start + match.end(1))
    for start, match in search_code(form.coroutine, elf):
        begin = match.start() if match[1] is None else match.start(1)
        if begin:
            yield StackEnd(start + begin - 1, start + begin, is_pushed=True)
        yield StackEnd(start + begin, start + match.end())


def _replace_end_ranges(functions: FunctionTable, ends: list[StackEnd]) -> FunctionTable:
    """Return the functions without the ranges of `ends`, plus a function without a caller for each of these ranges."""
    order, starts = functions.sort_by_start()
    cut: dict[int, list[StackEnd]] = {}  # the ends inside each function that has some
    for stack_end in ends:
        at = bisect_right(starts, stack_end.start) - 1
        while at < len(order) and (at < 0 or starts[at] < stack_end.end):
            if at >= 0 and starts[at] + functions.size[order[at]] > stack_end.start:
                cut.setdefault(order[at], []).append(stack_end)
            at += 1
    out = functions.select(function for function in range(len(functions)) if function not in cut)
    out.kinds, out.rules = list(out.kinds), list(out.rules)
    for function, ranges in cut.items():
        _append_remainder(out, functions, function, ranges)
    out.kinds += [kind for kind in (Kind(), Kind(signal=True)) if kind not in out.kinds]
    out.rules += [rule for rule in (OUTERMOST, OTHER_STACK) if rule not in out.rules]
    for start, end, is_put, other_stack in ends:
        rule = out.rules.index(OTHER_STACK if other_stack else OUTERMOST)
        out.append(start, end - start, out.kinds.index(Kind(signal=is_put)), [(0, rule)])
    return out


def _append_remainder(out: FunctionTable, functions: FunctionTable, function: int, ranges: list[StackEnd]) -> None:
    """Append the parts of a function outside the ranges as functions of their own. A function of PC type MASK is dropped."""
    start, end = functions.start[function], functions.start[function] + functions.size[function]
    if functions.kinds[functions.kind[function]].mask:
        return
    rows = list(functions.numbered_rows(function))
    begin = start
    for low, high, *_ in [*sorted(ranges), StackEnd(end, end)]:
        if begin < low:
            inside = [(max(0, start + offset - begin), rule) for offset, rule in rows if start + offset < low]
            first = max((number for number, (offset, _) in enumerate(inside) if offset == 0), default=0)
            out.append(begin, low - begin, functions.kind[function], inside[first:])
        begin = max(begin, min(high, end))


MAX_ENTRY_CODE = 128  # bytes from the entry address on that are decoded


def add_entry_function(functions: FunctionTable, elf: ElfFile, abi: Abi) -> FunctionTable:
    """Return the functions, plus one without a caller at the entry address, unless a function covers that address already.

    The added function ends after its first call, or, in a dynamic loader, whose first call returns, with the next jump.
    """
    start = elf.header.e_entry
    limit = _find_gap_end(functions, start)
    end = next((high for low, high in elf.executable_ranges() if low <= start < high), None)
    if limit is None or end is None:
        return functions
    size = _measure_entry_code(bytes(elf.at(start, min(limit, end) - start)), start, abi, _is_loader(elf))
    if not size:
        return functions
    kind = Kind()
    if kind not in functions.kinds:
        functions.kinds.append(kind)
    if OUTERMOST not in functions.rules:
        functions.rules.append(OUTERMOST)
    out = functions.select(range(len(functions)))
    out.append(start, size, functions.kinds.index(kind), [(0, functions.rules.index(OUTERMOST))])
    return out


def _find_gap_end(functions: FunctionTable, address: int) -> int | None:
    """Return where the next function begins, at most MAX_ENTRY_CODE away; None if a function covers the address."""
    order, starts = functions.sort_by_start()
    after = bisect_right(starts, address)
    if after and address < starts[after - 1] + functions.size[order[after - 1]]:
        return None
    return min([address + MAX_ENTRY_CODE, *starts[after : after + 1]])


def _measure_entry_code(code: bytes, start: int, abi: Abi, calls_return: bool) -> int:
    """Return the size of the code up to the instruction from which it does not go on; 0 if it returns, or if none is found."""
    from sframegen.code.decoding.decoded_code import decode  # noqa: PLC0415 - capstone is slow to import, and few files need it
    from sframegen.code.isa.effects import Flow  # noqa: PLC0415
    from sframegen.code.isa.machines import machine_of  # noqa: PLC0415

    isa = machine_of(abi).isa
    if isa is None:
        return 0
    for point in decode(code, start, isa).flow_points():
        if point.flow in (Flow.JUMP, Flow.INDIRECT, Flow.STOP) or (point.flow is Flow.CALL and not calls_return):
            return point.end - start
        if point.flow is Flow.RETURN:
            return 0
    return 0


def _is_loader(elf: ElfFile) -> bool:
    try:
        return determine_role(elf, read_dynamic(elf)) is Role.LOADER
    except FormatError:
        return False


def extend_rules_past_thread_creation(functions: FunctionTable, elf: ElfFile, abi: Abi) -> FunctionTable:
    """Return the functions, with the last rule before a thread-creating system call extended to the return after it."""
    calls = _find_thread_creations(elf, abi)
    if not calls:
        return functions
    order, starts = functions.sort_by_start()
    out = functions.select(range(len(functions)))
    for call, end in calls:
        at = bisect_right(starts, call - 1) - 1
        if at < 0 or (at + 1 < len(order) and starts[at + 1] < end):
            continue
        before = order[at]
        begin = functions.start[before] + functions.size[before]
        if call <= begin < end and not functions.kinds[functions.kind[before]].mask:
            _, rule = list(functions.numbered_rows(before))[-1]
            out.append(begin, end - begin, functions.kind[before], [(0, rule)])
    return out


def _find_thread_creations(elf: ElfFile, abi: Abi) -> list[Range]:
    """Return the ranges from each thread-creating system call to the end of the code that returns from it."""
    matches = search_code(MACHINES[abi.machine].new_thread_call, elf)
    return [(start + match.start(1), start + match.end(1)) for start, match in matches]
