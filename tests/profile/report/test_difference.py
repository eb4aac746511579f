"""Two profiles compared: by shares, and as a picture."""

from __future__ import annotations

import json
import re

from sframegen.profile.report.difference import difference_graph, difference_table, share_changes
from sframegen.profile.units import Unit
from tests.support.named_stacks import EXAMPLE, named, stack

BEFORE = named(stack("main@program work@libwork.so", 30), stack("main@program gone@program", 10))
AFTER = named(stack("main@program work@libwork.so", 30), stack("main@program new@program", 90))


def test_shares_are_compared() -> None:
    found = {one.function: (one.before, one.after, round(one.points, 1)) for one in share_changes(BEFORE, AFTER)}
    assert found == {"new": (0, 90, 75.0), "work": (30, 30, -50.0), "gone": (10, 0, -25.0)}
    assert [one.function for one in share_changes(BEFORE, AFTER)] == ["new", "work", "gone"]


def test_the_table() -> None:
    lines = list(difference_table(BEFORE, AFTER, 80))
    assert lines[:3] == [
        " BEFORE %   AFTER %   POINTS  FUNCTION  OBJECT",
        "     0.00     75.00   +75.00  new       program",
        "    75.00     25.00   -50.00  work      libwork.so",
    ]
    assert lines[-1].startswith("before: 40 samples of cpu-clock in 2.0 s; after: 120 samples")


def test_times_are_shown_as_times() -> None:
    waits = named(stack("main@program read@libc.so.6", 2_500_000))
    waits.event, waits.unit = "time off the CPU", Unit.MICROSECONDS
    assert [*difference_table(waits, BEFORE, 80)][-1].startswith("before: 2.500 s of time off the CPU in 2.0 s; after: 40 samples")


def test_the_picture_has_what_is_gone_and_what_is_new() -> None:
    page = "".join(difference_graph(BEFORE, AFTER))
    data = json.loads(re.search(r'<script id="data" type="application/json">(.*?)</script>', page, re.DOTALL)[1])  # type: ignore[index]
    rows = zip(*(data[name] for name in ("depths", "frames", "before", "after")), strict=True)
    assert [(depth, data["labels"][frame], before, after) for depth, frame, before, after in rows] == [
        (0, "all", 40, 120), (1, "program", 40, 120), (2, "main", 40, 120),
        (3, "gone", 10, 0), (3, "new", 0, 90), (3, "work", 30, 30),
    ]  # fmt: skip
    assert data["samples"][0] == sum(data["samples"][3:]) == 2_000_000


def test_without_samples() -> None:
    assert share_changes(named(), named(*EXAMPLE))
    assert "".join(difference_graph(named(), named()))
