"""Names of the kernel's functions, from /proc/kallsyms."""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from pathlib import Path
from typing import NamedTuple

KALLSYMS = Path("/proc/kallsyms")
LINE = re.compile(rb"^([0-9a-f]+) [tTwW] (\S+)(?:\s+\[(\S+)\])?$", re.MULTILINE)
KERNEL = "[kernel]"
MAX_FUNCTION = 1 << 20  # bytes: an address further after the last symbol has no name


class KernelFunction(NamedTuple):
    name: str | None
    object: str  # `[kernel]`, `[ext4]`


class KernelNames:
    """Empty if the kernel hides its addresses (kernel.kptr_restrict): it prints zeros then."""

    def __init__(self, listing: Path = KALLSYMS) -> None:
        try:
            data = listing.read_bytes()
        except OSError:
            data = b""
        found = [(address, match) for match in LINE.finditer(data) if (address := int(match[1], 16))]
        found.sort(key=lambda item: item[0])
        self._addresses = array("Q", [address for address, _ in found])
        self._matches = [match for _, match in found]

    @property
    def hidden(self) -> bool:
        return not self._addresses

    def at(self, address: int) -> KernelFunction:
        number = bisect_right(self._addresses, address) - 1
        if number < 0 or address - self._addresses[number] > MAX_FUNCTION:
            return KernelFunction(None, KERNEL)
        number = bisect_right(self._addresses, self._addresses[number] - 1)  # the first of those at one address
        match = self._matches[number]
        return KernelFunction(match[2].decode(errors="replace"), f"[{match[3].decode(errors='replace')}]" if match[3] else KERNEL)
