"""What a profile takes of this machine, and gives back."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from sframegen.profile import this_machine
from sframegen.profile.this_machine import PRIORITY, going_first

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The priorities that it was given, which it then has."""
    calls = [0]
    monkeypatch.setattr(os, "getpriority", lambda _which, _who: calls[-1])
    monkeypatch.setattr(os, "setpriority", lambda _which, _who, priority: calls.append(priority))
    return calls


@pytest.mark.parametrize(("text", "within", "after"), [("/autogroup-7 nice 0\n", str(PRIORITY), "0"), ("", "", "")])
def test_it_goes_first_within_its_session_and_with_it(
    calls: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, within: str, after: str
) -> None:
    group = tmp_path / "autogroup"
    group.write_text(text)
    monkeypatch.setattr(this_machine, "GROUP", group)
    with going_first():
        assert (calls, group.read_text()) == ([0, PRIORITY], within)
    assert (calls, group.read_text()) == ([0, PRIORITY, 0], after)


@pytest.mark.parametrize(("own", "session"), [(5, 0), (-3, 0), (0, -4)])
def test_a_priority_that_somebody_has_chosen_stays(
    calls: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: int, session: int
) -> None:
    calls[0] = own
    group = tmp_path / "autogroup"
    group.write_text(text := f"/autogroup-7 nice {session}\n")
    monkeypatch.setattr(this_machine, "GROUP", group)
    with going_first():
        assert (calls[-1], group.read_text() == text) == (own or PRIORITY, own != 0 or session != 0)
    assert calls[-1] == own
    if session or own:
        assert group.read_text() == text


def test_without_permission_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "setpriority", refuse)
    with going_first():
        pass
