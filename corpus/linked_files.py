"""Programs and libraries: of this machine, and those that corpus/fetch got."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.peers import cache_directory

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

LINKED = {b"\2\0", b"\0\2", b"\3\0", b"\0\3"}  # ET_EXEC and ET_DYN in either byte order


def corpus_files() -> list[Path]:
    corpus = cache_directory() / "corpus"
    lock_file = corpus / "lock.json"
    lock = json.loads(lock_file.read_text()) if lock_file.exists() else {}
    return [corpus / locked["file"] for _, locked in sorted(lock.items())]


def linked_files(paths: Iterable[Path]) -> Iterator[Path]:
    """Linked ELF files among and below the paths: each once, by the first of its names, not by symbolic links."""
    seen = set()
    for path in paths:
        for file in _below(path) if path.is_dir() else [path.resolve()]:
            status = file.lstat()
            if stat.S_ISREG(status.st_mode) and (status.st_dev, status.st_ino) not in seen and _is_linked(file):
                seen.add((status.st_dev, status.st_ino))
                yield file


def _below(directory: Path) -> Iterator[Path]:
    for parent, directories, names in os.walk(directory):
        directories.sort()
        yield from (Path(parent, name) for name in sorted(names))


def _is_linked(file: Path) -> bool:
    try:
        with file.open("rb") as stream:
            head = stream.read(18)
    except OSError:
        return False
    return head[:4] == b"\x7fELF" and head[16:] in LINKED
