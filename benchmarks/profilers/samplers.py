"""The profilers: how each is started on a process that runs, and how its stacks are read."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.places import peer
from benchmarks.profilers import readers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from benchmarks.profilers.endings import Mapped
    from benchmarks.profilers.readers import Sampled

DEEPEST = 8192  # frames


class Request(NamedTuple):
    """What to sample, and where: the profiler's files and its output go to `folder`."""

    pids: tuple[int, ...]
    frequency: int
    folder: Path

    @property
    def joined(self) -> str:
        return ",".join(map(str, self.pids))

    @property
    def output(self) -> Path:
        return self.folder / "output"


class Sampler(NamedTuple):
    """`command`: samples until SIGINT. `read`: its stacks, given the process's mappings."""

    name: str
    command: Callable[[Request], list[str | Path]]
    read: Callable[[Request, list[Mapped]], Iterator[Sampled]]
    afterwards: Callable[[Request], list[str | Path]] | None = None  # what makes stacks of its copies
    frequency: int | None = None  # the only one it has
    verbose: tuple[str, ...] = ()  # what to add so that it prints its stacks
    environment: Mapping[str, str] = MappingProxyType({})
    sign: str = "[perf_event]"  # what it has open when it samples


def missing(sampler: Sampler) -> str:
    """Why a profiler cannot run here; "": it can."""
    program = str(sampler.command(Request((1,), 1, Path()))[0])
    return "" if shutil.which(program) else f"{Path(program).name} is not installed"


def _perf(*graph: str) -> Callable[[Request], list[str | Path]]:
    def command(request: Request) -> list[str | Path]:
        sampling = ("-e", "cpu-clock", "-F", str(request.frequency), "-p", request.joined)
        return ["perf", "record", "-q", *sampling, *graph, "-o", request.folder / "perf.data"]

    return command


def _perf_script(request: Request) -> list[str | Path]:
    fields = ("-F", "pid,tid,ip,dso", "--no-inline", "--max-stack", str(DEEPEST))
    return ["perf", "script", "-f", "-i", request.folder / "perf.data", *fields]


def _read_perf(request: Request, _: list[Mapped]) -> Iterator[Sampled]:
    with subprocess.Popen(_perf_script(request), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        yield from readers.perf_script(process.stdout)


def _read_bpftrace(request: Request, maps: list[Mapped]) -> Iterator[Sampled]:
    with request.output.open() as lines:
        yield from readers.bpftrace(lines, maps)


def _read_eu_stackprof(request: Request, maps: list[Mapped]) -> Iterator[Sampled]:
    with request.output.open() as lines:
        yield from readers.eu_stackprof(lines, maps)


def _bpftrace(request: Request) -> list[str | Path]:
    wanted = " || ".join(f"pid == {pid}" for pid in request.pids)
    sampling = f"profile:hz:{request.frequency} /{wanted}/ {{ @[ustack(perf, 127)] = count(); }}"
    return ["bpftrace", "-B", "none", "-e", sampling]


def _ours(*arguments: str) -> Callable[[Request], list[str | Path]]:
    def command(request: Request) -> list[str | Path]:
        sampling = ("--frequency", str(request.frequency), "--output", request.folder / "profile.json")
        return [sys.executable, "-P", "-m", "sframegen", "profile", *arguments, *sampling, *map(str, request.pids)]

    return command


def _read_ours(request: Request, _: list[Mapped]) -> Iterator[Sampled]:
    yield from readers.own_json(request.folder / "profile.json", request.pids)


OURS = Sampler("sframegen", _ours(), _read_ours, sign="bpf_link")  # its first perf events follow processes
BPFTRACE = Sampler(
    "bpftrace",
    _bpftrace,
    _read_bpftrace,
    environment={"BPFTRACE_NO_USER_SYMBOLS": "1", "BPFTRACE_MAP_KEYS_MAX": "65536"},  # names of a large program take minutes
)
SAMPLERS = (
    OURS,
    Sampler("sframegen, copies", _ours("--backend", "copies"), _read_ours),
    Sampler("perf fp", _perf("--call-graph", "fp"), _read_perf, _perf_script),
    Sampler("perf dwarf, 8 KB", _perf("--call-graph", "dwarf,8192"), _read_perf, _perf_script),
    Sampler("perf dwarf, 64 KB", _perf("-m", "4096", "--call-graph", "dwarf,65528"), _read_perf, _perf_script),
    Sampler(
        "eu-stackprof",
        lambda request: [peer("eu-stackprof"), "-n", str(DEEPEST), "-p", request.joined],
        _read_eu_stackprof,
        frequency=1000,
        verbose=("-v", "-v", "-v"),
    ),
    Sampler(
        "samply",
        lambda request: [
            *(peer("samply"), "record", "-s", "-r", str(request.frequency), "-p", request.joined),
            *("-o", request.folder / "profile.json.gz"),
        ],
        lambda request, _: readers.firefox_profile(request.folder / "profile.json.gz", request.pids),
    ),
    BPFTRACE,
)
