"""Locks files, so that only one run at a time changes a file."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from contextlib import suppress
from pathlib import Path

from linker.files.location import Location, close_quietly
from sframegen.program import patience

PAUSE = 0.05  # seconds between attempts
# Errors of file systems without locks: there, the second run fails when it replaces the file.
NO_LOCKS = {errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}


def open_locked(location: Location) -> int:
    """Open and lock a file, and return its descriptor: other runs that want to replace it wait for `close_locked`.

    If another process keeps the lock, the logger `sframegen` warns and names it. Raises TimeoutError if that takes too
    long, FormatError if the file is not a regular one, or OSError.
    """
    begin = time.monotonic()
    is_reported = False
    while True:
        descriptor = location.open()
        try:
            is_free = _lock(descriptor)
            if is_free and location.is_at(os.fstat(descriptor)):
                kept, descriptor = descriptor, -1
                return kept  # otherwise the file was replaced while we waited
            waited = time.monotonic() - begin
            if waited > patience.current.lock:
                who = "it keeps being replaced" if is_free else f"{_holder(descriptor)} keeps it locked"
                raise TimeoutError(errno.ETIMEDOUT, f"{who}; end that process, or change a copy of the file", location.path)
            if not is_free and not is_reported and waited > patience.current.lock_notice:
                is_reported = True
                _report_holder(descriptor, location)
        finally:
            if descriptor >= 0:
                os.close(descriptor)
        time.sleep(PAUSE)


def close_locked(descriptor: int) -> None:
    """Unlock and close. Closing alone would keep the lock: a mapping of the file holds a copy of the descriptor."""
    with suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    close_quietly(descriptor)


def _lock(descriptor: int) -> bool:
    """Try to lock; return False if another process holds the lock."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
    return True


def _report_holder(descriptor: int, location: Location) -> None:
    import logging  # noqa: PLC0415 - takes time, and is seldom needed

    from sframegen.base.text import printable  # noqa: PLC0415 - as above

    path, holder = printable(location.path), printable(_holder(descriptor))  # a process can name itself anything
    logging.getLogger("sframegen").warning("sframegen: %s: waiting for %s, which has locked it", path, holder)


def _holder(descriptor: int) -> str:
    """Return the process that holds the lock on an open file, if /proc lists it."""
    status = os.fstat(descriptor)
    place = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    try:
        lines = Path("/proc/locks").read_text(encoding="utf-8").splitlines()
        for _, kind, _, _, process, *_ in (words for words in map(str.split, lines) if place in words):
            if kind == "FLOCK" and process.isdigit() and process != "0":
                name = Path(f"/proc/{process}/comm").read_text(encoding="utf-8", errors="replace").rstrip("\n")
                return f"process {process} ({name})"
    except OSError:
        pass
    return "another process"
