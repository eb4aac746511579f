"""What all formats have in common: the pass over a package's entries, and its limits."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    # Called with a path in the package, a private copy of that ELF file, and a path that is free: True if it wrote there the file
    # that takes its place. Raises nothing for a file that it refuses; what it raises ends the pass.
    Visit = Callable[[str, Path, Path], bool]


class Passed(NamedTuple):
    """What a pass over a package saw. Sizes are in bytes."""

    kind: str  #: "wheel", "deb", ...
    entries: int  #: all that it names
    unpacked_bytes: int  #: of all regular files
    elf_files: int  #: linked ELF files, which were visited
    changed: int  #: those that another took the place of
    seconds_reading: float  #: unpacking
    seconds_writing: float  #: packing
    warnings: tuple[str, ...] = ()  #: a line each
