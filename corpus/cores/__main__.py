"""Makes core files of real programs at random moments, walks them, and compares each frame with gdb's: corpus/README.md.

Of this machine's programs, cores of the kernel and of gcore; for AArch64 and s390x, programs that crash under qemu. They are tried
with sections added to program and libraries, and untouched, with --convert. Needs gdb, gdb-multiarch, the cross compilers,
qemu-user and what tools/get-qemu fetches: what is missing is left out, and said. Exit status 1: something differs.
"""

from __future__ import annotations

import argparse
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from _pytest.outcomes import Skipped

import sframegen
from cfi.errors import FormatError
from sframegen.stack.core.core_process import Core
from sframegen.stack.tracer import Tracer
from tests.support.cross import ARM64, S390X, Machine
from tests.support.peers import Peers
from tests.support.processes.emulated import PIE, QEMUS, crash, make_program, make_root, qemu_of
from tests.support.processes.gdb_frames import differences, frames_by_gdb, unfinished

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sframegen.stack.walking.frames import Thread
    from tests.support.processes.gdb_frames import GdbFrame

BEGIN, END = "<!-- cores: begin -->", "<!-- cores: end -->"
CORE_PATTERN = Path("/proc/sys/kernel/core_pattern").read_text().strip()
SEARCHED = "/usr/bin:/bin"
LONGEST = 0.4  # seconds until a core is made: all programs run longer
PYTHON = "import json, re\ndef f(n):\n return re.sub('(a|b)+c', str, json.dumps([n] * 9)) if n < 1 else f(n - 1)\nwhile 1: f(50)"
BASH = 'f() { local i=$1; if ((i)); then f $((i - 1)); else : "${HOME//[a-z]/x}"; fi; }; while :; do f 30; done'
PERL = 'sub f { my $n = shift; return $n ? f($n - 1) : join(",", sort map { $_ =~ s/(\\d)+/x/r } 1..99) } f(30) while 1'
CXX = "#include <map>\n#include <regex>\n#include <string>\nstd::map<std::string, std::regex> all;\nint main() { all.clear(); }"


class Program(NamedTuple):
    name: str
    path: str
    arguments: tuple[str, ...]


class Row(NamedTuple):
    """What came of several cores of one program."""

    program: str
    kind: str
    way: str
    cores: int
    threads: int
    frames: int
    differing: int
    ends: Counter[str]
    early: Counter[str]  # why walks ended before gdb


def programs(scratch: Path) -> Iterator[Program]:
    lines = scratch / "lines"
    rng = random.Random(1)  # noqa: S311 - only lines
    lines.write_text("".join(f"{rng.random()}\n" for _ in range(1_500_000)))
    source = scratch / "source.cc"
    source.write_text(CXX)
    preprocessed = source.with_suffix(".ii")
    subprocess.run(["g++", "-E", source, "-o", preprocessed], check=True)
    compiler = subprocess.run(["g++", "-print-prog-name=cc1plus"], capture_output=True, text=True, check=True).stdout.strip()
    for name, *arguments in (
        ("python3", "-c", PYTHON),
        ("bash", "-c", BASH),
        ("perl", "-e", PERL),
        ("sort", "--parallel=4", "-S", "200M", "-o", "/dev/null", str(lines)),
        (compiler, "-quiet", "-O2", "-fpreprocessed", str(preprocessed), "-o", "/dev/null"),
    ):
        path = shutil.which(name, path=SEARCHED)
        if path:
            yield Program(Path(name).name, str(Path(path).resolve()), tuple(arguments))


def with_sections(program: Program, folder: Path) -> tuple[Path, dict[str, str]]:
    """A copy of the program, and of its libraries: all have sections, except the dynamic linker."""
    told = subprocess.run(["ldd", program.path], capture_output=True, text=True, check=True).stdout
    for path in [program.path, *re.findall(r"=> (/\S+)", told)]:
        copy = folder / Path(path).name
        shutil.copy(path, copy)
        try:
            sframegen.add_section(copy, verify=False)
        except FormatError as error:
            print(f"corpus/cores: {copy.name}: {error}", file=sys.stderr)
    return folder / Path(program.path).name, {"LD_LIBRARY_PATH": str(folder), "PYTHONHOME": "/usr"}


