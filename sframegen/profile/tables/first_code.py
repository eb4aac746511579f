"""The code that runs first in a process, at the entry address of the ELF header: it has no caller, and often no CFI."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from cfi.errors import FormatError
from sframegen.elf.dynamic import read_dynamic
from sframegen.elf.role import Role, role_of
from sframegen.format.model import OUTERMOST, Kind

if TYPE_CHECKING:
    from sframegen.elf.file import ElfFile
    from sframegen.format.abi import Abi
    from sframegen.format.model import FunctionTable

MAX_BYTES = 128  # of code that is read


def with_first_code(functions: FunctionTable, elf: ElfFile, abi: Abi) -> FunctionTable:
    """The functions, and one without a caller if none covers the entry address: up to the end of its first call, which is still it.

    The first call of a dynamic loader returns: its code goes on to the next jump.
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


def first_code_of(elf: ElfFile) -> bytes:
    """Return all that decides what is added, except the functions."""
    start = elf.header.e_entry
    end = next((high for low, high in elf.executable_ranges() if low <= start < high), start)
    try:
        code = bytes(elf.at(start, min(MAX_BYTES, end - start)))
    except FormatError:
        code = b""
    return repr((start, _is_loader(elf), code)).encode()


def _limit(functions: FunctionTable, address: int) -> int | None:
    """Return where the next function begins, at most MAX_BYTES away; None if the address is in one."""
    order = sorted(range(len(functions)), key=functions.start.__getitem__)
    after = bisect_right(order, address, key=functions.start.__getitem__)
    if after and address < functions.start[order[after - 1]] + functions.size[order[after - 1]]:
        return None
    return min(address + MAX_BYTES, functions.start[order[after]] if after < len(order) else address + MAX_BYTES)


def _size(code: bytes, start: int, abi: Abi, calls_return: bool) -> int:
    from sframegen.code.decoding.pieces import decode  # noqa: PLC0415 - capstone is slow to import, and few files need it
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
