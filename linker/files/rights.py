"""Sets owner, mode and extended attributes of a new file."""

from __future__ import annotations

import errno
import os
import stat
from enum import Enum
from pathlib import Path

from linker.files.location import ACCESS_LIST, Location, others_write
from sframegen.base.errors import FormatError
from sframegen.base.quick_typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable


CAPABILITY = "security.capability"
OF_USERS = "user."  # prefix of attributes that users may give their own files
# Errors of users, file systems and user namespaces that may not give a copy all rights of the original.
NOT_ALLOWED = {errno.EPERM, errno.EACCES, errno.EINVAL, errno.EOPNOTSUPP}
OF_CONTENT = ("security.ima", "security.evm")  # checksums and signatures: a kernel would refuse another content under them
SET_ID = {stat.S_ISUID: "set-user-ID bit", stat.S_ISGID: "set-group-ID bit"}
PERMISSIONS = 0o777
EXECUTE = 0o111
USUAL_UMASK = 0o022


class Source(NamedTuple):
    """The open file that a new one is made from. `status`: as of when it was opened."""

    descriptor: int
    status: os.stat_result


class Rights(Enum):
    """How a new file relates to its source. Only a file replaced in place may be set-ID to another user than the one running us."""

    IN_PLACE = "takes its place"  #: has all that it has, or is refused
    COPY = "is a copy"  #: belongs to who runs this; of a file of theirs, has everything; of others', the permissions less the umask
    OUTPUT = "is a copy that may replace a file"  #: as COPY; of what everybody may read, the rights of the file that is there


def give_rights(rights: Rights, source: Source, descriptor: int, target: Location) -> list[str]:
    """Give a new file its rights; return the names of rights that it should have but lacks. Raises OSError."""
    mode = stat.S_IMODE(source.status.st_mode)
    if rights is Rights.IN_PLACE:
        take_over(source, descriptor, mode, strict=True)
    elif rights is Rights.OUTPUT and mode & stat.S_IROTH and (model := _open_model(target)) is not None:
        try:
            readers = model.status.st_mode >> 2  # each may execute what they may read
            permissions = model.status.st_mode & PERMISSIONS | mode & EXECUTE & readers
            take_over(model, descriptor, permissions, strict=False, keeps=lambda name: name != CAPABILITY)
            return losses(model.descriptor, descriptor)
        finally:
            os.close(model.descriptor)
    elif source.status.st_uid == os.geteuid():
        if source.status.st_gid not in (os.getegid(), *os.getgroups()):
            mode &= ~stat.S_ISGID
        take_over(source, descriptor, mode, strict=False)
    else:
        ours = Source(source.descriptor, os.fstat(descriptor))  # whose owner the new file has already
        take_over(ours, descriptor, mode & PERMISSIONS & ~umask(), strict=False, keeps=lambda name: name.startswith(OF_USERS))
    return losses(source.descriptor, descriptor)


def take_over(source: Source, descriptor: int, mode: int, *, strict: bool, keeps: Callable[[str], bool] = lambda _: True) -> None:
    """Copy owner, mode, extended attributes, in that order: a change of owner clears set-user-id bits and capabilities.

    With `strict`, a right that cannot be copied raises OSError; otherwise the copy lacks it, like any copy of another user's
    file. `keeps`: True for the names of attributes to copy.
    """
    status = source.status
    own = os.fstat(descriptor)
    if (own.st_uid, own.st_gid) != (status.st_uid, status.st_gid):
        try:
            os.fchown(descriptor, status.st_uid, status.st_gid)
        except OSError as error:
            if strict or error.errno not in NOT_ALLOWED:
                raise
            mode &= PERMISSIONS
    kept = [attribute for attribute in attributes(source.descriptor) if attribute not in OF_CONTENT and keeps(attribute)]
    if ACCESS_LIST in attributes(descriptor) and ACCESS_LIST not in kept:
        os.removexattr(descriptor, ACCESS_LIST)  # inherited from the directory
    os.fchmod(descriptor, mode)
    for attribute in kept:
        try:
            os.setxattr(descriptor, attribute, os.getxattr(source.descriptor, attribute))
        except OSError as error:
            if strict or error.errno not in NOT_ALLOWED:
                raise


def losses(source: int, copy: int) -> list[str]:
    """Return the names of rights and attributes that a copy lacks, as copies of other users' files do."""
    mode = os.fstat(source).st_mode & ~os.fstat(copy).st_mode
    bits = [name for bit, name in SET_ID.items() if mode & bit]
    return bits + sorted({*attributes(source)} - {*attributes(copy), *OF_CONTENT})


def attributes(descriptor: int) -> list[str]:
    """Return the names of an open file's extended attributes."""
    try:
        return os.listxattr(descriptor)
    except OSError as error:
        if error.errno == errno.ENOTSUP:
            return []
        raise OSError(error.errno, error.strerror) from error  # the original error names the descriptor


def umask() -> int:
    """Return the process' umask, without changing it."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return USUAL_UMASK
    return next((int(line.split()[1], 8) for line in lines if line.startswith("Umask:")), USUAL_UMASK)


def _open_model(target: Location) -> Source | None:
    """Return the existing file, unless another user can have put it there, who could then choose who may read the new file."""
    if others_write(target.directory):
        return None
    try:
        descriptor = target.open()
    except (FormatError, FileNotFoundError, PermissionError):  # missing, or not readable
        return None
    return Source(descriptor, os.fstat(descriptor))
