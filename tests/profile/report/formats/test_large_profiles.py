"""Profiles of many rows: files are written in parts, and have the same as those that are written at once."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING

from sframegen.profile.report.formats.file_formats import format_of
from sframegen.profile.report.formats.path_bytes import BLOCK_SIZE
from sframegen.profile.report.formats.row_kinds import ROWS_IN_PART
from tests.support.named_stacks import frame, named, stack_of, stacks_in
from tests.support.pprof_messages import stacks_of

if TYPE_CHECKING:
    from sframegen.profile.report.named import NamedProfile

COUNT = 2 * ROWS_IN_PART + 5
FRAMES = [frame(f"a_function_with_a_long_name_{number}@program") for number in range(30)]


def large_profile() -> NamedProfile:
    """A part of its rows has no samples at all, and each third row of the others."""
    stacks = []
    for number in range(COUNT):
        frames = [FRAMES[number // 30**place % 30] for place in range(1 + number % 4)]
        samples = 0 if number < ROWS_IN_PART + 1 or number % 3 == 0 else number
        stacks.append(stack_of(frames, samples, pid=1 + number % 9))
    stacks.append(stack_of([], 1 << 40))
    return named(*stacks, by="pid")


def test_files_have_all_samples() -> None:
    profile = large_profile()
    expected: Counter[tuple[str, ...]] = Counter()
    without_groups: Counter[tuple[str, ...]] = Counter()
    for stack in stacks_in(profile):
        expected[stack.labels] += stack.samples
        without_groups[stack.labels[1:]] += stack.samples
    folded, summary, pprof = ([*format_of(name).encode(profile)] for name in ("a.folded", "a.json", "a.pb.gz"))
    lines = [line.rpartition(b" ") for line in b"".join(folded).splitlines()]
    assert {tuple(stack.decode().split(";")): int(count) for stack, _, count in lines} == expected
    document = json.loads(b"".join(summary))
    labels = [one["function"] for one in document["frames"]]
    found: Counter[tuple[str, ...]] = Counter()
    for stack in document["stacks"]:
        found[stack["group"], *(labels[number] for number in stack["frames"])] += stack["samples"]
    assert found == expected
    assert stacks_of(b"".join(pprof)) == without_groups
    assert len(folded) > 2
    assert max(map(len, folded + summary)) < 2 * BLOCK_SIZE


def test_a_stack_that_is_longer_than_a_part() -> None:
    long = [frame(f"{letter * BLOCK_SIZE}@program") for letter in "abc"]
    profile = named(stack_of(long, 7), stack_of(long[:1], 8), by="pid")
    text = b"".join(format_of("a.folded").encode(profile)).decode()
    group = "program (pid 7)"
    assert text == f"{group};{';'.join(one.function for one in long)} 7\n{group};{long[0].function} 8\n"
