"""Where functions without call frame information begin, as code that has some shows: it calls them, or takes their addresses."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from cfi.errors import FormatError
from sframegen.code.context.pointer_words import COMPILED, distances_into
from sframegen.code.isa.machines import machine_of
from sframegen.elf.ranges import is_within, without

if TYPE_CHECKING:
    import re

    from sframegen.elf.file import ElfFile
    from sframegen.elf.ranges import Range
    from sframegen.format.abi import Abi

ALIGNMENT = 16  # bytes: of functions in assembly; bytes that only look like such an instruction lead to other addresses
NUMBER, LONGEST = 4, 8  # bytes: of the distance, and of an instruction with one
LEAST = 64  # bytes of code without CFI


def referred_to(elf: ElfFile, abi: Abi, silent: list[Range]) -> set[int]:
    """Return aligned addresses in `silent` ranges to which the rest of the code refers. None on machines where that is not read."""
    isa = machine_of(abi).isa
    silent = [(start, end) for start, end in silent if end - start >= LEAST]
    if isa is None or isa.refers is None or not silent:
        return set()
    starts, ends = (array("Q", column) for column in zip(*silent, strict=True))
    found: set[int] = set()
    for start, end in without(elf.executable_ranges(), silent):
        try:
            code = bytes(elf.at(start, end - start))
        except FormatError:  # the file is cut off there
            continue
        if COMPILED:
            places = distances_into(code, start, starts, ends, ALIGNMENT)
            after = [place for place in places if _ends_there(isa.refers, code, place)]
        else:
            after = [match.end(1) for match in isa.refers.finditer(code)]
        found |= {start + place + int.from_bytes(code[place - NUMBER : place], "little", signed=True) for place in after}
    return {target for target in found if target % ALIGNMENT == 0 and is_within((target, target + 1), silent)}


def _ends_there(form: re.Pattern[bytes], code: bytes, place: int) -> bool:
    """True if an instruction of that form ends at the place."""
    matches = (form.match(code, place - size) for size in range(NUMBER + 1, min(LONGEST, place) + 1))
    return any(match is not None and match.end(1) == place for match in matches)
