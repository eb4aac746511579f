"""Opening regular files, and mapping their bytes; opening texts, which may come from a pipe."""

from __future__ import annotations

import errno
import io
import mmap
import os
import stat
from typing import TYPE_CHECKING, BinaryIO

from cfi.errors import FormatError

if TYPE_CHECKING:
    from pathlib import Path

PIPE_BYTES = 1 << 16  # as many as a pipe holds


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


def open_text(path: str | os.PathLike[str], most: int, newline: str | None = None) -> io.TextIOWrapper:
    """A text that a user names: in a regular file, or up to `most` bytes from a pipe that somebody writes, as of `<(command)`.

    `newline`: as for open(). Raises FormatError for other kinds of files, and OSError.
    """
    shown = os.fsdecode(path)
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISFIFO(mode):
            beginning = _first_bytes(descriptor, shown)
        else:
            check_regular(mode, shown)
    except BaseException:
        os.close(descriptor)
        raise
    file: BinaryIO = os.fdopen(descriptor, "rb")
    if stat.S_ISFIFO(mode):
        with file:
            data = beginning + file.read(max(most + 1 - len(beginning), 0))
        if len(data) > most:
            raise FormatError(f"more than {most:,} bytes come from this pipe: write them to a file", file=shown)
        file = io.BytesIO(data)
    return io.TextIOWrapper(file, encoding="utf-8", errors="surrogateescape", newline=newline)


def _first_bytes(pipe: int, shown: str) -> bytes:
    """What can be read now, from then on waiting for more. Raises FormatError for a FIFO that nobody has opened to write."""
    try:
        beginning = os.read(pipe, PIPE_BYTES)
        if not beginning and not os.readlink(f"/proc/self/fd/{pipe}").startswith("pipe:"):  # noqa: PTH115 - without pathlib, which takes longer
            raise FormatError("nobody writes to this FIFO", file=shown)
    except BlockingIOError:
        beginning = b""
    os.set_blocking(pipe, True)
    return beginning


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
