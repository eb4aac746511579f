"""The file formats of profiles, selected by the ending of the file's name. The module of a format is imported when it is used."""

from __future__ import annotations

import errno
import os
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

from sframegen.base.errors import SframegenError
from sframegen.base.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sframegen.profile.report.named import NamedProfile

FILE_MODE = 0o666  # without the bits of the umask
RELEASE_INTERVAL = 1 << 17  # parts before the memory of stacks in files is released again


class Format(NamedTuple):
    module: str  # in this package
    function: str

    def encode(self, named: NamedProfile) -> Iterator[bytes]:
        parts: Iterator[bytes | str] = getattr(import_module(f"{__package__}.{self.module}"), self.function)(named)
        for number, part in enumerate(parts):
            if number % RELEASE_INTERVAL == 0:
                named.room.release_pages()
            yield part if isinstance(part, bytes) else part.encode(errors="replace")


# By ending; if several endings match a name, the longest one counts.
FORMATS = {
    ".html": Format("flamegraph", "encode_flamegraph"),
    ".folded": Format("texts", "encode_folded"),
    ".txt": Format("texts", "encode_folded"),
    ".json": Format("texts", "encode_json"),
    ".pb.gz": Format("pprof", "encode_pprof"),
}


def format_of(path: str) -> Format:
    """Return the format for the ending of a name. Raises SframegenError for an unknown ending."""
    for ending in sorted(FORMATS, key=len, reverse=True):
        if path.endswith(ending):
            return FORMATS[ending]
    raise SframegenError(f"{printable(path)}: unknown output format (known: {', '.join(FORMATS)})")


def check_target(path: str) -> None:
    """Raise OSError if a file of that name cannot be created, so that users know this before hours of sampling."""
    from linker.files.location import locate  # noqa: PLC0415
    from linker.files.rename_into_place import check_replaceable  # noqa: PLC0415

    with locate(path) as target:
        check_replaceable(target)
        if not os.access(".", os.W_OK, dir_fd=target.directory, effective_ids=True):
            raise PermissionError(errno.EACCES, "files cannot be made in its directory", path)


def write_profile(named: NamedProfile, path: str) -> None:
    """Write a profile to a file. Raises SframegenError for an unknown ending, OSError if the file cannot be written."""
    from linker.files.location import locate  # noqa: PLC0415
    from linker.files.rename_into_place import writing_new  # noqa: PLC0415

    parts = format_of(path).encode(named)
    with locate(path) as target, writing_new(target, FILE_MODE) as file:
        file.writelines(parts)
