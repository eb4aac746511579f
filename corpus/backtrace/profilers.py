"""The programs that take traces: how each runs, and how the stacks in its output are read."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from corpus.backtrace.prepared import PROGRAMS, Copies
from sframegen import add_section

if TYPE_CHECKING:
    from collections.abc import Callable

Stacks = Counter[tuple[str, ...]]

HEAPTRACK = Path("/usr/lib/heaptrack")
TCMALLOC = "libtcmalloc.so.4"
POSTGRESQL = Path("/usr/lib/postgresql")
APT_SUITE = Path(__file__).parents[2] / "tools/apt-suite"
CPYTHON = ("python3.14-minimal", "libpython3.14-minimal", "libpython3.14-stdlib", "libc6", "libexpat1", "zlib1g", "libgcc-s1")
MAPPED = re.compile(r"([0-9a-f]+)-([0-9a-f]+) \S+ ([0-9a-f]+) \S+ \d+\s+(\S*)")
BUCKET = re.compile(r"^ *\d+: *\d+ \[ *(\d+): *\d+\] @(.*)", re.MULTILINE)


class Profiler(NamedTuple):
    """A program with something in it that takes traces. Words that depend on the run stand in braces: {rounds}, {output}."""

    name: str
    asks: str  # the function that takes the traces
    alone: list[str]  # the program by itself; empty if it is of no use without traces
    profiled: list[str]
    preload: list[Path]  # what the profiler itself puts into LD_PRELOAD
    environment: dict[str, str]
    read: Callable[[Path, str], Stacks]  # from the output's path and what was printed
    rounds: int  # of the run whose time is measured; stacks are compared with fewer
    fewer: int


def heaptrack(copies: Copies, _folder: Path) -> Profiler:
    program = str(copies.compiled("allocations.cc"))
    library = copies.library(HEAPTRACK / "libheaptrack_preload.so")
    for needed in ("libexec/heaptrack_interpret", "../../bin/heaptrack_print"):
        (HEAPTRACK / needed).resolve(strict=True)

    def read(output: Path, _printed: str) -> Stacks:
        interpreted, lines = output.with_suffix(".interpreted"), output.with_suffix(".folded")
        with output.open("rb") as raw, interpreted.open("wb") as written:
            subprocess.run([HEAPTRACK / "libexec/heaptrack_interpret"], stdin=raw, stdout=written, check=True)
        command: list[str | Path] = ["heaptrack_print", interpreted, "--flamegraph-cost-type", "allocations", "-F", lines]
        subprocess.run(command, check=True, capture_output=True)
        without_addresses = re.sub(r"\b0x[0-9a-f]+", "?", lines.read_text())  # of what it has no name for; they differ in each run
        split = (line.rpartition(" ") for line in without_addresses.splitlines())
        return Counter({tuple(stack.split(";")): int(count) for stack, _, count in split})

    words = [program, "{rounds}"]
    settings = {"DUMP_HEAPTRACK_OUTPUT": "{output}"}
    return Profiler("heaptrack", "`unw_backtrace()` of libunwind", words, words, [library], settings, read, 100, 5)


def gperftools(copies: Copies, _folder: Path) -> Profiler:
    program = str(copies.compiled("allocations.cc"))
    found = subprocess.run(["gcc", f"-print-file-name={TCMALLOC}"], check=True, capture_output=True, text=True).stdout.strip()
    library = copies.library(Path(found).resolve(strict=True).parent / TCMALLOC)
    settings = {"HEAPPROFILE": "{output}", "TCMALLOC_STACKTRACE_METHOD": "libgcc"}

    def read(output: Path, _printed: str) -> Stacks:
        buckets, _, maps = Path(f"{output}.0001.heap").read_text().partition("MAPPED_LIBRARIES:")
        areas = [(int(one[1], 16), int(one[2], 16), int(one[3], 16), Path(one[4]).name) for one in MAPPED.finditer(maps)]

        def place(address: int) -> str:
            return next(
                (f"{name}+{address - start + offset:x}" for start, end, offset, name in areas if start <= address < end), "?"
            )

        stacks: Stacks = Counter()
        for bucket in BUCKET.finditer(buckets):
            stacks[tuple(place(int(word, 16)) for word in bucket[2].split())] += int(bucket[1])
        return stacks

    words = [program, "{rounds}"]
    asks = "`_Unwind_Backtrace()` of libgcc"
    return Profiler("gperftools' heap profiler", asks, words, words, [library], settings, read, 20, 5)


def memray(copies: Copies, folder: Path) -> Profiler:
    site, modules = folder / "site", folder / "modules"
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--target", site, "memray"], check=True)
    shutil.copytree(sysconfig.get_config_var("DESTSHARED"), modules)
    copies.tree(site)
    copies.tree(modules)
    python = str(copies.program(os.path.realpath(sys.executable)))
    settings = {"PYTHONHOME": sys.base_prefix, "PYTHONPATH": f"{site}:{modules}", "PYTHONMALLOC": "malloc", "PYTHONHASHSEED": "0"}

    def read(output: Path, _printed: str) -> Stacks:
        environment = os.environ | settings | {"LD_LIBRARY_PATH": str(copies.libraries)}
        command: list[str | Path] = [python, PROGRAMS / "memray_stacks.py", output]
        shown = subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout
        return Counter({tuple(stack): count for stack, count in json.loads(shown)})

    script = [str(PROGRAMS / "allocations.py"), "{rounds}"]
    run = [python, "-m", "memray", "run", "-q", "-f", "-o", "{output}"]
    asks = "`unw_backtrace()` of its own libunwind"
    return Profiler("memray --native", asks, [*run, *script], [*run, "--native", *script], [], settings, read, 10, 1)


def boost(copies: Copies, _folder: Path) -> Profiler:
    program = str(copies.compiled("boost_traces.cc", "-ldl"))
    words = [program, "{rounds}"]

    def read(_output: Path, printed: str) -> Stacks:
        return Counter({tuple(printed.split()): 1})

    return Profiler("Boost.Stacktrace", "`_Unwind_Backtrace()` of libgcc", [], words, [], {}, read, 100_000, 1)


def faulthandler(_copies: Copies, folder: Path) -> Profiler:
    """CPython 3.14 of Debian's newest suite, as files, with the C library that it needs."""
    root = folder / "root"
    subprocess.run([APT_SUITE, "sid", "apt-get", "-qq", "download", *CPYTHON], check=True, cwd=folder)
    for package in folder.glob("*.deb"):
        subprocess.run(["dpkg", "-x", package, root], check=True)
    libraries, python = root / f"usr/lib/{platform.machine()}-linux-gnu", root / "usr/bin/python3.14"
    for path in (python, *(libraries / name for name in ("libc.so.6", "libgcc_s.so.1"))):
        add_section(path.resolve())

    def read(_output: Path, printed: str) -> Stacks:
        without_addresses = re.sub(
            r"(, at .*) \[0x[0-9a-f]+\]", r"\1", printed
        )  # of what is named; the program has no random address
        return Counter(tuple(text.split("\n")[1:]) for text in without_addresses.split("Current thread's C stack trace")[1:])

    started = [
        str(libraries / "ld-linux-x86-64.so.2"),
        "--library-path",
        str(libraries),
        str(python),
        str(PROGRAMS / "c_stacks.py"),
    ]
    words, settings = [*started, "{rounds}"], {"PYTHONHOME": str(root / "usr")}
    asks = "`backtrace()` of glibc"
    return Profiler("CPython's faulthandler", asks, [*words, "no"], [*words, "dump"], [], settings, read, 2000, 20)


