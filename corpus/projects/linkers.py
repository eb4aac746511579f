"""The step above each linker, by kind of link: whether there is a section, or the linker's output as it was."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from .build import sha256_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.peers import Peers

    from .judge import Judge

PARTS = """
#include <stdexcept>
#include <string>
int thrown(int n) { if (n > 1) throw std::runtime_error("more than " + std::to_string(n)); return n; }
extern "C" int caught(int n) { try { return thrown(n); } catch (const std::exception &e) { return e.what()[0] == 'm' ? 0 : 3; } }
"""
MAIN = """
extern "C" int caught(int);
int main(int argc, char **) { return caught(argc + 1); }
"""


class Kind(NamedTuple):
    """`out` is linked of `inputs`, and run after the command `then`, if any."""

    name: str
    flags: tuple[str, ...]
    inputs: tuple[str, ...] = ("main.o", "parts.o")
    then: tuple[str, ...] = ()


KINDS = (
    Kind("program", ()),
    Kind("-no-pie", ("-no-pie",)),
    Kind("-shared", ("-shared",), ("parts.o",), ("g++", "-o", "run", "main.o", "./out")),
    Kind("-static", ("-static",)),
    Kind("-static-pie", ("-static-pie",)),
    Kind("-flto", ("-flto", "-O2"), ("main.cc", "parts.cc")),
    Kind("-r", ("-r",), ("parts.o",), ("g++", "-o", "run", "main.o", "out")),
)
WARNING = re.compile(r"sframegen: warning: out: (.*); linked without a new section\n")


class Linker(NamedTuple):
    name: str
    path: str
    compiler: str = "g++"  # for -flto
    option: str = "-B{}"  # of that compiler, with the shims' folder


@dataclass
class Cell:
    """`outcome`: one of SECTION, UNTOUCHED, NONE; or what the warning says, when the file is as it was, too."""

    linker: str
    kind: str
    outcome: str = ""
    differences: list[str] = field(default_factory=list)


SECTION, UNTOUCHED, NONE = "section", "unchanged", "does not link"


def linkers(peers: Peers) -> Iterator[Linker]:
    clang = next((path for name in ("clang++", *(f"clang++-{n}" for n in range(30, 12, -1))) if (path := shutil.which(name))), None)
    for label, path in (
        ("GNU ld", shutil.which("ld.bfd")),
        ("GNU ld", peers.tool("ld.bfd")),
        ("gold", shutil.which("ld.gold")),
        ("lld", peers.tool("ld.lld")),
        ("mold", shutil.which("mold")),
    ):
        if path is not None:
            version = re.search(
                r"\d+\.[\d.]*\d", subprocess.check_output([path, "--version"], text=True).partition("compatible")[0]
            )
            lto = (clang, "--ld-path={}/ld") if label == "lld" and clang else ("g++", "-B{}")
            yield Linker(f"{label} {version[0] if version else ''}", path, *lto)


def matrix(judge: Judge, peers: Peers) -> Iterator[Cell]:
    directory = judge.scratch / "linkers"
    directory.mkdir(parents=True)
    for name, text in {"parts": PARTS, "main": MAIN}.items():
        (directory / f"{name}.cc").write_text(text)
        subprocess.run(["g++", "-O2", "-fPIC", "-c", f"{name}.cc"], cwd=directory, check=True)
    for linker in linkers(peers):
        plain, shims = (directory / f"{linker.name}.{way}".replace(" ", "-") for way in ("plain", "shims"))
        plain.mkdir()
        (plain / "ld").symlink_to(linker.path)
        subprocess.run([judge.sframegen, "link", "--install", shims, "--", linker.path], check=True, capture_output=True)
        for kind in KINDS:
            yield cell(judge, linker, kind, (plain, shims), directory)


def cell(judge: Judge, linker: Linker, kind: Kind, ways: tuple[Path, Path], directory: Path) -> Cell:
    out, result = directory / "out", Cell(linker.name, kind.name)
    status, text, _ = linked(judge, linker, kind, ways[0], directory)
    if status:
        result.outcome = NONE
        return result
    plain, plain_runs = sha256_of(out), runs(kind, directory)
    same = linked(judge, linker, kind, ways[0], directory)[0] == 0 and sha256_of(out) == plain
    status, with_step, warning = linked(judge, linker, kind, ways[1], directory)
    if status or with_step != text:
        result.differences.append(f"{status}, {with_step}")
        return result
    if runs(kind, directory) != plain_runs:
        result.differences.append("runs otherwise")
    if warning:
        result.outcome = warning
    elif kind.name == "-r":
        result.outcome = UNTOUCHED
    else:
        result.outcome = SECTION
        result.differences += judge.section(directory, "out")[0]
        subprocess.run([judge.sframegen, "remove", "out"], cwd=directory, check=True, capture_output=True)
    if same and sha256_of(out) != plain:
        result.differences.append("not the linker's file any more")
    return result


def linked(judge: Judge, linker: Linker, kind: Kind, way: Path, directory: Path) -> tuple[int, str, str]:
    """The exit status; what was said, without our warning; what that says."""
    compiler, option = (linker.compiler, linker.option) if kind.name == "-flto" else ("g++", "-B{}")
    command = [compiler, option.format(way), *kind.flags, "-o", "out", *kind.inputs]
    (directory / "out").unlink(missing_ok=True)
    done = subprocess.run(command, cwd=directory, env=dict(judge.environment), check=False, capture_output=True, text=True)
    said = done.stdout + done.stderr
    warning = WARNING.search(said)
    return done.returncode, WARNING.sub("", said), warning[1] if warning else ""


def runs(kind: Kind, directory: Path) -> int:
    """The exit status of the program; what `out` is for one that is no program is linked into `run` by the machine's own linker."""
    program = directory / ("run" if kind.then else "out")
    if kind.then:
        subprocess.run(kind.then, cwd=directory, check=True, capture_output=True)
    return subprocess.run([program], cwd=directory, check=False).returncode
