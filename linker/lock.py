"""One run at a time changes a file."""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# What a file system without locks says: there, whoever comes second notices when it replaces the file.
NO_LOCKS = {errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Waits for another run that is to replace the file at `path`, through symbolic links, then keeps others waiting.

    The file that the block finds there is the one that it replaces. Where there is no regular file, there is nothing to wait for.
    """
    with ExitStack() as held:
        while path.is_file():
            file = held.enter_context(path.open("rb", buffering=0))
            try:
                fcntl.flock(file, fcntl.LOCK_EX)
            except OSError as error:
                if error.errno not in NO_LOCKS:
                    raise
            if path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat()):
                break  # else it was replaced while we waited
        yield
