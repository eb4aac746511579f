"""Names for the addresses of frames: function, offset and object."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from typing import TYPE_CHECKING, NamedTuple

from cfi import reader
from cfi.errors import FormatError
from cfi.section import Registers
from sframegen.conversion.sources import find_sources
from sframegen.elf.file import open_elf
from sframegen.elf.notes import build_id_of
from sframegen.elf.records import SHT_SYMTAB
from sframegen.elf.symbols import functions_of
from sframegen.elf.text import printable
from sframegen.format.abi import abi_of
from sframegen.stack.names.demangle import demangle
from sframegen.stack.names.perf_map import PerfMap
from sframegen.stack.objects.loaded_image import identity
from sframegen.stack.snapshot.mappings import DELETED
from sframegen.stack.walking.frames import ADDRESS_MASK

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

    from sframegen.elf.file import ElfFile
    from sframegen.elf.symbols import Symbol
    from sframegen.stack.objects.loaded_objects import LoadedObject, Objects
    from sframegen.stack.walking.frames import Frame, Thread

DEBUG_FILES = "/usr/lib/debug/.build-id"


class Place(NamedTuple):
    """Where a frame is; None for what is unknown. `offset`: from the start of the function to the PC."""

    function: str | None
    offset: int
    object: str | None
    address: int | None  # link-time, in the object
    start: int | None = None  # of the function, the same

    @property
    def label(self) -> str | None:
        """The function; without a name, its object and start: `[postgres+0x35f640]`."""
        if self.function or not self.object or self.start is None:
            return self.function
        return f"[{self.object_name}+{self.start:#x}]"

    @property
    def object_name(self) -> str:
        return printable((self.object or "").removesuffix(DELETED).rpartition("/")[2].strip("[]"))


class Symbols:
    """Names from the symbol tables of the objects in the stacks."""

    def __init__(self, objects: Objects, *, demangled: bool = True) -> None:
        self.objects = objects
        self._demangled = demangled
        self._tables: dict[Hashable, tuple[list[Symbol], list[int]]] = {}  # by file
        self._starts: dict[Hashable, tuple[array[int], array[int]]] = {}
        self._places: dict[tuple[Hashable, int, bool], Place] = {}
        self._perf_map: PerfMap | None = None

    def follow(self, pid: int, threads: Iterable[Thread]) -> None:
        """Read the names that the process has written for code that it made, if these stacks have such code."""
        codes = {frame.code for thread in threads for frame in thread.frames}
        if any(loaded is None or loaded.file is None for loaded in map(self.objects.known_at, codes)):
            self._perf_map = self._perf_map or PerfMap(pid)
            self._perf_map.read()

    def place(self, frame: Frame) -> Place:
        """Return the place of a frame of the last trace."""
        loaded = self.objects.known_at(frame.code)
        if loaded is None or loaded.file is None:
            entry = self._perf_map.find(frame.code) if self._perf_map else None
            name = (loaded and loaded.name) or None
            if entry is None:
                return Place(None, 0, name, None)
            return Place(printable(entry.name.decode(errors="replace")), frame.pc - entry.start, name, None)
        known = identity(loaded.file)
        key = (known, frame.pc - loaded.bias & ADDRESS_MASK, frame.exact)
        if key not in self._places:
            self._places[key] = self._in_file(frame, loaded, loaded.file)
        return self._places[key]

    def _in_file(self, frame: Frame, loaded: LoadedObject, file: ElfFile) -> Place:
        address, code = (at - loaded.bias & ADDRESS_MASK for at in (frame.pc, frame.code))
        symbol = self._symbol(file, identity(file), code)
        if symbol is not None:
            name = printable(symbol.name.partition("@")[0])  # without its version
            function = demangle(name) if self._demangled else name
            return Place(function, address - symbol.address, loaded.name, address, symbol.address)
        start = self._start(file, code)
        if start is None:
            start = _start_by_section(loaded, frame.code)
        return Place(None, 0 if start is None else address - start, loaded.name, address, start)

    def _start(self, file: ElfFile, address: int) -> int | None:
        """Return the start of the function, from call frame information: sections join neighbours."""
        known = identity(file)
        if known not in self._starts:
            self._starts[known] = _described(file)
        starts, sizes = self._starts[known]
        at = bisect_right(starts, address) - 1
        return starts[at] if at >= 0 and address - starts[at] < sizes[at] else None

    def _symbol(self, file: ElfFile, known: Hashable, address: int) -> Symbol | None:
        """Return the function at an address; one without a size reaches up to the next."""
        if known not in self._tables:
            symbols = _functions(file)
            self._tables[known] = symbols, [symbol.address for symbol in symbols]
        symbols, addresses = self._tables[known]
        at = bisect_right(addresses, address) - 1
        if at < 0:
            return None
        symbol = symbols[at]
        return symbol if not symbol.size or address - symbol.address < symbol.size else None


def _described(file: ElfFile) -> tuple[array[int], array[int]]:
    """Return ascending starts, and sizes, of the functions that have call frame information."""
    try:
        abi = abi_of(file)
        fdes = reader.read(find_sources(file).sections, Registers(abi.fp, abi.sp))
    except FormatError:
        return array("Q"), array("Q")
    order = sorted(range(len(fdes.start)), key=fdes.start.__getitem__)
    return array("Q", map(fdes.start.__getitem__, order)), array("Q", map(fdes.size.__getitem__, order))


def _start_by_section(loaded: LoadedObject, pc: int) -> int | None:
    try:
        found = loaded.look_up(pc)
    except FormatError:
        return None
    return found.start - loaded.bias & ADDRESS_MASK if found else None


def _functions(file: ElfFile) -> list[Symbol]:
    """Return functions by address; from the debug file, if there is one and the file itself names only its exports."""
    try:
        if not any(section.header.sh_type == SHT_SYMTAB for section in file.sections):
            file = _debug_file(file) or file
        last = {symbol.address: symbol for symbol in functions_of(file)}  # global symbols come after local ones
    except FormatError:
        return []
    return [last[address] for address in sorted(last)]


def _debug_file(file: ElfFile) -> ElfFile | None:
    build_id = (build_id_of(file) or b"").hex()
    try:
        return open_elf(f"{DEBUG_FILES}/{build_id[:2]}/{build_id[2:]}.debug") if build_id else None
    except (OSError, FormatError):
        return None
