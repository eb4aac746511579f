"""Reads the executable bytes of a file, and searches them with regular expressions."""

from __future__ import annotations

import re
from itertools import islice
from typing import TYPE_CHECKING

from sframegen.base.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sframegen.base.columns import Bytes
    from sframegen.elf.file import ElfFile

MAX_MATCHES = 16  # of one expression in a range of code; a C library has one or two


def readable_code(elf: ElfFile) -> Iterator[tuple[int, Bytes]]:
    """Yield the address and the bytes of each executable range that the file has; it may be cut off.

    Together the ranges have no more bytes than the file, so that overlapping segments cannot make a search longer.
    """
    bytes_left = len(elf.data)
    for start, end in elf.executable_ranges():
        bytes_left -= end - start
        if bytes_left < 0:
            return
        try:
            code = elf.at(start, end - start)
        except FormatError:
            continue
        yield start, code


def search_code(expression: bytes, elf: ElfFile) -> Iterator[tuple[int, re.Match[bytes]]]:
    """Yield (address of the range of code, match in it) for each match; none for an empty expression."""
    for start, code in readable_code(elf) if expression else ():
        for match in islice(re.finditer(expression, code, re.DOTALL), MAX_MATCHES):
            yield start, match
