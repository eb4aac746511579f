"""A directory of profiles: names, times, and what is removed."""

from __future__ import annotations

import os
import time
from datetime import datetime
from typing import TYPE_CHECKING

import pytest

from cfi.errors import SframegenError
from sframegen.profile.stored.intervals import (
    Interval,
    IntervalDirectory,
    between,
    intervals_in,
    name_of,
    seconds_of,
    time_of,
)

if TYPE_CHECKING:
    from pathlib import Path

BEGAN = 1_795_476_123.5
NOBODY = 65534


def test_names_say_when_and_how_long() -> None:
    name = name_of(BEGAN, 60.2)
    assert name == "profile-20261123T232203.500Z-60s.pb.gz"
    assert intervals_in([name, "profile-20269923T232203.500Z-60s.pb.gz", "other.pb.gz", name_of(BEGAN - 60, 59.9)]) == [
        Interval(name_of(BEGAN - 60, 59.9), BEGAN - 60, 60),
        Interval(name, BEGAN, 60),
    ]


def test_intervals_of_a_time() -> None:
    hour = [Interval(str(number), 60.0 * number, 60) for number in range(60)]
    assert [one.name for one in between(hour, 90.0, 180.0)] == ["1", "2"]
    assert len(list(between(hour, None, None))) == 60


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("90s", 90), ("15m", 900), ("1.5h", 5400), ("7d", 604_800)])
def test_lengths(text: str, seconds: float) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "-5", "5 h", "h", "1e3", "٣h"])
def test_what_is_no_length(text: str) -> None:
    with pytest.raises(SframegenError, match="is not a length of time, as 90s"):
        seconds_of(text)


def test_times() -> None:
    now = datetime(2026, 11, 23, 15, 0).astimezone().timestamp()
    assert time_of("2026-11-23T14:30", now) == time_of("14:30", now) == time_of("30m", now) == now - 1800
    with pytest.raises(SframegenError, match="'yesterday' is not a time, as 2026-11-23T14:30, 14:30 or 2h"):
        time_of("yesterday", now)


@pytest.mark.parametrize(("text", "zone"), [("0001-01-01T00:00", "UTC-8"), ("9999-12-31T23:59:59", "UTC+8")])
def test_what_no_calendar_has_is_no_time(text: str, zone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In that zone, the time in UTC lies in another year, which has no number."""
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        with pytest.raises(SframegenError, match=f"'{text}' is not a time, as 2026-11-23T14:30, 14:30 or 2h"):
            time_of(text, 0.0)
    finally:
        monkeypatch.undo()
        time.tzset()


def test_only_old_profiles_are_removed(tmp_path: Path) -> None:
    folder = tmp_path / "profiles"
    directory = IntervalDirectory(str(folder), keep=100)
    names = [name_of(BEGAN - age, 10) for age in (200, 111, 109)] + ["profile-.pb.gz", "mine.pb.gz"]
    for name in names:
        (folder / name).write_bytes(b"")
    directory.drop_old(BEGAN)
    assert {path.name for path in folder.iterdir()} == set(names[2:])
    directory.close()
    forever = IntervalDirectory(str(folder))
    forever.drop_old(BEGAN + 10**9)
    assert len(list(folder.iterdir())) == 3
    forever.close()


def test_what_cannot_be_removed_keeps_nothing_else(tmp_path: Path) -> None:
    names = [name_of(BEGAN - age, 10) for age in (300, 200)]
    (tmp_path / names[0]).mkdir()
    (tmp_path / names[1]).write_bytes(b"")
    directory = IntervalDirectory(str(tmp_path), keep=100)
    directory.drop_old(BEGAN)
    directory.close()
    assert [path.name for path in tmp_path.iterdir()] == names[:1]


def test_a_directory_of_someone_else_is_refused(tmp_path: Path) -> None:
    """Root's profiles would replace, and `--keep` remove, what another user puts there."""
    if os.geteuid() != 0:
        pytest.skip("only root can be another user")
    os.chown(tmp_path, NOBODY, NOBODY)
    with pytest.raises(PermissionError, match="belongs to another user"):
        IntervalDirectory(str(tmp_path))
