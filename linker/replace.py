"""Puts a new file in the place of an old one, wholly or not at all."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from collections.abc import Callable

ACCESS_LIST = "system.posix_acl_access"


def write_atomically(
    target: Path,
    write: Callable[[BinaryIO], None],
    check: Callable[[Path], None] | None = None,
    *,
    source: Path,
    preserve_timestamps: bool = False,
) -> int:
    """Writes `target`, through symbolic links, by way of a temporary file beside it: it is the old file or the new one, never less.

    The new file has mode, owner and extended attributes of `source`; `check` reads it before it takes its place, and raises to
    stop. Returns how many other names (hard links) keep the old file. Raises OSError; upon any exception the target is untouched.
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
    try:
        descriptor, name = tempfile.mkstemp(prefix=f".{target.name[:64]}.", dir=target.parent)
    except OSError as error:
        raise OSError(error.errno, f"no temporary file beside it: {error.strerror}", str(asked_for)) from error
    try:
        with os.fdopen(descriptor, "wb") as file:
            write(file)
            file.flush()
            if check is not None:
                check(Path(name))
            take_over(source, status, file.fileno(), strict=in_place)
            if preserve_timestamps:
                os.utime(file.fileno(), ns=(status.st_atime_ns, status.st_mtime_ns))
            if replaced is not None:
                os.fsync(file.fileno())
        os.replace(name, target)  # noqa: PTH105 - both are names
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    if replaced is None:
        return 0
    sync_directory(target.parent)
    return replaced.st_nlink - 1


def relink(target: Path, name: Path) -> None:
    """Makes `name`, until now another name of the file that `target` was, a name of the file that it is."""
    name = Path(os.path.realpath(name))
    with tempfile.TemporaryDirectory(prefix=f".{name.name[:64]}.", dir=name.parent) as directory:
        link = Path(directory, "link")
        link.hardlink_to(os.path.realpath(target))
        link.replace(name)
    sync_directory(name.parent)


def take_over(source: Path, status: os.stat_result, descriptor: int, *, strict: bool) -> None:
    """Owner, mode, extended attributes, in that order: a change of owner clears set-user-id bits and capabilities.

    With `strict` an attribute that cannot be kept raises; without it a copy does without, as any user's copy of another's file.
    """
    mode = stat.S_IMODE(status.st_mode)
    own = os.fstat(descriptor)
    if (own.st_uid, own.st_gid) != (status.st_uid, status.st_gid):
        try:
            os.fchown(descriptor, status.st_uid, status.st_gid)
        except OSError:
            if strict:
                raise
            mode &= ~(stat.S_ISUID | stat.S_ISGID)
    kept = attributes(source)
    if ACCESS_LIST in attributes(descriptor) and ACCESS_LIST not in kept:
        os.removexattr(descriptor, ACCESS_LIST)  # inherited from the directory
    os.fchmod(descriptor, mode)
    for attribute in kept:
        try:
            os.setxattr(descriptor, attribute, os.getxattr(source, attribute))
        except OSError:
            if strict:
                raise


def attributes(path: Path | int) -> list[str]:
    try:
        return os.listxattr(path)
    except OSError as error:
        if error.errno == errno.ENOTSUP:
            return []
        raise


def sync_directory(path: Path) -> None:
    """Makes a rename last."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
