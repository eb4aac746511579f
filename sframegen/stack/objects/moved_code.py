"""Code that a program has moved to anonymous memory, for huge pages: it is that of a file if all bytes are the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

MAX_CODE = 64 << 20  # bytes of a mapping: files can be sparse and endless, and so can memory that nobody has touched
AT_ONCE = 1 << 20  # bytes that are read
MAX_PARTS = 256  # that are read of a process


class MovedCode:
    """Compares code of one process with that of files."""

    def __init__(self) -> None:
        self.answers: dict[Hashable, bool] = {}  # no more than parts were read
        self._parts = MAX_PARTS  # that may still be read

    def is_same(self, read: Callable[[int, int], bytes], address: int, code: memoryview, key: Hashable = None) -> bool:
        """Return True if `read` has these bytes at the address; False beyond a limit. `key`: the answer is kept for it."""
        if key in self.answers:
            return self.answers[key]
        if not 0 < len(code) <= MAX_CODE or not self._parts:
            return False
        same = all(self._is_same(read, address + at, code[at : at + AT_ONCE]) for at in range(0, len(code), AT_ONCE))
        if key is not None:
            self.answers[key] = same
        return same

    def _is_same(self, read: Callable[[int, int], bytes], address: int, part: memoryview) -> bool:
        if not self._parts:
            return False
        self._parts -= 1
        return read(address, len(part)) == bytes(part)
