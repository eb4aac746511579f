"""Profiles for profiler.firefox.com: tables whose numbers fit one another."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from sframegen.profile.report.formats.firefox import firefox
from sframegen.profile.report.named import FrameKind, NamedFrame
from tests.support.named_stacks import EXAMPLE, named, stack, stack_of, with_moments

if TYPE_CHECKING:
    from sframegen.profile.report.named import Named


def read(profile: Named) -> dict[str, Any]:
    found: dict[str, Any] = json.loads("".join(firefox(profile)))
    for thread in found["threads"]:
        for name, table in thread.items():
            if isinstance(table, dict):
                assert {len(column) for column in table.values() if isinstance(column, list)} == {table["length"]}, name
    return found


def stacks(thread: dict[str, Any]) -> Counter[tuple[str, ...]]:
    """Walk from each sample's stack to the root."""
    found: Counter[tuple[str, ...]] = Counter()
    table, frames, funcs = thread["stackTable"], thread["frameTable"], thread["funcTable"]
    for number, weight in zip(thread["samples"]["stack"], thread["samples"]["weight"], strict=True):
        names: list[str] = []
        while number is not None:
            assert table["prefix"][number] is None or table["prefix"][number] < number
            names.append(thread["stringArray"][funcs["name"][frames["func"][table["frame"][number]]]])
            number = table["prefix"][number]  # noqa: PLW2901 - to the caller
        found[tuple(names)] += weight
    return found


def test_threads_and_stacks() -> None:
    profile = named(*EXAMPLE)
    profile.build_ids["/usr/lib/libwork.so"] = "00112233445566778899aabbccddeeff01020304"
    found = read(profile)
    assert [(thread["pid"], thread["isMainThread"], dict(stacks(thread))) for thread in found["threads"]] == [
        ("7", True, {
            ("spin", "work", "main"): 6, ("work", "main"): 2, ("callback [guess]", "lost", "[callers unknown]"): 1,
        }),
        ("8", True, {("vfs_read", "read", "main"): 1}),
    ]  # fmt: skip
    library = next(one for one in found["libs"] if one["name"] == "libwork.so")
    assert library["breakpadId"] == "33221100554477668899AABBCCDDEEFF0"
    assert library["codeId"] == profile.build_ids["/usr/lib/libwork.so"]
    assert "grey" in {category["color"] for category in found["meta"]["categories"]}


@pytest.mark.parametrize("build_id", ["Go/build-id", "abc", "é0"])
def test_a_build_id_of_another_profiler_may_be_any_text(build_id: str) -> None:
    profile = named(*EXAMPLE)
    profile.build_ids["/usr/lib/libwork.so"] = build_id
    library = next(one for one in read(profile)["libs"] if one["name"] == "libwork.so")
    assert (library["breakpadId"], library["codeId"]) == ("", None)


def test_times() -> None:
    profile = named(*EXAMPLE)
    with_moments(profile, *((10**9 + at * 10**6, EXAMPLE[number]) for at, number in ((5, 0), (0, 1), (2, 0))))
    (thread,) = read(profile)["threads"]
    assert thread["samples"]["time"] == [0, 2, 5]
    assert thread["samples"]["weight"] == [1, 1, 1]
    assert len({*thread["samples"]["stack"]}) == 2


def test_groups_are_threads() -> None:
    found = read(named(*EXAMPLE, stack("main@program run@app.py", tid=9, thread="worker"), by="object"))
    assert [thread["name"] for thread in found["threads"]] == ["libwork.so", "[kernel]", "program", "app.py"]
    worker = read(named(stack("main@program run@app.py", tid=9, thread="worker")))["threads"][0]
    assert (worker["name"], worker["tid"], worker["isMainThread"]) == ("worker", 9, False)
    assert "/usr/lib/app.py" in worker["stringArray"]


def test_inlined_functions_name_the_function_that_holds_them() -> None:
    """The viewer marks a frame as inlined if it has the symbol of the function that it is inlined into."""
    outer = NamedFrame("outer", "prog", "/bin/prog", 0x2010, FrameKind.USER, source="/a.c", line=10, start=0x2000)
    inner = outer._replace(function="inner", line=4, inlined=True)
    unknown = NamedFrame("[prog]", "prog", "/bin/prog", 0x3000, FrameKind.USER)
    found = read(named(stack_of([unknown, outer, inner]), stack_of([unknown, outer._replace(address=0x2020)])))
    (thread,) = found["threads"]
    frames, symbols, strings = thread["frameTable"], thread["nativeSymbols"], thread["stringArray"]
    columns = (frames[name] for name in ("address", "inlineDepth", "line", "nativeSymbol"))
    assert {*zip(*columns, strict=True)} == {(0x2010, 0, 10, 0), (0x2010, 1, 4, 0), (0x2020, 0, 10, 0), (0x3000, 0, None, None)}
    assert [strings[name] for name in symbols["name"]] == ["outer"]
    assert (symbols["address"], symbols["functionSize"]) == ([0x2000], [None])
    assert found["libs"][symbols["libIndex"][0]]["path"] == "/bin/prog"
