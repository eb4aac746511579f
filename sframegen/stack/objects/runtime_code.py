"""Code that a process makes at run time: finds the lists of its unwind tables, and reads what is added to them."""

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
    """Keeps a registry in step with the table lists of a process."""

    def __init__(self, registry: Registry, moved: MovedCode) -> None:
        self._registry = registry
        self._moved = moved
        self._lists: dict[int, JitRegions] = {}  # by address
        self._addresses: dict[Mapping, int | None] = {}  # of the list in the object that is mapped there
        self._mappings: Mappings | None = None

    def update(self, snapshot: Snapshot, seconds: float | None = None) -> None:
        """Read new tables and entries. The registry then has the regions of the process with their current rules.

        `seconds`: time limit of the reading, if shorter than the usual one.
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
        refresh_chains((region.describer for region in self._registry if isinstance(region.describer, JitTables)), budget)

    def _update_lists(self, snapshot: Snapshot) -> None:
        """Find lists in new objects, and stop following those of objects that are gone."""
        rows = [row for row in snapshot.mappings if row.executable]
        if not self._lists and not any(_may_be_jit_code(row) for row in rows):
            return
        from sframegen.registry.jit_list import JitRegions  # noqa: PLC0415

        known = self._addresses
        self._addresses = {row: known[row] if row in known else _find_list_address(snapshot, row, self._moved) for row in rows}
        addresses = {address for address in self._addresses.values() if address is not None}
        for address in self._lists.keys() - addresses:
            self._lists.pop(address).clear(self._registry)
        for address in addresses - self._lists.keys():
            self._lists[address] = JitRegions(snapshot.memory, address, snapshot.abi)


def _may_be_jit_code(row: Mapping) -> bool:
    """Return True if the code may be made at run time: it has no file or a deleted one, and is not the kernel's."""
    return not row.path.startswith(("/", "[")) or row.path.startswith(("/memfd:", "/dev/", "[anon"))


def _find_list_address(snapshot: Snapshot, row: Mapping, moved: MovedCode) -> int | None:
    from sframegen.registry.jit_list import find_list_address  # noqa: PLC0415

    image = read_loaded_image(snapshot, row, moved)
    try:
        address = find_list_address(image.file) if image and image.file else None
    except FormatError:
        return None
    return None if image is None or address is None else image.address(address)
