"""Which library reads a written file back."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from linker.files import read_back
from linker.files.read_back import LARGE, chosen, lief_loads, load


@pytest.mark.parametrize(("size", "reader"), [(LARGE - 1, "elftools"), (LARGE, "lief")])
def test_large_files_are_read_back_with_lief(monkeypatch: pytest.MonkeyPatch, size: int, reader: str) -> None:
    monkeypatch.delitem(sys.modules, "lief", raising=False)
    assert chosen(verify=True, size=size) == reader


def test_without_lief_large_files_are_read_back_too(monkeypatch: pytest.MonkeyPatch) -> None:
    lief_loads.cache_clear()
    monkeypatch.setitem(sys.modules, "lief", None)  # its import fails, as where the C++ library is missing
    monkeypatch.setattr(read_back, "sys", SimpleNamespace(modules={}))
    assert chosen(verify=True, size=LARGE) == "elftools"
    assert chosen("lief", LARGE) == "lief"  # asked for by name: an error where it is missing
    with pytest.raises(ImportError):
        load("lief")
    lief_loads.cache_clear()
