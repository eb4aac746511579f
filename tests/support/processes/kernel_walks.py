"""Processes that a KernelWalker samples, with the mappings and tables that a test gives it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Self

from sframegen.elf.file import open_elf
from sframegen.profile.bpf.kernel_records import KernelRecord, NewStack, Statistic, UnfinishedWalk
from sframegen.profile.bpf.kernel_walker import KernelWalker
from sframegen.profile.copied_session import RING_FULL, open_session
from sframegen.profile.events.names import find_event
from sframegen.profile.following.files import CodeSpan
from sframegen.profile.packed_frames import unpack_frame
from sframegen.profile.report.naming import name_stacks
from sframegen.profile.sampling_plan import ProfilePlan
from sframegen.profile.tables.make_table import make_table
from tests.support.named_stacks import NamedStack, stacks_in

ADDRESSES = (1 << 64) - 1
PAGE = 4096
POLL = 20  # milliseconds


class Sampled:
    """A walker that samples, and what it has sent. At the end of the block it is closed."""

    def __init__(self, targets: set[int] | None, plan: ProfilePlan | None = None) -> None:
        plan = plan or ProfilePlan(frequency=999)
        self.walker = KernelWalker(plan._replace(targets=None if targets is None else frozenset(targets)))
        self.numbers: dict[str, int] = {}
        self.spans: dict[int, list[CodeSpan]] = {}
        self.records: list[KernelRecord] = []

    def publish(self, pid: int) -> int:
        """The walker gets the process's mappings as they are now, and tables of new files. Return their epoch."""
        epoch = self.walker.begin_epoch(pid)
        self.spans[pid] = [
            self._span(line) for line in Path(f"/proc/{pid}/maps").read_text().splitlines() if "x" in line.split()[1]
        ]
        assert self.walker.publish(pid, self.spans[pid], epoch)
        return epoch

    def _span(self, line: str) -> CodeSpan:
        words = line.split(None, 5)
        start, end = (int(address, 16) for address in words[0].split("-"))
        path, offset = words[-1], int(words[2], 16)
        if not path.startswith("/"):
            return CodeSpan(start, end, 0, 0)
        load = next(
            load for load in open_elf(path).executable_loads() if load.p_offset & -PAGE <= offset < load.p_offset + load.p_filesz
        )
        return CodeSpan(start, end, start - offset - load.p_vaddr + load.p_offset & ADDRESSES, self._number(path))

    def _number(self, path: str) -> int:
        if path not in self.numbers:
            self.numbers[path] = len(self.numbers) + 1
            self.walker.add_tables({self.numbers[path]: make_table(open_elf(path)).table})
            assert self.numbers[path] not in self.walker.refused
        return self.numbers[path]

    def until(self, enough: Callable[[], bool]) -> None:
        while not enough():
            self.records += self.walker.poll(POLL)

    def sample(self, number: int) -> None:
        """Take samples, that number at least; for good."""
        self.walker.attach()
        self.until(lambda: self.walker.statistics()[Statistic.SAMPLES] >= number)
        self.end()

    def end(self) -> None:
        self.walker.detach()
        self.records += self.walker.poll(0)

    def counts(self) -> Counter[tuple[int, int, int]]:
        return Counter({key: counted.samples for key, counted in self.walker.take_counts().items()})

    def stacks(self) -> dict[tuple[int, int, int], NewStack]:
        return {(record.hash, record.pid, record.tid): record for record in self.records if isinstance(record, NewStack)}

    def unfinished(self) -> list[UnfinishedWalk]:
        return [record for record in self.records if isinstance(record, UnfinishedWalk)]

    def addresses(self, pid: int, frames: Sequence[int]) -> list[int]:
        bias = {span.file: span.bias for span in self.spans[pid]}
        return [frame.address + bias[frame.file] & ADDRESSES for frame in map(unpack_frame, frames)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.walker.close()


def profiled(pid: int, backend: str) -> list[NamedStack]:
    """The stacks of a profile of a process: 60 samples at least."""
    session, _ = open_session(ProfilePlan(frozenset([pid]), find_event("cpu-clock"), 999), backend)
    with closing(session):
        session.begin()
        while session.samples < 60:
            session.advance()
        collected = session.finish()
    assert set(collected.lost) <= {RING_FULL}  # on a busy machine we may have to wait for longer than it has room
    return stacks_in(name_stacks(collected))
