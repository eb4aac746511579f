"""Profiles for tests of formats: stacks as people write them."""

from __future__ import annotations

from typing import NamedTuple

from sframegen.profile.report.label_trees import group_stacks
from sframegen.profile.report.named import MISSING, NO_ADDRESS, FrameKind, NamedFrame, NamedProfile
from sframegen.stack.walking.frames import COMPLETE, End

ENDS = {True: End.OUTERMOST, False: End.NO_RULE}


class NamedStack(NamedTuple):
    """`frames`: the outermost first; MISSING is the first if the walk did not reach the outermost. `end`: why the walk ended."""

    pid: int
    tid: int  # 0 if threads are not told apart
    process: str
    thread: str
    frames: tuple[NamedFrame, ...]
    end: End
    samples: int
    group: str = ""

    @property
    def complete(self) -> bool:
        return self.end in COMPLETE

    @property
    def labels(self) -> tuple[str, ...]:
        return (self.group, *(frame.label for frame in self.frames))


def frame(text: str) -> NamedFrame:
    """`function@object`, `function@object?` for a guess, `function@[kernel]`; `...` stands for callers that are unknown."""
    if text == "...":
        return MISSING
    function, _, name = text.removesuffix("?").rpartition("@")
    kind = FrameKind.KERNEL if name == "[kernel]" else FrameKind.RUNTIME if name.endswith((".py", ".js")) else FrameKind.USER
    return NamedFrame(function, name, f"/usr/lib/{name}", 0x1000 + sum(text.encode()), kind, text.endswith("?"))


def stack(
    text: str, count: int = 1, *, pid: int = 7, tid: int = 0, process: str = "program", thread: str = "program"
) -> NamedStack:
    """`main@program work@libwork.so`: the outermost first."""
    return stack_of([frame(part) for part in text.split()], count, pid=pid, tid=tid, process=process, thread=thread)


def stack_of(
    frames: list[NamedFrame], count: int = 1, *, pid: int = 7, tid: int = 0, process: str = "program", thread: str = "program"
) -> NamedStack:
    complete = not frames or frames[0] is not MISSING
    return NamedStack(pid, tid, process, thread, tuple(frames), ENDS[complete], count)


def count(profile: NamedProfile, stack: NamedStack) -> None:
    node = 0
    for place in profile.locations.number_locations(stack.frames):
        node = profile.tree.nodes.number_of(place, node)
    task = profile.tasks.find_number(stack.pid, stack.tid)
    profile.tasks.set_names(task, stack.process, stack.thread)
    profile.tree.add_samples(profile.tree.find_or_add_row(node, stack.end, task), stack.samples)


def named(*stacks: NamedStack, by: str = "comm") -> NamedProfile:
    profile = NamedProfile("cpu-clock", "bpf", 99, 1_700_000_000.0, 2.0)
    for one in stacks:
        count(profile, one)
    return group_stacks(profile, by)


def stacks_in(profile: NamedProfile) -> list[NamedStack]:
    tree, numbered, sites, found = profile.tree, profile.locations.numbered, profile.locations.sites, []
    pairs = zip(numbered.first[: numbered.count], numbered.second, strict=False)
    places = [sites[site]._replace(address=None if at == NO_ADDRESS else at) for at, site in pairs]
    for row in profile.rows():
        frames = tuple(places[place] for place in tree.list_path(tree.node_of(row), [*range(len(places))]))
        task = profile.tasks[tree.rows.second[row]]
        group = profile.groups[profile.group_of[row]] if profile.groups else ""
        found.append(NamedStack(*task, frames, End(tree.end_of(row)), tree.samples[row], group))
    return found


EXAMPLE = (
    stack("main@program work@libwork.so spin@libwork.so", 6),
    stack("main@program work@libwork.so", 2),
    stack("main@program read@libc.so.6 vfs_read@[kernel]", 1, pid=8),
    stack("... lost@program callback@program?", 1),
)
