"""Parameters of the public functions, as what they stand for. A ValueError names an unknown or an impossible one."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, get_args

from linker.files.read_back import READERS
from sframegen.elf.compressed import Compression
from sframegen.format.layouts import WRITABLE
from sframegen.program.workers import MOST_WORKERS
from sframegen.tables.optimize import LEVELS

if TYPE_CHECKING:
    from linker.files.read_back import Reader
    from sframegen.format.layouts import FormatVersion, Layout
    from sframegen.tables.optimize import Level, LevelName

    StrPath = str | os.PathLike[str]


def layout_of(version: FormatVersion) -> Layout:
    if version not in WRITABLE:
        raise ValueError(f"SFrame version {version!r} is not written, only {_all(WRITABLE)}")
    return WRITABLE[version]


def level_of(name: LevelName) -> Level:
    if name not in LEVELS:
        raise ValueError(f"unknown level {name!r}, only {_all(LEVELS)}")
    return LEVELS[name]


def check_compression(compression: str | None, *, unloaded: bool) -> None:
    """Raises ValueError for one that is not known, or not possible."""
    if compression is not None and compression not in get_args(Compression):
        raise ValueError(f"unknown compression {compression!r}, only {_all(get_args(Compression))}")
    if compression is not None and not unloaded:
        raise ValueError("only a section that is not loaded can be compressed")


def check_reader(verify: bool | Reader) -> None:
    """Raises ValueError for an unknown one."""
    if not isinstance(verify, bool) and verify not in READERS:
        raise ValueError(f"unknown reader {verify!r} for verify, only True, False, {_all(READERS)}")


def check_jobs(jobs: int) -> None:
    """Raises ValueError for no process, or more than a machine can have; TypeError for what is no whole number."""
    if not isinstance(jobs, int):
        raise TypeError(f"jobs is {jobs!r}: give a whole number")
    if not 1 <= jobs <= MOST_WORKERS:
        raise ValueError(f"jobs is {jobs}: at least 1, at most {MOST_WORKERS:,}")


def check_paths(name: str, paths: Iterable[StrPath]) -> None:
    """Raises TypeError for one path, of which each character would be taken for a path, and for what is no list."""
    if isinstance(paths, (str, bytes, os.PathLike)):
        raise TypeError(f"{name} is one path, {os.fspath(paths)!r}: give a list of paths")
    if not isinstance(paths, Iterable):
        raise TypeError(f"{name} is {paths!r}: give a list of paths")


def check_path(name: str, path: StrPath) -> None:
    """Raises TypeError for what is no path."""
    if not isinstance(path, (str, bytes, os.PathLike)):
        raise TypeError(f"{name} is {path!r}: give a path")


def _all(values: Iterable[object]) -> str:
    return ", ".join(map(str, values))
