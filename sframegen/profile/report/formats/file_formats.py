"""File formats of profiles, chosen by the ending of the name. The module of a format is imported when it is used."""

from __future__ import annotations

import errno
import os
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

from sframegen.base.errors import SframegenError
from sframegen.base.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sframegen.profile.report.named import Named


MODE = 0o666  # less the umask
REST = 1 << 17  # parts, after which the memory of stacks in files is released


class Format(NamedTuple):
    module: str  # in this package
    function: str

    def parts(self, named: Named) -> Iterator[bytes]:
        parts: Iterator[bytes | str] = getattr(import_module(f"{__package__}.{self.module}"), self.function)(named)
        for number, part in enumerate(parts):
            if number % REST == 0:
                named.room.release_pages()
            yield part if isinstance(part, bytes) else part.encode(errors="replace")


# The longest ending that fits counts.
FORMATS = {
    ".html": Format("flamegraph", "flamegraph"),
    ".folded": Format("texts", "folded"),
    ".txt": Format("texts", "folded"),
    ".json": Format("texts", "summary"),
    ".pb.gz": Format("pprof", "pprof"),
}


def format_of(path: str) -> Format:
    """Return the format for the ending of a name. Raises SframegenError for unknown endings: call it before sampling."""
    for ending in sorted(FORMATS, key=len, reverse=True):
        if path.endswith(ending):
            return FORMATS[ending]
    raise SframegenError(f"{printable(path)}: unknown output format (known: {', '.join(FORMATS)})")


def check_target(path: str) -> None:
    """Raise OSError if a file of that name cannot be made, so that users know before hours of sampling."""
    from linker.files.location import locate  # noqa: PLC0415
    from linker.files.rename_into_place import check_replaceable  # noqa: PLC0415

    with locate(path) as target:
        check_replaceable(target)
        if not os.access(".", os.W_OK, dir_fd=target.directory, effective_ids=True):
            raise PermissionError(errno.EACCES, "files cannot be made in its directory", path)


def write_profile(named: Named, path: str) -> None:
    """Write a profile to a file. Raises SframegenError for an unknown ending, OSError if the file cannot be written."""
    from linker.files.location import locate  # noqa: PLC0415
    from linker.files.rename_into_place import writing_new  # noqa: PLC0415

    parts = format_of(path).parts(named)
    with locate(path) as target, writing_new(target, MODE) as file:
        file.writelines(parts)
