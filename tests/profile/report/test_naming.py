"""Collected stacks get their names; lines and inlined functions, from their names to each format."""

from __future__ import annotations

import gzip
import json
import subprocess
from array import array
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import create_autospec

import pytest

from sframegen.elf.file import open_elf
from sframegen.elf.symbols import find_functions_named, sorted_functions
from sframegen.profile.collected import Collected
from sframegen.profile.following.files import TracedFile
from sframegen.profile.packed_frames import KERNEL_FILE, NO_FILE, FileFrame
from sframegen.profile.report import naming
from sframegen.profile.report.formats.file_formats import format_of
from sframegen.profile.report.label_trees import group_stacks
from sframegen.profile.report.named import MAX_NAMED_FRAMES, MISSING, FrameKind, NamedFrame, NamedProfile
from sframegen.profile.report.naming import KernelNames, name_stacks
from sframegen.profile.report.runtime_frames import IGNORED_MAP, RUNTIME_CODE, RUNTIMES, notes_on_unnamed, parse_perf_map_name
from sframegen.profile.report.source_lines import FrameDetail
from sframegen.profile.report.table import format_table
from sframegen.profile.tables.make_table import make_proven_table
from sframegen.stack.names.perf_map import PerfMap
from sframegen.stack.walking.frames import End
from tests.support.named_stacks import count, named, stack, stack_of, stacks_in
from tests.support.peers import Compiler, Peers
from tests.support.pprof_messages import fields

SOURCE = "int f(int x) { return x + 1; }\nint main(int argc, char **argv) { (void)argv; return f(argc) - 2; }\n"


def collected(*frames: FileFrame, end: End = End.OUTERMOST, count: int = 1, pid: int = 7) -> Collected:
    """`frames`: the innermost first."""
    profile = Collected("cpu-clock", "bpf", 99)
    task = profile.stacks.tasks.find_number(pid, 0)
    profile.stacks.tasks.set_names(task, "pro\ngram")
    profile.stacks.add_samples(profile.stacks.find_or_add(task, array("Q", [one.pack() for one in frames]), end), count)
    return profile


def test_functions_of_files(compile_c: Compiler) -> None:
    path = compile_c(SOURCE, "-O0")
    elf = open_elf(path)
    at = {symbol.name: symbol.address for symbol in sorted_functions(elf)}
    profile = collected(FileFrame(1, at["f"] + 1), FileFrame(1, at["main"] + 8, guessed=True), count=3)
    profile.files[1] = TracedFile(1, f"{path} (deleted)", elf, build_id=b"\xab\xcd")
    (stack,) = stacks_in(name_stacks(profile))
    assert (stack.samples, stack.complete, stack.process, stack.thread) == (3, True, "pro\\ngram", "")
    assert [(one.label, one.object, one.path, one.kind) for one in stack.frames] == [
        ("main [guess]", path.name, str(path), FrameKind.USER),
        ("f", path.name, str(path), FrameKind.USER),
    ]


def test_what_was_read_for_names_is_not_kept_in_memory(compile_c: Compiler) -> None:
    def resident() -> int:
        mappings = Path("/proc/self/smaps").read_text().split(f"{path}\n")[1:]
        return sum(int(one.partition("Rss:")[2].split()[0]) for one in mappings)

    path = compile_c(SOURCE, "-O0")
    profile = collected(FileFrame(1, 0x1000))
    profile.files[1] = TracedFile(1, str(path), open_elf(path))
    assert resident() > 0
    assert name_stacks(profile).samples == 1
    assert resident() == 0


