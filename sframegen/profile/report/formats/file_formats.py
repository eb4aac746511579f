"""Formats of files, chosen with the ending of the name. What writes one is imported when it is asked for."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, NamedTuple

from cfi.errors import SframegenError
from sframegen.elf.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from sframegen.profile.report.named import Named


MODE = 0o666  # less the umask


class Format(NamedTuple):
    parts: Callable[[Named], Iterable[bytes]]
    needs_moments: bool = False  # shows when samples were taken, if that is known


def _encoded(parts: Iterable[str], end: str = "") -> Iterator[bytes]:
    return ((part + end).encode(errors="replace") for part in parts)


def _html(named: Named) -> Iterable[bytes]:
    from sframegen.profile.report.formats.flamegraph import flamegraph  # noqa: PLC0415 - here and below: see above

    return _encoded(flamegraph(named))


def _folded(named: Named) -> Iterable[bytes]:
    from sframegen.profile.report.formats.folded import folded  # noqa: PLC0415

    return _encoded(folded(named), "\n")


def _speedscope(named: Named) -> Iterable[bytes]:
    from sframegen.profile.report.formats.speedscope import speedscope  # noqa: PLC0415

    return _encoded(speedscope(named))


def _firefox(named: Named) -> Iterable[bytes]:
    from sframegen.profile.report.formats.firefox import firefox  # noqa: PLC0415

    return _encoded(firefox(named))


def _json(named: Named) -> Iterable[bytes]:
    from sframegen.profile.report.formats.summary import summary  # noqa: PLC0415

    return _encoded(summary(named))


def _pprof(named: Named) -> Iterable[bytes]:
    from sframegen.profile.report.formats.pprof import pprof  # noqa: PLC0415

    return [pprof(named)]


# The longest ending that fits counts.
FORMATS = {
    ".html": Format(_html),
    ".folded": Format(_folded),
    ".txt": Format(_folded),
    ".speedscope.json": Format(_speedscope, needs_moments=True),
    ".firefox.json": Format(_firefox, needs_moments=True),
    ".json": Format(_json),
    ".pb.gz": Format(_pprof),
    ".pprof": Format(_pprof),
}


def format_of(path: str) -> Format:
    """Return the format that the ending of a name asks for. Raises SframegenError for others: ask before sampling."""
    for ending in sorted(FORMATS, key=len, reverse=True):
        if path.endswith(ending):
            return FORMATS[ending]
    raise SframegenError(f"the ending of {printable(path)} is not that of a format: {', '.join(FORMATS)}")


def check_target(path: str) -> None:
    """Raise OSError if a file of that name cannot be made: known before hours of samples wait to be written."""
    from linker.files.location import locate  # noqa: PLC0415
    from linker.files.rename_into_place import regular_there  # noqa: PLC0415

    with locate(path) as target:
        regular_there(target)
        if not os.access(".", os.W_OK, dir_fd=target.directory, effective_ids=True):
            raise PermissionError(errno.EACCES, "files cannot be made in its directory", path)


def write(named: Named, path: str) -> None:
    """Write a file. Raises SframegenError for an unknown ending, OSError if it cannot be written."""
    from linker.files.location import locate  # noqa: PLC0415
    from linker.files.rename_into_place import write_new  # noqa: PLC0415

    parts = format_of(path).parts(named)
    with locate(path) as target:
        write_new(target, b"".join(parts), MODE)
