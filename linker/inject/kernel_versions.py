"""Linux kernels: the changes to a file that need newer ones, and those that the user allows."""

from __future__ import annotations

import re
from enum import Enum
from typing import NamedTuple


class Kernel(NamedTuple):
    major: int
    minor: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"


class KernelChange(Enum):
    """A change to a file that only newer kernels accept."""

    TABLE_AT_THE_END = "the program header table of a program at the end of the file"
    SEGMENT_IN_A_LOADER = "a segment after the .bss of a dynamic loader"


SAFE_SINCE = {
    KernelChange.TABLE_AT_THE_END: Kernel(5, 18),  # AT_PHDR comes from the PT_LOAD that holds the table
    KernelChange.SEGMENT_IN_A_LOADER: Kernel(6, 7),  # clears the .bss of each PT_LOAD separately, for interpreters too
}
VERSION = re.compile(r"(\d{1,4})\.(\d{1,4})([.+~-][\w.+~-]*)?", re.ASCII)  # accepts the output of uname -r


def kernel_of(version: str) -> Kernel:
    """Raises ValueError if it is not a version, TypeError if it is not a string."""
    if not isinstance(version, str):
        raise TypeError(f"min_kernel is {version!r}: give a string such as '5.18'")
    found = VERSION.fullmatch(version)
    if found is None:
        raise ValueError(f"not a Linux version such as 5.18: {version!r}")
    return Kernel(int(found[1]), int(found[2]))


def safe_on(min_kernel: str | None) -> frozenset[KernelChange]:
    """Return the changes that this kernel and all later ones accept; none without a version."""
    if min_kernel is None:
        return frozenset()
    kernel = kernel_of(min_kernel)
    return frozenset(change for change, since in SAFE_SINCE.items() if since <= kernel)
