"""The list of a process and the tables that it leads to, in one piece of memory: followed, and followed again after it changed."""

from __future__ import annotations

from contextlib import suppress

from sframegen.base.errors import FormatError
from sframegen.format.abi import ABIS
from sframegen.registry.jit_list import JitRegions
from sframegen.registry.jit_tables import JitTables
from sframegen.registry.regions import Registry
from tests.fuzz.seeds import JIT_AT
from tests.support.processes.memories import Pieces

SEEDS = ("jit-AMD64", "jit-AArch64", "jit-s390x")
PLACES = 40  # of a region's code that are looked up


def run(data: bytes) -> None:
    if data:
        abi = ABIS[data[0] % len(ABIS)]
        memory = Pieces({JIT_AT: data})
        registry = Registry()
        regions = JitRegions(memory, JIT_AT + 8, abi)
        for changed in (data, data[: len(data) // 2], data):
            memory.pieces[JIT_AT] = changed
            with suppress(FormatError):
                regions.update(registry)
            looked_up(registry)
        regions.clear(registry)
        assert not list(registry)


def looked_up(registry: Registry) -> None:
    for region in registry:
        describer = region.rule_source
        if isinstance(describer, JitTables):
            with suppress(FormatError):
                describer.refresh()
        for pc in range(region.start, region.end, max(1, (region.end - region.start) // PLACES)):
            with suppress(FormatError):
                found = describer.look_up(pc)
                assert found is None or found.start <= pc < found.start + found.size
