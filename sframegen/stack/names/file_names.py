"""Names the functions of one file, by address, from its symbol table, which follows that of its debug file if the file names only
its exports, else from Go's own table. Entries of the procedure linkage table (PLT) are named for what they jump to: `puts@plt`.

A symbol names the code that its size covers. For a function without a name, only the start is returned: that of the FDE in the call
frame information that covers the address, or else what the caller's `start_of` says. All results are cached.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from sframegen.base.errors import FormatError
from sframegen.base.text import printable
from sframegen.elf.records import PLT_SECTIONS
from sframegen.elf.symbols import MANGLED, FunctionColumns, Symbol
from sframegen.format.abi import abi_of
from sframegen.stack.names.symbol_files import DebugFiles, has_all_symbols, load_mini_debug_file

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from sframegen.code.context.plt import Plt
    from sframegen.elf.file import ElfFile
    from sframegen.stack.names.gopclntab import GoTable

MAX_CACHED = 1 << 15  # addresses; once there are more, `load_names` drops all of them


class NamedFunction(NamedTuple):
    """A function of a file. `name`: None without a symbol. `start`: link-time address; None if unknown."""

    name: str | None
    start: int | None


class FileNames:
    """Names by link-time address. Tables are read when the first name is needed."""

    def __init__(
        self,
        file: ElfFile,
        *,
        demangled: bool = True,
        debug_files: DebugFiles | None = None,
        start_of: Callable[[int], int | None] = lambda _: None,
    ) -> None:
        """`start_of`: returns where the function at an address begins; called if that has neither a name nor CFI."""
        self._file = file
        self._start_of = start_of
        self._demangled = demangled
        self._debug_files = debug_files or DebugFiles()
        self._by_address: dict[int, NamedFunction] = {}
        self._by_symbol: dict[tuple[int, int], NamedFunction] = {}  # by index in `_tables` and start: its addresses share it

    def at(self, address: int) -> NamedFunction:
        """Return the function that contains an address."""
        if address not in self._by_address:
            self.load_names([address])
        return self._by_address[address]

    def load_names(self, addresses: Collection[int]) -> None:
        """Find the functions of many addresses together, which is quicker, so that `at` can return them without a search."""
        if len(self._by_address) > MAX_CACHED:
            self._by_address, self._by_symbol = {}, {}
        unknown = [address for address in addresses if address not in self._by_address]
        for table_index, table in enumerate(self._tables if unknown else ()):
            candidates = table.functions_at(unknown)  # each symbol, with the addresses that it may cover
            self._name_functions(table_index, [symbol for symbol, _ in candidates])
            for symbol, symbol_addresses in candidates:
                covered = (address for address in symbol_addresses if self._symbol_covers(symbol, address))
                self._by_address.update(dict.fromkeys(covered, self._by_symbol[table_index, symbol.address]))
            unknown = [address for address in unknown if address not in self._by_address]
        self._by_address.update((address, self._find_without_symbol(address)) for address in unknown)
        self._name_stubs(unknown)

    def release_pages(self) -> None:
        """Drop the file's pages from this process's memory until they are read again."""
        from sframegen.program.own_memory import drop_pages  # noqa: PLC0415 - for long profiles

        drop_pages(self._file.data)

    def _name_functions(self, table_index: int, symbols: Iterable[Symbol]) -> None:
        """Name the functions of these symbols of one table. New mangled names are demangled together, which is quicker."""
        new = [symbol for symbol in symbols if (table_index, symbol.address) not in self._by_symbol]
        names = [printable(symbol.name.partition("@")[0]) for symbol in new]  # without the symbol's version
        for symbol, name in zip(new, self._demangle(names), strict=True):
            self._by_symbol[table_index, symbol.address] = NamedFunction(name, symbol.address)

    def _name_stubs(self, nameless: list[int]) -> None:
        """Name entries of the PLT for the functions that they jump to."""
        plts = [section.header for section in map(self._file.section, PLT_SECTIONS) if section]
        if addresses := [at for at in nameless if any(0 <= at - plt.sh_addr < plt.sh_size for plt in plts)]:
            from sframegen.code.context.file_context import find_entry_slot, read_imports  # noqa: PLC0415 - few frames are in a PLT

            with suppress(FormatError):
                slots = {at: entry for at in addresses if (entry := find_entry_slot(self._plt, self._file, at))}
                imports = read_imports(self._file, {slot for _, slot in slots.values()})
                names = dict(zip(imports, self._demangle([*map(printable, imports.values())]), strict=True))
                found = {at: (names.get(slot or 0), start) for at, (start, slot) in slots.items()}
                self._by_address.update((at, NamedFunction(f"{name}@plt", start)) for at, (name, start) in found.items() if name)

    def _demangle(self, names: list[str]) -> list[str]:
        mangled = {name for name in names if name.startswith(MANGLED)} if self._demangled else set()
        if not mangled:
            return names
        from sframegen.stack.names.demangle import demangle_all  # noqa: PLC0415 - programs in C have no such names

        demangled = demangle_all(mangled)
        return [demangled.get(name, name) for name in names]

    @cached_property
    def _tables(self) -> list[FunctionColumns]:
        return _read_symbol_tables(self._file, self._debug_files)

    @cached_property
    def _plt(self) -> Plt:
        """The PLT; empty if it is damaged. Raises FormatError for an unknown ABI."""
        from sframegen.code.context.plt import Plt, find_plt  # noqa: PLC0415 - few frames are in a PLT

        abi = abi_of(self._file)
        try:
            return find_plt(self._file, abi)
        except FormatError:
            return Plt(abi, [])

    @cached_property
    def _go_table(self) -> GoTable | None:
        from sframegen.stack.names.gopclntab import find_go_table  # noqa: PLC0415 - here and below: most files have symbols

        return find_go_table(self._file)

    @cached_property
    def _fde_ranges(self) -> tuple[array[int], array[int]]:
        """The ascending starts, and the sizes, of FDEs in the CFI, because an SFrame section may have joined functions."""
        from cfi import reader  # noqa: PLC0415
        from sframegen.conversion.cfi_sections import find_sources  # noqa: PLC0415

        try:
            abi = abi_of(self._file)
            fdes = reader.read_cfi_sections(find_sources(self._file).sections, abi.followed)
        except FormatError:
            return array("Q"), array("Q")
        order = sorted(range(len(fdes.start)), key=fdes.start.__getitem__)
        return array("Q", map(fdes.start.__getitem__, order)), array("Q", map(fdes.size.__getitem__, order))

    def _find_without_symbol(self, address: int) -> NamedFunction:
        function = self._go_table.function_at(address) if self._go_table else None
        if function:
            return NamedFunction(self._demangle([function.name])[0], function.start)
        start, size = self._last_fde_before(address)
        return NamedFunction(None, start if address - start < size else self._start_of(address))

    def _symbol_covers(self, symbol: Symbol, address: int) -> bool:
        """Return True if the symbol's code contains the address. A symbol without a size ends where an FDE ends or begins."""
        if symbol.size or symbol.address == address:
            return True
        start, size = self._last_fde_before(address)
        return start <= symbol.address and (address - start < size or symbol.address - start >= size)

    def _last_fde_before(self, address: int) -> tuple[int, int]:
        """Return start and size of the last FDE that begins at or before the address; (0, 0) without one."""
        starts, sizes = self._fde_ranges
        at = bisect_right(starts, address) - 1
        return (starts[at], sizes[at]) if at >= 0 else (0, 0)


def _read_symbol_tables(file: ElfFile, debug_files: DebugFiles) -> list[FunctionColumns]:
    """Return the symbol tables by address. If the file names only its exports, the table of its debug file comes first."""
    files = [file]
    if not has_all_symbols(file):
        debug = debug_files.find(file) or load_mini_debug_file(file)
        files = [debug, file] if debug else files
    tables = []
    for symbol_file in files:
        with suppress(FormatError):
            tables.append(FunctionColumns(symbol_file))
    return tables
