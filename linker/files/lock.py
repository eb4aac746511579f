"""Locks files, so that only one run at a time changes a file."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from contextlib import suppress
from pathlib import Path

from linker.files.location import Location, close_quietly
from sframegen.program import time_limits

RETRY_SECONDS = 0.05
# Errors of file systems without locks. There, the later of two runs fails when it finds the file replaced.
NO_LOCKS = {errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}


def open_locked(location: Location) -> int:
    """Open and lock a file, and return its descriptor. Other runs that want to replace the file wait for `close_locked`.

    While another process keeps the lock, the logger `sframegen` warns once and names it. Raises TimeoutError if that takes
    too long, FormatError if the file is not a regular one, or OSError.
    """
    begin = time.monotonic()
    is_reported = False
    while True:
        descriptor = location.open()
        try:
            is_free = _try_lock(descriptor)
            if is_free and location.is_at(os.fstat(descriptor)):
                locked, descriptor = descriptor, -1  # -1: not closed below
                return locked  # otherwise the file was replaced while we waited
            waited = time.monotonic() - begin
            if waited > time_limits.current.lock:
                reason = "it keeps being replaced" if is_free else f"{_describe_lock_owner(descriptor)} keeps it locked"
                raise TimeoutError(errno.ETIMEDOUT, f"{reason}; end that process, or change a copy of the file", location.path)
            if not is_free and not is_reported and waited > time_limits.current.lock_notice:
                is_reported = True
                _warn_of_lock_owner(descriptor, location)
        finally:
            if descriptor >= 0:
                os.close(descriptor)
        time.sleep(RETRY_SECONDS)


def close_locked(descriptor: int) -> None:
    """Unlock and close a file. Closing alone would keep the lock, because a mapping of the file has a copy of the descriptor."""
    with suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    close_quietly(descriptor)


def _try_lock(descriptor: int) -> bool:
    """Try to lock an open file, and return False if another process has the lock."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
    return True


def _warn_of_lock_owner(descriptor: int, location: Location) -> None:
    import logging  # noqa: PLC0415 - takes time, and is seldom needed

    from sframegen.base.text import printable  # noqa: PLC0415 - as above

    path, owner = printable(location.path), printable(_describe_lock_owner(descriptor))  # a process can name itself anything
    logging.getLogger("sframegen").warning("sframegen: %s: waiting for %s, which has locked it", path, owner)


def _describe_lock_owner(descriptor: int) -> str:
    """Return in words which process has the lock on an open file, as far as /proc lists it."""
    status = os.fstat(descriptor)
    file_id = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    try:
        lines = Path("/proc/locks").read_text(encoding="utf-8").splitlines()
        # The columns are: number, kind, ADVISORY or MANDATORY, READ or WRITE, process, device and inode, start, end.
        for _, kind, _, _, process, *_ in (words for words in map(str.split, lines) if file_id in words):
            if kind == "FLOCK" and process.isdigit() and process != "0":
                name = Path(f"/proc/{process}/comm").read_text(encoding="utf-8", errors="replace").rstrip("\n")
                return f"process {process} ({name})"
    except OSError:
        pass
    return "another process"
