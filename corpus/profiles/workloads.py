"""The programs that are sampled, and how often: those of corpus/stacks, and larger ones under load."""

from __future__ import annotations

import os
import pwd
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from corpus.stacks.workloads import PROGRAMS as STACKS_PROGRAMS
from corpus.stacks.workloads import WORKLOADS as STACKS_WORKLOADS
from corpus.stacks.workloads import must, which

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

PROGRAMS = Path(__file__).with_name("programs")
POSTGRES_FOLDERS = "/usr/lib/postgresql/*/bin"
POSTGRES_USER, PAGE_USER = "postgres", "nobody"
SEARCHED = ("/usr/lib", "/usr/share", "/usr/include")

Command = list[str | Path]


class Workload(NamedTuple):
    """`command(folder, random)` is run and sampled, with its children; `load(folder)` gives it work, and is not sampled.

    `samples`: of 2,000. `wait`: up to this many seconds from one sample to the next. `user`: who runs both. A new user has
    no access to the folder except to one of his own in it, with the name of the user.
    """

    name: str
    samples: int
    wait: float
    command: Callable[[Path, random.Random], Command]
    prepare: Callable[[Path], None] = lambda _: None
    load: Callable[[Path], Command] | None = None
    user: str = ""


def as_user(user: str, folder: Path, command: Command) -> Command:
    """The command, run with that user, whose home is in the folder."""
    if not user:
        return command
    group = str(pwd.getpwnam(user).pw_gid)
    return ["setpriv", "--reuid", user, "--regid", group, "--clear-groups", "env", f"HOME={folder / user}", *command]


def _own_folder(folder: Path, user: str) -> Path:
    own = folder / user
    own.mkdir(exist_ok=True)
    shutil.chown(own, user)
    folder.chmod(0o711)
    return own


# --- PostgreSQL: a server with clients that write, and clients that read


def _postgres(name: str) -> Path:
    """The program of the newest version. Raises FileNotFoundError."""
    path = os.pathsep.join(str(found) for found in sorted(Path("/").glob(POSTGRES_FOLDERS[1:]), reverse=True))
    found = shutil.which(name, path=path)
    if found is None:
        raise FileNotFoundError(f"no {name}")
    return Path(found).resolve()


def _database(folder: Path) -> None:
    own = _own_folder(folder, POSTGRES_USER)
    data, socket = own / "data", f"-k {own} -h ''"

    def run(*command: str | Path) -> None:
        must(*as_user(POSTGRES_USER, folder, list(command)), cwd=own)

    run(_postgres("initdb"), "-D", data, "-A", "trust", "-N")
    run(_postgres("pg_ctl"), "-D", data, "-w", "-l", own / "log", "-o", socket, "start")
    run(_postgres("pgbench"), "-h", own, "-i", "-s", "5", "-q", "postgres")
    run(_postgres("pg_ctl"), "-D", data, "-w", "stop")


def _server(folder: Path, _: random.Random) -> Command:
    own = folder / POSTGRES_USER
    return [_postgres("postgres"), "-D", own / "data", "-k", own, "-h", "", "-c", "fsync=off"]


def _clients(folder: Path) -> Command:
    own = folder / POSTGRES_USER
    ready = f"until {_postgres('pg_isready')} -q -h {own}; do sleep 0.1; done"
    bench = f"{_postgres('pgbench')} -n -h {own} -T 100000"
    connecting, staying = f"{bench} -C -b select-only postgres", f"{bench} -c 3 -b tpcb-like -b select-only postgres"
    return ["sh", "-c", f"{ready}; {connecting} & {ready}; exec {staying}"]


# --- A browser with a page that computes and paints


def _page(folder: Path) -> None:
    own = _own_folder(folder, PAGE_USER)
    which("firefox-esr")
    for name in ("busy.js", "page.html"):
        shutil.copy(PROGRAMS / name, own)


def _firefox(folder: Path, _: random.Random) -> Command:
    own = folder / PAGE_USER
    return [which("firefox-esr"), "--headless", "--no-remote", "--profile", own, f"file://{own}/page.html"]


# --- A server with several threads


def _redis(folder: Path, _: random.Random) -> Command:
    which("redis-server")
    threads = ("--io-threads", "3", "--io-threads-do-reads", "yes")
    # The program decides with the name that it is called with.
    return [str(shutil.which("redis-server")), "--port", "0", "--unixsocket", folder / "redis", "--save", "", *threads]


def _requests(folder: Path) -> Command:
    ready = f"until redis-cli -s {folder}/redis ping; do sleep 0.1; done"
    tests = "set,get,lpush,rpop,zadd,zpopmin,lrange_100,mset,hset,spop"
    return ["sh", "-c", f"{ready}; exec redis-benchmark -s {folder}/redis -l -q -n 20000 -c 50 -P 8 -d 200 -r 10000 -t {tests}"]


# --- Compilers, searches, and small programs


def _clang(_: Path, __: random.Random) -> Command:
    return [which("clang"), "-O2", "-std=c++20", "-c", STACKS_PROGRAMS / "big.cc", "-o", "/dev/null"]


def _ripgrep(_: Path, __: random.Random) -> Command:
    return [which("rg"), "-uuc", "--no-messages", r"[a-z]+_[0-9]+x[a-f]{3,9}|(\w+ )+\w*ing\b.*\d{3}", *SEARCHED]


def _recursion(folder: Path) -> None:
    must("gcc", "-O2", PROGRAMS / "recursion.c", "-o", folder / "recursion")


def _of_stacks(name: str, samples: int) -> Workload:
    found = next(one for one in STACKS_WORKLOADS if one.name == name)
    return Workload(name, samples, found.wait, found.command, found.prepare)


WORKLOADS = (
    Workload("postgres", 200, 0.05, _server, _database, _clients, POSTGRES_USER),
    _of_stacks("python3 -m test", 150),
    Workload("node", 150, 0.1, lambda _, __: [which("node"), PROGRAMS / "busy.js"]),
    _of_stacks("cc1plus", 150),
    Workload("clang", 150, 0.1, _clang),
    _of_stacks("git log -p", 120),
    Workload("ripgrep", 120, 0.1, _ripgrep),
    Workload("firefox", 200, 0.1, _firefox, _page, None, PAGE_USER),
    Workload("redis", 150, 0.05, _redis, lambda _: None, _requests),
    Workload("openssl", 100, 0.05, lambda _, __: [which("openssl"), "speed", "-seconds", "60", "rsa2048"]),
    _of_stacks("signal handlers", 120),
    _of_stacks("realigned stack", 100),
    Workload("deep recursion", 80, 0.02, lambda folder, _: [folder / "recursion"], _recursion),
    _of_stacks("PLT stubs", 40),
    _of_stacks("dlopen, lazy binding", 30),
    _of_stacks("vdso", 30),
    _of_stacks("bash", 80),
    _of_stacks("perl", 50),
    _of_stacks("sort --parallel", 80),
)  # fmt: skip
