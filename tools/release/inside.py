"""Runs where a release is tried, with nothing but Python: install it, use it, test it. Prints one line of JSON.

usage: inside.py pip|uv|pipx CHECKOUT LINKS WHAT...
WHAT is to be installed; LINKS, with commas, are folders of all that may be found. Exit status 1: a step failed.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from time import perf_counter

ENVIRONMENT = Path("/tmp/environment")  # noqa: S108 - of a root that is made for this
SAMPLE = Path("/usr/bin/bash")
# They need nothing but the package and pytest, and try what is compiled.
TESTS = tuple(
    f"tests/{name}.py" for name in ("cfi/test_reader", "format/test_format", "format/test_model", "project/test_compiled")
)
# Free-threaded Python warns when it loads compiled modules; elsewhere in the tests, warnings are errors.
GLOBAL_LOCK = "default:The global interpreter lock:RuntimeWarning"
COMPILERS = ("cc", "gcc", "clang")


class FailedError(Exception):
    """A command failed: the step, and its output's last line."""


def run(step: str, *command: str | Path) -> str:
    """Standard output of a command. Raises FailedError."""
    done = subprocess.run([str(part) for part in command], check=False, capture_output=True, text=True, errors="replace")
    sys.stderr.write(done.stdout + done.stderr)
    if done.returncode:
        lines = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("ERROR: Could not find")]
        raise FailedError(f"{step}: {(errors or lines or ['no message'])[-1].strip()}")
    return done.stdout


def size(folder: Path) -> int:
    """Bytes of the files below a folder."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())


def install(way: str, links: list[str], what: list[str], result: dict[str, object]) -> Path:
    """Install the package with pip, uv or pipx, and return the folder of its programs."""
    run("venv", sys.executable, "-m", "venv", ENVIRONMENT)
    python, home = ENVIRONMENT / "bin/python", Path.home()
    sources = ["--no-index", *(f"--find-links={folder}" for folder in links)]
    pip: tuple[str | Path, ...] = (python, "-m", "pip", "install", "--disable-pip-version-check", *sources)
    if way != "pip":
        run(f"pip install {way}", *pip, way)
    commands: dict[str, tuple[str | Path, ...]] = {
        "pip": (*pip, *what),
        "uv": (ENVIRONMENT / "bin/uv", "tool", "install", "--offline", "--python", sys.executable, *sources, *what),
        "pipx": (ENVIRONMENT / "bin/pipx", "install", f"--pip-args={' '.join(sources)}", *what),
    }
    place = ENVIRONMENT if way == "pip" else home / ".local"
    empty, began = size(place), perf_counter()
    run(f"{way} install", *commands[way])
    result["install"] = perf_counter() - began
    result["bytes"] = size(place) - empty
    if way == "pip":
        run("pip install pytest", *pip, "pytest", "hypothesis")
    return place / "bin"


def steps(way: str, links: list[str], what: list[str], checkout: Path, result: dict[str, object]) -> None:
    programs = install(way, links, what, result)
    ours = programs / "sframegen"
    copy = Path("/tmp/bash")  # noqa: S108
    began = perf_counter()
    run("add-section", ours, "add-section", SAMPLE, "-o", copy)
    result["first"] = perf_counter() - began
    result["build"] = run("--version", ours, "--version").split()[-1].strip("()")
    run("the program with its section", copy, "-c", "exit 0")
    result["check"] = run("check", ours, "check", copy).strip()
    parts: dict[str, tuple[str, ...]] = {"`--synthesize`": ("--synthesize",)}
    for number, (part, options) in enumerate(parts.items()):
        try:
            run(part, ours, "add-section", *options, SAMPLE, "-o", f"{copy}-{number}")
            result[part] = True
        except FailedError as error:
            result[part] = str(error)
    if way == "pip":
        os.chdir(checkout)
        said = run("tests", programs / "python", "-m", "pytest", "-q", "-W", GLOBAL_LOCK, *TESTS)
        result["tests"] = int(said.strip().splitlines()[-1].split()[0])


def main() -> int:
    way, checkout, links, *what = sys.argv[1:]
    result: dict[str, object] = {"compilers": [name for name in COMPILERS if shutil.which(name)]}
    try:
        steps(way, links.split(","), what, Path(checkout), result)
    except FailedError as error:
        result["failed"] = str(error)
    print(json.dumps(result))
    return "failed" in result


if __name__ == "__main__":
    sys.exit(main())
