"""Where functions without call frame information begin, as code that has some shows: it calls them, or takes their addresses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cfi.errors import FormatError
from sframegen.code.isa.machines import machine_of
from sframegen.elf.ranges import without

if TYPE_CHECKING:
    from sframegen.elf.file import ElfFile
    from sframegen.elf.ranges import Range
    from sframegen.format.abi import Abi

ALIGNMENT = 16  # bytes: of functions in assembly; bytes that only look like such an instruction lead to other addresses
NUMBER = 4  # bytes
LEAST = 64  # bytes of code without CFI


def referred_to(elf: ElfFile, abi: Abi, silent: list[Range]) -> set[int]:
    """Return aligned addresses in `silent` ranges to which the rest of the code refers. None on machines where that is not read."""
    isa = machine_of(abi).isa
    silent = [(start, end) for start, end in silent if end - start >= LEAST]
    if isa is None or isa.refers is None or not silent:
        return set()
    low, high = silent[0][0], silent[-1][1]
    found: set[int] = set()
    for start, end in without(elf.executable_ranges(), silent):
        try:
            code = bytes(elf.at(start, end - start))
        except FormatError:  # the file is cut off there
            continue
        for match in isa.refers.finditer(code):
            after = match.end(1)
            target = start + after + int.from_bytes(code[after - NUMBER : after], "little", signed=True)
            if low <= target < high and target % ALIGNMENT == 0:
                found.add(target)
    return {target for target in found if any(start <= target < end for start, end in silent)}
