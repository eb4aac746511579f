"""The profilers: how each is started on a process that runs, and how its stacks are read."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.places import peer, profiler
from benchmarks.profilers import readers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from benchmarks.profilers.endings import Mapped
    from benchmarks.profilers.readers import Sampled

DEEPEST = 8192  # frames
PERF, BPFTRACE = profiler("perf"), profiler("bpftrace")
EU_STACKPROF, SAMPLY = peer("eu-stackprof"), peer("samply")
WITH_TRACEFS = 'mount -t tracefs tracefs /sys/kernel/tracing && exec "$@"'  # bpftrace asks for it


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
    program: str | Path
    command: Callable[[Request], list[str | Path]]
    read: Callable[[Request, list[Mapped]], Iterator[Sampled]]
    afterwards: Callable[[Request], list[str | Path]] | None = None  # what makes stacks of its copies
    frequency: int | None = None  # the only one it has
    verbose: tuple[str, ...] = ()  # what to add so that it prints its stacks
    environment: Mapping[str, str] = MappingProxyType({})
    sign: str = "[perf_event]"  # what it has open when it samples


def missing(sampler: Sampler) -> str:
    """Why a profiler cannot run here; "": it can."""
    return "" if shutil.which(sampler.program) else f"{Path(sampler.program).name} is not installed"


def _perf(*graph: str) -> Callable[[Request], list[str | Path]]:
    def command(request: Request) -> list[str | Path]:
        sampling = ("-e", "cpu-clock", "-F", str(request.frequency), "-p", request.joined)
        return [PERF, "record", "-q", *sampling, *graph, "-o", request.folder / "perf.data"]

    return command


def _perf_script(request: Request) -> list[str | Path]:
    fields = ("-F", "pid,tid,ip,dso,dsoff", "--no-inline", "--max-stack", str(DEEPEST))
    return [PERF, "script", "-f", "-i", request.folder / "perf.data", *fields]


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


def _bpftrace(function: str) -> Callable[[Request], list[str | Path]]:
    def command(request: Request) -> list[str | Path]:
        wanted = " || ".join(f"pid == {pid}" for pid in request.pids)
        sampling = f"profile:hz:{request.frequency} /{wanted}/ {{ @[{function}(raw, 127)] = count(); }}"
        described = [option for pid in request.pids for option in ("--dwarf-pid", str(pid))] if function == "dw_ustack" else []
        return ["unshare", "--mount", "sh", "-c", WITH_TRACEFS, "sh", BPFTRACE, "-B", "none", *described, "-e", sampling]

    return command


def _ours(*arguments: str) -> Callable[[Request], list[str | Path]]:
    def command(request: Request) -> list[str | Path]:
        sampling = ("--frequency", str(request.frequency), "--output", request.folder / "profile.json")
        return [sys.executable, "-P", "-m", "sframegen", "profile", *arguments, *sampling, *map(str, request.pids)]

    return command


def _read_ours(request: Request, _: list[Mapped]) -> Iterator[Sampled]:
    yield from readers.own_json(request.folder / "profile.json", request.pids)


OURS = Sampler("sframegen", sys.executable, _ours(), _read_ours, sign="bpf_link")  # its first perf events follow processes
BY_FRAME_POINTERS, BY_DWARF = (
    Sampler(
        f"bpftrace {function}",
        BPFTRACE,
        _bpftrace(function),
        _read_bpftrace,
        environment={"BPFTRACE_MAX_MAP_KEYS": "65536"},
    )
    for function in ("ustack", "dw_ustack")
)
SAMPLERS = (
    OURS,
    Sampler("sframegen, copies", sys.executable, _ours("--backend", "copies"), _read_ours),
    Sampler("perf fp", PERF, _perf("--call-graph", "fp"), _read_perf, _perf_script),
    Sampler("perf dwarf, 8 KB", PERF, _perf("--call-graph", "dwarf,8192"), _read_perf, _perf_script),
    Sampler("perf dwarf, 64 KB", PERF, _perf("-m", "4096", "--call-graph", "dwarf,65528"), _read_perf, _perf_script),
    Sampler(
        "eu-stackprof",
        EU_STACKPROF,
        lambda request: [EU_STACKPROF, "-n", str(DEEPEST), "-p", request.joined],
        _read_eu_stackprof,
        frequency=1000,
        verbose=("-v", "-v", "-v"),
    ),
    Sampler(
        "samply",
        SAMPLY,
        lambda request: [
            *(SAMPLY, "record", "-s", "-r", str(request.frequency), "-p", request.joined),
            *("-o", request.folder / "profile.json.gz"),
        ],
        lambda request, _: readers.firefox_profile(request.folder / "profile.json.gz", request.pids),
    ),
    BY_FRAME_POINTERS,
    BY_DWARF,
)
