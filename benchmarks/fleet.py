"""The engine of `sframegen fleet run`: speed-up, separate scheduler and workers, kills, memory over many tasks, parts of the time.

usage: python -m benchmarks.fleet [--report docs/reports/fleet-engine.md] [--parts packages,tasks] [--synthetic 20000]

The packages are of Debian, chosen with a hash of their names, from the machine's own APT configuration.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import platform
import re
import resource
import signal
import subprocess
import sys
import tarfile
import time
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

from corpus.report_pages import measured_with

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SIZES = range(20_000, 3_000_000)  # of the .debs, in bytes
TIMES = re.compile(r"seconds|peak_memory|worker")
FLEET = [sys.executable, "-P", "-m", "sframegen", "fleet", "run"]
MIB = 1 << 20
DONE = (0, 1)  # 1: packages were refused
DISTRIBUTION = 60_000  # packages
TERABYTE = 1e12
STARTUP = 60  # seconds until another machine works, as an assumption
BASE = "/usr/bin/true"  # what synthetic packages are made of

SPEED_UP = """### Speed-up

{} packages of Debian: {:.0f} MB, {:.0f} MB unpacked, {} ELF files. A survey; the start of the cluster and the tables are part of
the times."""
PARTS = """### Where the time goes

Seconds of one process for the same packages, and for 1 GB of packages. All but the fetch are of a run of two workers that rewrites,
in {}. The fetch is from the mirror that the machine uses."""
MANY = """{:,} packages with one small program each ({:,} bytes, in a tar archive), a scheduler and two workers as separate
processes: {:.0f} tasks per second, from the start of the client to its end. The tables have {:.1f} MiB."""


class Timed(NamedTuple):
    seconds: float
    sums: dict[str, Any]  # summary.json


# -- packages


def chosen(count: int) -> list[str]:
    """Names of packages for this machine, the same wherever the same distribution is."""
    text = subprocess.run(["apt-cache", "dumpavail"], check=True, capture_output=True, text=True).stdout
    names = set()
    for paragraph in text.split("\n\n"):
        fields = dict(re.findall(r"^(Package|Architecture|Size): (.*)$", paragraph, re.MULTILINE))
        if fields.get("Architecture", "all") != "all" and int(fields.get("Size", 0)) in SIZES:
            names.add(fields["Package"])
    return sorted(names, key=lambda name: hashlib.sha256(name.encode()).digest())[:count]


def download(names: Sequence[str], directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    if len(list(directory.glob("*.deb"))) < len(names):
        subprocess.run(["apt-get", "download", "-qq", "-o", "APT::Sandbox::User=root", *names], check=True, cwd=directory)


def urls(names: Sequence[str]) -> list[str]:
    """Where APT would fetch them."""
    command = ["apt-get", "download", "--print-uris", *names]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    return [match[1] for line in lines if (match := re.match(r"'([^']+)'", line))]


def synthetic(directory: Path, count: int) -> None:
    """Small packages, each with one program of its own: another build-id, so another content."""
    directory.mkdir(parents=True, exist_ok=True)
    program = Path(BASE).resolve().read_bytes()
    for number in range(count):
        path = directory / f"{number // 1000:03}" / f"{number:06}.tar"
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            content = program + number.to_bytes(8, "little")
            with tarfile.open(path, "w") as archive:
                member = tarfile.TarInfo(f"usr/bin/p{number}")
                member.size, member.mode = len(content), 0o755
                archive.addfile(member, io.BytesIO(content))


# -- runs


def fleet(sources: Sequence[str | Path], out: Path, *options: str) -> Timed:
    start = time.perf_counter()
    command = [*FLEET, *map(str, sources), "--output", str(out), "--quiet", *options]
    if subprocess.run(command, check=False).returncode not in DONE:
        raise RuntimeError(f"{' '.join(command)} failed")
    return Timed(time.perf_counter() - start, json.loads((out / "summary.json").read_text()))


def rows(out: Path) -> list[dict[str, Any]]:
    """Both tables without times, memory and processes."""
    from pyarrow import parquet  # noqa: PLC0415 - of the extra `fleet`

    tables = [parquet.read_table(out / f"{name}.parquet").to_pylist() for name in ("files", "packages")]
    return [{key: value for key, value in row.items() if not TIMES.match(key)} for table in tables for row in table]


def results(out: Path) -> int:
    return sum(len(names) for *_, names in os.walk(out / "results"))


@contextmanager
def dask(*arguments: str, says: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A scheduler or worker, and the last word of the line in which it says that it is ready."""
    with subprocess.Popen([sys.executable, "-P", "-m", "dask", *arguments], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            yield process, next(line.split()[-1] for line in process.stderr if says in line)
        finally:
            process.terminate()
            process.stderr.read()


@contextmanager
def cluster(directory: Path, workers: int) -> Iterator[tuple[str, subprocess.Popen[str], list[subprocess.Popen[str]]]]:
    """A scheduler and workers as separate processes, started as on a cluster."""
    from contextlib import ExitStack  # noqa: PLC0415

    with ExitStack() as stack:
        here = ["--host", "127.0.0.1", "--no-dashboard"]
        scheduler, address = stack.enter_context(dask("scheduler", *here, "--port", "0", says="Scheduler at"))
        started = []
        for number in range(workers):
            local = ["--nthreads", "1", "--local-directory", str(directory / f"worker{number}"), *here]
            started.append(stack.enter_context(dask("worker", address, *local, says="Registered to"))[0])
        yield address, scheduler, started


def memory_of(pid: int) -> int:
    """Resident, in bytes."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0


def children(pid: int) -> list[int]:
    return [int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()]


# -- studies


def speed_up(packages: Path, work: Path) -> list[list[str]]:
    table = [["workers", "time", "speed-up"]]
    first = 0.0
    for workers in (1, 2, 4):
        timed = fleet([packages], work / f"survey{workers}", "--jobs", str(workers))
        first = first or timed.seconds
        table.append([str(workers), f"{timed.seconds:.1f} s", f"{first / timed.seconds:.2f}"])
    return table


def separate(packages: Path, work: Path) -> str:
    with cluster(work, 2) as (address, _, _):
        timed = fleet([packages], work / "separate", "--scheduler", address)
    same = rows(work / "separate") == rows(work / "survey2")
    what = f"the tables {_equal(same)} those of the embedded cluster"
    return f"`dask scheduler` and two `dask worker`: {timed.seconds:.1f} s; {what}."


def killed_worker(packages: Path, work: Path, count: int) -> str:
    out = work / "killed-worker"
    with cluster(work, 2) as (address, _, workers):
        run = subprocess.Popen([*FLEET, str(packages), "--output", str(out), "--quiet", "--scheduler", address])
        _wait_for(out, count // 4, run)
        for pid in children(workers[0].pid):  # of its nanny, which stays
            os.kill(pid, signal.SIGKILL)
        status = run.wait()
    same = rows(out) == rows(work / "survey2")
    what = f"exit status {status}; the tables {_equal(same)} an uninterrupted run's"
    return f"`kill -9` of a worker after a quarter of the packages: {what}."


def killed_client(packages: Path, work: Path, count: int) -> str:
    out = work / "killed-client"
    run = subprocess.Popen([*FLEET, str(packages), "--output", str(out), "--quiet", "--jobs", "2"])
    _wait_for(out, count // 2, run)
    run.kill()
    run.wait()
    done = results(out)
    timed = fleet([packages], out, "--jobs", "2")
    earlier = json.loads((out / "run.json").read_text())["packages_from_earlier_runs"]
    same = rows(out) == rows(work / "survey2")
    again = fleet([packages], out)
    return (
        f"`kill -9` of the client after {done} packages: the rerun takes {earlier} results from the first and works on"
        f" {count - earlier}, in {timed.seconds:.1f} s; the tables {_equal(same)} an uninterrupted run's. A third run, with"
        f" nothing left to do, takes {again.seconds:.1f} s."
    )


class Many(NamedTuple):
    """A run over many small packages. `memory`: of the client and the scheduler, a row for each tenth of them."""

    memory: list[list[str]]
    per_second: float
    table_bytes: int
    client_seconds: float  # of processor time
    scheduler_seconds: float


def processor_seconds(pid: int) -> float:
    """Processor time of a process, all threads."""
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def many(directory: Path, count: int, work: Path) -> Many:
    out = work / "many"
    table = [["packages done", "after", "client", "scheduler", "tasks per second"]]
    with cluster(work, 2) as (address, scheduler, _):
        start, before = time.perf_counter(), processor_seconds(scheduler.pid)
        earlier = resource.getrusage(resource.RUSAGE_CHILDREN)
        run = subprocess.Popen([*FLEET, str(directory), "--output", str(out), "--quiet", "--scheduler", address])
        last = (0, start)
        for part in range(1, 11):
            _wait_for(out, count * part // 10, run)
            now, done = time.perf_counter(), results(out)
            speed = (done - last[0]) / (now - last[1])
            memory = [f"{memory_of(pid) / MIB:.0f} MiB" for pid in (run.pid, scheduler.pid)]
            table.append([f"{done:,}", f"{now - start:.0f} s", *memory, f"{speed:.0f}"])
            last = done, now
        run.wait()
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds = time.perf_counter() - start
        spent = processor_seconds(scheduler.pid) - before
    size = sum((out / name).stat().st_size for name in ("files.parquet", "packages.parquet"))
    return Many(table, count / seconds, size, used.ru_utime + used.ru_stime - earlier.ru_utime - earlier.ru_stime, spent)


def _wait_for(out: Path, count: int, run: subprocess.Popen[bytes]) -> None:
    while results(out) < count and run.poll() is None:
        time.sleep(0.2)


def _equal(same: bool) -> str:
    return "equal" if same else "DIFFER FROM"


class Stage(NamedTuple):
    name: str
    seconds: float
    size: float  # bytes that went through

    @property
    def per_gb(self) -> float:
        return 1e9 * self.seconds / self.size

    def cells(self) -> list[str]:
        return [self.name, f"{self.seconds:.1f} s", f"{self.per_gb:.1f} s"]


def stages(fetched: Timed, rewritten: Timed, seconds_overhead: float) -> list[Stage]:
    """Seconds of one process."""
    sums = rewritten.sums["package_sums"]
    packed = sums["package_bytes"]
    return [
        Stage("fetch, and SHA256", fetched.sums["package_sums"]["seconds_fetching"], packed),
        Stage("unpack", sums["seconds_reading"], packed),
        Stage("convert, write, verify", sums["seconds_converting"], packed),
        Stage("pack", sums["seconds_writing"], packed),
        Stage("the rest: processes, scheduler, results, tables", seconds_overhead, packed),
    ]


def on_paper(parts: Sequence[Stage]) -> str:
    """The cost of a distribution, with the arithmetic."""
    survey = sum(part.per_gb for part in parts[:3])
    rewrite = survey + parts[3].per_gb
    lines = []
    for name, each in (("survey (fetch, unpack, convert)", survey), ("rewrite (and pack)", rewrite)):
        hours = each * TERABYTE / 1e9 / 3600
        lines.append(
            f"- {name}: {each:.1f} s for 1 GB, so {hours:.1f} hours of one core for 1 TB: {hours / 8:.1f} h on 8 cores,"
            f" {60 * hours / 64:.0f} min on 64 of such."
        )
    lines.append(
        f"- Network: a core that surveys takes {1000 / survey:.1f} MB of packages per second. A link of 1 Gbit/s (125 MB/s)"
        f" feeds {125 * survey / 1000:.0f} cores; on a machine with more of them, the link is what limits."
    )
    pays = 2 * STARTUP * 8 / survey
    lines.append(
        f"- A second machine pays once it saves more than it takes to start. If that is {STARTUP} s, 8 cores each: one machine"
        f" takes {survey / 8:.1f} s for 1 GB, two take half of it, so a survey of more than {pays:.1f} GB is quicker on two."
    )
    return "\n".join(lines)


def table_of(table: Sequence[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in (table[0], ["---"] * len(table[0]), *table[1:]))


def about() -> str:
    cores, load = len(os.sched_getaffinity(0)), os.getloadavg()[0]
    machine = f"Python {platform.python_version()}, {cores} cores, {platform.machine()}"
    return f"{measured_with()}, {machine}; load average {load:.1f} before it."


def packages_part(options: argparse.Namespace, work: Path) -> str:
    begin = about()
    names = chosen(options.packages)
    packages = options.cache / f"debs-{options.packages}"
    download(names, packages)
    size = sum(path.stat().st_size for path in packages.glob("*.deb"))
    speeds = speed_up(packages, work)
    engine = [separate(packages, work), killed_worker(packages, work, len(names)), killed_client(packages, work, len(names))]
    listing = work / "urls"
    listing.write_text("\n".join(urls(names)) + "\n")
    fetched = fleet([listing], work / "fetched", "--jobs", "2")
    rewritten = fleet([packages], work / "rewritten", "--mode", "rewrite", "--jobs", "2")
    sums = rewritten.sums["package_sums"]
    worked = sum(sums[name] for name in ("seconds_fetching", "seconds_reading", "seconds_converting", "seconds_writing"))
    parts = stages(fetched, rewritten, 2 * rewritten.seconds - worked)
    lines = [
        begin,
        SPEED_UP.format(len(names), size / 1e6, sums["unpacked_bytes"] / 1e6, sums["elf_files"]),
        table_of(speeds),
        "### Other processes, and kills",
        "\n".join(f"- {line}" for line in engine),
        PARTS.format(f"{rewritten.seconds:.1f} s"),
        table_of([["part", "time", "for 1 GB"], *(part.cells() for part in parts)]),
        f"### {DISTRIBUTION:,} packages and 1 TB, on paper",
        on_paper(parts),
    ]
    return "\n\n".join(lines)


def tasks_part(options: argparse.Namespace, work: Path) -> str:
    begin = about()
    directory = options.cache / f"synthetic-{options.synthetic}"
    synthetic(directory, options.synthetic)
    result = many(directory, options.synthetic, work)
    size = Path(BASE).resolve().stat().st_size
    minutes = DISTRIBUTION / result.per_second / 60
    client, scheduler = (1000 * each / options.synthetic for each in (result.client_seconds, result.scheduler_seconds))
    lines = [
        begin,
        MANY.format(options.synthetic, size, result.per_second, result.table_bytes / MIB),
        f"Processor time of the coordinator for each: client {client:.2f} ms, scheduler {scheduler:.2f} ms.",
        table_of(result.memory),
        f"{DISTRIBUTION:,} packages at this speed: {minutes:.0f} min, with the conversion of the small programs.",
    ]
    return "\n\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--report", type=Path)
    parser.add_argument("--parts", default="packages,tasks")
    parser.add_argument("--packages", type=int, default=200)
    parser.add_argument("--synthetic", type=int, default=20_000)
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache/sframegen/fleet")
    options = parser.parse_args()
    for name in options.parts.split(","):
        with TemporaryDirectory() as work:
            text = ALL[name](options, Path(work))
        if options.report is None:
            print(text)
        else:
            from benchmarks.figures import written_into  # noqa: PLC0415

            begin = f"<!-- make bench-fleet writes this: begin {name} -->"
            options.report.write_text(written_into(options.report.read_text(), text, begin))


ALL = {"packages": packages_part, "tasks": tasks_part}

if __name__ == "__main__":
    main()
