"""Marks the code where stacks end as having no caller, whatever its call frame information says.

A process begins at the entry address of the ELF header, a new thread in the code after the system call that created it, and a
coroutine in the code whose address glibc's makecontext pushes. They are found by their bytes, so that no symbols are needed.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
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
    """Return the functions, with rules without a caller in the code of the Go runtime and of C libraries where stacks end."""
    ends = [*find_go_ends(elf, abi), *_find_library_ends(elf, abi)]
    if not ends:
        return functions
    borders = {start + size for start, size in zip(functions.start, functions.size, strict=True)}
    # The range of a pushed address is the byte before it, which walks look up. A function that ends with that byte keeps it.
    return _replace_end_ranges(functions, [end for end in ends if not (end.is_pushed and end.end in borders)])


def _find_library_ends(elf: ElfFile, abi: Abi) -> Iterator[StackEnd]:
    """Yield the ranges where new threads and coroutines begin in C libraries, and the byte before each coroutine's."""
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
    overlapping: dict[int, list[StackEnd]] = {}  # the ends by function, of functions that have some
    for stack_end in ends:
        # Of the functions that begin before the range, only the last may reach into it, because functions do not overlap.
        first, stop = max(bisect_right(starts, stack_end.start) - 1, 0), bisect_left(starts, stack_end.end)
        for function in order[first:stop]:
            if functions.start[function] + functions.size[function] > stack_end.start:
                overlapping.setdefault(function, []).append(stack_end)
    out = functions.select(function for function in range(len(functions)) if function not in overlapping)
    out.kinds, out.rules = list(out.kinds), list(out.rules)
    for function, ranges in overlapping.items():
        _append_remainder(out, functions, function, ranges)
    out.kinds += [kind for kind in (Kind(), Kind(signal=True)) if kind not in out.kinds]
    out.rules += [rule for rule in (OUTERMOST, OTHER_STACK) if rule not in out.rules]
    for start, end, is_pushed, other_stack in ends:
        rule = out.rules.index(OTHER_STACK if other_stack else OUTERMOST)
        out.append(start, end - start, out.kinds.index(Kind(signal=is_pushed)), [(0, rule)])
    return out


def _append_remainder(out: FunctionTable, functions: FunctionTable, function: int, ranges: list[StackEnd]) -> None:
    """Append the parts of a function outside the ranges as functions of their own. A function of PC type MASK is dropped."""
    start, end = functions.start[function], functions.start[function] + functions.size[function]
    if functions.kinds[functions.kind[function]].mask:
        return
    rows = list(functions.numbered_rows(function))
    begin = start
    for low, high, *_ in [*sorted(ranges), StackEnd(end, end)]:  # the last one ends the last remaining part
        if begin < low:
            part_rows = [(max(0, start + offset - begin), rule) for offset, rule in rows if start + offset < low]
            at_begin = max((number for number, (offset, _) in enumerate(part_rows) if offset == 0), default=0)  # earlier rows ended
            out.append(begin, low - begin, functions.kind[function], part_rows[at_begin:])
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
    following = bisect_right(starts, address)
    if following and address < starts[following - 1] + functions.size[order[following - 1]]:
        return None
    return min([address + MAX_ENTRY_CODE, *starts[following : following + 1]])


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
        number = bisect_right(starts, call - 1) - 1
        if number < 0 or (number + 1 < len(order) and starts[number + 1] < end):
            continue
        before = order[number]
        begin = functions.start[before] + functions.size[before]
        if call <= begin < end and not functions.kinds[functions.kind[before]].mask:
            _, rule = list(functions.numbered_rows(before))[-1]
            out.append(begin, end - begin, functions.kind[before], [(0, rule)])
    return out


def _find_thread_creations(elf: ElfFile, abi: Abi) -> list[Range]:
    """Return the ranges from each thread-creating system call to the end of the code that returns from it."""
    matches = search_code(MACHINES[abi.machine].new_thread_call, elf)
    return [(start + match.start(1), start + match.end(1)) for start, match in matches]
