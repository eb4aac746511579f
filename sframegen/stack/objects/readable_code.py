"""The executable bytes of a file, and what an expression finds in them."""

from __future__ import annotations

import re
from itertools import islice
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakKeyDictionary

from sframegen.base.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sframegen.base.columns import Bytes
    from sframegen.elf.file import ElfFile
    from sframegen.format.abi import Abi

T = TypeVar("T")
MAX_MATCHES = 16  # of one expression in a range: a C library has one or two


def once_per_file(find: Callable[[ElfFile, Abi], T]) -> Callable[[ElfFile, Abi], T]:
    """Return what finds the same, and goes through the code of a file once: what it finds is asked for before and after."""
    known: WeakKeyDictionary[ElfFile, T] = WeakKeyDictionary()

    def found(elf: ElfFile, abi: Abi) -> T:
        if elf not in known:
            known[elf] = find(elf, abi)
        return known[elf]

    return found


def readable_code(elf: ElfFile) -> Iterator[tuple[int, Bytes]]:
    """Yield the address and the bytes of each executable range, without those that lie after the end of a file that is cut off.

    Together they have no more bytes than the file: a file of many segments of the same bytes is searched as long as any other.
    """
    left = len(elf.data)
    for start, end in elf.executable_ranges():
        left -= end - start
        if left < 0:
            return
        try:
            code = elf.at(start, end - start)
        except FormatError:
            continue
        yield start, code


def found_in_code(expression: bytes, elf: ElfFile) -> Iterator[tuple[int, re.Match[bytes]]]:
    """Yield matches, each with the address that its places count from; none for an empty expression."""
    for start, code in readable_code(elf) if expression else ():
        for match in islice(re.finditer(expression, code, re.DOTALL), MAX_MATCHES):
            yield start, match
