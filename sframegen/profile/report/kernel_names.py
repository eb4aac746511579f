"""Names of the kernel's functions, from /proc/kallsyms."""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

KALLSYMS = Path("/proc/kallsyms")
DIGITS = slice(16)  # of a line, which goes on with the type of the symbol, its name and perhaps a module
TYPE = slice(17, 18)
CODE = (b"t", b"T", b"w", b"W")
NAMED = re.compile(rb"\S+ \S (\S+)(?:\s+\[(\S+)\])?")
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
        found = sorted([line for line in data.split(b"\n") if line[TYPE] in CODE], key=itemgetter(DIGITS))
        addresses = array("Q", [int(line[DIGITS], 16) for line in found])
        hidden = bisect_right(addresses, 0)
        self._addresses, self._lines = addresses[hidden:], found[hidden:]

    @property
    def hidden(self) -> bool:
        return not self._addresses

    def at(self, address: int) -> KernelFunction:
        number = bisect_right(self._addresses, address) - 1
        if number < 0 or address - self._addresses[number] > MAX_FUNCTION:
            return KernelFunction(None, KERNEL)
        number = bisect_right(self._addresses, self._addresses[number] - 1)  # the first of those at one address
        match = NAMED.match(self._lines[number])
        name, module = match.groups() if match else (None, None)
        return KernelFunction(_text(name) if name else None, f"[{_text(module)}]" if module else KERNEL)


def _text(name: bytes) -> str:
    return name.decode(errors="replace")
