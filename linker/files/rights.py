"""Gives a new file the owner, mode and extended attributes of the file that it is made from or replaces."""

from __future__ import annotations

import errno
import os
import stat
from enum import Enum
from pathlib import Path

from linker.files.location import ACCESS_LIST, Location, others_can_write
from sframegen.base.errors import FormatError
from sframegen.base.quick_typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

CAPABILITY = "security.capability"
USER_PREFIX = "user."  # prefix of attributes that users may set on their own files
# Errors if this user, file system or user namespace may not give a copy all rights of the original.
NOT_ALLOWED = {errno.EPERM, errno.EACCES, errno.EINVAL, errno.EOPNOTSUPP}
CONTENT_ATTRIBUTES = ("security.ima", "security.evm")  # checksums and signatures, with which kernels refuse changed contents
SET_ID = {stat.S_ISUID: "set-user-ID bit", stat.S_ISGID: "set-group-ID bit"}
PERMISSIONS = 0o777
EXECUTE = 0o111
USUAL_UMASK = 0o022


class Source(NamedTuple):
    """The open file that a new one is made from. `status`: its status when it was opened."""

    descriptor: int
    status: os.stat_result


class Rights(Enum):
    """How a new file relates to its source. Only a file replaced in place may be set-ID to another user than this process' user."""

    IN_PLACE = "takes its place"  #: it gets all rights of the source, or is not written
    COPY = "is a copy"  #: it belongs to this user, with all rights if the source does, too; else with permissions less the umask
    OUTPUT = "is a copy that may replace a file"  #: as COPY; from a world-readable source, it gets the replaced file's rights


def give_rights(rights: Rights, source: Source, descriptor: int, target: Location) -> list[str]:
    """Give a new file its rights; return the names of rights that it should have but lacks. Raises OSError."""
    mode = stat.S_IMODE(source.status.st_mode)
    if rights is Rights.IN_PLACE:
        copy_rights(source, descriptor, mode, strict=True)
    elif rights is Rights.OUTPUT and mode & stat.S_IROTH and (existing := _open_existing(target)) is not None:
        try:
            readers = existing.status.st_mode >> 2  # the read bits, shifted to where the execute bits are
            permissions = existing.status.st_mode & PERMISSIONS | mode & EXECUTE & readers
            copy_rights(existing, descriptor, permissions, strict=False, keeps=lambda name: name != CAPABILITY)
            return list_lost_rights(existing.descriptor, descriptor)
        finally:
            os.close(existing.descriptor)
    elif source.status.st_uid == os.geteuid():
        if source.status.st_gid not in (os.getegid(), *os.getgroups()):
            mode &= ~stat.S_ISGID
        copy_rights(source, descriptor, mode, strict=False)
    else:
        own = Source(source.descriptor, os.fstat(descriptor))  # with the new file's own status, so that the owner stays
        copy_rights(
            own, descriptor, mode & PERMISSIONS & ~read_umask(), strict=False, keeps=lambda name: name.startswith(USER_PREFIX)
        )
    return list_lost_rights(source.descriptor, descriptor)


def copy_rights(source: Source, descriptor: int, mode: int, *, strict: bool, keeps: Callable[[str], bool] = lambda _: True) -> None:
    """Copy owner, mode and extended attributes, in this order because a change of owner clears set-user-ID bits and capabilities.

    With `strict`, a right that cannot be copied raises OSError; otherwise the copy lacks it, like any copy of another user's
    file. `keeps`: returns True for the names of attributes to copy.
    """
    status = source.status
    current = os.fstat(descriptor)
    if (current.st_uid, current.st_gid) != (status.st_uid, status.st_gid):
        try:
            os.fchown(descriptor, status.st_uid, status.st_gid)
        except OSError as error:
            if strict or error.errno not in NOT_ALLOWED:
                raise
            mode &= PERMISSIONS
    kept = [name for name in list_attributes(source.descriptor) if name not in CONTENT_ATTRIBUTES and keeps(name)]
    if ACCESS_LIST in list_attributes(descriptor) and ACCESS_LIST not in kept:
        os.removexattr(descriptor, ACCESS_LIST)  # the new file inherited it from the directory
    os.fchmod(descriptor, mode)
    for attribute in kept:
        try:
            os.setxattr(descriptor, attribute, os.getxattr(source.descriptor, attribute))
        except OSError as error:
            if strict or error.errno not in NOT_ALLOWED:
                raise


def list_lost_rights(source: int, copy: int) -> list[str]:
    """Return the names of rights and attributes that the source has and a copy lacks."""
    lost_mode = os.fstat(source).st_mode & ~os.fstat(copy).st_mode
    lost_bits = [name for bit, name in SET_ID.items() if lost_mode & bit]
    return lost_bits + sorted({*list_attributes(source)} - {*list_attributes(copy), *CONTENT_ATTRIBUTES})


def list_attributes(descriptor: int) -> list[str]:
    """Return the names of an open file's extended attributes."""
    try:
        return os.listxattr(descriptor)
    except OSError as error:
        if error.errno == errno.ENOTSUP:
            return []
        raise OSError(error.errno, error.strerror) from error  # the original error names the descriptor


def read_umask() -> int:
    """Return the umask of the process. Unlike os.umask, this does not change it for a moment."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return USUAL_UMASK
    return next((int(line.split()[1], 8) for line in lines if line.startswith("Umask:")), USUAL_UMASK)


def _open_existing(target: Location) -> Source | None:
    """Open the existing file, unless another user could have put it there to choose who may read the new file."""
    if others_can_write(target.directory):
        return None
    try:
        descriptor = target.open()
    except (FormatError, FileNotFoundError, PermissionError):  # missing, or not readable
        return None
    return Source(descriptor, os.fstat(descriptor))