def test_each_function_is_named_once_where_a_file_has_no_lines(compile_c: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    elf = open_elf(compile_c(SOURCE, "-O0"))
    start = {symbol.name: symbol.address for symbol in sorted_functions(elf)}["f"]
    profile = collected(*(FileFrame(1, start + offset) for offset in range(4)))
    profile.files[1] = TracedFile(1, "/prog", elf)
    made = create_autospec(naming._Namer.name_frame, side_effect=naming._Namer.name_frame)
    monkeypatch.setattr(naming._Namer, "name_frame", made)
    named = name_stacks(profile, detail=FrameDetail())
    assert [one.function for stack in stacks_in(named) for one in stack.frames] == ["f"] * 4
    assert made.call_count == 1


def test_functions_of_stripped_files_have_their_start(compile_c: Compiler, peers: Peers, tmp_path: Path) -> None:
    path = compile_c(SOURCE, "-O0")
    start = {symbol.name: symbol.address for symbol in sorted_functions(open_elf(path))}["f"]
    stripped = tmp_path / "stripped"
    subprocess.run([peers.tool("strip"), "-o", stripped, path], check=True)
    profile = collected(FileFrame(1, start + 3), FileFrame(2, 5), FileFrame(3, 5))
    profile.files = {1: TracedFile(1, str(stripped), open_elf(stripped)), 2: TracedFile(2, "/gone", None, "no such file")}
    (stack,) = stacks_in(name_stacks(profile))
    assert [one.label for one in stack.frames] == ["[??]", "[gone]", f"[stripped+{start:#x}]"]


PAIR = r"""
__asm__(".text\n.type first, @function\n.type second, @function\n.type end, @function\n"
        "first: push %rbx\n call second\n pop %rbx\n ret\nsecond: push %rbx\n call *%rdi\n pop %rbx\n ret\nend: int3\n");
void f(void) { __asm__("call first"); } int main(void) { return 0; }
"""


def test_functions_without_symbol_and_cfi_have_their_proven_start(compile_c: Compiler, peers: Peers, tmp_path: Path) -> None:
    path, stripped = compile_c(PAIR, "-O1"), tmp_path / "stripped"
    at = {symbol.name: symbol.address for symbol in sorted_functions(open_elf(path))}
    subprocess.run([peers.tool("strip"), "-o", stripped, path], check=True)
    elf = open_elf(stripped)
    profile = collected(*(FileFrame(1, at[name] + 1) for name in ("first", "second", "end")))
    profile.files[1] = TracedFile(1, str(stripped), elf, table=make_proven_table(elf).table)
    (stack,) = stacks_in(name_stacks(profile))
    labels = [one.label for one in reversed(stack.frames)]
    assert labels[:2] == [f"[stripped+{at[name]:#x}]" for name in ("first", "second")]
    assert labels[2] not in labels[:2]


def test_a_walk_that_ended_early_has_unknown_callers() -> None:
    (stack,) = stacks_in(name_stacks(collected(FileFrame(NO_FILE, 5), end=End.NO_RULE)))
    assert not stack.complete
    assert stack.frames[0] == MISSING
    assert stack.end is End.NO_RULE


LISTING = """\
0000000000000000 A fixed_percpu_data
ffffffff81000000 T _stext
ffffffff81000000 T _text
ffffffff81000100 t vfs_read
ffffffff81000180 D not_code
ffffffffc0000000 t probe\t[module]
"""


def test_functions_of_the_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kallsyms").write_text(LISTING)
    names = KernelNames(tmp_path / "kallsyms")
    addresses = (0xFFFFFFFF80000000, 0xFFFFFFFF81000001, 0xFFFFFFFF810001FF, 0xFFFFFFFFC0000010, 0xFFFFFFFFFFFFFFFF)
    functions, objects = zip(*map(names.function_at, addresses), strict=True)
    assert functions == (None, "_stext", "vfs_read", "probe", None)
    assert objects == ("[kernel]", "[kernel]", "[kernel]", "[module]", "[kernel]")
    monkeypatch.setattr(naming, "KernelNames", lambda: names)
    (stack,) = stacks_in(name_stacks(collected(FileFrame(KERNEL_FILE, 0xFFFFFFFF81000104))))
    assert [(one.label, one.object, one.address, one.kind) for one in stack.frames] == [
        ("vfs_read", "[kernel]", 0xFFFFFFFF81000104, FrameKind.KERNEL)
    ]


def test_a_kernel_that_hides_its_addresses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hidden = tmp_path / "kallsyms"
    hidden.write_text("0000000000000000 T vfs_read\n")
    monkeypatch.setattr(naming, "KernelNames", lambda: KernelNames(hidden))
    named = name_stacks(collected(FileFrame(KERNEL_FILE, 0xFFFFFFFF81000104)))
    assert [one.label for one in stacks_in(named)[0].frames] == ["[kernel]"]
    assert named.notes == [naming.NAMES_HIDDEN_NOTE]


@pytest.fixture
def sleeping() -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    with subprocess.Popen(["sleep", "1000"]) as process:
        path = Path(f"/tmp/perf-{process.pid}.map")
        try:
            yield process, path
        finally:
            process.kill()
            path.unlink(missing_ok=True)


def test_code_made_at_run_time(sleeping: tuple[subprocess.Popen[bytes], Path]) -> None:
    """Also of a process that has ended since."""
    process, path = sleeping
    profile = collected(*(FileFrame(NO_FILE, address) for address in (0x1010, 0x2010, 0x3000)), pid=process.pid)
    path.write_text("1000 100 py::work:/srv/app.py\n2000 100 f<\x1b[31m>;\n")
    for _ in ("running", "ended"):
        assert [(one.label, one.object, one.path, one.kind) for one in stacks_in(name_stacks(profile))[0].frames] == [
            ("[run-time code]", "[run-time code]", "", FrameKind.RUNTIME),
            ("f<\\x1b[31m>;", "[run-time code]", "", FrameKind.RUNTIME),
            ("work", "app.py", "/srv/app.py", FrameKind.RUNTIME),
        ]
        profile.perf_maps[process.pid] = PerfMap(process.pid)
        process.kill()
        process.wait()


def test_a_perf_map_that_is_not_trusted_is_said(sleeping: tuple[subprocess.Popen[bytes], Path]) -> None:
    """Also after the process has ended."""
    process, path = sleeping
    profile = collected(FileFrame(1, 0x1010), pid=process.pid)
    profile.files[1] = TracedFile(1, "/usr/bin/python3.12", None)
    profile.perf_maps[process.pid] = PerfMap(process.pid)
    path.write_text("1000 100 made\n")
    path.chmod(0o666)
    running = name_stacks(profile).notes
    process.kill()
    process.wait()
    profile.read_perf_map(process.pid)
    note = f"functions of Python have no names in 100.0 % of the profile, because {IGNORED_MAP}"
    assert running == name_stacks(profile).notes == [note]


def test_a_runtime_without_a_perf_map_is_said() -> None:
    def read_map(pid: int) -> PerfMap:
        perf_map = PerfMap(0)  # of no process, so that it is empty
        perf_map._entries.is_ignored = pid == 3
        if pid == 2:
            perf_map._entries.add(b"1000 100 made\n")
        return perf_map

    made = NamedFrame(RUNTIME_CODE, RUNTIME_CODE, "", 5, FrameKind.RUNTIME)
    profile = named(
        stack("main@python3.12 eval@libpython3.12.so.1.0", 30, pid=1),
        stack("main@python3.12", 40, pid=2),
        stack("main@node", 9, pid=3),
        stack_of([made], 1, pid=3),
        stack("run@libjvm.so", 10, pid=4),
        stack_of([MISSING, made], 4, pid=4),
        stack("main@program", 6, pid=5),
    )
    assert profile.samples == 100
    found = [*notes_on_unnamed(profile, read_map)]
    assert [(line.partition(" %")[0], line.rpartition(": ")[2]) for line in found] == [
        ("functions of Python have no names in 30.0", RUNTIMES[0].remedy),
        ("methods of Java have no names in 14.0", RUNTIMES[2].remedy),
    ]


def test_names_of_perf_maps() -> None:
    expected = {
        "py::<module>:/srv/app.py": ("<module>", "app.py", "/srv/app.py"),
        "py::f:<frozen importlib._bootstrap>": ("f", "<frozen importlib._bootstrap>", "<frozen importlib._bootstrap>"),
        "JS:*work file:///srv/app.js:12:5": ("work", "app.js", "/srv/app.js"),
        "LazyCompile:~work /srv/app.js:12": ("work", "app.js", "/srv/app.js"),
        "JS:^processTimers node:internal/timers:507:25": ("processTimers", "node:internal/timers", "node:internal/timers"),
        "JS:*get size /srv/with space.js:1:2": ("get size", "with space.js", "/srv/with space.js"),
        "JS:~ file:///srv/app.js:1:1": ("(anonymous)", "app.js", "/srv/app.js"),
        "Builtin:ArgumentsAdaptorTrampoline": ("Builtin:ArgumentsAdaptorTrampoline", "[run-time code]", ""),
        "void Example.main(String[])": ("void Example.main(String[])", "[run-time code]", ""),
    }
    assert {name: tuple(parse_perf_map_name(name)) for name in expected} == expected


INLINED_SOURCE = """
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
    elf = open_elf(compile_c(INLINED_SOURCE, "-O2", "-g", "-fcf-protection=none"))
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
