"""What is fetched or made once, and kept in the cache."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.peers import cache_directory

if TYPE_CHECKING:
    from collections.abc import Callable


def kept(name: str, make: Callable[[Path], object]) -> Path:
    """Return CACHE/name, a folder that `make` fills, or filled in an earlier run."""
    folder = cache_directory() / name
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".") as scratch:
            new = Path(scratch, "new")
            new.mkdir()
            make(new)
            new.rename(folder)
    return folder
