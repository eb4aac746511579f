"""Finds the lists of unwind tables for code that a process makes at run time, and reads what it adds to them.

A program with a JIT compiler may keep such tables in its own memory, in the layout of `sframegen_jit.h` (docs/registration.md). The
list begins at a symbol of the object that has the compiler, and has an entry for each region of code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sframegen.base.errors import FormatError
from sframegen.stack.objects.loaded_image import read_loaded_image

if TYPE_CHECKING:
    from sframegen.registry.jit_list import JitRegions
    from sframegen.registry.regions import Registry
    from sframegen.stack.mappings import Mapping, Mappings
    from sframegen.stack.snapshot import MovedCode, Snapshot


class RuntimeCode:
    """Keeps a registry up to date with the lists of unwind tables in one process."""

    def __init__(self, registry: Registry, moved: MovedCode) -> None:
        self._registry = registry
        self._moved = moved
        self._lists: dict[int, JitRegions] = {}  # by address
        self._addresses: dict[Mapping, int | None] = {}  # by mapping, the address of the list of the object mapped there
        self._mappings: Mappings | None = None

    def update(self, snapshot: Snapshot, seconds: float | None = None) -> None:
        """Read new tables and entries into the registry, which then has the current rules of the process's regions.

        `seconds`: a time limit for reading that is shorter than the usual one.
        """
        if snapshot.mappings is not self._mappings:
            self._mappings = snapshot.mappings
            self._update_lists(snapshot)
        if not self._lists:
            return
        from sframegen.registry.jit_tables import Budget, JitTables, refresh_chains  # noqa: PLC0415

        budget = Budget(seconds)
        for regions in self._lists.values():
            try:
                regions.update(self._registry, budget)
            except FormatError:
                regions.clear(self._registry)
        refresh_chains((region.rule_source for region in self._registry if isinstance(region.rule_source, JitTables)), budget)

    def _update_lists(self, snapshot: Snapshot) -> None:
        """Find the lists of new objects, and drop those of objects that are gone."""
        rows = [row for row in snapshot.mappings if row.executable]
        if not self._lists and not any(_may_be_jit_code(row) for row in rows):
            return
        from sframegen.registry.jit_list import JitRegions  # noqa: PLC0415

        old = self._addresses
        self._addresses = {row: old[row] if row in old else _find_list_address(snapshot, row, self._moved) for row in rows}
        addresses = {address for address in self._addresses.values() if address is not None}
        for address in self._lists.keys() - addresses:
            self._lists.pop(address).clear(self._registry)
        for address in addresses - self._lists.keys():
            self._lists[address] = JitRegions(snapshot.memory, address, snapshot.abi)


def _may_be_jit_code(row: Mapping) -> bool:
    """Return True if the code may be made at run time, because no regular file is mapped, and it is not the kernel's."""
    return not row.path.startswith(("/", "[")) or row.path.startswith(("/memfd:", "/dev/", "[anon"))


def _find_list_address(snapshot: Snapshot, row: Mapping, moved: MovedCode) -> int | None:
    from sframegen.registry.jit_list import find_list_address  # noqa: PLC0415

    image = read_loaded_image(snapshot, row, moved)
    try:
        address = find_list_address(image.file) if image and image.file else None
    except FormatError:
        return None
    return None if image is None or address is None else image.address(address)
