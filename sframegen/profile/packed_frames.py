"""How a frame is packed into 64 bits. The kernel program has the same numbers (bpf/walker.h)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

GUESSED = 1 << 63  # a frame pointer led to this frame, without a rule
FILE_SHIFT = 48
FILE_MASK = 0x7FFF
ADDRESS_MASK = (1 << FILE_SHIFT) - 1
NO_FILE = 0  # the address is a run-time address
KERNEL_FILE = FILE_MASK  # the address is the kernel's
MAX_FILES = FILE_MASK - 1
MAX_DEPTH = 1024  # frames of one stack


class Frame(NamedTuple):
    """`address`: link-time in the file, of the instruction that runs or calls; run-time for NO_FILE and KERNEL_FILE."""

    file: int
    address: int
    guessed: bool = False

    def packed(self) -> int:
        return self.guessed << 63 | self.file << FILE_SHIFT | self.address & ADDRESS_MASK


def unpacked(frame: int) -> Frame:
    return Frame(frame >> FILE_SHIFT & FILE_MASK, frame & ADDRESS_MASK, bool(frame & GUESSED))


def files_of(frames: Iterable[int]) -> set[int]:
    """Return the numbers of all files of packed frames."""
    return {frame >> FILE_SHIFT & FILE_MASK for frame in frames}
