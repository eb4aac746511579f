"""Memory of a process that is read by pages: not all of a sparse one is kept."""

from __future__ import annotations

import tracemalloc
from typing import TYPE_CHECKING

from sframegen.stack import snapshot as memory

if TYPE_CHECKING:
    import pytest


def test_endless_memory_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "MAX_PAGES", 64)
    endless = memory.CachedMemory(lambda _, size: bytes(size), "little")
    tracemalloc.start()
    try:
        for number in range(1000):
            assert endless.word(number << 20) == 0
        assert tracemalloc.get_traced_memory()[1] < 200 * memory.PAGE_SIZE
    finally:
        tracemalloc.stop()
