"""What one reading of the tables of a process may cost: in tables and entries, and in time."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

from sframegen.base.errors import FormatError
from sframegen.program import patience
from sframegen.program.signals import ENDING

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_ENTRIES = 1 << 21  # of all chains, kept or read again: twice the limit of one chain
TABLE_COST = 32  # entries that take as long to read as a table, or a member of a list


class BudgetError(FormatError):
    """Tables that are not damaged, but more than are read."""


class Budget:
    """For one reading of all lists and chains of a process, which may be hostile."""

    def __init__(
        self, seconds: float | None = None, *, entries: int = MAX_ENTRIES, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.left = entries
        self._seconds = patience.current.made_code if seconds is None else seconds
        self._clock = clock
        self._until = clock() + self._seconds

    def spend(self, entries: int = 0, tables: int = 0) -> None:
        """Call it before they are read. Raises BudgetError if that is too many or too late, or if a held signal waits."""
        self.count(entries, tables)
        if self._clock() > self._until:
            raise BudgetError(f"reading the tables of the process took longer than {self._seconds:g} seconds")
        if not signal.sigpending().isdisjoint(ENDING):
            raise BudgetError("a signal came while the tables of the process were read")

    def count(self, entries: int, tables: int) -> None:
        """Count what an earlier reading has kept. Raises BudgetError if that is too many."""
        cost = entries + TABLE_COST * tables
        if cost > self.left:
            raise BudgetError(f"the process has more than {MAX_ENTRIES // TABLE_COST:,} tables or {MAX_ENTRIES:,} entries")
        self.left -= cost
