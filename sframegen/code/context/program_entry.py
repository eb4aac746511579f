"""Where a program begins: code without a caller, recognised at the entry address of the ELF header."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sframegen.code.decoding.pieces import decode
from sframegen.code.isa.effects import Flow
from sframegen.code.isa.machines import machine_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sframegen.elf.file import ElfFile
    from sframegen.elf.ranges import Range
    from sframegen.format.abi import Abi

MAX_BYTES = 256  # of code that is examined; in C libraries it is shorter than 100


def entry_range(elf: ElfFile, abi: Abi, silent: Iterable[Range]) -> Range | None:
    """Return (start, end) of the code that runs first in a process; None if it is in none of the ranges.

    It ends with its first call or jump, which does not return; a trap or another call may follow a call.
    """
    start = elf.header.e_entry
    limit = next((high for low, high in silent if low <= start < high), None)
    isa = machine_of(abi).isa
    if limit is None or isa is None:
        return None
    code = bytes(elf.at(start, min(MAX_BYTES, limit - start)))
    if not isa.program_entry.match(code):
        return None
    points = list(decode(code, start, isa).flow_points())
    if not points or points[0].flow not in (Flow.CALL, Flow.JUMP):
        return None
    end = points[0].end
    if points[0].flow is Flow.CALL and len(points) > 1 and points[1].address == end and points[1].flow in (Flow.CALL, Flow.STOP):
        end = points[1].end
    return start, end
