"""What debug information says of an address."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection

    from sframegen.elf.file import ElfFile


class Place(NamedTuple):
    """A function at an address, and the line in it: of the instruction, or of the call of what was inlined there.

    `function`: as the compiler names it, demangled if asked for; empty if unknown. `source`: its file, empty if unknown.
    `line`: 0 if unknown. `inlined`: into the function of the place before it.
    """

    function: str
    source: str
    line: int
    inlined: bool


class Question(NamedTuple):
    """`file`: with debug information. `addresses`: link-time."""

    file: ElfFile
    addresses: Collection[int]