def postgresql(copies: Copies, folder: Path) -> Profiler:
    """backtrace_functions: the server logs the stack of each error that a function raises."""
    server = sorted(POSTGRESQL.glob("*/bin/postgres"))[-1:]
    if not server:
        raise FileNotFoundError(2, os.strerror(2), str(POSTGRESQL))
    program, data = copies.program(server[0]), folder / "data"
    own = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"] if os.geteuid() == 0 else []  # it refuses root
    folder.chmod(0o755)
    data.mkdir()
    if own:
        shutil.chown(data, "postgres", "postgres")
    subprocess.run([*own, server[0].with_name("initdb"), "-D", data, "--no-sync"], check=True, stdout=subprocess.DEVNULL, cwd="/")
    serve = " ".join([*own, str(program), "--single", "-D", str(data)])
    queries = "yes 'select * from no_such_table;' | head -n {rounds}"

    def read(output: Path, _printed: str) -> Stacks:
        texts = output.read_text().split("BACKTRACE:")[1:]
        return Counter(tuple(re.findall(r"^\s+(\S+\(.*\)) \[0x", text, re.MULTILINE)) for text in texts)

    def command(setting: str) -> list[str]:
        # What the server logs goes to a file, and then where the preload object's statistics are read.
        return ["sh", "-c", f"{queries} | {serve} {setting} postgres 2>'{{output}}' >/dev/null; cat '{{output}}' >&2"]

    asks, alone = "`backtrace()` of glibc", command("")
    traced = command("-c backtrace_functions=parserOpenTable")
    return Profiler("PostgreSQL's backtrace_functions", asks, alone, traced, [], {}, read, 2000, 20)


PROFILERS = {
    "memray": memray,
    "heaptrack": heaptrack,
    "gperftools": gperftools,
    "boost": boost,
    "postgresql": postgresql,
    "faulthandler": faulthandler,
}
