"""The kernel's tracepoints: their numbers and fields, from tracefs, which need not be mounted."""

from __future__ import annotations

import ctypes
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self

from sframegen.profile.events.attributes import EventError
from sframegen.program.privileges import root_in_words

if TYPE_CHECKING:
    from types import TracebackType

MOUNTS = Path("/proc/self/mounts")
FSOPEN, FSCONFIG, FSMOUNT = 430, 431, 432  # on all machines
FSCONFIG_CMD_CREATE = 6
CLOEXEC = 1
MAX_FILE = 1 << 22
NAME = re.compile(r"\w+")
FIELD = re.compile(
    r"field:(?P<type>[^;]*?)(?P<name>\w+)(?P<array>\[[^;]*\])?;"
    r"\s*offset:(?P<at>\d+);\s*size:(?P<size>\d+);\s*signed:(?P<sign>\d);"
)
COMMON = 8  # bytes at the begin of a record, which the kernel program does not see

_LIBC = ctypes.CDLL(None, use_errno=True)


class Field(NamedTuple):
    """A number in the record of a tracepoint."""

    offset: int
    size: int
    signed: bool


class Tracefs:
    """The file system, mounted by somebody or for this object only. Raises EventError if that is not allowed."""

    def __init__(self) -> None:
        self._folder = _mounted()
        if self._folder is None:
            self._folder = _own_mount()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._folder is not None:
            os.close(self._folder)
            self._folder = None

    def names(self) -> list[str]:
        """Return all tracepoints, as CATEGORY:NAME."""
        return sorted(self._read("available_events").split())

    def number(self, category: str, name: str) -> int:
        """Return the number of a tracepoint. Raises EventError for an unknown one."""
        try:
            return int(self._of(category, name, "id"))
        except ValueError:
            raise EventError(f"{category}:{name}: the kernel gives it no number") from None

    def fields(self, category: str, name: str) -> dict[str, Field]:
        """Return the numbers in its records: not its texts and arrays."""
        return fields_in(self._of(category, name, "format"))

    def _of(self, category: str, name: str, file: str) -> str:
        if NAME.fullmatch(category) and NAME.fullmatch(name):
            with suppress(FileNotFoundError):
                return self._read(f"events/{category}/{name}/{file}")
        raise EventError(f"{category}:{name}: this kernel has no such tracepoint")

    def _read(self, path: str) -> str:
        try:
            with os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._folder), "rb") as file:
                return file.read(MAX_FILE).decode(errors="replace")
        except FileNotFoundError:
            raise
        except OSError as error:
            raise EventError(f"tracefs: {path} cannot be read: {error.strerror}") from error


def fields_in(text: str) -> dict[str, Field]:
    """Return the numbers that the file `format` of a tracepoint lists."""
    found = {}
    for match in FIELD.finditer(text):
        size = int(match["size"])
        if int(match["at"]) >= COMMON and not match["array"] and "__data_loc" not in match["type"] and size in (1, 2, 4, 8):
            found[match["name"]] = Field(int(match["at"]), size, match["sign"] == "1")
    return found


def _mounted() -> int | None:
    """Return a descriptor of the place where it is mounted."""
    with suppress(OSError):
        for line in MOUNTS.read_text(errors="surrogateescape").splitlines():
            words = line.split()
            if len(words) > 2 and words[2] == "tracefs":
                with suppress(OSError):
                    return os.open(words[1].encode().decode("unicode_escape"), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    return None


def _own_mount() -> int:
    """Mount it where no path leads: it ends with its descriptor."""
    descriptor = _call(FSOPEN, b"tracefs", CLOEXEC)
    try:
        _call(FSCONFIG, descriptor, FSCONFIG_CMD_CREATE, None, None, 0)
        return _call(FSMOUNT, descriptor, CLOEXEC, 0)
    finally:
        os.close(descriptor)


def _call(number: int, *arguments: bytes | int | None) -> int:
    wrapped = [ctypes.c_long(argument) if isinstance(argument, int) else argument for argument in arguments]
    result: int = _LIBC.syscall(ctypes.c_long(number), *wrapped)
    if result < 0:
        why = os.strerror(ctypes.get_errno())
        raise EventError(
            f"tracepoints need tracefs, which is not mounted, and cannot be mounted: {why}; "
            f"as {root_in_words()}: mount -t tracefs tracefs /sys/kernel/tracing"
        )
    return result
