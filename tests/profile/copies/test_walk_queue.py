"""Samples wait for the tables of the files that they meet, and each is walked to its end once."""

from __future__ import annotations

import ctypes
import os
from typing import TYPE_CHECKING

from sframegen.format.abi import AMD64
from sframegen.format.model import OUTERMOST
from sframegen.profile.following.files import CodeSpan
from sframegen.profile.packed_frames import unpacked_frame
from sframegen.profile.walk.copied_samples import CopiedSample, WalkQueue
from sframegen.profile.walk.copied_stack import CopyWalker
from sframegen.stack.walking.frames import End
from tests.profile.walk.test_copied_stack import BIAS, CODE, FILE, RETURN_AT_SP, SP, place, stack_of, start_of, table_of_rules

if TYPE_CHECKING:
    from sframegen.base.columns import Column

OTHER = 2
OTHER_CODE = 0x1000
SPANS = [CodeSpan(CODE.start, CODE.stop, BIAS, FILE), CodeSpan(OTHER_CODE, 2 * OTHER_CODE, 0, OTHER)]
STACK = stack_of({SP + 8: place(1)}, 24)


def sample(number: int, pc: int = place(0), pid: int = 1, spans: list[CodeSpan] = SPANS) -> CopiedSample:
    return CopiedSample(pid, number, start_of({7: SP}, pc), SP, STACK, spans)


class Queue(WalkQueue):
    """A queue that remembers: numbers of files, and (number of the sample, end, frames)."""

    def __init__(self) -> None:
        self.requested: list[int] = []
        self.ended: list[tuple[int, End, int]] = []
        super().__init__(CopyWalker(AMD64, lambda _: None), self.requested.append, self.end)

    def end(self, sample: CopiedSample, end: End, frames: Column) -> None:
        self.ended.append((sample.task, end, len(list(map(unpacked_frame, frames)))))


def test_samples_wait_for_the_table_of_their_file() -> None:
    queue = Queue()
    for number in (1, 2):
        queue.add(sample(number))
    queue.add(sample(3, OTHER_CODE + 1))
    assert (queue.requested, queue.bytes, queue.ended) == ([FILE, OTHER], 3 * len(STACK), [])
    queue.add_table(FILE, table_of_rules([RETURN_AT_SP, OUTERMOST]))
    assert queue.ended == [(1, End.OUTERMOST, 2), (2, End.OUTERMOST, 2)]
    assert (queue.requested, queue.bytes) == ([FILE, OTHER], len(STACK))
    queue.add_table(OTHER, None)
    assert queue.ended[2:] == [(3, End.NO_RULE, 1)]
    assert queue.bytes == 0


def test_code_in_no_file_is_read_from_the_process() -> None:
    """As CPython's trampolines: what follows a call says where its caller is."""
    made = ctypes.create_string_buffer(b"\x48\x83\xc4\x08\xc3")
    start = ctypes.addressof(made)
    spans = sorted([CodeSpan(CODE.start, CODE.stop, BIAS, FILE), CodeSpan(start, start + len(made), 0, 0)])
    queue = Queue()
    queue.add_table(FILE, table_of_rules([OUTERMOST, OUTERMOST]))
    for number, pid in enumerate((os.getpid(), 1 << 30)):
        queue.add(sample(number, start, pid, spans))
    assert queue.ended == [(0, End.OUTERMOST, 2), (1, End.NO_RULE, 1)]


def test_with_its_tables_a_sample_does_not_wait() -> None:
    queue = Queue()
    queue.add_table(FILE, table_of_rules([OUTERMOST]))
    queue.add(sample(1))
    assert (queue.ended, queue.requested, queue.bytes) == ([(1, End.OUTERMOST, 1)], [], 0)


def test_a_sample_that_meets_another_file_waits_again() -> None:
    queue = Queue()
    to_other = sample(1)._replace(stack=stack_of({SP + 8: OTHER_CODE + 1}, 24))
    queue.add(to_other)
    queue.add_table(FILE, table_of_rules([RETURN_AT_SP]))
    assert (queue.requested, queue.bytes, queue.ended) == ([FILE, OTHER], len(STACK), [])
    queue.add_table(OTHER, None)
    assert queue.ended == [(1, End.NO_RULE, 2)]
    assert queue.bytes == 0


def test_a_process_is_known_by_the_spans_of_its_last_sample() -> None:
    """Other spans of the same process, of another process with none, and of a new one with the number of one that has ended."""
    queue = Queue()
    queue.add_table(FILE, table_of_rules([OUTERMOST]))
    queue.add(sample(1))
    queue.add(sample(2, spans=[]))
    queue.add(sample(3, pid=2, spans=[]))
    queue.add(sample(4))
    queue.forget(1)
    queue.forget(1)
    queue.add(sample(5, spans=list(SPANS)))
    ends = [end for _, end, _ in queue.ended]
    assert ends == [End.OUTERMOST, End.NO_MAPPING, End.NO_MAPPING, End.OUTERMOST, End.OUTERMOST]
