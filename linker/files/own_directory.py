"""A directory that nobody else can change, held open: what is below it is looked up from there, and no link is followed."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from typing import Self

from linker.files.location import ROOT, HeldOpen, Location, below, errors_naming, locate, make_directory

MODE = 0o755  # of directories that are made; less the umask


class OwnDirectory(HeldOpen):
    """Belongs to root or to this user, and others cannot write to it; so do the directories below it that are entered."""

    def __init__(self, descriptor: int, path: str) -> None:
        """`descriptor`: of the directory (O_PATH), closed with this object."""
        self.descriptor = descriptor
        self.path = path

    @classmethod
    def opened(cls, path: str | os.PathLike[str], *, make: bool = False) -> Self:
        """`make`: also make it, where there is none. Raises OSError."""
        shown = os.fspath(path)
        if make:
            _make(shown)
        with locate(shown) as location:
            descriptor = location.enter()
        own = cls(descriptor, shown)
        try:
            _check(os.fstat(descriptor), shown)
        except OSError:
            own.close()
            raise
        return own

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def at(self, name: str, *, make: bool = False) -> Location:
        """The entry of a relative path. `make`: also make the directories on its way. Raises OSError."""
        shown = f"{self.path}/{name}"
        if ".." in name.split("/") or name.startswith("/"):
            raise OSError(errno.EINVAL, "a name that leads out of the directory", shown)

        def enter(directory: int, inner: str) -> int:
            if make:
                with suppress(FileExistsError):
                    os.mkdir(inner, MODE, dir_fd=directory)
            with Location(os.dup(directory), inner, shown) as location:
                descriptor = location.enter()
            try:
                _check(os.fstat(descriptor), shown, f"its directory {inner} ")
            except OSError:
                os.close(descriptor)
                raise
            return descriptor

        return below(self.descriptor, name, shown, enter)


def _make(path: str) -> None:
    make_directory(os.path.dirname(path.rstrip("/")))  # noqa: PTH120 - as text, for messages
    with errors_naming(path), locate(path) as location:
        if location.status() is None:
            with suppress(FileExistsError):
                os.mkdir(location.name, MODE, dir_fd=location.directory)


def _check(status: os.stat_result, path: str, which: str = "") -> None:
    """Raises OSError for a directory that someone else can change."""
    user = os.geteuid()
    if status.st_uid not in (ROOT, user):
        raise PermissionError(errno.EPERM, f"{which}belongs to another user: run as that user, or name a directory of yours", path)
    others = stat.S_IWOTH | (stat.S_IWGRP if user == ROOT else 0)
    if status.st_mode & others:
        raise PermissionError(errno.EPERM, f"{which}can be written to by others: chmod go-w, or name another directory", path)
