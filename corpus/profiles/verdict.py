"""One sample, as the kernel program, sframegen stack and gdb saw it at the same stop."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import TYPE_CHECKING

from corpus.stacks.compare import Stack, compare
from sframegen.profile.packed_frames import GUESSED
from sframegen.stack.walking.ends import COMPLETE, End
from sframegen.stack.walking.frames import How

if TYPE_CHECKING:
    from collections.abc import Sequence

    from corpus.profiles.held_samples import Walked
    from corpus.stacks.code import Code
    from corpus.stacks.compare import Compared
    from sframegen.stack.walking.frames import Frame, Thread

LIMITS = {End.TOO_DEEP, End.COPY_TOO_SHORT}  # of the walk, not of what is known of the code


@dataclass
class Row:
    """The samples of one workload."""

    workload: str
    samples: int = 0
    frames: int = 0
    guessed: int = 0  # of these, that a frame pointer led to
    finished: int = 0  # walked to their end in the kernel
    complete: int = 0
    frames_gdb: int = 0  # equal to gdb's
    frames_stack: int = 0  # equal to those of sframegen stack
    equal_gdb: int = 0  # samples, from the innermost frame to the last
    equal_stack: int = 0
    copies: int = 0  # walked again from a whole copy of the stack
    equal_copies: int = 0
    deepest: int = 0
    in_calls: int = 0  # in the kernel
    processes: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)  # of those that are not complete
    reasons: Counter[str] = field(default_factory=Counter)  # why not compared to the end
    left_out: Counter[str] = field(default_factory=Counter)  # samples that could not be judged
    differences: list[str] = field(default_factory=list)


def as_stack(walked: Walked, addresses: Sequence[Sequence[int]], traced: Sequence[Frame]) -> Stack:
    """`addresses`: those that may be within the instruction of each frame. `traced`: the same frames, from sframegen stack.

    A packed frame does not say whether the next instruction is there or a call ends there, nor which of several mappings of the
    same code it is in.
    """
    pcs = []
    for places, frame in zip_longest(addresses, traced[: len(addresses)]):
        after = frame is None or frame.code != frame.pc
        # Where sframegen stack has no rule, a proven one may know that a call ends there.
        called = after or (frame is not None and frame.how in {None, How.FRAME_POINTER})
        pcs.append(frame.pc if frame and {frame.pc - after, frame.pc - called} & {*places} else places[0] + after)
    led_to = frozenset(at - 1 for at, packed in enumerate(walked.frames) if packed & GUESSED)
    return Stack([(pc, None) for pc in pcs], walked.end.words, walked.end in COMPLETE, led_to)


def traced_stack(thread: Thread) -> Stack:
    guessed = frozenset(number for number, frame in enumerate(thread.frames) if frame.how is How.FRAME_POINTER)
    return Stack([(frame.pc, None) for frame in thread.frames], thread.end.words, thread.end in COMPLETE, guessed)


class Verdict:
    """Adds samples to a row."""

    def __init__(self, row: Row) -> None:
        self.row = row

    def add(self, walked: Walked, *, finished: bool, in_call: bool, process: str) -> None:
        row = self.row
        row.samples += 1
        row.frames += len(walked.frames)
        row.guessed += sum(bool(frame & GUESSED) for frame in walked.frames)
        row.deepest = max(row.deepest, len(walked.frames))
        row.finished += finished
        row.in_calls += in_call
        row.processes[process] += 1
        if walked.end in COMPLETE:
            row.complete += 1
        else:
            row.ends[walked.end.words] += 1

    def judge_gdb(self, ours: Stack, end: End, theirs: Stack, code: Code) -> None:
        found = self._judge(ours, end, theirs, code, "gdb")
        self.row.frames_gdb += found.equal
        self.row.equal_gdb += not found.reason

    def judge_stack(self, ours: Stack, end: End, theirs: Stack, code: Code) -> None:
        """`theirs`: of sframegen stack."""
        found = self._judge(ours, end, theirs, code, "sframegen stack")
        self.row.frames_stack += found.equal
        self.row.equal_stack += not found.reason

    def _judge(self, ours: Stack, end: End, theirs: Stack, code: Code, who: str) -> Compared:
        found = self._excused(compare(ours, theirs, code), ours, end, theirs)
        if found.differs:
            self.row.differences.append(f"sample {self.row.samples}, {who}: {found.reason}")
        elif found.reason:
            self.row.reasons[found.reason.replace("gdb", who)] += 1
        return found

    def judge_guesses(self, ours: Stack, code: Code) -> None:
        """A frame pointer is followed only from code that nothing describes."""
        for at in ours.guessed:
            address = ours.frames[at][0] - (at > 0)
            if not (code.without_cfi(address) or code.unsaid(address)):
                self.row.differences.append(f"sample {self.row.samples}: a guess at {code.place(address)}, which has CFI")

    def judge_copy(self, copy: Walked, walked: Walked, *, new_code: bool) -> None:
        """Walks from a copy and in the kernel find the same. A copy has one stack, the kernel program reads all.

        `new_code`: the caller of the last frame is in memory that was mapped after the kernel program last got the mappings.
        """
        row = self.row
        row.copies += 1
        if copy == walked:
            row.equal_copies += 1
        elif copy.end is End.COPY_TOO_SHORT and copy.frames == walked.frames[: len(copy.frames)]:
            row.reasons["the copy: it has one of several stacks"] += 1
        elif walked.end is End.GUESS_FAILED and new_code and walked.frames == copy.frames[: len(walked.frames)]:
            row.reasons["we end: the frame pointer leads to code that was mapped after the last sample"] += 1
        elif walked.end is not End.COPY_TOO_SHORT:
            ends = f"{len(copy.frames)} frames, {copy.end.name}; {len(walked.frames)} frames, {walked.end.name}"
            row.differences.append(f"sample {row.samples}, a copy of the stack: {ends}")

    def _excused(self, found: Compared, ours: Stack, end: End, theirs: Stack) -> Compared:
        if found.differs and end in LIMITS and found.equal == len(ours.frames) < len(theirs.frames):
            return found._replace(reason=f"we end: {end.words}", differs=False)
        return found
