"""Tells which changes to an ELF file need a newer Linux kernel, and which are safe for a user's minimum kernel version."""

from __future__ import annotations

import re
from enum import Enum, unique

from sframegen.base.quick_typing import NamedTuple


class Kernel(NamedTuple):
    """A version of Linux; the patch level does not matter."""

    major: int
    minor: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"


@unique
class KernelChange(Enum):
    """A change to a file that only newer kernels accept; the value is the first kernel that accepts it."""

    TABLE_AT_THE_END = Kernel(5, 18)  #: a program header table after other segments; older kernels need it in the first PT_LOAD
    SEGMENT_IN_A_LOADER = Kernel(6, 7)  #: a segment after a dynamic loader's .bss; older kernels do not clear each .bss


MIN_KERNEL = "5.18"  # the default of --min-kernel
VERSION = re.compile(r"(\d{1,4})\.(\d{1,4})([.+~-][\w.+~-]*)?", re.ASCII)  # major, minor, any rest as in the output of uname -r


def parse_kernel_version(version: str) -> Kernel:
    """Parse a kernel version. Raises ValueError if it is not a version, TypeError if it is not a string."""
    if not isinstance(version, str):
        raise TypeError(f"min_kernel is {version!r}: give a string such as '5.18'")
    match = VERSION.fullmatch(version)
    if match is None:
        raise ValueError(f"not a Linux version such as 5.18: {version!r}")
    return Kernel(int(match[1]), int(match[2]))


def changes_accepted_by(min_kernel: str | None) -> frozenset[KernelChange]:
    """Return the changes that `min_kernel`, by default MIN_KERNEL, and all later kernels accept."""
    kernel = parse_kernel_version(MIN_KERNEL if min_kernel is None else min_kernel)
    return frozenset(change for change in KernelChange if change.value <= kernel)
