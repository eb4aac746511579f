"""Caches files in a directory that only this user can write. Beyond a limit, the least recently used ones are removed."""

from __future__ import annotations

import errno
import os
import stat
import time
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

from linker.files.location import Location, locate, locate_below, make_directory
from linker.files.rename_into_place import write_new
from sframegen.base.errors import FormatError
from sframegen.elf.file import map_descriptor

LIMIT = 1 << 30  # bytes of all files in one directory
SETTLING_TIME = 2_000_000_000  # nanoseconds since a file's last change, after which a further change shows in its times
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class FileCache:
    """A cache of files in a directory. `why`: one line on why the directory cannot be used and nothing is kept; else empty."""

    def __init__(self, kind: str, ending: str, directory: Path | None = None, limit: int = LIMIT) -> None:
        """`directory`: created if missing; by default that of `kind` in the user's cache. `limit`: bytes of all its files.

        `ending`: `trim` removes only files whose names end like this.
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
        """Return the open descriptors that a forked process needs to use the cache."""
        return (self._directory,) if self.usable else ()

    def load(self, name: str) -> memoryview | None:
        """Return a file's mapped bytes, and mark it as used; None if it is missing, or if another user could have written it."""
        if not self.usable:
            return None
        try:
            with self._at(name) as location:
                descriptor = location.open()
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
        """Store a file. If that fails, nothing is stored, because the content can be made again."""
        if self.usable:
            with suppress(OSError), self._at(name) as location:
                write_new(location, data, 0o600)

    def trim(self) -> None:
        """Remove the least recently used files until the rest fits the limit."""
        if not self.usable:
            return
        with suppress(OSError):
            with os.scandir(self._directory) as entries:
                files = [(file.name, file.stat(follow_symlinks=False)) for file in entries if file.name.endswith(self._ending)]
            total = sum(status.st_size for _, status in files)
            for name, status in sorted(files, key=lambda file: file[1].st_mtime_ns):
                if total <= self._limit:
                    break
                os.unlink(name, dir_fd=self._directory)
                total -= status.st_size

    def close(self) -> None:
        if self.usable:
            os.close(self._directory)
            self._directory = -1

    def _at(self, name: str) -> Location:
        return locate_below(self._directory, name, str(self._path / name))


def default_directory(kind: str) -> Path:
    """Return sframegen/KIND in $XDG_CACHE_HOME or ~/.cache. Raises RuntimeError for a user without a home."""
    home = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (home if home.is_absolute() else Path.home() / ".cache") / "sframegen" / kind


def is_settled(status: os.stat_result) -> bool:
    """Return False if the file was changed so recently that another change may leave its times as they are."""
    return time.time_ns() - status.st_ctime_ns > SETTLING_TIME


def name_result(status: os.stat_result, tool: bytes, state: str = "") -> str:
    """Return the cache name of what the tool made from a file. It becomes another one when the file, tool or state changes."""
    identity = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns, state)
    return f"file-{blake2b(repr(identity).encode(), key=blake2b(tool).digest(), digest_size=16).hexdigest()}"


def _open_directory(path: Path) -> int:
    """Return a descriptor of the directory, which is created if missing. Raises OSError, also if another user could write there."""
    make_directory(path.parent)
    with locate(path) as location:
        if location.status() is None:
            with suppress(FileExistsError):  # another run has just created it
                os.mkdir(location.name, 0o700, dir_fd=location.directory)
    with locate(path) as location:  # again, as the name may now be a symbolic link, which `locate` follows only if that is safe
        descriptor = os.open(location.name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=location.directory)
    status = os.fstat(descriptor)
    if status.st_uid != os.geteuid() or status.st_mode & OTHERS_WRITE:
        os.close(descriptor)
        raise PermissionError(errno.EPERM, "another user can write there", str(path))
    return descriptor
