"""A signal at any moment in which processes start, or a private directory is made or removed: nothing hides it, nothing is left."""

from __future__ import annotations

import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, suppress
from itertools import count
from pathlib import Path

import pytest

from sframegen.packages.package_pass import Pass
from sframegen.program.forked import ForkedProcess
from sframegen.program.pool import Pool
from sframegen.program.signals import PrivateDirectory


class EndedError(SystemExit):
    """By the signal."""


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    def end(*_: object) -> None:
        raise EndedError

    before = signal.signal(signal.SIGTERM, end)
    yield
    signal.signal(signal.SIGTERM, before)


def test_a_signal_while_a_process_starts() -> None:
    def start() -> ForkedProcess:
        process = ForkedProcess(lambda number: number)
        signal.raise_signal(signal.SIGTERM)  # in this thread, which holds it
        return process

    with pytest.raises(EndedError), closing(Pool[int](start, 2)) as pool:
        pool.put(1, 2)


def passing() -> Pass:
    return Pass("wheel", 0, lambda *_: False)


@pytest.mark.filterwarnings("ignore:Implicitly cleaning up", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("block", [PrivateDirectory, passing])
def test_a_signal_while_a_directory_is_made_or_removed(
    block: Callable[[], AbstractContextManager[object]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def has(moment: int) -> bool:
        """Whether the block has as many calls of functions; at this one the signal comes."""
        calls = 0

        def call(_frame: object, event: str, _argument: object) -> None:
            nonlocal calls
            calls += event in ("call", "c_call")
            if calls == moment and event in ("call", "c_call"):
                signal.raise_signal(signal.SIGTERM)

        with suppress(EndedError):
            try:
                sys.setprofile(call)
                with block():
                    (next(tmp_path.iterdir()) / "file").touch()
            finally:
                sys.setprofile(None)
        return calls >= moment

    for moment in count(1):
        if not has(moment):
            break
        assert not list(tmp_path.iterdir()), moment
    assert moment > 50
