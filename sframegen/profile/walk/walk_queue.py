"""Copied stacks that wait for the tables of their files: each is walked once all that it meets are there."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from sframegen.profile.walk.copied_stack import span_columns
from sframegen.stack.walking.ends import End

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cfi.columns import Bytes
    from sframegen.profile.following.files import CodeSpan
    from sframegen.profile.tables.decoded_table import DecodedTable
    from sframegen.profile.walk.copied_stack import CopyWalker, Start
    from sframegen.profile.walk.steps import SpanColumns


class CopiedSample(NamedTuple):
    """A sample that has not been walked. `spans`: of its process at that time; the same object as long as they do not change."""

    nanoseconds: int
    cpu: int
    pid: int
    tid: int
    start: Start
    stack_start: int
    stack: Bytes
    spans: Sequence[CodeSpan]


class WalkQueue:
    """`done` gets each sample with its end and frames; `request` the number of each file that a walk needs, once."""

    def __init__(
        self,
        walker: CopyWalker,
        request: Callable[[int], None],
        done: Callable[[CopiedSample, End, tuple[int, ...]], None],
    ) -> None:
        self.walker = walker
        self.bytes = 0  # of stacks that wait
        self._request = request
        self._done = done
        self._waiting: dict[int, list[CopiedSample]] = {}  # by the number of the file
        self._columns: dict[int, tuple[Sequence[CodeSpan], SpanColumns]] = {}  # by process: its spans, and the same by columns

    def add(self, sample: CopiedSample) -> None:
        """Walk a sample, or keep it until the tables are there."""
        known = self._columns.get(sample.pid)
        if known is None or known[0] is not sample.spans:
            known = self._columns[sample.pid] = (sample.spans, span_columns(sample.spans))
        end = self.walker.walk(known[1], sample.start, sample.stack_start, sample.stack)
        if end is not End.NO_TABLE:
            self._done(sample, end, self.walker.frames())
            return
        number = self.walker.missing
        self.bytes += len(sample.stack)
        if number in self._waiting:
            self._waiting[number].append(sample)
        else:
            self._waiting[number] = [sample]
            self._request(number)

    def add_table(self, number: int, table: DecodedTable | None) -> None:
        """Use the table of a file, None if there is none, and walk what waited for it. Raises FormatError if it is cut off."""
        self.walker.add_table(number, table)
        for sample in self._waiting.pop(number, ()):
            self.bytes -= len(sample.stack)
            self.add(sample)

    def forget(self, pid: int) -> None:
        """The process has ended, and no sample of it will come."""
        self._columns.pop(pid, None)
