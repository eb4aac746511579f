"""Parameters of the public functions, as what they stand for. A ValueError names an unknown one."""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

from sframegen.elf.compressed import Compression
from sframegen.format.layouts import WRITABLE
from sframegen.tables.optimize import LEVELS

if TYPE_CHECKING:
    from sframegen.format.layouts import Layout
    from sframegen.tables.optimize import Level, LevelName


def layout_of(version: int) -> Layout:
    if version not in WRITABLE:
        raise ValueError(f"SFrame version {version!r} is not written, only {', '.join(map(str, WRITABLE))}")
    return WRITABLE[version]


def level_of(name: LevelName) -> Level:
    if name not in LEVELS:
        raise ValueError(f"unknown level {name!r}, only {', '.join(LEVELS)}")
    return LEVELS[name]


def check_compression(compression: str | None, *, unloaded: bool) -> None:
    """Raises ValueError for one that is not known, or not possible."""
    if compression is not None and compression not in get_args(Compression):
        raise ValueError(f"unknown compression {compression!r}, only {', '.join(get_args(Compression))}")
    if compression is not None and not unloaded:
        raise ValueError("only a section that is not loaded can be compressed")
