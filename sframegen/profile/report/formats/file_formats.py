"""Formats of files, chosen with the ending of the name."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, NamedTuple

from cfi.errors import SframegenError
from linker.files.location import locate
from linker.files.rename_into_place import regular_there, write_new
from sframegen.elf.text import printable
from sframegen.profile.report.formats.firefox import firefox
from sframegen.profile.report.formats.flamegraph import flamegraph
from sframegen.profile.report.formats.folded import folded
from sframegen.profile.report.formats.pprof import pprof
from sframegen.profile.report.formats.speedscope import speedscope
from sframegen.profile.report.formats.summary import summary

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from sframegen.profile.report.named import Named


MODE = 0o666  # less the umask


class Format(NamedTuple):
    parts: Callable[[Named], Iterable[bytes]]
    needs_moments: bool = False  # shows when samples were taken, if that is known


def _text(parts: Callable[[Named], Iterable[str]], end: str = "") -> Callable[[Named], Iterator[bytes]]:
    return lambda named: ((part + end).encode(errors="replace") for part in parts(named))


# The longest ending that fits counts.
FORMATS = {
    ".html": Format(_text(flamegraph)),
    ".folded": Format(_text(folded, "\n")),
    ".txt": Format(_text(folded, "\n")),
    ".speedscope.json": Format(_text(speedscope), needs_moments=True),
    ".firefox.json": Format(_text(firefox), needs_moments=True),
    ".json": Format(_text(summary)),
    ".pb.gz": Format(lambda named: [pprof(named)]),
    ".pprof": Format(lambda named: [pprof(named)]),
}


def format_of(path: str) -> Format:
    """Return the format that the ending of a name asks for. Raises SframegenError for others: ask before sampling."""
    for ending in sorted(FORMATS, key=len, reverse=True):
        if path.endswith(ending):
            return FORMATS[ending]
    raise SframegenError(f"the ending of {printable(path)} is not that of a format: {', '.join(FORMATS)}")


def check_target(path: str) -> None:
    """Raise OSError if a file of that name cannot be made: known before hours of samples wait to be written."""
    with locate(path) as target:
        regular_there(target)
        if not os.access(".", os.W_OK, dir_fd=target.directory, effective_ids=True):
            raise PermissionError(errno.EACCES, "files cannot be made in its directory", path)


def write(named: Named, path: str) -> None:
    """Write a file. Raises SframegenError for an unknown ending, OSError if it cannot be written."""
    parts = format_of(path).parts(named)
    with locate(path) as target:
        write_new(target, b"".join(parts), MODE)
