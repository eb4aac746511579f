"""The registers of a thread, from ptrace's register sets."""

from __future__ import annotations

from struct import unpack_from
from typing import TYPE_CHECKING, NamedTuple

from sframegen.elf.records import MARKS
from sframegen.stack.abi.machines import conventions_of
from sframegen.stack.walking.frames import ADDRESS_MASK

if TYPE_CHECKING:
    from sframegen.format.abi import Abi
    from sframegen.stack.abi.conventions import RegisterSet

NT_PRSTATUS, NT_PRFPREG = 1, 2
MASKS_BYTES = 16


class ThreadRegisters(NamedTuple):
    """`values` by DWARF number, of those that are known; `ra_mask`: the bits of a return address that are not its signature."""

    pc: int
    values: dict[int, int]
    ra_mask: int = ADDRESS_MASK


def registers_of(abi: Abi, general: bytes, floating: bytes = b"", masks: bytes = b"") -> ThreadRegisters | None:
    """Return the registers in NT_PRSTATUS, NT_PRFPREG and the signature masks; None if the first is not a 64-bit thread's."""
    known = conventions_of(abi)
    if len(general) != 8 * known.general.words:
        return None
    words = _words(abi, general, known.general)
    values = {number: words[at] for number, at in known.general.places.items()}
    if known.floating and len(floating) >= 8 * known.floating.words:
        more = _words(abi, floating, known.floating)
        values |= {number: more[at] for number, at in known.floating.places.items()}
    signature = int.from_bytes(masks[8:], abi.byte_order) if len(masks) == MASKS_BYTES else 0
    return ThreadRegisters(words[known.general.pc], values, ~signature if signature else known.ra_mask)


def _words(abi: Abi, raw: bytes, known: RegisterSet) -> tuple[int, ...]:
    return unpack_from(f"{MARKS[abi.byte_order]}{known.words}Q", raw)
