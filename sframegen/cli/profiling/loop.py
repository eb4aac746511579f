"""What `profile` does while it samples."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Protocol, Self

import click

if TYPE_CHECKING:
    from types import TracebackType

    from sframegen.profile.backends import Session
    from sframegen.profile.paused_command import PausedCommand
    from sframegen.stack.sampling import Interrupts

LIVE_AFTER = 1.0  # seconds before the line of live figures appears
REFRESH = 0.5  # seconds


class Refreshed(Protocol):
    """What is done now and then."""

    def refresh(self) -> bool:
        """Return False if the profile is to end."""


class Live:
    """One line of figures on a terminal, while it samples."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._begin = time.monotonic()
        self._due = self._begin + LIVE_AFTER
        self._shown = False

    def refresh(self) -> bool:
        """Show the line if it is due. Return False if the profile is to end: it never is."""
        if sys.stderr.isatty() and time.monotonic() >= self._due:
            self._due = time.monotonic() + REFRESH
            self._shown = True
            amount = self._session.collected.unit.shown(self._session.samples)
            click.echo(f"\r\033[K{amount}, {time.monotonic() - self._begin:.0f} s; Ctrl-C ends", err=True, nl=False)
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._shown:
            click.echo("\r\033[K", err=True, nl=False)


def sample(
    session: Session, interrupts: Interrupts, command: PausedCommand | None, duration: float | None, live: Refreshed
) -> None:
    """Sample until the time is over, a signal comes, the user ends it, or there is nothing left to sample."""
    begin = time.monotonic()
    while not interrupts.number and (command.runs() if command else session.plan.has_targets()):
        if duration and time.monotonic() - begin >= duration:
            break
        session.turn()  # is not interrupted: it may have taken records, which are nowhere else
        if not live.refresh():
            break
