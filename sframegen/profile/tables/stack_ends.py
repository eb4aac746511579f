"""Where stacks end: in the code that runs first in a process, and in runtimes and C libraries, whatever their CFI says.

A process begins at the entry address of the ELF header, a new thread in the code after the system call that made it, a coroutine in
the code that glibc's makecontext has pushed. Their bytes are found with symbols or without.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from sframegen.base.errors import FormatError
from sframegen.elf.code_bytes.machines import MACHINES
from sframegen.elf.dynamic import Role, read_dynamic, role_of
from sframegen.format.model import OUTERMOST, FunctionTable, Kind
from sframegen.stack.objects.go_ends import StackEnd, go_ends
from sframegen.stack.objects.readable_code import found_in_code
from sframegen.stack.walking.step import OTHER_STACK

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sframegen.elf.file import ElfFile
    from sframegen.elf.ranges import Range
    from sframegen.format.abi import Abi


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


MAX_BYTES = 128  # of first code that is read


def with_first_code(functions: FunctionTable, elf: ElfFile, abi: Abi) -> FunctionTable:
    """Return the functions, with one without a caller added if none covers the entry address. It ends after its first call.

    In a dynamic loader, whose first call returns, the function ends with the next jump.
    """
    start = elf.header.e_entry
    limit = _limit(functions, start)
    end = next((high for low, high in elf.executable_ranges() if low <= start < high), None)
    if limit is None or end is None:
        return functions
    size = _size(bytes(elf.at(start, min(limit, end) - start)), start, abi, _is_loader(elf))
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


def _limit(functions: FunctionTable, address: int) -> int | None:
    """Return where the next function begins, at most MAX_BYTES away; None if a function covers the address."""
    order, starts = functions.by_start()
    after = bisect_right(starts, address)
    if after and address < starts[after - 1] + functions.size[order[after - 1]]:
        return None
    return min([address + MAX_BYTES, *starts[after : after + 1]])


def _size(code: bytes, start: int, abi: Abi, calls_return: bool) -> int:
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
        return role_of(elf, read_dynamic(elf)) is Role.LOADER
    except FormatError:
        return False


def with_creators(functions: FunctionTable, elf: ElfFile, abi: Abi) -> FunctionTable:
    """Return the functions, where the last rule before a thread-creating system call holds up to the return after it."""
    places = _places(elf, abi)
    if not places:
        return functions
    order, starts = functions.by_start()
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


def _places(elf: ElfFile, abi: Abi) -> list[Range]:
    """Return where each system call begins, and where the code that returns from it ends."""
    found = found_in_code(MACHINES[abi.machine].new_thread_call, elf)
    return [(start + match.start(1), start + match.end(1)) for start, match in found]
