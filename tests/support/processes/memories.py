"""Memory of processes that are not there: pieces of bytes at addresses, and the memory of one that is."""

from __future__ import annotations

import ctypes
import os
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping


class Pieces:
    """Pieces by address. What is read ends where a piece does."""

    def __init__(self, pieces: Mapping[int, bytes | bytearray]) -> None:
        self.pieces = dict(pieces)

    def read(self, address: int, size: int) -> bytes:
        for start, piece in self.pieces.items():
            if start <= address < start + len(piece):
                return bytes(piece[address - start : address - start + size])
        return b""


class Iovec(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("size", ctypes.c_size_t))


LIBC = ctypes.CDLL(None, use_errno=True)


class Running(NamedTuple):
    """The memory of a process that goes on meanwhile."""

    pid: int

    def read(self, address: int, size: int) -> bytes:
        buffer = ctypes.create_string_buffer(size)
        local = Iovec(ctypes.cast(buffer, ctypes.c_void_p), size)
        remote = Iovec(address, size)
        read = LIBC.process_vm_readv(self.pid, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0)
        if read < 0 and ctypes.get_errno() != 14:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return buffer.raw[: max(read, 0)]
