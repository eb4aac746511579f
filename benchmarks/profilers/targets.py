"""The programs that are sampled: each is one process that works until it is ended."""

from __future__ import annotations

import asyncio
import os
import pwd
import shutil
import subprocess
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from corpus.stacks.workloads import PYTHON_TESTS, must, python, which
from corpus.stacks.workloads import WORKLOADS as STOPPED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

T = TypeVar("T")
PROGRAMS = Path(__file__).with_name("programs")
DEEP = 400  # frames of the deep recursion
TIMES = 3000  # how often ripgrep searches the same folder
PATTERN = r"(\w+)\s+=\s+\w+\((\w+, ){2,}"
STARTS = 30  # seconds until PostgreSQL has a connection that works


class Target(NamedTuple):
    """`start(folder)`: the process's id, while the context lasts. Raises OSError, CalledProcessError where a program is missing."""

    name: str
    start: Callable[[Path], AbstractContextManager[int]]


@contextmanager
def running(*command: str | Path, **options: object) -> Iterator[int]:
    nothing = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL} | options
    with subprocess.Popen(command, **nothing) as process:  # type: ignore[call-overload]
        try:
            yield process.pid
        finally:
            process.kill()


def _clang(folder: Path) -> AbstractContextManager[int]:
    return running(which("clang"), "-std=c++20", "-O2", "-c", PROGRAMS / "templates.cc", "-o", folder / "out.o")


def _cc1plus(folder: Path) -> AbstractContextManager[int]:
    must("g++", "-std=c++20", "-E", PROGRAMS / "templates.cc", "-o", folder / "templates.ii")
    found = subprocess.run(["gcc", "-print-prog-name=cc1plus"], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    return running(which(found), "-quiet", "-std=c++20", "-O2", folder / "templates.ii", "-o", os.devnull)


def _python(folder: Path) -> AbstractContextManager[int]:
    tests = [name for name in PYTHON_TESTS if name != "test_threading"]  # it starts processes
    return running(python(), "-S", "-m", "test", "--forever", *tests, cwd=folder)


@contextmanager
def _git(folder: Path) -> Iterator[int]:
    """One process that compares the same commits for ever."""
    next(one for one in STOPPED if one.name.startswith("git")).prepare(folder)
    git = (which("git"), "-C", folder / "repository")
    with (folder / "commits").open("wb") as commits:
        subprocess.run([*git, "rev-list", "HEAD"], stdout=commits, check=True)
    feeder: list[str | Path] = ["sh", "-c", 'while cat "$1"; do :; done', "sh", folder / "commits"]
    with subprocess.Popen(feeder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as commits_again:
        try:
            with running(*git, "diff-tree", "--stdin", "-p", "--find-copies-harder", stdin=commits_again.stdout) as pid:
                yield pid
        finally:
            commits_again.kill()


def _ripgrep(_: Path) -> AbstractContextManager[int]:
    library = Path(asyncio.__file__).parent.parent
    return running(which("rg"), "--threads", "2", "--count", PATTERN, *[library] * TIMES)


@contextmanager
def _postgres(folder: Path) -> Iterator[int]:
    """A server process that has one connection of pgbench."""
    programs = max(Path("/usr/lib/postgresql").glob("*/bin"), default=None, key=lambda path: int(path.parent.name))
    initdb = shutil.which("initdb", path=programs)
    if initdb is None:
        raise FileNotFoundError("no postgres")
    owner = _unprivileged()
    here = folder / "postgres"
    here.mkdir()
    if owner:
        os.chown(here, pwd.getpwnam(owner).pw_uid, pwd.getpwnam(owner).pw_gid)

    def program(name: str, *arguments: str | Path) -> list[str | Path]:
        return [*(["setpriv", f"--reuid={owner}", "--clear-groups"] if owner else []), Path(initdb).parent / name, *arguments]

    must(*program("initdb", "-D", here / "data", "-A", "trust", "-U", "bench", "--no-sync"), cwd=here)
    connection = ("-h", here, "-U", "bench")
    server = program("postgres", "-D", here / "data", "-k", here, "-c", "listen_addresses=", "-c", "fsync=off")
    with ExitStack() as stack:
        stack.enter_context(running(*server, cwd=here))
        _until(lambda: subprocess.run(program("pg_isready", *connection), stdout=subprocess.DEVNULL, check=False).returncode == 0)
        must(*program("pgbench", *connection, "-i", "-s", "5", "postgres"), cwd=here)
        stack.enter_context(running(*program("pgbench", *connection, "-n", "-c", "1", "-T", "3600", "postgres"), cwd=here))
        query = "select pid from pg_stat_activity where application_name = 'pgbench'"

        def served() -> str:
            asked = program("psql", *connection, "-At", "-c", query, "postgres")
            return subprocess.run(asked, stdout=subprocess.PIPE, text=True, check=True, cwd=here).stdout.strip()

        def settled() -> str:
            """Not of the first connection, with which pgbench looks at the tables and which it closes."""
            before = served()
            time.sleep(0.5)
            return before if served() == before else ""

        yield int(_until(settled))


def _unprivileged() -> str:
    """PostgreSQL refuses to run as root. "": this user is not root."""
    if os.getuid():
        return ""
    known = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in known else "nobody"


def _until(ready: Callable[[], T]) -> T:
    deadline = time.monotonic() + STARTS
    while not (found := ready()):
        if time.monotonic() > deadline:
            raise FileNotFoundError("the server does not start")
        time.sleep(0.1)
    return found


def depth_program(folder: Path) -> Path:
    """Compile programs/depth.c; leaves frame pointers out, as gcc does."""
    must("gcc", "-O2", "-fno-optimize-sibling-calls", PROGRAMS / "depth.c", "-o", folder / "depth")
    return folder / "depth"


def _deep(folder: Path) -> AbstractContextManager[int]:
    return running(depth_program(folder), str(DEEP), "0", "0")


TARGETS = (
    Target("clang", _clang),
    Target("cc1plus", _cc1plus),
    Target("python3", _python),
    Target("node", lambda _: running(which("node"), PROGRAMS / "turns.js")),
    Target("postgres", _postgres),
    Target("git", _git),
    Target("ripgrep", _ripgrep),
    Target("deep recursion", _deep),
)
