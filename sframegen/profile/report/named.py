"""Stacks with names, as every format gets them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

GUESSED = " [guess]"  # after the name of a frame that a frame pointer led to
CALLERS_UNKNOWN = "[callers unknown]"


class FrameKind(Enum):
    USER = "user"
    KERNEL = "kernel"
    RUNTIME = "made at run time"
    MISSING = "missing"  # stands for the callers that a walk did not reach


class NamedFrame(NamedTuple):
    """`function`: its name, else `[object+0xstart]`, else `[object]`. `object`: the base name of `path`.

    `address`: link-time in the object, of the instruction that runs or calls; at run time without a file; None if unknown.
    """

    function: str
    object: str
    path: str
    address: int | None
    kind: FrameKind
    guessed: bool = False

    @property
    def label(self) -> str:
        return self.function + GUESSED if self.guessed else self.function


MISSING = NamedFrame(CALLERS_UNKNOWN, "", "", None, FrameKind.MISSING)


@dataclass(eq=False)
class NamedStack:
    """`frames`: the outermost first; MISSING is the first if the walk did not reach the outermost. `end`: why the walk ended."""

    pid: int
    tid: int  # 0 if threads are not told apart
    process: str
    thread: str
    frames: tuple[NamedFrame, ...]
    end: str
    complete: bool
    count: int
    group: str = ""  # the outermost level of pictures and tables: grouping.py

    @property
    def labels(self) -> tuple[str, ...]:
        return (self.group, *(frame.label for frame in self.frames))


class NamedMoment(NamedTuple):
    nanoseconds: int  # CLOCK_MONOTONIC
    cpu: int
    stack: NamedStack


@dataclass(eq=False)
class Named:
    """The fields of Collected that concern users, and the stacks; `by`: what the stacks are grouped by."""

    event: str
    backend: str
    frequency: int
    started: float  # seconds since 1970
    seconds: float
    stacks: list[NamedStack]
    moments: list[NamedMoment] | None = None
    lost: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    build_ids: dict[str, str] = field(default_factory=dict)  # by path, in hexadecimal digits
    by: str = ""

    @property
    def samples(self) -> int:
        return sum(stack.count for stack in self.stacks)
