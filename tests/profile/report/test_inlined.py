"""Lines and inlined functions, from their names to each format."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING

import pytest

from sframegen.elf.file import open_elf
from sframegen.elf.symbols import find_functions_named
from sframegen.profile.following.files import TracedFile
from sframegen.profile.packed_frames import FileFrame
from sframegen.profile.report.formats.file_formats import format_of
from sframegen.profile.report.label_trees import group_stacks
from sframegen.profile.report.named import MAX_NAMED_FRAMES, FrameKind, NamedFrame, NamedProfile
from sframegen.profile.report.naming import name_stacks
from sframegen.profile.report.source_lines import FrameDetail
from sframegen.profile.report.table import format_table
from tests.profile.report.test_naming import collected
from tests.support.named_stacks import count, named, stack_of, stacks_in
from tests.support.pprof_messages import fields

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.peers import Compiler

SOURCE = """
int volatile sink;
static inline __attribute__((always_inline)) void deepest(int a) {
    sink = a;
}
static inline __attribute__((always_inline)) void middle(int a) {
    deepest(a);
}
__attribute__((noinline)) void outer(int a) {
    middle(a);
}
int main(int c, char **v) { outer(c); return 0; }
"""


def frame(function: str, line: int, address: int, *, inlined: bool = False) -> NamedFrame:
    return NamedFrame(function, "prog", "/bin/prog", address, FrameKind.USER, source="/src/a.c", line=line, inlined=inlined)


MAIN = frame("main", 12, 0x1000)
CHAIN = (frame("outer", 10, 0x2000), frame("middle", 7, 0x2000, inlined=True), frame("deepest", 4, 0x2000, inlined=True))
LAST = frame("leaf", 20, 0x3000)


@pytest.fixture
def profile() -> NamedProfile:
    return named(stack_of([MAIN, *CHAIN], 5), stack_of([MAIN, *CHAIN, LAST], 2))


def written(profile: NamedProfile, ending: str) -> bytes:
    return b"".join(format_of(f"name{ending}").encode(profile))


def test_naming(compile_c: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("symbolic")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    elf = open_elf(compile_c(SOURCE, "-O2", "-g", "-fcf-protection=none"))
    [outer], [main] = (list(find_functions_named(elf, name)) for name in (b"outer", b"main"))
    profile = collected(FileFrame(1, outer.address), FileFrame(1, main.address, guessed=True))
    profile.files[1] = TracedFile(1, elf.name, elf)
    (stack,) = stacks_in(name_stacks(profile, detail=FrameDetail()))
    labels = ["main [guess]", "outer", "middle [inlined]", "deepest [inlined]"]
    assert [(one.label, one.line) for one in stack.frames] == list(zip(labels, (12, 10, 7, 4), strict=True))
    assert all(one.source.endswith("source.c") for one in stack.frames)
    assert {one.address for one in stack.frames[1:]} == {outer.address}
    (stack,) = stacks_in(name_stacks(profile))
    assert {(one.source, one.line) for one in stack.frames} == {("", 0)}
    profile.files[1].is_copy = True  # without the debug sections
    (stack,) = stacks_in(name_stacks(profile, detail=FrameDetail()))
    assert len(stack.frames) == 2


def test_table(profile: NamedProfile) -> None:
    lines = list(format_table(profile))
    assert lines[lines.index("       %  HOTTEST LINES") :][1:3] == ["    71.4  /src/a.c:4", "    28.6  /src/a.c:20"]
    assert "    71.4  deepest [inlined] < middle [inlined] < outer < main" in lines
    assert all(len(line) <= 40 for line in format_table(profile, 40) if "a.c" in line)
    assert not any("HOTTEST LINES" in line for line in format_table(named(stack_of([MAIN._replace(source="", line=0)]))))


def test_lines_apart(profile: NamedProfile) -> None:
    count(profile, stack_of([MAIN._replace(line=13), *CHAIN], 1))
    group_stacks(profile, "comm")
    assert written(profile, ".folded").decode().splitlines()[0] == "program;main;outer;middle [inlined];deepest [inlined] 6"
    profile.by_line = True
    assert [line.split(";")[1] for line in written(profile, ".folded").decode().splitlines()] == ["main:12", "main:12", "main:13"]


def test_pprof_and_json(profile: NamedProfile) -> None:
    """A location for each address, whose lines are the innermost first."""
    data = fields(gzip.decompress(written(profile, ".pb.gz")), "profile")
    strings = data[6]
    functions = {one[1][0]: (strings[one[2][0]], strings[one[4][0]]) for one in data[5]}
    locations = {one[1][0]: one for one in data[4]}

    def lines(number: int) -> list[tuple[str, int]]:
        return [(functions[line[1][0]][0], line[2][0]) for line in locations[number][4]]

    found = [[lines(number) for number in sample[1]] for sample in data[2]]
    chain = [("deepest", 4), ("middle", 7), ("outer", 10)]
    assert found == [[chain, [("main", 12)]], [[("leaf", 20)], chain, [("main", 12)]]]
    assert {file for _, file in functions.values()} == {"/src/a.c"}
    [mapping] = data[3]
    assert [mapping[field][0] for field in (7, 8, 9, 10)] == [1, 1, 1, 1]
    [deepest] = [one for one in json.loads(written(profile, ".json"))["frames"] if one["function"] == "deepest"]
    assert (deepest["source"], deepest["line"], deepest["inlined"]) == ("/src/a.c", 4, True)


def test_a_function_that_is_inlined_into_itself() -> None:
    """At one line: its frames are one place. No format goes round in circles."""
    again = frame("g", 2, 0x10, inlined=True)
    profile = named(stack_of([frame("f", 1, 0x10), again, frame("h", 3, 0x10, inlined=True), again, again]))
    assert written(profile, ".folded").decode() == "program;f;g [inlined];h [inlined];g [inlined];g [inlined] 1\n"
    # Each of many frames has inlined functions: stacks become deeper than they were walked, and no format has too little room.
    deep = [frame("f", 1, 0x10), *(frame("g", number, 0x10, inlined=True) for number in range(2, 4))] * MAX_NAMED_FRAMES
    deeper = named(stack_of(deep, 3))
    assert deeper.max_depth == len(deep)
    for ending in (".folded", ".html", ".pb.gz", ".json"):
        assert written(profile, ending)
        assert written(deeper, ending)
