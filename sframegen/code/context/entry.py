"""Where a program begins: code without a caller, known by its shape at the address that the ELF header names."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from sframegen.code.decoding.pieces import decode
from sframegen.code.isa.effects import Flow
from sframegen.code.isa.machines import ISAS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sframegen.elf.file import ElfFile
    from sframegen.format.abi import Abi

MAX_BYTES = 256  # of code that is looked at; what C libraries have is shorter than 100

# How an ABI says that no frame is outside. x86-64: xor ebp, ebp. AArch64: mov x29, #0; mov x30, #0.
BEGINS = {
    "AMD64": re.compile(rb"(\xf3\x0f\x1e\xfa)?(\x48)?[\x31\x33]\xed"),
    "AArch64": re.compile(rb"(\x5f\x24\x03\xd5)?\x1d\x00\x80\xd2\x1e\x00\x80\xd2"),
}


def entry_range(elf: ElfFile, abi: Abi, silent: Iterable[tuple[int, int]]) -> tuple[int, int] | None:
    """(start, end) of the code that runs first in a process, up to its call that does not return; None if not in one of the ranges.

    Straight on to the first call or jump; a trap or another call may stand behind a call.
    """
    start = elf.header.e_entry
    limit = next((high for low, high in silent if low <= start < high), None)
    if limit is None or abi.name not in BEGINS:
        return None
    code = bytes(elf.at(start, min(MAX_BYTES, limit - start)))
    if not BEGINS[abi.name].match(code):
        return None
    points = list(decode(code, start, ISAS[abi.name]).flow_points())
    if not points or points[0].flow not in (Flow.CALL, Flow.JUMP):
        return None
    end = points[0].end
    if points[0].flow is Flow.CALL and len(points) > 1 and points[1].address == end and points[1].flow in (Flow.CALL, Flow.STOP):
        end = points[1].end
    return start, end
