"""Makes tables in processes forked from this one, while it goes on; one that dies or takes too long costs its file only."""

from __future__ import annotations

import mmap
import os
from typing import TYPE_CHECKING, NamedTuple, Self

from sframegen.detached.stores import Stores
from sframegen.profile.tables.make_table import MadeTable, Origin, make_table
from sframegen.program.forked import Answer, end_with_parent
from sframegen.program.pool import Pool
from sframegen.program.workers import attempt

if TYPE_CHECKING:
    from sframegen.elf.file import ElfFile
    from sframegen.profile.tables.decoded_table import DecodedTable
    from sframegen.profile.tables.table_cache import TableCache

SECONDS = 30.0  # for one file; the largest take less than one
MAX_WHY = 1000  # characters


class Built(NamedTuple):
    """What became of the file of that number; the rest as in MadeTable."""

    number: int
    table: DecodedTable | None
    why: str
    origin: Origin


class TableBuilder:
    """`request` files; `ready` says what came of them. `close` ends what is left, and trims the cache."""

    def __init__(self, workers: int, cache: TableCache | None, seconds: float = SECONDS, *, stores: Stores | None = None) -> None:
        """`workers`: the most processes; there are none while there is nothing to do. `seconds`: the most for one file.

        `stores`: of detached sections.
        """
        self._cache = cache
        self._stores = stores or Stores()
        self._pool = Pool(self._make, workers, _prepare, seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def fileno(self) -> int:
        """A descriptor that is readable when `ready` has something new."""
        return self._pool.fileno()

    @property
    def pending(self) -> int:
        """How many files have no outcome yet."""
        return self._pool.pending

    def request(self, number: int, elf: ElfFile) -> None:
        """Make the table of a file; it stays open until it is done."""
        kept = self._cache.recall(elf.status, self._stores.state_for(elf)) if self._cache else None
        if kept is not None:
            self._pool.finish((number, elf), MadeTable(kept, Origin.KEPT))
        else:
            self._pool.put((number, elf))

    def ready(self) -> list[Built]:
        """What has come since the last call; waits for nothing."""
        return [_built(number, answer) for (number, _), answer in self._pool.ready()]

    def close(self) -> None:
        self._pool.close()
        if self._cache is not None:
            self._cache.trim()

    def _make(self, request: tuple[int, ElfFile]) -> Answer:
        """In a process."""
        answer = attempt(self._made, request[1])
        if isinstance(answer, Exception):
            return Answer(MadeTable(None, Origin.NOTHING, (str(answer) or type(answer).__name__)[:MAX_WHY]))
        return answer

    def _made(self, elf: ElfFile) -> Answer:
        """The table's data is in a file without a name."""
        made = make_table(elf, self._cache, self._stores)
        made = made._replace(why=made.why[:MAX_WHY])
        if made.table is None:
            return Answer(made)
        descriptor = os.memfd_create("table", os.MFD_CLOEXEC)
        with os.fdopen(descriptor, "wb", closefd=False) as file:
            file.write(made.table.data)
        return Answer(made._replace(table=made.table._replace(data=b"")), [descriptor])


def _built(number: int, answer: Answer) -> Built:
    if isinstance(answer.value, Exception):  # of what has died
        return Built(number, None, str(answer.value), Origin.NOTHING)
    table, origin, why = answer.value
    for descriptor in answer.descriptors:
        try:
            table = table._replace(data=memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)))
        finally:
            os.close(descriptor)
    return Built(number, table, why, origin)


def _prepare(_pipe: int) -> None:
    end_with_parent()  # else the kernel program, which it inherits, would outlive a kill
    os.setpriority(os.PRIO_PROCESS, 0, max(0, os.getpriority(os.PRIO_PROCESS, 0)))  # the profiler's own may be higher
