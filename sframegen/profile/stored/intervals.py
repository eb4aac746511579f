"""A directory of profiles, a file for each interval, whose name says when it began and how long it was."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from cfi.errors import SframegenError
from linker.files.own_directory import OwnDirectory

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from linker.files.location import Location

NAME = re.compile(r"profile-(\d{8}T\d{6}\.\d{3})Z-(\d+)s\.pb\.gz", re.ASCII)
BEGAN = "%Y%m%dT%H%M%S.%f"
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
TIMES = ("%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M", "%Y-%m-%d %H:%M:%S")
TIMES_OF_DAY = ("%H:%M", "%H:%M:%S")


class Interval(NamedTuple):
    """`began`: seconds since 1970."""

    name: str
    began: float
    seconds: int

    @property
    def ended(self) -> float:
        return self.began + self.seconds


def name_of(began: float, seconds: float) -> str:
    """Return the name of the file of an interval."""
    text = datetime.fromtimestamp(began, UTC).strftime(BEGAN)[:-3]
    return f"profile-{text}Z-{round(seconds)}s.pb.gz"


def interval_of(name: str) -> Interval | None:
    """Return the interval that a name says; None for files of others."""
    if not (match := NAME.fullmatch(name)):
        return None
    try:
        began = datetime.strptime(match[1], BEGAN).replace(tzinfo=UTC)
    except ValueError:
        return None
    return Interval(name, began.timestamp(), int(match[2]))


def intervals_in(names: Iterable[str]) -> list[Interval]:
    """Return those among the names of a directory, the oldest first."""
    return sorted(filter(None, map(interval_of, names)), key=lambda one: (one.began, one.name))


class IntervalDirectory:
    """Where a profile writes a file for each interval. What was there stays until it is older than `keep` seconds (0: for ever).

    Nobody else may be able to write to it. Raises OSError.
    """

    def __init__(self, path: str, keep: float = 0.0) -> None:
        self._own = OwnDirectory.opened(path, make=True)
        self._keep = keep

    def close(self) -> None:
        self._own.close()

    def place(self, began: float, seconds: float) -> Location:
        """Where the profile of an interval is to be written; the caller closes it."""
        return self._own.at(name_of(began, seconds))

    def drop_old(self, now: float) -> None:
        """Remove the files of intervals that ended too long ago."""
        if not self._keep:
            return
        readable = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._own.descriptor)
        try:
            with os.scandir(readable) as entries:
                old = [one for one in intervals_in([entry.name for entry in entries]) if one.ended < now - self._keep]
            for one in old:
                with suppress(FileNotFoundError, IsADirectoryError):  # removed by another run, or not ours
                    os.unlink(one.name, dir_fd=readable)
        finally:
            os.close(readable)


def seconds_of(text: str) -> float:
    """Return what `90`, `90s`, `15m`, `24h` or `7d` says, in seconds. Raises SframegenError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", text, re.ASCII)
    if not match or not float(match[1]):
        raise SframegenError(f"{text!r} is not a length of time, as 90s, 15m, 24h or 7d are")
    return float(match[1]) * UNITS[match[2] or "s"]


def time_of(text: str, now: float) -> float:
    """Return a time in seconds since 1970: `2026-11-23T14:30`, `14:30` of today, or `2h`, so long ago. Raises SframegenError."""
    for form in TIMES:
        try:
            return datetime.strptime(text, form).astimezone().timestamp()
        except (ValueError, OverflowError):
            continue
    for form in TIMES_OF_DAY:
        try:
            clock = datetime.strptime(text, form)  # noqa: DTZ007
        except ValueError:
            continue
        today = datetime.fromtimestamp(now).astimezone()
        return today.replace(hour=clock.hour, minute=clock.minute, second=clock.second, microsecond=0).timestamp()
    try:
        return now - seconds_of(text)
    except SframegenError:
        raise SframegenError(f"{text!r} is not a time, as 2026-11-23T14:30, 14:30 or 2h (ago) are") from None


def between(intervals: Iterable[Interval], begin: float | None, end: float | None) -> Iterator[Interval]:
    """Return the intervals of which a part lies between two times."""
    return (one for one in intervals if (begin is None or one.ended > begin) and (end is None or one.began < end))
