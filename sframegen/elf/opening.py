"""Opening regular files, and mapping their bytes."""

from __future__ import annotations

import errno
import mmap
import os
import stat
from typing import TYPE_CHECKING

from cfi.errors import FormatError

if TYPE_CHECKING:
    from pathlib import Path


def open_regular(name: str, shown: str, flags: int = 0, *, directory: int | None = None) -> int:
    """A descriptor to read a regular file; `shown`: its path for messages. Raises FormatError if it is not one, or OSError."""
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | flags, dir_fd=directory)  # may be a FIFO
    except OSError as error:
        raise OSError(error.errno, error.strerror, shown) from error
    try:
        check_regular(os.fstat(descriptor).st_mode, shown)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def check_regular(mode: int, shown: str) -> None:
    """Raises FormatError for a file of another kind, and OSError for a directory."""
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), shown)
    if not stat.S_ISREG(mode):
        raise FormatError("not a regular file", file=shown)


def map_descriptor(descriptor: int, shown: str, *, small: int = 0) -> tuple[memoryview, os.stat_result]:
    """An open file's bytes, mapped read-only, and its status. Raises FormatError where it is empty, or OSError.

    Files of no more than `small` bytes are read: quicker, where there are thousands.
    """
    status = os.fstat(descriptor)
    if status.st_size == 0:
        raise FormatError("the file is empty", file=shown)
    if status.st_size > small:
        try:
            return memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)), status
        except ValueError as error:  # emptied meanwhile
            raise FormatError("the file is empty", file=shown) from error
    return memoryview(os.pread(descriptor, status.st_size, 0)), status


def beginning_of(name: str, shown: str, size: int, flags: int = 0, *, directory: int | None = None) -> bytes:
    """Up to `size` bytes of the file that `open_regular` opens. Raises what that raises, and OSError."""
    descriptor = open_regular(name, shown, flags, directory=directory)
    try:
        return os.pread(descriptor, size, 0)
    finally:
        os.close(descriptor)


def map_file(path: str | Path, *, small: int = 0) -> tuple[memoryview, os.stat_result]:
    """The same of the file at `path`, which is closed again. Raises FormatError, or OSError where it cannot be opened."""
    descriptor = open_regular(os.fspath(path), str(path))
    try:
        return map_descriptor(descriptor, str(path), small=small)
    finally:
        os.close(descriptor)
