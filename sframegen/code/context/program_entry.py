"""Where a program begins: code without a caller, known by its shape at the address that the ELF header names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sframegen.code.decoding.pieces import decode
from sframegen.code.isa.effects import Flow
from sframegen.code.isa.machines import machine_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sframegen.elf.file import ElfFile
    from sframegen.format.abi import Abi

MAX_BYTES = 256  # of code that is looked at; what C libraries have is shorter than 100


def entry_range(elf: ElfFile, abi: Abi, silent: Iterable[tuple[int, int]]) -> tuple[int, int] | None:
    """(start, end) of the code that runs first in a process, up to its call that does not return; None if not in one of the ranges.

    Straight on to the first call or jump; a trap or another call may stand behind a call.
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
