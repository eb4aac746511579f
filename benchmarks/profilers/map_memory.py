"""The memory that the kernel program's maps need: for large files, and for processes with many."""

from __future__ import annotations

import mmap
import re
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.places import corpus_file
from benchmarks.profilers.complete import WARMING, count
from benchmarks.profilers.endings import mappings
from benchmarks.profilers.running import Failed, Recording
from benchmarks.profilers.samplers import OURS, Request
from benchmarks.profilers.targets import TARGETS, Target, running
from corpus.stacks.workloads import must
from sframegen.base.errors import SframegenError
from sframegen.elf.file import open_elf
from sframegen.profile.tables.make_table import make_table

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from benchmarks.profilers.complete import Stacks

FILES = ("libxul", "libLLVM", "libc")
LIBRARIES, FUNCTIONS = 200, 50
FREQUENCY = 99
RUNS = 7
PAGE = mmap.PAGESIZE
MEMLOCK = re.compile(r"^memlock:\s+(\d+)$", re.MULTILINE)


class FileTable(NamedTuple):
    """`size`: bytes of the table; `seconds`: of CPU, to make it from call frame information, the quickest of RUNS."""

    name: str
    rows: int
    rules: int
    size: int
    seconds: float


class ProcessTables(NamedTuple):
    """`tables`: bytes in the kernel, of those files that have one; `others`: bytes of the profiler's other maps."""

    name: str
    files: int
    tables: int
    others: int
    stacks: Stacks


def files(failures: list[str]) -> Iterator[FileTable]:
    for name in FILES:
        try:
            path = corpus_file(name)
        except (OSError, SystemExit) as error:
            failures.append(f"{name}: {error}")
            continue
        elf = open_elf(path)
        seconds = []
        for _ in range(RUNS):
            started = time.process_time()
            table = make_table(elf).table
            seconds.append(time.process_time() - started)
        assert table is not None
        yield FileTable(path.name, table.rows, table.rules, len(table.data), min(seconds))


def small_libraries(seconds: float, folder: Path, failures: list[str]) -> Iterator[ProcessTables]:
    yield from _process(Target(f"{LIBRARIES} small libraries", _with_libraries), seconds, folder, failures)


def large(seconds: float, folder: Path, failures: list[str]) -> Iterator[ProcessTables]:
    yield from _process(next(target for target in TARGETS if target.name == "clang"), seconds, folder, failures)


def _process(target: Target, seconds: float, folder: Path, failures: list[str]) -> Iterator[ProcessTables]:
    try:
        with target.start(folder) as pid:
            time.sleep(WARMING)
            yield _tables(target.name, pid, seconds, folder)
    except (OSError, subprocess.CalledProcessError, Failed) as error:
        failures.append(f"{target.name}: {error}")


def _tables(name: str, pid: int, seconds: float, folder: Path) -> ProcessTables:
    recording = Recording(OURS, Request((pid,), FREQUENCY, folder / "memory-run"))
    try:
        time.sleep(seconds)
        fdinfo = [file.read_text() for file in Path(f"/proc/{recording.process.pid}/fdinfo").iterdir()]
        mapped = {one.path for one in mappings(Path(f"/proc/{pid}/maps").read_text())}
    finally:
        recording.interrupt()
        recording.end()
    others = {}
    for text in fdinfo:
        if "map_id:" in text and (locked := MEMLOCK.search(text)):
            others[text.partition("map_id:")[2].split()[0]] = int(locked[1])
    tables = [size for path in sorted(mapped) if (size := _table_bytes(path))]
    stacks = count(name, OURS.name, OURS.read(recording.request, []))
    return ProcessTables(name, len(tables), sum(-(-size // PAGE) * PAGE + PAGE for size in tables), sum(others.values()), stacks)


def _table_bytes(path: str) -> int:
    try:
        made = make_table(open_elf(path))
    except (OSError, SframegenError):
        return 0
    return len(made.table.data) if made.table else 0


def _with_libraries(folder: Path) -> AbstractContextManager[int]:
    """A program that calls into all of many libraries, each with some functions."""
    names = range(LIBRARIES)
    for number in names:
        source = folder / f"l{number}.c"
        source.write_text("".join(_function(number, depth) for depth in range(FUNCTIONS)))
        must("gcc", "-O1", "-shared", "-fPIC", source, "-o", folder / f"libl{number}.so")
    last = FUNCTIONS - 1
    declared = "".join(f"long f{number}_{last}(long);\n" for number in names)
    called = "".join(f"        x += f{number}_{last}(x);\n" for number in names)
    (folder / "main.c").write_text(f"{declared}int main(void) {{\n    for (long x = 0;;) {{\n{called}    }}\n}}\n")
    linked = [f"-ll{number}" for number in names]
    must("gcc", "-O1", folder / "main.c", "-o", folder / "main", f"-L{folder}", *linked, f"-Wl,-rpath,{folder}")
    return running(folder / "main")


def _function(library: int, depth: int) -> str:
    """Each calls the one before it; the first works."""
    before = f"f{library}_{depth - 1}(y[{depth}]) + 1" if depth else "x"
    work = "" if depth else "for (long i = 0; i < 2000; i++) x += y[0] ^ i;"
    head = f"__attribute__((noinline)) long f{library}_{depth}(long x)"
    return f"{head} {{ volatile long y[{depth + 1}]; y[{depth}] = x; {work} return {before}; }}\n"
