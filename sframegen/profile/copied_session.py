"""A profile without the kernel program: perf events with copies of stacks, of the user's processes."""

from __future__ import annotations

import os
import select
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Self

from cfi.errors import SframegenError
from sframegen.profile.copies.counting import Wanted
from sframegen.profile.copies.perf_backend import CopySampler
from sframegen.profile.sampling_plan import is_process
from sframegen.profile.tables.table_builder import TableBuilder
from sframegen.profile.tables.table_cache import TableCache
from sframegen.program.privileges import root_in_words

if TYPE_CHECKING:
    from sframegen.profile.collected import Collected
    from sframegen.profile.sampling_plan import ProfilePlan


class CopiedSession:
    """As KernelSession. Raises EventError, SframegenError."""

    def __init__(self, plan: ProfilePlan) -> None:
        if plan.targets is None:
            raise SframegenError(f"all processes can only be sampled with the kernel program, by {root_in_words()}")
        self.plan = plan
        self.samples = 0
        with ExitStack() as opened:
            builder = opened.enter_context(TableBuilder(os.cpu_count() or 1, TableCache(), stores=plan.stores))
            for pid in plan.targets:
                if not is_process(pid):
                    raise SframegenError(f"process {pid}: no such process")
            wanted = Wanted(threads=plan.tells_threads, kernel=plan.kernel, moments=plan.moments)
            self._sampler = opened.enter_context(CopySampler(plan.targets, plan.event, plan.frequency, wanted, builder))
            self._poll = select.epoll()
            opened.callback(self._poll.close)
            for fileno in (*self._sampler.filenos, builder.fileno()):
                self._poll.register(fileno, select.EPOLLIN)
            self._opened = opened.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def begin(self) -> None:
        self._sampler.collected.started = time.time()
        self._began = time.monotonic()
        self._sampler.enable()

    def turn(self, seconds: float = 0.1) -> None:
        self._poll.poll(seconds)
        self.samples += self._sampler.poll()

    def finish(self) -> Collected:
        collected = self._sampler.finish()
        collected.seconds = time.monotonic() - self._began
        collected.keep_threads(self.plan.tids)
        return collected
