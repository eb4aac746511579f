"""USDT probes: the notes that sys/sdt.h leaves in a file, and where their arguments are."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from cfi.errors import FormatError, naming
from sframegen.elf.notes import notes_at
from sframegen.elf.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sframegen.elf.file import ElfFile

SECTION, BASE = ".note.stapsdt", ".stapsdt.base"
OWNER, KIND = b"stapsdt\0", 3
WORD = 8
ADDRESSES = (1 << 64) - 1
SIZED = re.compile(r"(-?)([1248])f?@(.+)")
MAX_ARGUMENTS = 12
MAX_TEXT = 4096  # characters of all arguments: dividing them may take the square of that


class UserProbe(NamedTuple):
    """One place of a probe; a probe may have several. Addresses are link-time; `semaphore` is 0 if there is none."""

    provider: str
    name: str
    address: int
    semaphore: int
    arguments: str


class Argument(NamedTuple):
    """`size` bytes in the operand of an instruction, as the assembler writes it."""

    size: int
    signed: bool
    operand: str


def user_probes(elf: ElfFile) -> Iterator[UserProbe]:
    """Yield all probes of a file. Raises FormatError if the notes are damaged."""
    section = elf.section(SECTION)
    if section is None:
        return
    base = elf.section(BASE)
    header = section.header
    with naming(elf.name):
        for note in notes_at(elf, header.sh_offset, header.sh_size, header.sh_addralign):
            if note.name != OWNER or note.type != KIND:
                continue
            texts = [text.decode(errors="replace") for text in note.desc[3 * WORD :].split(b"\0")]
            if len(texts) < 4:
                raise FormatError("a probe without its texts", SECTION, note.offset)
            address, linked_base, semaphore = (
                int.from_bytes(note.desc[at : at + WORD], elf.byte_order) for at in range(0, 3 * WORD, WORD)
            )
            moved = base.header.sh_addr - linked_base if base else 0
            yield UserProbe(
                printable(texts[0]),
                printable(texts[1]),
                address + moved & ADDRESSES,
                semaphore + moved & ADDRESSES if semaphore else 0,
                texts[2],
            )


def arguments_of(probe: UserProbe) -> list[Argument | None]:
    """Return its arguments; None for those of an unknown form."""
    return [_argument(text) for text in _split(probe.arguments)[:MAX_ARGUMENTS]]


def _split(text: str) -> list[str]:
    """Divide at blanks that are not within brackets: AArch64 writes `8@[sp, 16]`."""
    return re.findall(r"(?:\[[^\]]*\]|\S)+", text[:MAX_TEXT])


def _argument(text: str) -> Argument | None:
    match = SIZED.fullmatch(text)
    return Argument(int(match[2]), match[1] == "-", match[3]) if match else None
