"""Sizes and checksums of the files that change in a package, before and after: what its lists of checksums are renewed from."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

    from sframegen.packages.passing import Visit

CHUNK = 1 << 20


class FileSums(NamedTuple):
    """Size and digests of one file; the digests are hexadecimal, by the name of the algorithm."""

    size: int
    digests: dict[str, str]


class ChangedFile(NamedTuple):
    old: FileSums
    new: FileSums


class ChangedFiles:
    """A visit that also keeps the checksums of the files that change, by their paths in the package."""

    def __init__(self, visit: Visit, algorithms: tuple[str, ...]) -> None:
        self.algorithms = algorithms
        self.of: dict[str, ChangedFile] = {}
        self._visit = visit

    def __call__(self, path: str, given: Path, changed: Path) -> bool:
        is_changed = self._visit(path, given, changed)
        if is_changed:
            self.of[path] = ChangedFile(self._sums(given), self._sums(changed))
        return is_changed

    def edited(self, path: str, old: bytes, new: bytes) -> None:
        """Note that sframegen itself has changed a file, a list."""
        self.of[path] = ChangedFile(
            *(FileSums(len(data), {one: _hashed(one, data) for one in self.algorithms}) for data in (old, new))
        )

    def _sums(self, path: Path) -> FileSums:
        hashes = [hashlib.new(one, usedforsecurity=False) for one in self.algorithms]
        size = 0
        with path.open("rb") as file:
            while piece := file.read(CHUNK):
                size += len(piece)
                for one in hashes:
                    one.update(piece)
        return FileSums(size, {name: one.hexdigest() for name, one in zip(self.algorithms, hashes, strict=True)})


def _hashed(algorithm: str, data: bytes) -> str:
    return hashlib.new(algorithm, data, usedforsecurity=False).hexdigest()
