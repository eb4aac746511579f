"""Finds functions by name, and names by address, in the symbol table of an ELF file."""

from __future__ import annotations

import re
from bisect import bisect_right
from functools import cached_property
from typing import TYPE_CHECKING

from sframegen.base.errors import FormatError
from sframegen.base.text import printable
from sframegen.elf.symbols import Symbol, copy_symbol_table, find_functions_named

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from sframegen.elf.file import ElfFile

HEXADECIMAL = re.compile(r"(0[xX])?[0-9a-fA-F]{1,16}")  # a 64-bit address
NAME_AND_OFFSET = re.compile(r"(.+)\+(0[xX][0-9a-fA-F]{1,16}|[0-9]{1,20})", re.DOTALL)


class FunctionNames:
    """Looks up function names by address. Characters that would disturb a terminal are escaped."""

    def __init__(self, symbols: Sequence[Symbol]) -> None:
        """`symbols`: the result of sorted_functions, or of last_functions_before for the addresses that will be looked up."""
        self.symbols = symbols
        self.addresses = [symbol.address for symbol in symbols]

    def at(self, address: int) -> str | None:
        """Return `name` or `name+0x4` for the function that contains `address`; None if the symbol table has none there."""
        index = bisect_right(self.addresses, address) - 1
        if index < 0:
            return None
        symbol = self.symbols[index]
        offset = address - symbol.address
        if offset >= max(symbol.size, 1):
            return None
        return printable(symbol.name) + (f"+{offset:#x}" if offset else "")


def resolve_address(elf: ElfFile, text: str) -> int:
    """Return the address that `text` means: a function's name, a name + offset (decimal, or 0x...), or a hexadecimal address.

    Tried in this order: `add` is the function of that name if there is one, else 0xadd. `exp` also finds `exp@@GLIBC_2.29`.
    Raises FormatError if `text` is none of them, or the name of several functions.
    """
    address = resolve_name(text, lambda name: find_functions_named(elf, name), elf.name)
    if address is not None:
        return address
    if HEXADECIMAL.fullmatch(text):
        return int(text, 16)
    raise elf.error(f"'{printable(text)}' is neither a function nor a hexadecimal address")


def resolve_name(text: str, find: Callable[[bytes], Iterable[Symbol]], file: str) -> int | None:
    """Return the address of a function's name, or of a name + offset; None if `text` is neither.

    `find`: returns the functions with a name. Raises FormatError if several functions have the name.
    """
    for name, offset in split_name_and_offset(text):
        addresses = {symbol.address for symbol in find(name.encode(errors="replace"))}
        if len(addresses) > 1:
            listed = ", ".join(f"{address:#x}" for address in sorted(addresses))
            raise FormatError(f"{len(addresses)} functions are named {printable(name)}: {listed}", file=file)
        if addresses:
            return addresses.pop() + offset
    return None


def split_name_and_offset(text: str) -> Iterator[tuple[str, int]]:
    """Yield each (name, offset) that a text can mean, first the whole text as a name. Its offset may be decimal, or 0x..."""
    if text:
        yield text, 0
    if match := NAME_AND_OFFSET.fullmatch(text):
        name, digits = match.groups()
        yield name, int(digits, 16 if digits[:2] in ("0x", "0X") else 10)


class CopiedSymbols:
    """A copy of a file's function symbols, independent of later changes to the file; empty without a file.

    If the symbol table is damaged, the first look-up raises FormatError, and not the constructor.
    """

    def __init__(self, elf: ElfFile | None = None) -> None:
        self._file = elf.name if elf else ""
        self._fault: FormatError | None = None
        self._parse_copy: Callable[[], list[Symbol]] = list
        try:
            self._parse_copy = copy_symbol_table(elf) if elf else list
        except FormatError as error:
            self._fault = error

    def address_of(self, text: str) -> int:
        """Return the address of a name, or of a name + offset: `main`, `main+4`. Raises FormatError if there is none."""
        address = resolve_name(text, lambda name: [symbol for symbol in self._symbols if symbol.is_named(name)], self._file)
        if address is None:
            raise FormatError(f"no function is named {printable(text)}", file=self._file)
        return address

    def exactly_at(self, address: int) -> str | None:
        """Return the name of the function that begins at an address; of several, the first in the table; None without one."""
        symbol = self._by_address.get(address)
        return symbol and printable(symbol.name)

    @cached_property
    def _symbols(self) -> list[Symbol]:
        if self._fault is not None:
            raise self._fault
        return self._parse_copy()

    @cached_property
    def _by_address(self) -> dict[int, Symbol]:
        return {symbol.address: symbol for symbol in reversed(self._symbols)}


NO_NAMES = CopiedSymbols()
