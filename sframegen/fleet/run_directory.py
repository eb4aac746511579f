"""The directory for temporary files of a run on this machine; those of runs that were killed are removed first."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from sframegen.program.signals import signals_held

if TYPE_CHECKING:
    from collections.abc import Iterator

PREFIX = "sframegen-fleet-"
DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def run_directory() -> Iterator[str]:
    """A private directory, locked as long as this process lives. Raises OSError."""
    _remove_left_over(tempfile.gettempdir())
    directory, descriptor = _locked()
    try:
        yield directory
    finally:
        with signals_held():
            shutil.rmtree(directory, ignore_errors=True)
        os.close(descriptor)


def _locked() -> tuple[str, int]:
    """A new directory, and its descriptor. Another run could have removed it before the lock: then there is one more."""
    while True:
        directory = tempfile.mkdtemp(prefix=PREFIX)
        with suppress(FileNotFoundError):
            descriptor = os.open(directory, DIRECTORY)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if os.fstat(descriptor).st_nlink:
                return directory, descriptor
            os.close(descriptor)


def _remove_left_over(above: str) -> None:
    """Remove directories of this user whose process is gone. What cannot be removed stays."""
    for name in os.listdir(above):  # noqa: PTH208 - as text
        if name.startswith(PREFIX):
            with suppress(OSError):
                _remove_unlocked(above, name)


def _remove_unlocked(above: str, name: str) -> None:
    """By descriptor: if another user puts something else in its place, that is not touched. Raises OSError."""
    path = os.path.join(above, name)  # noqa: PTH118 - as text
    descriptor = os.open(path, DIRECTORY)
    try:
        if os.fstat(descriptor).st_uid != os.geteuid():
            return
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for entry in os.listdir(descriptor):  # noqa: PTH208 - of a directory that is open
            try:
                os.unlink(entry, dir_fd=descriptor)
            except IsADirectoryError:
                shutil.rmtree(entry, dir_fd=descriptor)
        os.rmdir(path)  # noqa: PTH106 - as text
    finally:
        os.close(descriptor)
