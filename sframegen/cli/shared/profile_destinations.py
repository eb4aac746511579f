"""Where a profile goes: to its outputs at the end, and meanwhile to the terminal."""

from __future__ import annotations

import sys
import time
from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple, Protocol, Self

import click

from sframegen.cli.shared.live_table import LiveTable
from sframegen.cli.shared.output import note
from sframegen.profile.report.grouping import group_stacks
from sframegen.profile.report.naming import NO_DETAIL, name_stacks
from sframegen.profile.report.table import table
from sframegen.profile.symbols.debuginfod import Debuginfod
from sframegen.profile.symbols.source_lines import Detail
from sframegen.program.libraries import PLACES
from sframegen.stack.names.debug_files import DebugFiles

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

    from sframegen.cli.shared.profile_output import Outputs
    from sframegen.profile.backends import Session
    from sframegen.profile.collected import Collected
    from sframegen.profile.paused_command import PausedCommand
    from sframegen.profile.report.named import Named
    from sframegen.profile.report.naming import KnownNames
    from sframegen.stack.sampling import Interrupts


class Naming(NamedTuple):
    """What frames are named with. `lines`, `inlined`: None if the user did not say."""

    lines: bool | None
    inlined: bool | None
    debuginfod: bool
    collapse_runtime: bool

    def named(self, collected: Collected, detail: Detail) -> Named:
        """Name all that was collected."""
        fetch = Debuginfod() if self.debuginfod else None
        named = name_stacks(collected, collapse_runtime=self.collapse_runtime, detail=detail, debug_files=DebugFiles(fetch))
        if fetch:
            named.notes += fetch.notes
            fetch.close()
        return named

    def named_live(self, collected: Collected, known: KnownNames) -> Named:
        """Name what is still being collected, without what would take longer than to sample it."""
        detail = self.detail() if self.lines or self.inlined else NO_DETAIL
        return name_stacks(collected, collapse_runtime=self.collapse_runtime, detail=detail, known=known, live=True)

    def detail(self) -> Detail:
        """Ends the command in one line if the user asks for what needs a library that is not installed."""
        if (self.lines or self.inlined) and find_spec(PLACES.module) is None:
            from sframegen.cli.shared.install_commands import getting  # noqa: PLC0415 - not for each run

            note(f"source lines and inlined functions need {PLACES.project}; to install it: {getting([PLACES])}")
            click.get_current_context().exit(1)
        return Detail(self.lines is not False, self.inlined is not False, self.lines is True, bool(self.lines or self.inlined))


class Shown:
    """The outputs of one profile."""

    def __init__(self, outputs: Outputs, by: str, naming: Naming) -> None:
        self.outputs = outputs
        self._by, self._naming, self._detail = by, naming, naming.detail()
        self._known: KnownNames = {}

    def _live(self, session: Session) -> Callable[[int], Iterator[str]]:
        """Return what makes the table of a session that goes on."""

        def lines(width: int) -> Iterator[str]:
            named = group_stacks(self._naming.named_live(session.collected, self._known), self._by)
            yield from table(named, width)
            named.room.close()

        return lines

    def meanwhile(self, session: Session, *, top: bool) -> Live | LiveTable:
        """Return what is done while it samples. `top`: the table is shown."""
        return LiveTable(self._live(session)) if top else Live(session)

    def __call__(self, collected: Collected) -> None:
        collected.stacks.room.rest()  # processes that read debug information need memory, and would keep what is free here
        named = self._naming.named(collected, self._detail)
        collected.stacks.close()
        self.outputs.write(group_stacks(named, self._by))


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
