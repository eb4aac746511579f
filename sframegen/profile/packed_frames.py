"""Packs a stack frame (file number, address, whether it was guessed) into 64 bits, as the kernel program does (bpf/walker.h)."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

GUESSED = 1 << 63  # flag: the walk came to this frame by a frame pointer, because its callee's code had no rule
FILE_SHIFT = 48
FILE_MASK = 0x7FFF
PACKED_ADDRESS = (1 << FILE_SHIFT) - 1
NO_FILE = 0  # the address is a run-time address
OFF_CPU_FILE = 0x7FFE  # the address is an OffCpu
KERNEL_FILE = FILE_MASK  # the address is in the kernel
OFF_CPU_HASH_FACTOR = 0x9E3779B97F4A7C15  # the hash of an off-CPU stack is that of its other frames ^ reason * this factor
MASK_64 = (1 << 64) - 1


class OffCpu(IntEnum):
    """Why a thread is off the CPU. The innermost frame of an off-CPU stack stands for this reason."""

    SLEEPING = 1
    LOCK = 2
    IO = 3
    PREEMPTED = 4
    WAITING = 5

    @property
    def frame(self) -> int:
        return OFF_CPU_FILE << FILE_SHIFT | self

    @property
    def hash(self) -> int:
        return self * OFF_CPU_HASH_FACTOR & MASK_64


OFF_CPU_WORDS = dict(zip(OffCpu, ("sleeping", "lock", "I/O", "preempted", "waiting for a CPU"), strict=True))


class FileFrame(NamedTuple):
    """A frame's file, and the link-time address (for NO_FILE and KERNEL_FILE: run-time) of its running or calling instruction."""

    file: int
    address: int
    guessed: bool = False

    def pack(self) -> int:
        return self.guessed * GUESSED | self.file << FILE_SHIFT | self.address & PACKED_ADDRESS


def unpack_frame(frame: int) -> FileFrame:
    return FileFrame(frame >> FILE_SHIFT & FILE_MASK, frame & PACKED_ADDRESS, bool(frame & GUESSED))


def is_off_cpu(frames: Sequence[int]) -> bool:
    """Return True if these packed frames are the stack of a thread off the CPU."""
    return bool(frames) and frames[0] >> FILE_SHIFT == OFF_CPU_FILE


def off_cpu_label(reason: int) -> str:
    return f"[off CPU: {OFF_CPU_WORDS[OffCpu(reason)]}]"
