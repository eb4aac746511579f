"""Resolves paths to locations that stay the same when other users rename files: a name in a directory that is held open."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import contextmanager, suppress
from functools import cache
from typing import TYPE_CHECKING, Self

from sframegen.elf.file import open_regular

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import ExitStack

ROOT = 0  # user ID of root
PATH_MAX = 4096  # bytes, Linux's limit
MAX_LINKS = 40  # symbolic links in one path; the kernel's limit
OPEN_DIRECTORY = os.O_PATH | os.O_DIRECTORY
ACCESS_LIST = "system.posix_acl_access"
DIRECTORY_MODE = 0o755  # mode, before the umask, of directories that an `OwnDirectory` creates


@contextmanager
def errors_naming(path: str) -> Iterator[None]:
    """Make an OSError in the block name only `path`, which the user knows, not a path or descriptor used internally."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from error


class OpenHandle:
    """An object that is open until `close` or the end of its block. It is a PathLike only for messages that name its path."""

    path: str

    def __fspath__(self) -> str:
        return self.path

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        raise NotImplementedError


class Location(OpenHandle):
    """An entry of a directory that is held open, so that the name can be looked up there without following links."""

    def __init__(self, directory: int, name: str, path: str) -> None:
        self.directory = directory  # a descriptor (O_PATH), closed with this object
        self.name = name
        self.path = path

    def __str__(self) -> str:
        return self.path

    def close(self) -> None:
        close_quietly(self.directory)

    def status(self) -> os.stat_result | None:
        """Return the entry's own status, without following a link; None if it does not exist. Raises OSError."""
        with errors_naming(self.path), suppress(FileNotFoundError):
            return os.lstat(self.name, dir_fd=self.directory)
        return None

    def is_at(self, status: os.stat_result) -> bool:
        """Return True if the entry is the file with that status."""
        current = self.status()
        return current is not None and os.path.samestat(current, status)

    def open(self) -> int:
        """Open the entry, which must be a regular file, and return its descriptor. Raises FormatError, OSError."""
        try:
            return open_regular(self.name, self.path, os.O_NOFOLLOW, directory=self.directory)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise OSError(errno.ELOOP, "a symbolic link has appeared in its path", self.path) from error
            raise

    def open_subdirectory(self) -> int:
        """Open the entry, which must be a directory, and return its descriptor (O_PATH). Raises OSError."""
        with errors_naming(self.path):
            return _open_child(self.directory, self.name)

    def open_parent(self) -> int:
        """Open the directory that contains the entry, to list or flush it, and return its descriptor. Raises OSError."""
        with errors_naming(self.path):
            return os.open(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=self.directory)

    def unlink(self) -> None:
        """Remove the entry, if it exists. Raises OSError."""
        with errors_naming(self.path), suppress(FileNotFoundError):
            os.unlink(self.name, dir_fd=self.directory)


def locate(path: str | os.PathLike[str]) -> Location:
    """Return the location that a user's path leads to; its last name need not exist. Raises OSError.

    Symbolic links are followed one by one, and only if no other user can have created or moved them: otherwise such a user
    could choose the file that we change.
    """
    display_path = os.fspath(path)
    with errors_naming(display_path):
        return _follow_path(display_path)


def enter_location(path: str | os.PathLike[str], stack: ExitStack) -> Location:
    """Return the location of a path, which `stack` closes. A Location is returned unchanged, and the caller still closes it."""
    return path if isinstance(path, Location) else stack.enter_context(locate(path))


def make_directory(path: str | os.PathLike[str], mode: int = 0o777) -> None:
    """Create a directory and its parents, like `mkdir -p`, but follow only links that `locate` follows. Raises OSError."""
    display_path = os.fspath(path)
    names = display_path.split("/")
    with errors_naming(display_path):
        for count in range(1, len(names) + 1):
            if not names[count - 1]:
                continue
            with locate("/".join(names[:count])) as location:
                if location.status() is None:
                    with suppress(FileExistsError):  # another process of this run has created it
                        os.mkdir(location.name, mode, dir_fd=location.directory)


def _open_child(directory: int, name: str) -> int:
    return os.open(name, OPEN_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)


def locate_below(root: int, path: str, display_path: str, open_child: Callable[[int, str], int] = _open_child) -> Location:
    """Return the entry at a path below an open directory, without following symbolic links. Raises OSError with `display_path`.

    Each directory is opened relative to its parent, so that the entry is below `root` even if directories are renamed. A path
    longer than system calls accept is refused, because looking up all entries of a deep tree takes quadratic time.
    `open_child`: opens a directory (O_PATH) in another one, without following a link.
    """
    *directories, name = path.split("/")
    if len(os.fsencode(path)) >= PATH_MAX:
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), display_path)
    try:
        with _Descriptor(".", directory=root) as here:
            for directory in directories:
                here.move(open_child(here.number, directory))
            return Location(os.dup(here.number), name, display_path)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise OSError(errno.ELOOP, "a symbolic link has appeared in its path", display_path) from error
        raise OSError(error.errno, error.strerror, display_path) from error


