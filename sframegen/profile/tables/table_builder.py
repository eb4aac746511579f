"""Makes the tables of files in worker processes while sampling goes on. If a worker dies or hangs, only its file has no table.

A table is made in one or two steps. The first, from call frame information, is quick. The second, a proof, derives rules from the
instructions of code without such information; it takes longer, and the first table is used meanwhile.
"""

from __future__ import annotations

import mmap
import os
import select
from contextlib import contextmanager
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from sframegen.detached.stores import Stores
from sframegen.elf.file import ElfFile, map_descriptor
from sframegen.profile.tables.make_table import Origin, TableResult, load_cached_table, make_proven_table, make_table
from sframegen.program import time_limits
from sframegen.program.forked import Answer, die_with_parent
from sframegen.program.forker import Forker
from sframegen.program.own_memory import trim_heap
from sframegen.program.pool import Pool
from sframegen.program.workers import run_or_catch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from sframegen.profile.tables.decoded_table import DecodedTable
    from sframegen.profile.tables.table_cache import TableCache
    from sframegen.program.pool import Question

    TableMaker = Callable[[ElfFile, TableCache | None, Stores], TableResult]

MAX_WHY = 1000  # characters of TableResult.why
NO_WAITING_STACKS: Mapping[int, int] = MappingProxyType({})
NOT_PROVEN = "no unwind rules were derived for code without call frame information"


class BuiltTable(NamedTuple):
    """The result for the file with this number; other fields as in TableResult.

    `final`: no proof can add further rules. After a proof that adds none, `table` is None, and the earlier table stays in use.
    """

    number: int
    table: DecodedTable | None
    why: str
    origin: Origin
    final: bool = False


class TableBuilder:
    """Makes tables on `request`, and tables with proven rules on `request_proof`. `take_ready` returns the results.

    Create it while this process uses little memory, because its workers are forked and keep that memory.
    """

    def __init__(self, workers: int, cache: TableCache | None, *, stores: Stores | None = None) -> None:
        """`workers`: the most processes that make tables; half as many prove rules, because a proof takes more memory.

        Processes are started when there is work. `stores`: of detached sections. `close` closes the cache.
        """
        self._cache = cache
        self._stores = stores or Stores()
        self._forker = Forker(self._handle_request, _prepare_worker, () if cache is None else cache.descriptors)
        self._forker.begin()
        limits = time_limits.current
        self._pool = Pool(partial(self._forker.start_process, limits.table), workers, partial(_as_request, proves=False))
        self._proofs = Pool(partial(self._forker.start_process, limits.proof), -(-workers // 2), partial(_as_request, proves=True))
        self._results_ready = select.epoll()
        for pool in (self._pool, self._proofs):
            self._results_ready.register(pool.fileno(), select.EPOLLIN)

    def fileno(self) -> int:
        """Return a descriptor that is readable when `take_ready` has new results."""
        return self._results_ready.fileno()

    @property
    def pending(self) -> int:
        """Return the number of requested files without a result yet."""
        return self._pool.pending + self._proofs.pending

    def request(self, number: int, elf: ElfFile) -> None:
        """Begin to make the table of a file. The caller keeps the file open until `take_ready` returns the result."""
        cached = load_cached_table(elf, self._cache, self._stores) if self._cache else None
        if cached is not None:
            self._pool.finish((number, elf), cached)
        else:
            self._pool.put((number, elf))

    def request_proof(self, number: int, elf: ElfFile) -> None:
        """Begin to make the table of a file again, with rules proven from its instructions."""
        self._proofs.put((number, elf))

    def take_ready(self, waiting_stacks: Mapping[int, int] = NO_WAITING_STACKS) -> list[BuiltTable]:
        """Return the results since the last call. Files with the most of `waiting_stacks`, by file number, per byte are next."""
        if waiting_stacks:
            for pool in (self._pool, self._proofs):
                pool.sort_waiting(lambda item: waiting_stacks.get(item[0], 0) / (1 + len(item[1].data)))  # by (number, file)
        built = [_receive_table(number, answer) for (number, _), answer in self._pool.take_answers()]
        return built + [_receive_proof(number, answer) for (number, _), answer in self._proofs.take_answers()]

    def close(self) -> None:
        """End all processes, and close the cache. Afterwards, only `close` may be called."""
        if self._results_ready.closed:
            return
        self._results_ready.close()
        self._pool.close()
        self._proofs.close()
        self._forker.close()
        if self._cache is not None:
            self._cache.trim()
            self._cache.close()

    def _handle_request(self, proves: bool, name: str, status: os.stat_result | None, descriptor: int) -> Answer:
        """Answer a request to make the table of the file that is open as `descriptor`. Runs in a worker."""
        answer = run_or_catch(partial(self._make_in_worker, make_proven_table if proves else make_table, name, status), descriptor)
        trim_heap()
        if isinstance(answer, Exception):
            return Answer(TableResult(None, Origin.NOTHING, (str(answer) or type(answer).__name__)[:MAX_WHY]))
        return answer

    def _make_in_worker(self, make: TableMaker, name: str, status: os.stat_result | None, descriptor: int) -> Answer:
        """Return the result of `make` with the table's data in a memory file, so that it need not go through the pipe."""
        data, _ = map_descriptor(descriptor, name)
        result = make(ElfFile(data, name, status, descriptor), self._cache, self._stores)
        result = result._replace(why=result.why[:MAX_WHY])
        if result.table is None:
            return Answer(result)
        memory = os.memfd_create("table", os.MFD_CLOEXEC)
        with os.fdopen(memory, "wb", closefd=False) as file:
            file.write(result.table.data)
        return Answer(result._replace(table=result.table._replace(data=b"")), [memory])


@contextmanager
def _as_request(item: tuple[int, ElfFile], *, proves: bool) -> Iterator[Question]:
    """Yield the request to a worker, with the open file, or with a copy of its bytes if the file has no descriptor."""
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
        except OSError:  # there is no room: the worker reports an empty file
            os.ftruncate(copy, 0)
        yield values, [copy]
    finally:
        os.close(copy)


def _receive_table(number: int, answer: Answer) -> BuiltTable:
    """Return a worker's answer as a result, with its memory file mapped as the table's data."""
    if isinstance(answer.value, Exception):  # the worker died
        return BuiltTable(number, None, str(answer.value), Origin.NOTHING)
    table, origin, why = answer.value
    for descriptor in answer.descriptors:
        try:
            table = table._replace(data=memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)))
        finally:
            os.close(descriptor)
    final = origin in (Origin.PROVEN, Origin.CACHED_WITHOUT_PROOF)  # the table comes from the cache, after an earlier proof
    return BuiltTable(number, table, why, origin, final)


def _receive_proof(number: int, answer: Answer) -> BuiltTable:
    """Return the answer to a proof request as a final result."""
    built = _receive_table(number, answer)._replace(final=True)
    return built._replace(why=f"{NOT_PROVEN}: {built.why}") if isinstance(answer.value, Exception) else built


def _prepare_worker(_pipe: int) -> None:
    die_with_parent()  # otherwise the kernel program, which the worker inherits, would outlive a killed profiler
    os.setpriority(os.PRIO_PROCESS, 0, max(0, os.getpriority(os.PRIO_PROCESS, 0)))  # not the profiler's raised priority
