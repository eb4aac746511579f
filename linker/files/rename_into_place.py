"""Writes a new file and renames it into place, so that other processes see the old file or the complete new one."""

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

FS_IOC_GETFLAGS, FS_APPEND_FL = 0x80086601, 0x20  # an ioctl, and a bit of its result


class StepError(OSError):
    """An OSError that says which step of the replacement failed."""


class Replacement(NamedTuple):
    """The result of a replacement: how many other hard links keep the old file, and which rights the new file lacks."""

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

    `check`: reads the new file before the replacement, and raises an exception to prevent it. `rights`: decides on owner, mode and
    extended attributes. If it is IN_PLACE, the target has to stay the unchanged `source` up to the last moment, and the other
    names in `hard_links` also get the new file. `prepared`: a file from `create_unnamed_file` to write to. If an old file is
    replaced, the new one and the rename are synced to disk; otherwise, as with cp, the system writes it later. Raises OSError.
    After any exception the target is unchanged, unless its message says that the file was replaced.
    """
    replaced = check_replaceable(target)
    with opened_directory(target) as directory, temporary_name(directory) as temporary:
        with naming_step("cannot create a file in its directory", target):
            file = prepared or create_file(directory, temporary)
        with naming_step("cannot be written", target), closed_quietly(file):
            descriptor = file.fileno()
            is_unnamed = not os.fstat(descriptor).st_nlink
            write(file)
            file.flush()
            if check is not None:
                with naming_step("cannot be read back", target):
                    check(path_of_descriptor(descriptor, target, temporary))
            with naming_step("owner, mode or attributes cannot be kept", target):
                lost = give_rights(rights, source, descriptor, target)
            if replaced is not None:
                os.fsync(descriptor)
            raise_delayed_errors(descriptor)
            if is_unnamed:
                link_descriptor(descriptor, directory, temporary)
            with naming_step("cannot be replaced", target):
                if rights is Rights.IN_PLACE and not (target.is_at(source.status) and is_unchanged(source)):
                    raise OSError(errno.ESTALE, "someone else has changed it in the meantime")
                os.replace(temporary, target.name, src_dir_fd=directory, dst_dir_fd=directory)
            if replaced is not None:
                sync_directory(directory, target)
            for hard_link in hard_links:
                relink(descriptor, hard_link, source)
    return Replacement(source.status.st_nlink - 1 - len(hard_links) if rights is Rights.IN_PLACE else 0, lost)


def relink(descriptor: int, hard_link: Location, old: Source) -> None:
    """Turn a hard link to the old file into a link to the open file that replaced it."""
    with opened_directory(hard_link) as directory:
        with naming_step("it still has the old file", hard_link), temporary_name(directory) as temporary:
            link_descriptor(descriptor, directory, temporary)
            if not hard_link.is_at(old.status):
                raise OSError(errno.ESTALE, "it is no longer a name of that file")
            os.replace(temporary, hard_link.name, src_dir_fd=directory, dst_dir_fd=directory)
        sync_directory(directory, hard_link)


def write_new(target: Location, data: bytes, mode: int) -> None:
    """Write `data` to a new or replaced file atomically. `mode` is subject to the umask. Raises OSError."""
    with writing_new(target, mode) as file:
        file.write(data)


@contextmanager
def writing_new(target: Location, mode: int) -> Iterator[BinaryIO]:
    """Yield a file to write to. Like in `write_new`, it replaces `target` at the end of the block, unless that raises."""
    check_replaceable(target)
    with opened_directory(target) as directory, temporary_name(directory) as temporary:
        with naming_step("cannot create a file in its directory", target):
            file = create_file(directory, temporary, mode)
        with naming_step("cannot be written", target), closed_quietly(file):
            yield file
            file.flush()
            raise_delayed_errors(file.fileno())
            if not os.fstat(file.fileno()).st_nlink:
                link_descriptor(file.fileno(), directory, temporary)
            os.replace(temporary, target.name, src_dir_fd=directory, dst_dir_fd=directory)


def raise_delayed_errors(descriptor: int) -> None:
    """Raise the OSError of a network file system that failed to store data. It only reports that when a descriptor is closed."""
    os.close(os.dup(descriptor))


@contextmanager
def closed_quietly(file: BinaryIO) -> Iterator[None]:
    """Close the file at the end of the block and ignore write errors, which were reported before the file got its name."""
    try:
        yield
    finally:
        with suppress(OSError):
            file.close()


def check_replaceable(target: Location) -> os.stat_result | None:
    """Return the status of the file to replace, or None if there is none. Raises OSError if it is not a regular file."""
    status = target.status()
    if status is not None and not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", target.path)
    return status


def create_file(directory: int, name: str, mode: int = 0o600) -> BinaryIO:
    """Return an empty unnamed file, which disappears if the process is killed; one named `name` if that is not possible."""
    file = create_unnamed_file(directory, mode)
    return file or os.fdopen(os.open(name, os.O_CREAT | os.O_EXCL | os.O_RDWR, mode, dir_fd=directory), "wb")


def create_unnamed_file(directory: int, mode: int = 0o600) -> BinaryIO | None:
    """Return an empty unnamed file in that directory; None if the system does not support unnamed files."""
    with suppress(OSError):
        descriptor = os.open(".", os.O_TMPFILE | os.O_RDWR, mode, dir_fd=directory)
        if Path(f"/proc/self/fd/{descriptor}").exists():  # `link_descriptor` needs this path
            return os.fdopen(descriptor, "wb")
        os.close(descriptor)
    return None


def link_descriptor(descriptor: int, directory: int, name: str) -> None:
    """Give an open file a name. Its descriptor identifies it, because its other names may lead to other files by now."""
    os.link(f"/proc/self/fd/{descriptor}", name, dst_dir_fd=directory, follow_symlinks=True)


def path_of_descriptor(descriptor: int, target: Location, temporary: str) -> Path:
    """Return a path to read an open new file by: its path in /proc, which cannot be redirected, or its own without /proc."""
    path = Path(f"/proc/self/fd/{descriptor}")
    return path if path.exists() else Path(target.path).parent / temporary


@contextmanager
def temporary_name(directory: int) -> Iterator[str]:
    """Yield an unused name in the directory. At the end of the block, remove the file of that name if it still exists."""
    name = f".sframegen.{os.urandom(8).hex()}"
    try:
        yield name
    finally:
        with suppress(OSError):
            os.unlink(name, dir_fd=directory)


@contextmanager
def opened_directory(location: Location) -> Iterator[int]:
    """Open a location's directory so that it can be flushed. The location's own descriptor (O_PATH) only allows look-ups."""
    with naming_step("its directory cannot be read", location):
        descriptor = location.open_parent()
    try:
        if is_append_only(descriptor):
            raise StepError(errno.EPERM, "its directory is append-only: run chattr -a, or name another one", location.path)
        yield descriptor
    finally:
        close_quietly(descriptor)


def is_append_only(directory: int) -> bool:
    """Return True if the directory has the attribute `a` (chattr), which forbids to rename or remove temporary files there."""
    try:
        flags = fcntl.ioctl(directory, FS_IOC_GETFLAGS, bytes(8))
    except OSError:  # the file system has no such attributes
        return False
    return bool(int.from_bytes(flags[:4], sys.byteorder) & FS_APPEND_FL)


@contextmanager
def naming_step(failure: str, location: Location) -> Iterator[None]:
    """Add the failed step and the file to an OSError in the block, unless an inner step has done so."""
    try:
        yield
    except StepError:
        raise
    except OSError as error:
        raise StepError(error.errno, f"{failure}: {error.strerror}", location.path) from error


def sync_directory(directory: int, location: Location) -> None:
    """Make a rename in the directory durable."""
    with naming_step("replaced, but a crash of the system may undo that", location):
        os.fsync(directory)


def is_unchanged(source: Source) -> bool:
    """Return True if the file is unchanged since it was opened, as its ctime shows, which users cannot set."""
    old, new = source.status, os.fstat(source.descriptor)
    return (old.st_size, old.st_mtime_ns, old.st_ctime_ns) == (new.st_size, new.st_mtime_ns, new.st_ctime_ns)
