"""Writes a new file and renames it into place: others see the old file or the new one, never a part."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import sys
from contextlib import contextmanager, suppress
from pathlib import Path

from linker.files.location import Location, close_quietly
from linker.files.rights import Rights, Source, give_rights
from sframegen.base.quick_typing import TYPE_CHECKING, BinaryIO, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


GET_FLAGS, APPEND_ONLY = 0x80086601, 0x20  # FS_IOC_GETFLAGS, FS_APPEND_FL


class StepError(OSError):
    """An OSError that says which step of the replacement failed."""


class Replacement(NamedTuple):
    """A replacement's result: how many other hard links keep the old file, and rights and attributes the new file lacks."""

    other_names: int
    lost: list[str]


def write_atomically(
    target: Location,
    write: Callable[[BinaryIO], None],
    check: Callable[[Path], None] | None = None,
    *,
    source: Source,
    rights: Rights,
    hard_links: Sequence[Location] = (),
    prepared: BinaryIO | None = None,
) -> Replacement:
    """Write `target` atomically: at any moment it is the old file or the complete new one.

    The new file has owner, mode and extended attributes as `rights` says; `check` reads it before it takes its place, and raises
    to stop. In place, the target has to be `source`, unchanged, up to the last moment, and `hard_links` are other names of it that
    follow. `prepared`: the new file, if `nameless_file` has made it already. What takes another file's place is on the disk
    before it does, and the exchange is before this returns; a file of a new name is written out when the system likes, as by cp.
    Raises OSError; upon any exception the target is untouched, except in the very last steps, whose exceptions say so.
    """
    replaced = regular_there(target)
    with opened_directory(target) as directory, temporary_name(directory) as temporary:
        with step("cannot create a file in its directory", target):
            file = prepared or new_file(directory, temporary)
        with step("cannot be written", target), closed_quietly(file):
            descriptor = file.fileno()
            nameless = not os.fstat(descriptor).st_nlink
            write(file)
            file.flush()
            if check is not None:
                with step("cannot be read back", target):
                    check(readable(descriptor, target, temporary))
            with step("owner, mode or attributes cannot be kept", target):
                lost = give_rights(rights, source, descriptor, target)
            if replaced is not None:
                os.fsync(descriptor)
            tell_errors(descriptor)
            if nameless:
                give_name(descriptor, directory, temporary)
            with step("cannot be replaced", target):
                if rights is Rights.IN_PLACE and not (target.is_at(source.status) and is_unchanged(source)):
                    raise OSError(errno.ESTALE, "someone else has changed it in the meantime")
                os.replace(temporary, target.name, src_dir_fd=directory, dst_dir_fd=directory)
            if replaced is not None:
                sync(directory, target)
            for name in hard_links:
                relink(descriptor, name, source)
    return Replacement(source.status.st_nlink - 1 - len(hard_links) if rights is Rights.IN_PLACE else 0, lost)


def relink(descriptor: int, name: Location, old: Source) -> None:
    """Make `name`, a hard link to the old file, a link to the open file that replaced it."""
    with opened_directory(name) as directory:
        with step("it still has the old file", name), temporary_name(directory) as temporary:
            give_name(descriptor, directory, temporary)
            if not name.is_at(old.status):
                raise OSError(errno.ESTALE, "it is no longer a name of that file")
            os.replace(temporary, name.name, src_dir_fd=directory, dst_dir_fd=directory)
        sync(directory, name)


def write_new(target: Location, data: bytes, mode: int) -> None:
    """Write a file that is not made from another one, atomically. `mode` is subject to the umask. Raises OSError."""
    with writing_new(target, mode) as file:
        file.write(data)


@contextmanager
def writing_new(target: Location, mode: int) -> Iterator[BinaryIO]:
    """Yield a file to write in pieces; like `write_new`, it replaces `target` at the end of the block, unless that raises."""
    regular_there(target)
    with opened_directory(target) as directory, temporary_name(directory) as temporary:
        with step("cannot create a file in its directory", target):
            file = new_file(directory, temporary, mode)
        with step("cannot be written", target), closed_quietly(file):
            yield file
            file.flush()
            tell_errors(file.fileno())
            if not os.fstat(file.fileno()).st_nlink:
                give_name(file.fileno(), directory, temporary)
            os.replace(temporary, target.name, src_dir_fd=directory, dst_dir_fd=directory)


