"""Prints the path of a wheel of this checkout, which is built once for a state of the sources: `make venv`, `make test`.

usage: built_wheel.py [--with PYTHON]
--with: an environment that has what a build needs; else one is made in the cache. SFRAMEGEN_PURE=1: without compiled modules.

Sources are built in a folder of the cache, where a later build compiles only what has changed. A state is the bytes of the sources,
the compilers, and the releases of setuptools and Cython.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import platform
import runpy
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ("LICENSE", "LICENSES", "README.md", "MANIFEST.in", "pyproject.toml", "setup.py", "cfi", "linker", "sframegen")
MADE = {"build", "sframegen.egg-info"}  # by a build, in the folder of the sources
LEFT_OUT = {"__pycache__"}
KEPT = 8  # wheels
BUILD = """
import sys
from setuptools import build_meta
print(build_meta.build_wheel(sys.argv[1]))
"""


class Source(NamedTuple):
    content: bytes
    mode: int  # 0o755 for programs

    @classmethod
    def of(cls, path: Path) -> Source:
        return cls(path.read_bytes(), 0o755 if path.stat().st_mode & 0o100 else 0o644)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--with", dest="python", metavar="PYTHON", help="which has setuptools and Cython")
    options = parser.parse_args()
    cache = Path(os.environ.get("SFRAMEGEN_CACHE") or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "sframegen"))
    place = cache.absolute() / "wheels"
    place.mkdir(parents=True, exist_ok=True)
    with (place / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        tools = kind_of_build(options.python or build_environment(place))
        sources = {path: Source.of(ROOT / path) for path in files_of(ROOT)}
        digest = sha256(repr(tools).encode())
        for path, source in sources.items():
            digest.update(f"\n{path} {source.mode} {len(source.content)}\n".encode() + source.content)
        folder = place / digest.hexdigest()[:20]
        if not folder.exists():
            build(place / f"tree-{sha256(repr(tools).encode()).hexdigest()[:12]}", sources, tools[0], folder)
            for old in sorted(place.glob("?" * 20), key=lambda path: path.stat().st_mtime)[:-KEPT]:
                shutil.rmtree(old)
        [wheel] = folder.glob("*.whl")
    print(wheel)
    return 0


def build_environment(place: Path) -> str:
    """The Python of an environment with what pyproject.toml says that a build requires."""
    required = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    name = sha256(repr((required, sys.version, sys.executable)).encode()).hexdigest()[:12]
    environment = place / f"tools-{name}"
    python = environment / "bin/python"
    if not (environment / "done").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", environment], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *required], check=True, stdout=sys.stderr)
        (environment / "done").touch()
    return str(python)


def kind_of_build(python: str) -> list[str]:
    """The Python, and all else that decides what a build of the same sources gives."""
    versions = "from importlib.metadata import version; print(version('setuptools'), version('Cython'))"
    compilers = [os.environ.get("CC") or str(sysconfig.get_config_var("CC")).split()[0], "clang"]
    return [
        python,
        printed(python, "-c", versions),
        *(printed(compiler, "--version") for compiler in compilers),
        str(sysconfig.get_config_var("EXT_SUFFIX")),
        platform.machine(),
        os.environ.get("SFRAMEGEN_PURE", ""),
    ]


def printed(*command: str) -> str:
    """What a program prints, or nothing where there is none."""
    try:
        return subprocess.run(command, check=False, text=True, capture_output=True).stdout
    except OSError:
        return ""


def files_of(folder: Path) -> list[Path]:
    """What a wheel is built from, without what builds have made there."""
    found = [path for name in SOURCES for path in ([folder / name] if (folder / name).is_file() else (folder / name).rglob("*"))]
    return sorted(path.relative_to(folder) for path in found if path.is_file() and not LEFT_OUT & set(path.parts))


def build(tree: Path, sources: dict[Path, Source], python: str, folder: Path) -> None:
    """Build a wheel in the tree, which then has these sources and no others, and put it into the folder."""
    for path in set(files_of(tree)) - sources.keys():
        (tree / path).unlink()
    for path, source in sources.items():
        target = tree / path
        if not target.exists() or Source.of(target) != source:  # else it would be compiled again
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source.content)
            target.chmod(source.mode)
    forget_removed(tree, sources)
    new = folder.with_suffix(".new")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir()
    print("Building sframegen: a minute or two where nothing is compiled yet.", file=sys.stderr)
    done = subprocess.run([python, "-c", BUILD, new], cwd=tree, check=False, text=True, capture_output=True)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    print(*[line for line in done.stderr.splitlines() if line.lower().startswith("warning: ")], sep="\n", file=sys.stderr)
    new.rename(folder)


def forget_removed(tree: Path, sources: dict[Path, Source]) -> None:
    """Setuptools packs whatever an earlier build has left in its folder."""
    listed = runpy.run_path(str(tree / "sframegen/program/build.py"))
    modules = {name.replace(".", "/") for name in (*listed["MODULES"], listed["SHARED_MODULE"])}
    for built in (tree / "build").glob("lib*"):
        for file in [path for path in built.rglob("*") if path.is_file()]:
            path = file.relative_to(built)
            compiled = path.name.endswith(".so") and path.with_name(path.name.partition(".")[0]).as_posix() in modules
            if not compiled and path not in sources:
                file.unlink()


if __name__ == "__main__":
    sys.exit(main())
