"""What a profile takes of this machine, and gives back."""

from __future__ import annotations

import os

import pytest

from sframegen.profile.this_machine import RAISED_PRIORITY, raised_priority


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The priorities that it was given, which it then has."""
    calls = [0]
    monkeypatch.setattr(os, "getpriority", lambda _which, _who: calls[-1])
    monkeypatch.setattr(os, "setpriority", lambda _which, _who, priority: calls.append(priority))
    return calls


@pytest.mark.parametrize(("own", "within"), [(0, RAISED_PRIORITY), (5, 5), (-3, -3)])
def test_it_goes_first_if_nobody_has_chosen_a_priority(calls: list[int], own: int, within: int) -> None:
    calls[0] = own
    with raised_priority():
        assert calls[-1] == within
    assert calls[-1] == own


def test_without_permission_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "setpriority", refuse)
    with raised_priority():
        pass