def make_core(path: Path, program: Program, environ: dict[str, str], kind: str, moment: float, folder: Path) -> Path:
    """At some moment of a run."""
    command = [str(path), *program.arguments]
    environ = {"PATH": SEARCHED, "HOME": "/nowhere", "LC_ALL": "C.UTF-8", **environ}
    with subprocess.Popen(command, cwd=folder, env=environ, stdout=subprocess.DEVNULL) as process:
        resource.prlimit(process.pid, resource.RLIMIT_CORE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        time.sleep(moment)
        try:
            if kind == "gcore":
                subprocess.run(["gcore", "-o", folder / "core", str(process.pid)], check=True, capture_output=True)
        finally:
            process.send_signal(signal.SIGSYS if kind == "kernel" else signal.SIGKILL)  # programs catch most others
    pattern = f"core.{process.pid}" if kind == "gcore" else CORE_PATTERN.partition("%")[0] + "*"
    [core] = folder.glob(pattern)
    return core


class Tried:
    """Cores of one program, made in one way."""

    def __init__(self, program: str, kind: str, way: str) -> None:
        self.row = Row(program, kind, way, 0, 0, 0, 0, Counter(), Counter())

    def add(self, tracer: Tracer, core: Core, theirs: dict[int, list[GdbFrame]]) -> None:
        row, threads = self.row, tracer.trace(core)
        found = list(differences(threads, theirs))
        for line in found:
            print(f"corpus/cores: {row.program}, {row.kind}, {row.way}: {line}", file=sys.stderr)
        row.ends.update(thread.end.words for thread in threads)
        for thread, _ in unfinished(threads, theirs):
            last = tracer.objects.at(thread.frames[-1].code)
            row.early[f"{thread.end.words}, in {Path(last.name).name if last else 'no object'} ({how_of(thread)})"] += 1
        self.row = row._replace(
            cores=row.cores + 1,
            threads=row.threads + len(threads),
            frames=row.frames + sum(min(len(thread.frames), len(theirs.get(thread.tid, []))) for thread in threads),
            differing=row.differing + len(found),
        )


def how_of(thread: Thread) -> str:
    how = thread.frames[-1].how
    return how.value if how else "nothing known"


def here(scratch: Path, samples: int, seed: int) -> Iterator[Row]:
    rng = random.Random(seed)  # noqa: S311 - only moments
    kinds = ["gcore"] if CORE_PATTERN[:1] in "|/" else ["gcore", "kernel"]
    for program in programs(scratch):
        tracers = {"sections": Tracer(), "--convert": Tracer(convert=True)}
        folder = scratch / program.name
        folder.mkdir()
        copies = {"sections": with_sections(program, folder), "--convert": (Path(program.path), {})}
        for kind in kinds:
            for way, (path, environ) in copies.items():
                tried = Tried(program.name, kind, way)
                for number in range(samples):
                    cores = scratch / f"{program.name}-{kind}-{way}-{number}"
                    cores.mkdir()
                    core = make_core(path, program, environ, kind, rng.uniform(0.02, LONGEST), cores)
                    theirs = frames_by_gdb("gdb", f"set solib-search-path {folder}", f"file {path}", f"core-file {core}")
                    tried.add(tracers[way], Core(core), theirs)
                    shutil.rmtree(cores)
                yield tried.row
        shutil.rmtree(folder)


def elsewhere(machine: Machine, scratch: Path) -> Iterator[Row]:
    """Raises Skipped without the tools."""
    peers = Peers()
    folder = scratch / machine.name
    folder.mkdir()
    root = make_root(machine, folder)
    flags = {"static": machine.static, "fixed": "-no-pie -fno-pie", "pie": PIE}
    for which in QEMUS:
        qemu = qemu_of(machine, which)
        version = subprocess.run([qemu, "--version"], capture_output=True, text=True, check=True).stdout.split()[2]
        tried = Tried(f"{machine.name} programs", f"qemu {version}", "sections")
        for kind, arguments in (("static", ()), ("fixed", ()), ("pie", ()), ("static", ("restorer",))):
            place = folder / f"{which}-{kind}{len(arguments)}"
            place.mkdir()
            made = crash(machine, qemu, make_program(machine.compiler(peers, place), flags[kind], place), root, *arguments)
            theirs = frames_by_gdb("gdb-multiarch", *made.gdb_commands())
            tried.add(Tracer(), Core(made.core, made.program, made.root), theirs)
        yield tried.row


def markdown(rows: list[Row], seconds: float) -> str:
    cores, threads, frames, differing = (sum(column) for column in list(zip(*rows, strict=True))[3:7])
    lines = [
        f"One run, {seconds:.0f} s: {cores} cores, {threads} threads, {frames:,} frames compared, {differing} differ.",
        "",
        "| program | core by | way | cores | threads | frames | differ | walks ended at |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        ends = "; ".join(f"{end}: {count}" for end, count in row.ends.most_common())
        cells = (row.program, row.kind, row.way, row.cores, row.threads, f"{row.frames:,}", row.differing, ends)
        lines.append(f"| {' | '.join(map(str, cells))} |")
    early = sum((row.early for row in rows), Counter())
    lines += ["", f"Walks that ended before gdb's: {early.total() or 'none'}."]
    lines += [f"- {why}: {count}" for why, count in early.most_common()]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m corpus.cores", description=__doc__.partition("\n")[0])
    parser.add_argument("--samples", type=int, default=3, help="cores of each program, each kind and each way")
    parser.add_argument("--seed", type=int, default=1, help="of the moments")
    parser.add_argument("--docs", type=Path, help="a document, in which the table is replaced")
    options = parser.parse_args()
    begin = time.monotonic()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as name:
        rows += here(Path(name), options.samples, options.seed)
        for machine in (ARM64, S390X):
            try:
                rows += elsewhere(machine, Path(name))
            except Skipped as reason:
                print(f"corpus/cores: {machine.name} is left out: {reason}", file=sys.stderr)
    table = markdown(rows, time.monotonic() - begin)
    if options.docs:
        text = options.docs.read_text()
        before, _, rest = text.partition(BEGIN)
        options.docs.write_text(f"{before}{BEGIN}\n{table}\n{END}{rest.partition(END)[2]}")
    else:
        print(table)
    return int(any(row.differing for row in rows))


if __name__ == "__main__":
    sys.exit(main())
