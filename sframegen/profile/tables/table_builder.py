"""Makes tables in other processes, while this one goes on; if one dies or takes too long, only its file has no table."""

from __future__ import annotations

import mmap
import os
import select
from contextlib import contextmanager
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, Self

from sframegen.detached.stores import Stores
from sframegen.elf.file import ElfFile, map_descriptor
from sframegen.profile.tables.make_table import MadeTable, Origin, make_proven_table, make_table, recall_table
from sframegen.program import patience
from sframegen.program.forked import Answer, end_with_parent
from sframegen.program.forker import Forker
from sframegen.program.own_memory import trim_heap
from sframegen.program.pool import Pool
from sframegen.program.workers import attempt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from sframegen.profile.tables.decoded_table import DecodedTable
    from sframegen.profile.tables.table_cache import TableCache
    from sframegen.program.pool import Question

    Make = Callable[[ElfFile, TableCache | None, Stores], MadeTable]

MAX_WHY = 1000  # characters
NOTHING_WANTED: Mapping[int, int] = MappingProxyType({})
NOT_PROVEN = "no unwind rules were derived for code without call frame information"


class Built(NamedTuple):
    """The outcome for the file with this number; other fields as in MadeTable.

    `final`: no proof can add rules. The table of a proof that adds none is None: the earlier table stays.
    """

    number: int
    table: DecodedTable | None
    why: str
    origin: Origin
    final: bool = False


class TableBuilder:
    """Makes the tables of files on `request`, and proofs for them; `ready` returns outcomes. `close` ends all and closes the cache.

    Create it while this process uses little memory: its workers are forked, and keep that memory.
    """

    def __init__(
        self,
        workers: int,
        cache: TableCache | None,
        *,
        stores: Stores | None = None,
    ) -> None:
        """`workers`: the most processes that make tables. Half as many prove rules, which takes more memory. Processes are
        started when there is work.

        `stores`: of detached sections.
        """
        self._cache = cache
        self._stores = stores or Stores()
        self._forker = Forker(self._answer, _prepare, () if cache is None else cache.descriptors)
        self._forker.begin()
        most = patience.current
        self._pool = Pool(partial(self._forker.forked, most.table), workers, partial(_question, proves=False))
        self._proofs = Pool(partial(self._forker.forked, most.proof), -(-workers // 2), partial(_question, proves=True))
        self._some_ready = select.epoll()
        for pool in (self._pool, self._proofs):
            self._some_ready.register(pool.fileno(), select.EPOLLIN)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def fileno(self) -> int:
        """Return a descriptor that is readable when `ready` has new outcomes."""
        return self._some_ready.fileno()

    @property
    def pending(self) -> int:
        """Return the number of requested files without an outcome yet."""
        return self._pool.pending + self._proofs.pending

    def request(self, number: int, elf: ElfFile) -> None:
        """Make the table of a file, which is kept open until that is done."""
        kept = recall_table(elf, self._cache, self._stores) if self._cache else None
        if kept is not None:
            self._pool.finish((number, elf), kept)
        else:
            self._pool.put((number, elf))

    def request_proof(self, number: int, elf: ElfFile) -> None:
        """Make the table of a file again, with rules that the instructions of its code prove."""
        self._proofs.put((number, elf))

    def ready(self, wanted: Mapping[int, int] = NOTHING_WANTED) -> list[Built]:
        """Return the outcomes since the last call.

        `wanted`: number of waiting stacks by file number. Files with the most of them, for their size, are made first.
        """
        for pool in (self._pool, self._proofs) if wanted else ():
            pool.prefer(lambda item: wanted.get(item[0], 0) / (1 + len(item[1].data)))
        built = [_built_of(number, answer) for (number, _), answer in self._pool.ready()]
        return built + [_proven(number, answer) for (number, _), answer in self._proofs.ready()]

    def close(self) -> None:
        """End all processes. Afterwards, only `close` may be called."""
        if self._some_ready.closed:
            return
        self._some_ready.close()
        self._pool.close()
        self._proofs.close()
        self._forker.close()
        if self._cache is not None:
            self._cache.trim()
            self._cache.close()

    def _answer(self, proves: bool, name: str, status: os.stat_result | None, descriptor: int) -> Answer:
        """Make the table of a file that is open as `descriptor`. Runs in a worker."""
        answer = attempt(partial(self._make_in_worker, make_proven_table if proves else make_table, name, status), descriptor)
        trim_heap()
        if isinstance(answer, Exception):
            return Answer(MadeTable(None, Origin.NOTHING, (str(answer) or type(answer).__name__)[:MAX_WHY]))
        return answer

    def _make_in_worker(self, make: Make, name: str, status: os.stat_result | None, descriptor: int) -> Answer:
        """Return what `make` makes of the file, with the table's data in a file without a name."""
        data, _ = map_descriptor(descriptor, name)
        made = make(ElfFile(data, name, status, descriptor), self._cache, self._stores)
        made = made._replace(why=made.why[:MAX_WHY])
        if made.table is None:
            return Answer(made)
        table = os.memfd_create("table", os.MFD_CLOEXEC)
        with os.fdopen(table, "wb", closefd=False) as file:
            file.write(made.table.data)
        return Answer(made._replace(table=made.table._replace(data=b"")), [table])


@contextmanager
def _question(item: tuple[int, ElfFile], *, proves: bool) -> Iterator[Question]:
    """Yield a worker's question: the open file, or a copy of its bytes (none if there is no room) if it has no descriptor."""
    elf = item[1]
    values = (proves, elf.name, elf.status)
    if elf.descriptor is not None:
        yield values, [elf.descriptor]
        return
    copy = os.memfd_create("file", os.MFD_CLOEXEC)
    try:
        try:
            with os.fdopen(copy, "wb", closefd=False) as file:
                file.write(elf.data)
        except OSError:
            os.ftruncate(copy, 0)
        yield values, [copy]
    finally:
        os.close(copy)


def _built_of(number: int, answer: Answer) -> Built:
    if isinstance(answer.value, Exception):  # of a worker that died
        return Built(number, None, str(answer.value), Origin.NOTHING)
    table, origin, why = answer.value
    for descriptor in answer.descriptors:
        try:
            table = table._replace(data=memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)))
        finally:
            os.close(descriptor)
    return Built(number, table, why, origin, origin in (Origin.PROVEN, Origin.KEPT_NO_PROOF))


def _proven(number: int, answer: Answer) -> Built:
    built = _built_of(number, answer)
    why = f"{NOT_PROVEN}: {answer.value}" if isinstance(answer.value, Exception) else built.why
    return built._replace(why=why, final=True)


def _prepare(_pipe: int) -> None:
    end_with_parent()  # else the kernel program, which it inherits, would outlive a kill
    os.setpriority(os.PRIO_PROCESS, 0, max(0, os.getpriority(os.PRIO_PROCESS, 0)))  # the profiler's own may be higher
