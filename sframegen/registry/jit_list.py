"""Finds the JIT tables of a process through the list that the symbol `__sframegen_jit_tables` names.

The process links a node (struct sframegen_jit_region) into the list for each range of code that it registers. A node stays there
after its code is unregistered, and may be used again: its serial number goes up each time, and is odd while it is registered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sframegen.base.errors import FormatError
from sframegen.elf.records import ADDRESS_SPACE, SHN
from sframegen.elf.symbols import SymbolTable, symbol_tables
from sframegen.registry.jit_tables import Budget, JitTables
from sframegen.registry.regions import Memory, Region, Registry, RegistryError
from sframegen.registry.structures import CodeJitInfo, JitList, JitNode, R, decode_struct, struct_size

if TYPE_CHECKING:
    from sframegen.elf.file import ElfFile
    from sframegen.format.abi import Abi

SYMBOL = b"__sframegen_jit_tables"
LIST_VERSIONS = (1,)
MAX_NODES = 1 << 12  # one for each registered range of code; a runtime has a few
ATTEMPTS = 8  # reads of a node, which the process may be writing


def find_list_address(elf: ElfFile) -> int | None:
    """Return the link-time address of the list in a program or library; None if it has none."""
    for section in symbol_tables(elf):
        table = SymbolTable(elf, section)
        if SYMBOL + b"\0" in table.names:
            for symbol in table:
                if symbol.st_shndx != SHN.UNDEF and table.names.startswith(SYMBOL + b"\0", symbol.st_name):
                    return symbol.st_value
    return None


class JitRegions:
    """Registers the members of a process's list as regions of its registry."""

    def __init__(self, memory: Memory, address: int, abi: Abi) -> None:
        self._memory = memory
        self._address = address
        self._abi = abi
        self._keys: set[tuple[str, int, int]] = set()  # of the regions in the registry: "jit", the node's address and serial

    def update(self, registry: Registry, budget: Budget | None = None) -> None:
        """Register new members of the list, and unregister those that are gone. Raises FormatError if the list is damaged.

        Regions that stay keep the entries that were read. `budget`: shared by all lists of the process.
        """
        nodes = read_nodes(self._memory, self._address, self._abi, budget or Budget())
        registered = {("jit", at, node.serial): node for at, node in nodes.items() if node.serial % 2}
        for key in self._keys - registered.keys():
            registry.unregister(key)
            self._keys.remove(key)
        for key in registered.keys() - self._keys:
            node = registered[key]
            info = CodeJitInfo(node.text_start, node.text_end, node.unwind_head)
            try:
                registry.register(Region(info.text_start, info.text_end, key, JitTables(self._memory, info, self._abi)))
            except RegistryError as error:
                raise FormatError(str(error.strerror), "JIT list") from error
            self._keys.add(key)

    def clear(self, registry: Registry) -> None:
        """Remove the list's regions from the registry."""
        for key in self._keys:
            registry.unregister(key)
        self._keys.clear()


def read_nodes(memory: Memory, address: int, abi: Abi, budget: Budget) -> dict[int, JitNode]:
    """Return the members of the list at an address, by their addresses. Raises FormatError if it is damaged."""
    budget.spend(tables=1)
    head = _read_unchanging(JitList, memory, address, abi)
    if head.version not in LIST_VERSIONS:
        raise FormatError(f"version {head.version} is not read, only {LIST_VERSIONS[0]}", "JIT list", 0)
    nodes: dict[int, JitNode] = {}
    at = head.first
    while at:
        if at in nodes or len(nodes) == MAX_NODES:
            raise FormatError(f"comes back to {at:#x}, or has more than {MAX_NODES} members", "JIT list")
        budget.spend(tables=1)
        nodes[at] = _read_unchanging(JitNode, memory, at, abi)
        at = nodes[at].next
    return nodes


def _read_unchanging(kind: type[R], memory: Memory, at: int, abi: Abi) -> R:
    """Return a record that was read twice with the same bytes. Raises FormatError if it keeps changing."""
    size = struct_size(kind)
    is_address = at + size <= ADDRESS_SPACE
    for _ in range(ATTEMPTS):
        first, second = (memory.read(at, size), memory.read(at, size)) if is_address else (b"", b"")
        if len(first) != size:
            raise FormatError(f"{size} bytes at {at:#x} cannot be read", "JIT list")
        if first == second:
            return decode_struct(kind, first, abi.byte_order)
    raise FormatError(f"{size} bytes at {at:#x} change all the time", "JIT list")