def tell_errors(descriptor: int) -> None:
    """Raise OSError if a network file system failed to store written data, which it only reports when a descriptor is closed."""
    os.close(os.dup(descriptor))


@contextmanager
def closed_quietly(file: BinaryIO) -> Iterator[None]:
    """Close the file at the end of the block, ignoring write errors: they were reported before the file got its name."""
    try:
        yield
    finally:
        with suppress(OSError):
            file.close()


def regular_there(target: Location) -> os.stat_result | None:
    """Return the status of the file to replace, None without one. Raises OSError if it is a device, a FIFO or the like."""
    status = target.status()
    if status is not None and not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", target.path)
    return status


def new_file(directory: int, name: str, mode: int = 0o600) -> BinaryIO:
    """Return an empty unnamed file, so that a killed process leaves none behind; a file named `name` if that is not possible."""
    file = nameless_file(directory, mode)
    return file or os.fdopen(os.open(name, os.O_CREAT | os.O_EXCL | os.O_RDWR, mode, dir_fd=directory), "wb")


def nameless_file(directory: int, mode: int = 0o600) -> BinaryIO | None:
    """Return an empty unnamed file in that directory; None if the system does not support unnamed files."""
    with suppress(OSError):
        descriptor = os.open(".", os.O_TMPFILE | os.O_RDWR, mode, dir_fd=directory)
        if Path(f"/proc/self/fd/{descriptor}").exists():  # else it cannot get a name
            return os.fdopen(descriptor, "wb")
        os.close(descriptor)
    return None


def give_name(descriptor: int, directory: int, name: str) -> None:
    """Link an open file to that name, whatever its other names lead to by now."""
    os.link(f"/proc/self/fd/{descriptor}", name, dst_dir_fd=directory, follow_symlinks=True)


def readable(descriptor: int, target: Location, temporary: str) -> Path:
    """Return a path to a new file: its descriptor's in /proc, which cannot be redirected; without /proc its own."""
    path = Path(f"/proc/self/fd/{descriptor}")
    return path if path.exists() else Path(target.path).parent / temporary


@contextmanager
def temporary_name(directory: int) -> Iterator[str]:
    """Yield an unused name in the directory; at the end of the block, remove a file left there."""
    name = f".sframegen.{os.urandom(8).hex()}"
    try:
        yield name
    finally:
        with suppress(OSError):
            os.unlink(name, dir_fd=directory)


@contextmanager
def opened_directory(location: Location) -> Iterator[int]:
    """Open a location's directory so that it can be flushed; the location's own descriptor (O_PATH) only allows look-ups."""
    with step("its directory cannot be read", location):
        descriptor = location.open_directory()
    try:
        if is_append_only(descriptor):
            raise StepError(errno.EPERM, "its directory is append-only: run chattr -a, or name another one", location.path)
        yield descriptor
    finally:
        close_quietly(descriptor)


def is_append_only(directory: int) -> bool:
    """Return True if the directory has the attribute `a` (chattr): temporary files there cannot be renamed or removed."""
    try:
        flags = fcntl.ioctl(directory, GET_FLAGS, bytes(8))
    except OSError:  # a file system without such attributes
        return False
    return bool(int.from_bytes(flags[:4], sys.byteorder) & APPEND_ONLY)


@contextmanager
def step(failure: str, location: Location) -> Iterator[None]:
    """Add the failed step and the file to an OSError in the block, unless an inner step has done so."""
    try:
        yield
    except StepError:
        raise
    except OSError as error:
        raise StepError(error.errno, f"{failure}: {error.strerror}", location.path) from error


def sync(directory: int, location: Location) -> None:
    """Make a rename in the directory durable."""
    with step("replaced, but a crash of the system may undo that", location):
        os.fsync(directory)


def is_unchanged(source: Source) -> bool:
    """Return True if the file is unchanged since it was opened, by its ctime, which users cannot set."""
    before, now = source.status, os.fstat(source.descriptor)
    return (before.st_size, before.st_mtime_ns, before.st_ctime_ns) == (now.st_size, now.st_mtime_ns, now.st_ctime_ns)
