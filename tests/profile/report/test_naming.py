"""Collected stacks get their names."""

from __future__ import annotations

import subprocess
from array import array
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import create_autospec

import pytest

from sframegen.elf.file import open_elf
from sframegen.elf.symbols import sorted_functions
from sframegen.profile.collected import Collected
from sframegen.profile.following.files import TracedFile
from sframegen.profile.packed_frames import KERNEL_FILE, NO_FILE, FileFrame
from sframegen.profile.report import naming
from sframegen.profile.report.named import MISSING, FrameKind, NamedFrame
from sframegen.profile.report.naming import KernelNames, name_stacks
from sframegen.profile.report.runtime_frames import IGNORED_MAP, RUNTIME_CODE, RUNTIMES, notes_on_unnamed, parse_perf_map_name
from sframegen.profile.report.source_lines import FrameDetail
from sframegen.profile.tables.make_table import make_proven_table
from sframegen.stack.names.perf_map import PerfMap
from sframegen.stack.walking.frames import End
from tests.support.named_stacks import named, stack, stack_of, stacks_in

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.peers import Compiler, Peers

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
