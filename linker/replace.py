"""Puts a new file in the place of an old one, wholly or not at all."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ACCESS_LIST = "system.posix_acl_access"
# What keeps users, file systems and user namespaces from giving a copy all that the original has.
NOT_ALLOWED = {errno.EPERM, errno.EACCES, errno.EINVAL, errno.EOPNOTSUPP}
OF_CONTENT = ("security.ima", "security.evm")  # checksums and signatures: a kernel would refuse another content under them
SET_ID = {stat.S_ISUID: "set-user-ID bit", stat.S_ISGID: "set-group-ID bit"}


def write_atomically(
    target: Path,
    write: Callable[[BinaryIO], None],
    check: Callable[[Path], None] | None = None,
    *,
    source: Path,
    preserve_timestamps: bool = False,
) -> int:
    """Writes `target`, through symbolic links: at any moment it is the old file or the new one, never less.

    The new file has mode, owner and extended attributes of `source`; `check` reads it before it takes its place, and raises to
    stop. What takes another file's place is on the disk before it does, and the exchange is before this returns; a file of a new
    name is written out when the system likes, as by cp. Returns how many other names (hard links) keep the old file. Raises
    OSError; upon any exception the target is untouched, but for the very last step, whose exception says so.
    """
    asked_for = target
    target = Path(os.path.realpath(target))
    if target.is_symlink():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(asked_for))
    status = source.stat()
    replaced = target.stat() if target.exists() else None
    if replaced is not None and not stat.S_ISREG(replaced.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(target))
    in_place = replaced is not None and os.path.samestat(status, replaced)
    with opened(target.parent, asked_for) as directory, temporary_name(directory) as temporary:
        with step("no temporary file beside it", asked_for):
            file = new_file(directory, temporary)
        with step("cannot be written", asked_for), file:
            descriptor = file.fileno()
            nameless = not os.fstat(descriptor).st_nlink
            link = f"/proc/self/fd/{descriptor}"
            write(file)
            file.flush()
            if check is not None:
                with step("cannot be read back", asked_for):
                    check(Path(link) if nameless else Path(target.parent, temporary))
            with step("owner, mode or attributes cannot be kept", asked_for):
                take_over(source, status, descriptor, strict=in_place)
                if preserve_timestamps:
                    os.utime(descriptor, ns=(status.st_atime_ns, status.st_mtime_ns))
            if replaced is not None:
                os.fsync(descriptor)
            if nameless:
                os.link(link, temporary, dst_dir_fd=directory, follow_symlinks=True)
        with step("cannot be replaced", asked_for):
            if replaced is not None and not unchanged(replaced, target.stat()):
                raise OSError(errno.ESTALE, "someone else changed it meanwhile")
            os.replace(temporary, target.name, src_dir_fd=directory, dst_dir_fd=directory)
        if replaced is None:
            return 0
        sync(directory, asked_for)
    return replaced.st_nlink - 1


def relink(target: Path, name: Path) -> None:
    """Makes `name`, until now another name of the file that `target` was, a name of the file that it is."""
    target, name = Path(os.path.realpath(target)), Path(os.path.realpath(name))
    with opened(name.parent, name) as directory:
        with step("it keeps the old file", name), temporary_name(directory) as temporary:
            os.link(target, temporary, dst_dir_fd=directory)
            os.replace(temporary, name.name, src_dir_fd=directory, dst_dir_fd=directory)
        sync(directory, name)


def new_file(directory: int, name: str) -> BinaryIO:
    """An empty file without a name, of which nothing is left if the process is killed; where there are none, one of this name."""
    with suppress(OSError):
        descriptor = os.open(".", os.O_TMPFILE | os.O_RDWR, 0o600, dir_fd=directory)
        if Path(f"/proc/self/fd/{descriptor}").exists():  # the way to give it one
            return os.fdopen(descriptor, "wb")
        os.close(descriptor)
    return os.fdopen(os.open(name, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600, dir_fd=directory), "wb")


@contextmanager
def temporary_name(directory: int) -> Iterator[str]:
    """A name that no other file there has, and none afterwards."""
    name = f".sframegen.{os.urandom(8).hex()}"
    try:
        yield name
    finally:
        with suppress(OSError):
            os.unlink(name, dir_fd=directory)


@contextmanager
def opened(directory: Path, asked_for: Path) -> Iterator[int]:
    with step("its directory cannot be read", asked_for):
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def step(failure: str, path: Path) -> Iterator[None]:
    """An OSError of the block says what it means for which file."""
    try:
        yield
    except OSError as error:
        if error.filename == str(path):  # said already
            raise
        raise OSError(error.errno, f"{failure}: {error.strerror}", str(path)) from error


def sync(directory: int, path: Path) -> None:
    """Makes what was renamed there last."""
    with step("replaced, but it may not outlast a crash of the system", path):
        os.fsync(directory)


def unchanged(before: os.stat_result, now: os.stat_result) -> bool:
    return os.path.samestat(before, now) and (before.st_size, before.st_mtime_ns) == (now.st_size, now.st_mtime_ns)


def take_over(source: Path, status: os.stat_result, descriptor: int, *, strict: bool) -> None:
    """Owner, mode, extended attributes, in that order: a change of owner clears set-user-id bits and capabilities.

    With `strict` an attribute that may not be kept raises; without it a copy does without, as any user's copy of another's file.
    """
    mode = stat.S_IMODE(status.st_mode)
    own = os.fstat(descriptor)
    if (own.st_uid, own.st_gid) != (status.st_uid, status.st_gid):
        try:
            os.fchown(descriptor, status.st_uid, status.st_gid)
        except OSError as error:
            if strict or error.errno not in NOT_ALLOWED:
                raise
            mode &= ~(stat.S_ISUID | stat.S_ISGID)
    kept = [attribute for attribute in attributes(source) if attribute not in OF_CONTENT]
    if ACCESS_LIST in attributes(descriptor) and ACCESS_LIST not in kept:
        os.removexattr(descriptor, ACCESS_LIST)  # inherited from the directory
    os.fchmod(descriptor, mode)
    for attribute in kept:
        try:
            os.setxattr(descriptor, attribute, os.getxattr(source, attribute))
        except OSError as error:
            if strict or error.errno not in NOT_ALLOWED:
                raise


def losses(source: Path, copy: Path) -> list[str]:
    """A warning if `copy` is without rights or attributes that `source` has, as happens to copies of others' files."""
    mode = source.stat().st_mode & ~copy.stat().st_mode
    bits = [name for bit, name in SET_ID.items() if mode & bit]
    missing = sorted({*attributes(source)} - {*attributes(copy), *OF_CONTENT})
    return [f"{copy} could not be given {', '.join(bits + missing)}"] if bits or missing else []


def attributes(path: Path | int) -> list[str]:
    try:
        return os.listxattr(path)
    except OSError as error:
        if error.errno == errno.ENOTSUP:
            return []
        raise
