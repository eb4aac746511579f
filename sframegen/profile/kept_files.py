"""Files that were made before, in a directory that only this user can write; the least recently used go first."""

from __future__ import annotations

import errno
import os
import stat
import time
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

from linker.files.location import Location, below, locate, make_directory
from linker.files.rename_into_place import write_new
from sframegen.base.errors import FormatError
from sframegen.elf.file import map_descriptor

LIMIT = 1 << 30  # bytes of all files in one directory
SETTLED = 2_000_000_000  # nanoseconds
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class KeptFiles:
    """A cache of files in a directory. `why`: one line that says why there is no directory, so that nothing is kept; else empty."""

    def __init__(self, kind: str, ending: str, directory: Path | None = None, limit: int = LIMIT) -> None:
        """`directory`: by default that of this kind in the user's cache; it is made. `limit`: bytes of its files.

        `ending`: of the names that `trim` may remove.
        """
        self.why = ""
        self._ending = ending
        self._limit = limit
        self._directory = -1
        try:
            self._path = directory or default_directory(kind)
            self._directory = _open_directory(self._path)
        except (OSError, RuntimeError) as error:  # RuntimeError: the user has no home
            self.why = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) and error.filename else str(error)

    @property
    def usable(self) -> bool:
        return self._directory >= 0

    @property
    def descriptors(self) -> tuple[int, ...]:
        """Return the open descriptors that another process needs to use the files."""
        return (self._directory,) if self.usable else ()

    def load(self, name: str) -> memoryview | None:
        """Return the file's bytes, mapped; None if there is none, or if it is another user's. `trim` then sees the file as new."""
        if not self.usable:
            return None
        try:
            with self._at(name) as place:
                descriptor = place.open()
            try:
                data, status = map_descriptor(descriptor, name)
                if status.st_uid != os.geteuid() or status.st_mode & OTHERS_WRITE:
                    return None
                os.utime(descriptor)
            finally:
                os.close(descriptor)
        except (OSError, FormatError):
            return None
        return data

    def store(self, name: str, data: bytes) -> None:
        """Store a file; if it cannot be written, it has to be made again next time."""
        if self.usable:
            with suppress(OSError), self._at(name) as place:
                write_new(place, data, 0o600)

    def trim(self) -> None:
        """Remove the least recently used files until the rest fits the limit."""
        if not self.usable:
            return
        with suppress(OSError):
            with os.scandir(self._directory) as entries:
                found = [(one.name, one.stat(follow_symlinks=False)) for one in entries if one.name.endswith(self._ending)]
            total = sum(status.st_size for _, status in found)
            for name, status in sorted(found, key=lambda one: one[1].st_mtime_ns):
                if total <= self._limit:
                    break
                os.unlink(name, dir_fd=self._directory)
                total -= status.st_size

    def close(self) -> None:
        if self.usable:
            os.close(self._directory)
            self._directory = -1

    def _at(self, name: str) -> Location:
        return below(self._directory, name, str(self._path / name))


def default_directory(kind: str) -> Path:
    """Return sframegen/KIND in $XDG_CACHE_HOME or ~/.cache. Raises RuntimeError for a user without a home."""
    home = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (home if home.is_absolute() else Path.home() / ".cache") / "sframegen" / kind


def is_settled(status: os.stat_result) -> bool:
    """Return False if the file may still be changing: times of files are coarse."""
    return time.time_ns() - status.st_ctime_ns > SETTLED


def name_of_unchanged(status: os.stat_result, tool: bytes, state: str = "") -> str:
    """Return a name for the tool's result for a file, which is valid until the file changes."""
    about = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns, state)
    return f"file-{blake2b(repr(about).encode(), key=blake2b(tool).digest(), digest_size=16).hexdigest()}"


def _open_directory(path: Path) -> int:
    """Return a descriptor of the directory, made if need be. Raises OSError, also if another user could write there."""
    make_directory(path.parent)
    with locate(path) as place:
        if place.status() is None:
            with suppress(FileExistsError):  # made by another run
                os.mkdir(place.name, 0o700, dir_fd=place.directory)
    with locate(path) as place:
        descriptor = os.open(place.name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=place.directory)
    status = os.fstat(descriptor)
    if status.st_uid != os.geteuid() or status.st_mode & OTHERS_WRITE:
        os.close(descriptor)
        raise PermissionError(errno.EPERM, "another user can write there", str(path))
    return descriptor
