"""How a frame is packed into 64 bits. The kernel program has the same numbers (bpf/walker.h)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

GUESSED = 1 << 63  # a frame pointer led to this frame, without a rule
FILE_SHIFT = 48
FILE_MASK = 0x7FFF
PACKED_ADDRESS = (1 << FILE_SHIFT) - 1
NO_FILE = 0  # the address is a run-time address
KERNEL_FILE = FILE_MASK  # the address is the kernel's


class FileFrame(NamedTuple):
    """`address`: link-time in the file, of the instruction that runs or calls; run-time for NO_FILE and KERNEL_FILE."""

    file: int
    address: int
    guessed: bool = False

    def packed(self) -> int:
        return self.guessed << 63 | self.file << FILE_SHIFT | self.address & PACKED_ADDRESS


def unpacked_frame(frame: int) -> FileFrame:
    return FileFrame(frame >> FILE_SHIFT & FILE_MASK, frame & PACKED_ADDRESS, bool(frame & GUESSED))


def files_in_frames(frames: Iterable[int]) -> set[int]:
    """Return the numbers of all files of packed frames."""
    return {frame >> FILE_SHIFT & FILE_MASK for frame in frames}
