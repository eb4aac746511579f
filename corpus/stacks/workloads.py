"""The programs that are stopped, and how often."""

from __future__ import annotations

import asyncio
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

PROGRAMS = Path(__file__).with_name("programs")
# Of Python's own tests; each run begins with another one. None starts processes, or takes its time from the clock.
PYTHON_TESTS = (
    *(
        "test_json",
        "test_re",
        "test_ast",
        "test_pickle",
        "test_decimal",
        "test_ctypes",
        "test_threading",
        "test_zlib",
        "test_array",
    ),
    *("test_itertools", "test_unicodedata", "test_sqlite3", "test_xml_etree", "test_queue", "test_datetime"),
)
COMMITS, LINES = 120, 2_000_000


class Workload(NamedTuple):
    """`command(folder, random)`: what to run, of what `prepare` put into the folder, and what that `loads` while it runs.

    `wait`: up to this many seconds of CPU time from one stop to the next.
    """

    name: str
    stops: int
    wait: float
    command: Callable[[Path, random.Random], list[str | Path]]
    prepare: Callable[[Path], None] = lambda _: None
    loads: Callable[[Path], list[Path]] = lambda _: []
    step: int = 0  # instructions from one stop to the next, instead of a wait


def must(*command: str | Path, **options: object) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **options)  # type: ignore[call-overload]


def which(name: str) -> Path:
    """The program itself. Raises FileNotFoundError."""
    found = shutil.which(name)
    if found is None:
        raise FileNotFoundError(f"no {name}")
    return Path(found).resolve()


def python() -> Path:
    return Path(sys.executable).resolve()


def _python_tests(_: Path, rng: random.Random) -> list[str | Path]:
    return [python(), "-S", "-m", "test", *rng.sample(PYTHON_TESTS, len(PYTHON_TESTS))]


def _python_loads(_: Path) -> list[Path]:
    code = "import sysconfig; print(sysconfig.get_path('platstdlib'))"
    folder = subprocess.run([python(), "-c", code], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    return sorted(Path(folder, "lib-dynload").glob("*.so"))


def _compiler() -> Path:
    found = subprocess.run(["gcc", "-print-prog-name=cc1plus"], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    return which(found)


def _compile(folder: Path, _: random.Random) -> list[str | Path]:
    return [_compiler(), "-quiet", "-std=c++20", "-O2", folder / "big.ii", "-o", "/dev/null"]


def _preprocess(folder: Path) -> None:
    must("gcc", "-x", "c++", "-std=c++20", "-E", PROGRAMS / "big.cc", "-o", folder / "big.ii")


def _repository(folder: Path) -> None:
    """Make a repository of files that change a little with each commit."""
    rng = random.Random(1)  # noqa: S311
    here = folder / "repository"
    git = ("git", "-C", here, "-c", "user.name=nobody", "-c", "user.email=nobody@localhost", "-c", "gc.auto=0")
    must("git", "init", "-q", here)
    texts = {file.name: file.read_text().splitlines() for file in sorted(Path(asyncio.__file__).parent.glob("*.py"))}
    for number in range(COMMITS):
        for name, lines in texts.items():
            at = rng.randrange(len(lines) + 1)
            lines[at : at + rng.randrange(9)] = [f"{number} {rng.random()}" for _ in range(rng.randrange(9))]
            (here / name).write_text("\n".join(lines))
        must(*git, "add", ".")
        must(*git, "commit", "-q", "-m", f"change {number}")


def _lines(folder: Path) -> None:
    rng = random.Random(1)  # noqa: S311
    with (folder / "lines").open("w") as stream:
        for _ in range(LINES):
            stream.write(f"{rng.getrandbits(60):x}\n")


def compiled(name: str, *flags: str | Path) -> Callable[[Path], None]:
    return lambda folder: must("gcc", "-O2", PROGRAMS / f"{name}.c", "-o", folder / name, *flags)


def library(folder: Path) -> None:
    must("gcc", "-O2", "-fPIC", "-shared", "-Wl,-z,lazy", PROGRAMS / "plt_library.c", "-o", folder / "libplt.so")


def _calls_library(folder: Path) -> None:
    library(folder)
    compiled("plt", f"-L{folder}", "-lplt", f"-Wl,-rpath,{folder}", "-Wl,-z,lazy", "-fcf-protection")(folder)


def _loads_library(folder: Path) -> None:
    library(folder)
    compiled("lazy")(folder)


def _own(name: str, *arguments: str) -> Callable[[Path, random.Random], list[str | Path]]:
    return lambda folder, _: [folder / name, *(folder / argument for argument in arguments)]


WORKLOADS = (
    Workload("python3 -m test", 80, 0.3, _python_tests, loads=_python_loads),
    Workload("cc1plus", 80, 0.1, _compile, _preprocess),
    Workload("git log -p", 60, 0.02, lambda folder, _: [which("git"), "-C", folder / "repository", "log", "-p", "-M", "-C"],
             _repository),
    Workload("bash", 60, 0.02, lambda _, __: [which("bash"), PROGRAMS / "fibonacci.sh"]),
    Workload("perl", 60, 0.02, lambda _, __: [which("perl"), PROGRAMS / "words.pl"]),
    Workload("sort --parallel", 60, 0.1, lambda folder, _: [which("sort"), "--parallel=6", "-S500M", folder / "lines"], _lines),
    Workload("signal handlers", 80, 0.03, _own("signals"), compiled("signals")),
    Workload("realigned stack", 60, 0.01, _own("realigned"), compiled("realigned", "-mstackrealign")),
    Workload("PLT stubs", 60, 0.005, _own("plt"), _calls_library),
    Workload("dlopen, lazy binding", 60, 0.01, _own("lazy", "libplt.so"), _loads_library, lambda folder: [folder / "libplt.so"]),
    Workload("vdso", 50, 0.005, _own("vdso"), compiled("vdso")),
    Workload("each instruction", 400, 0.02, _own("edges"), compiled("edges"), step=1),
)  # fmt: skip
