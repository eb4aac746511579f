"""Addresses of functions by name, and names by address, of a file that need not be there any more."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from cfi.errors import FormatError
from sframegen.elf.text import printable

if TYPE_CHECKING:
    from sframegen.elf.file import ElfFile
    from sframegen.elf.symbols import CopiedFunctions, Symbol


class NamedAddresses:
    """The names of a file's functions; without a file there are none."""

    def __init__(self, file: str = "", functions: CopiedFunctions | None = None) -> None:
        self._file, self._functions = file, functions

    def address_of(self, text: str) -> int:
        """Return the address of a function, or of a place in it: `main`, `main+4`. Raises FormatError."""
        from sframegen.elf.function_names import address_in  # noqa: PLC0415 - look-ups by address need none

        address = address_in(text, self._named, self._file)
        if address is None:
            raise FormatError(f"no function is named {printable(text)}", file=self._file)
        return address

    def exactly_at(self, address: int) -> str | None:
        """Return the name of the function that begins at an address, the first in the table; None if there is none."""
        symbol = self._by_address.get(address)
        return symbol and printable(symbol.name)

    def _named(self, name: bytes) -> list[Symbol]:
        return [symbol for symbol in self._symbols if symbol.is_named(name)]

    @property
    def _symbols(self) -> list[Symbol]:
        return self._functions.symbols if self._functions else []

    @cached_property
    def _by_address(self) -> dict[int, Symbol]:
        return {symbol.address: symbol for symbol in reversed(self._symbols)}


NO_NAMES = NamedAddresses()


def copied_names(elf: ElfFile) -> NamedAddresses:
    """Copy the names of a file, which may change afterwards."""
    from sframegen.elf.symbols import CopiedFunctions  # noqa: PLC0415 - sections of no file need none

    return NamedAddresses(elf.name, CopiedFunctions(elf))