class OwnDirectory(OpenHandle):
    """A directory of root or this user that others cannot write to. Directories below it are checked before they are used."""

    def __init__(self, descriptor: int, path: str) -> None:
        """`descriptor`: the directory's (O_PATH), closed with this object."""
        self.descriptor = descriptor
        self.path = path

    @classmethod
    def opened(cls, path: str | os.PathLike[str], *, make: bool = False) -> Self:
        """Open the directory at a path. `make`: create it if it does not exist. Raises OSError."""
        display_path = os.fspath(path)
        if make:
            make_directory(display_path, DIRECTORY_MODE)
        with locate(display_path) as location:
            descriptor = location.open_subdirectory()
        own = cls(descriptor, display_path)
        try:
            _check_own(os.fstat(descriptor), display_path)
        except OSError:
            own.close()
            raise
        return own

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def at(self, name: str, *, make: bool = False) -> Location:
        """Return the entry at a relative path. `make`: create missing parent directories. Raises OSError."""
        display_path = f"{self.path}/{name}"
        if ".." in name.split("/") or name.startswith("/"):
            raise OSError(errno.EINVAL, "a name that leads out of the directory", display_path)

        def open_own_subdirectory(directory: int, inner: str) -> int:
            if make:
                with suppress(FileExistsError):
                    os.mkdir(inner, DIRECTORY_MODE, dir_fd=directory)
            with Location(os.dup(directory), inner, display_path) as location:
                descriptor = location.open_subdirectory()
            try:
                _check_own(os.fstat(descriptor), display_path, f"its directory {inner} ")
            except OSError:
                os.close(descriptor)
                raise
            return descriptor

        return locate_below(self.descriptor, name, display_path, open_own_subdirectory)


def _follow_path(path: str) -> Location:
    """Return the location that a path leads to, after following each of its symbolic links that can be trusted."""
    if not path:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    components, links = _split_reversed(path), 0
    with _Descriptor("/" if path.startswith("/") else ".") as here:
        while True:
            name = components.pop() if components else "."
            try:
                entry = _Descriptor(name, os.O_PATH | os.O_NOFOLLOW, here.number)
            except FileNotFoundError:
                if components:
                    raise
                return Location(os.dup(here.number), name, path)
            with entry:
                status = os.fstat(entry.number)
                if not stat.S_ISLNK(status.st_mode):
                    if not components:
                        return Location(os.dup(here.number), name, path)
                    here.move(os.dup(entry.number))
                    continue
                links += 1
                if links > MAX_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
                _check_trusted(status, here.number)
                text = os.readlink("", dir_fd=entry.number)
            if status.st_dev == _proc_device():  # the link's text may be meant for another root, or be no path at all
                if not stat.S_ISDIR(os.stat(name, dir_fd=here.number).st_mode):
                    raise OSError(errno.ELOOP, "a link of /proc in place of a file's name; name the file, or write to another one")
                here.move(os.open(name, OPEN_DIRECTORY, dir_fd=here.number))
                continue
            if text.startswith("/"):
                here.move(os.open("/", OPEN_DIRECTORY))
            components += _split_reversed(text)


class _Descriptor:
    """A file descriptor that is closed at the end of the block."""

    def __init__(self, name: str, flags: int = OPEN_DIRECTORY, directory: int | None = None) -> None:
        self.number = os.open(name, flags | os.O_CLOEXEC, dir_fd=directory)

    def move(self, number: int) -> None:
        close_quietly(self.number)
        self.number = number

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        close_quietly(self.number)


def close_quietly(descriptor: int) -> None:
    """Close a descriptor and ignore errors. Call this only if nothing was written through it."""
    with suppress(OSError):
        os.close(descriptor)


def _split_reversed(path: str) -> list[str]:
    """Return the components of a path, the last one first."""
    return [part for part in path.split("/") if part not in ("", ".")][::-1]


@cache
def _proc_device() -> int:
    try:
        return os.stat("/proc/self").st_dev  # noqa: PTH116 - pathlib takes as long to import as a look-up
    except OSError:
        return -1


def others_can_write(directory: int) -> bool:
    """Return True if other users than root and this one can create entries. Root trusts no group, other users their own groups."""
    status, user = os.fstat(directory), os.geteuid()
    if status.st_uid not in (ROOT, user) or status.st_mode & stat.S_IWOTH:
        return True
    if not status.st_mode & stat.S_IWGRP:  # with an access control list, these bits are the upper limit for all its entries
        return False
    return (user == ROOT and status.st_gid != ROOT) or _has_access_list(directory)


def _has_access_list(directory: int) -> bool:
    try:
        os.getxattr(f"/proc/self/fd/{directory}", ACCESS_LIST)  # fgetxattr does not work on an O_PATH descriptor
    except OSError:
        return False
    return True


def _check_trusted(link: os.stat_result, directory: int) -> None:
    """Raise OSError if someone other than root and this user can have created the link or moved it there."""
    trusted = {ROOT, os.geteuid()}
    # A sticky bit does not help: others can put a link of root's there by link(2) or rename(2).
    if link.st_uid not in trusted or others_can_write(directory):
        message = "its path contains a symbolic link that another user controls or could have made; name the file that it leads to"
        raise OSError(errno.ELOOP, message)


def _check_own(status: os.stat_result, path: str, prefix: str = "") -> None:
    """Raise OSError, which begins with `prefix`, if other users can change the directory."""
    user = os.geteuid()
    if status.st_uid not in (ROOT, user):
        raise PermissionError(errno.EPERM, f"{prefix}belongs to another user: run as that user, or name a directory of yours", path)
    others = stat.S_IWOTH | (stat.S_IWGRP if user == ROOT else 0)
    if status.st_mode & others:
        raise PermissionError(errno.EPERM, f"{prefix}can be written to by others: chmod go-w, or name another directory", path)
