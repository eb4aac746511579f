"""Where profiles go: to outputs at the end, or to a directory, one for each interval."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple, Self

import click

from cfi.errors import SframegenError
from sframegen.cli.profiling.loop import Live
from sframegen.cli.shared.live_table import LiveTable
from sframegen.profile.copied_session import CopiedSession
from sframegen.profile.report.formats.file_formats import format_of, write_parts
from sframegen.profile.report.grouping import group_stacks
from sframegen.profile.report.table import table
from sframegen.profile.stored.intervals import IntervalDirectory
from sframegen.program.unused_memory import trim_heap

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

    from sframegen.cli.profiling.naming_options import Naming
    from sframegen.cli.shared.output import Run
    from sframegen.cli.shared.profile_output import Outputs
    from sframegen.profile.backends import Session
    from sframegen.profile.collected import Collected
    from sframegen.profile.kernel_session import KernelSession
    from sframegen.profile.report.naming import KnownNames


class Intervals(NamedTuple):
    """A profile that is written in pieces. Seconds; `every`: 0 for one profile; `keep`: 0 for ever."""

    every: float
    keep: float


class Shown:
    """The outputs of one profile."""

    def __init__(self, outputs: Outputs, by: str, naming: Naming) -> None:
        self.outputs = outputs
        self._by, self._naming, self._detail = by, naming, naming.detail()
        self._known: KnownNames = {}

    def check(self) -> None:
        """Tell of outputs that cannot be made."""
        self.outputs.check()

    def _live(self, session: Session) -> Callable[[int], Iterator[str]]:
        """Return what makes the table of a session that goes on."""

        def lines(width: int) -> Iterator[str]:
            named = group_stacks(self._naming.named_again(session.collected, self._known, live=True), self._by)
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


class Recorded:
    """A directory of profiles, one for each interval."""

    def __init__(self, run: Run, output: tuple[str, ...], intervals: Intervals, naming: Naming) -> None:
        if len(output) != 1:
            raise click.UsageError("--every needs one directory: --output DIR")
        self.every, self._keep = intervals
        self._run, self._path, self._naming = run, output[0], naming
        self._known: KnownNames = {}

    def check(self) -> None:
        """Open the directory."""
        self._naming.detail()
        with self._run.file(self._path):
            self._directory = IntervalDirectory(self._path, self._keep)

    def meanwhile(self, session: Session, *, top: bool) -> Cutting:  # noqa: ARG002 - as Shown's; the options exclude each other
        """Return what is done while it samples. Raises SframegenError without the kernel program."""
        if isinstance(session, CopiedSession):
            raise SframegenError("--every needs the kernel program, which does not run here")
        return Cutting(session, self)

    def __call__(self, collected: Collected) -> None:
        """Write an interval. One that cannot be written is lost, with a line that says so."""
        named = group_stacks(self._naming.named_again(collected, self._known), "comm")
        with self._run.file(self._path), self._directory.place(collected.started, collected.seconds) as place:
            write_parts(format_of(place.name).parts(named), place)
            self._directory.drop_old(time.time())
        named.room.close()


class Cutting:
    """Writes what was sampled, each time an interval is over."""

    def __init__(self, session: KernelSession, written: Recorded) -> None:
        self._session, self._written = session, written
        self._due = time.monotonic() + written.every

    def refresh(self) -> bool:
        """Write an interval if it is over. Return False if the profile is to end: it never is."""
        if time.monotonic() >= self._due:
            self._due += self._written.every
            self._written(self._session.cut())
            self._session.follower.files.rest()
            trim_heap()
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        pass
