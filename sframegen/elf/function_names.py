"""Finds functions by name, and names by address, in a file's own symbol table."""

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


HEXADECIMAL = re.compile(r"(0[xX])?[0-9a-fA-F]{1,16}")
SYMBOL_OFFSET = re.compile(r"(.+)\+(0[xX][0-9a-fA-F]{1,16}|[0-9]{1,20})", re.DOTALL)


class FunctionNames:
    """A file's function names by address, with characters that would disturb a terminal escaped."""

    def __init__(self, symbols: Sequence[Symbol]) -> None:
        """`symbols`: the file's function_symbols(), or function_symbols_before() the addresses of interest."""
        self.symbols = symbols
        self.addresses = [symbol.address for symbol in symbols]

    def at(self, address: int) -> str | None:
        """Return `name` or `name+0x4` for the function that holds `address`; None if the symbol table has none there."""
        index = bisect_right(self.addresses, address) - 1
        if index < 0:
            return None
        symbol = self.symbols[index]
        offset = address - symbol.address
        if offset >= max(symbol.size, 1):
            return None
        return printable(symbol.name) + (f"+{offset:#x}" if offset else "")


def resolve_address(elf: ElfFile, text: str) -> int:
    """Return the address that `text` names: a function's name, a name + offset (decimal, or 0x...), a hexadecimal address.

    They are tried in this order: `add` is the function of that name if it exists, else 0xadd. A symbol version may be left out.
    Raises FormatError if it is none of them, or the name of several functions.
    """
    address = resolve_name(text, lambda name: find_functions_named(elf, name), elf.name)
    if address is not None:
        return address
    if HEXADECIMAL.fullmatch(text):
        return int(text, 16)
    raise elf.error(f"'{printable(text)}' is neither a function nor a hexadecimal address")


def resolve_name(text: str, find: Callable[[bytes], Iterable[Symbol]], file: str) -> int | None:
    """Return the address of a name, or of a name + offset; None if it is neither. `find`: returns the functions with a name.

    Raises FormatError for the name of several functions.
    """
    for name, offset in split_name_and_offset(text):
        found = {symbol.address for symbol in find(name.encode(errors="replace"))}
        if len(found) > 1:
            places = ", ".join(f"{address:#x}" for address in sorted(found))
            raise FormatError(f"{len(found)} functions are named {printable(name)}: {places}", file=file)
        if found:
            return found.pop() + offset
    return None


def split_name_and_offset(text: str) -> Iterator[tuple[str, int]]:
    """Yield each (name, offset) that a text can mean, first the whole text as a name. The offset is decimal, or 0x..."""
    if text:
        yield text, 0
    if match := SYMBOL_OFFSET.fullmatch(text):
        name, digits = match.groups()
        yield name, int(digits, 16 if digits[:2] in ("0x", "0X") else 10)


class CopiedSymbols:
    """A file's function names and addresses, copied when this is made; empty without a file.

    The FormatError for a damaged symbol table is raised by the first look-up.
    """

    def __init__(self, elf: ElfFile | None = None) -> None:
        self._file = elf.name if elf else ""
        self._fault: FormatError | None = None
        self._read: Callable[[], list[Symbol]] = list
        try:
            self._read = copy_symbol_table(elf) if elf else list
        except FormatError as error:
            self._fault = error

    def address_of(self, text: str) -> int:
        """Return the address of a function, or of a place in it: `main`, `main+4`. Raises FormatError."""
        address = resolve_name(text, lambda name: [symbol for symbol in self._symbols if symbol.is_named(name)], self._file)
        if address is None:
            raise FormatError(f"no function is named {printable(text)}", file=self._file)
        return address

    def exactly_at(self, address: int) -> str | None:
        """Return the name of the first function in the table that begins at an address; None if there is none."""
        symbol = self._by_address.get(address)
        return symbol and printable(symbol.name)

    @cached_property
    def _symbols(self) -> list[Symbol]:
        if self._fault is not None:
            raise self._fault
        return self._read()

    @cached_property
    def _by_address(self) -> dict[int, Symbol]:
        return {symbol.address: symbol for symbol in reversed(self._symbols)}


NO_NAMES = CopiedSymbols()
