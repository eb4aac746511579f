"""Where a profile goes: to its outputs at the end, and meanwhile to the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sframegen.cli.profiling.loop import Live
from sframegen.cli.shared.live_table import LiveTable
from sframegen.profile.report.grouping import group_stacks
from sframegen.profile.report.table import table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sframegen.cli.profiling.naming_options import Naming
    from sframegen.cli.shared.profile_output import Outputs
    from sframegen.profile.backends import Session
    from sframegen.profile.collected import Collected
    from sframegen.profile.report.naming import KnownNames


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
