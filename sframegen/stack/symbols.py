"""Names for the addresses of frames: function, offset and object."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, NamedTuple

from cfi.errors import FormatError
from sframegen.elf import SHT_SYMTAB, open_elf
from sframegen.names import printable
from sframegen.stack.demangle import demangle
from sframegen.stack.image import identity
from sframegen.stack.walk import ADDRESS_MASK

if TYPE_CHECKING:
    from collections.abc import Hashable

    from sframegen.elf import ElfFile, Symbol
    from sframegen.stack.objects import Objects
    from sframegen.stack.walk import Frame

DEBUG_FILES = "/usr/lib/debug/.build-id"


class Place(NamedTuple):
    """Where a frame is; None for what is not known. `offset`: from the function's start to the PC."""

    function: str | None
    offset: int
    object: str | None
    address: int | None  # link-time, in the object


class Symbols:
    """Names by the symbol tables of the objects that were walked through."""

    def __init__(self, objects: Objects, *, demangled: bool = True) -> None:
        self._objects = objects
        self._demangled = demangled
        self._tables: dict[Hashable, tuple[list[Symbol], list[int]]] = {}  # by file
        self._places: dict[tuple[Hashable, int, bool], Place] = {}

    def place(self, frame: Frame) -> Place:
        """As of the last trace."""
        loaded = self._objects.known_at(frame.code)
        if loaded is None:
            return Place(None, 0, None, None)
        file = loaded.file
        if file is None:
            return Place(None, 0, loaded.name or None, None)
        address = frame.pc - loaded.bias & ADDRESS_MASK
        known = identity(file)
        key = (known, address, frame.exact)
        if key not in self._places:
            symbol = self._symbol(file, known, address - (frame.pc - frame.code))
            if symbol is None:
                self._places[key] = Place(None, 0, loaded.name, address)
            else:
                name = printable(symbol.name.partition("@")[0])  # without its version
                self._places[key] = Place(
                    demangle(name) if self._demangled else name, address - symbol.address, loaded.name, address
                )
        return self._places[key]

    def _symbol(self, file: ElfFile, known: Hashable, address: int) -> Symbol | None:
        """The function that holds it; one without a size reaches up to the next."""
        if known not in self._tables:
            symbols = _functions(file)
            self._tables[known] = symbols, [symbol.address for symbol in symbols]
        symbols, addresses = self._tables[known]
        at = bisect_right(addresses, address) - 1
        if at < 0:
            return None
        symbol = symbols[at]
        return symbol if not symbol.size or address - symbol.address < symbol.size else None


def _functions(file: ElfFile) -> list[Symbol]:
    """By address; of the debug file, if this machine has one and the file itself only names what it exports."""
    try:
        if not any(section.header.sh_type == SHT_SYMTAB for section in file.sections):
            file = _debug_file(file) or file
        last = {symbol.address: symbol for symbol in file.functions()}  # global symbols come behind local ones
    except FormatError:
        return []
    return [last[address] for address in sorted(last)]


def _debug_file(file: ElfFile) -> ElfFile | None:
    build_id = (file.build_id() or b"").hex()
    try:
        return open_elf(f"{DEBUG_FILES}/{build_id[:2]}/{build_id[2:]}.debug") if build_id else None
    except (OSError, FormatError):
        return None
