"""Shared libraries of samples.toml, compiled and linked by GNU's tools with an SFrame section; kept in the cache once built.

usage: python -m corpus.samples    Builds what is missing and prints the libraries.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.support.peers import Peers, cache_directory

if TYPE_CHECKING:
    from collections.abc import Callable

Sample = dict[str, Any]  # of samples.toml

CACHE, PEERS = cache_directory(), Peers().directory
SAMPLES: dict[str, Sample] = tomllib.loads(Path(__file__).with_name("samples.toml").read_text())
ALL = "all six"  # linked into one
ALL_OLDER = "all six, system's GCC"
DRIVER = {".c": "gcc", ".cc": "g++", ".cpp": "g++"}

FLAGS = ("-O2", "-fPIC", "-w", "-Wa,--gsframe")


class Compiler(NamedTuple):
    """`folder`: of the programs gcc and g++. `version`: what else than the recipe decides about the code."""

    folder: Path
    version: str

    def command(self, driver: str) -> list[str | Path]:
        """Assembles and links with GNU's newest binutils."""
        return [self.folder / driver, "-B", PEERS / "bin"]


def newest() -> Compiler:
    return Compiler(CACHE / "gcc" / "bin", (CACHE / "gcc" / "versions").read_text())


def sample_files() -> dict[str, Path]:
    """By name, the library; what is missing or was built otherwise is built now. The system's GCC compiles only `ALL_OLDER`."""
    found = _of_compiler(newest(), CACHE / "samples")
    system = Path(shutil.which("gcc") or "/usr/bin/gcc")
    version = subprocess.run([system, "--version"], check=True, stdout=subprocess.PIPE, text=True).stdout
    found[ALL_OLDER] = _of_compiler(Compiler(system.parent, version), CACHE / "samples" / "system")[ALL]
    return found


def _key(name: str, compiler: Compiler) -> str:
    """What the library is made of, and with."""
    versions = compiler.version + (PEERS / "versions").read_text()
    return hashlib.sha256(json.dumps([SAMPLES[name], FLAGS, versions]).encode()).hexdigest()


def _of_compiler(compiler: Compiler, directory: Path) -> dict[str, Path]:
    found = {}
    keys = []
    for name, sample in SAMPLES.items():
        keys.append(_key(name, compiler))
        found[name] = _built(directory / name, keys[-1], partial(compile_sample, sample, compiler))
    objects = [directory / name / "objects" for name in SAMPLES]
    found[ALL] = _built(directory / "all", "".join(keys), partial(link, objects, compiler))
    return found


def _built(directory: Path, key: str, build: Callable[[Path], None]) -> Path:
    """`directory`/sample.so, by `build` unless it is there by the same recipe."""
    stamp = directory / "recipe"
    if not stamp.exists() or stamp.read_text() != key:
        print(f"building {directory}", file=sys.stderr, flush=True)
        new = directory.with_name(directory.name + ".new")
        for old in (new, directory):
            shutil.rmtree(old, ignore_errors=True)
        new.mkdir(parents=True)
        build(new)
        (new / "recipe").write_text(key)
        new.rename(directory)
    return directory / "sample.so"


def compile_sample(sample: Sample, compiler: Compiler, directory: Path) -> None:
    """Leaves `directory` with the objects and the library."""
    source = directory / "source"
    source.mkdir()
    packed = subprocess.run(
        ["npm", "pack", "--json", "--ignore-scripts", sample["package"]], cwd=directory, check=True, stdout=subprocess.PIPE
    )
    archive = directory / json.loads(packed.stdout)[0]["filename"]
    with tarfile.open(archive) as tar:
        tar.extractall(source, [one for one in tar if one.name.startswith("package/" + sample.get("from", ""))], filter="data")
        names = listed(tar, sample["list"], sample["from"]) if "list" in sample else []
    package = source / "package"
    files = [package / name for name in names] or sorted(file for glob in sample["sources"] for file in package.glob(glob))
    if "without" in sample:
        files = [file for file in files if not file.name.endswith(tuple(sample["without"]))]
    objects = directory / "objects"
    objects.mkdir()
    options = [*FLAGS, *sample.get("flags", ()), *(f"-I{package / one}" for one in sample.get("include", ()))]

    def compile_one(job: tuple[int, Path]) -> None:
        number, file = job
        subprocess.run([*compiler.command(DRIVER[file.suffix]), *options, "-c", file, "-o", objects / f"{number}.o"], check=True)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(compile_one, enumerate(files)))
    archive.unlink()
    shutil.rmtree(source)
    link([objects], compiler, directory)


def listed(tar: tarfile.TarFile, name: str, below: str) -> list[str]:
    """The sources below a folder that a file of the package names in quotes."""
    stream = tar.extractfile(f"package/{name}")
    assert stream is not None
    names = re.findall(r"""["']([^"'\s]+\.(?:cc|cpp|c))["']""", stream.read().decode())
    return [one for one in names if one.startswith(below)]


def link(folders: list[Path], compiler: Compiler, directory: Path) -> None:
    """All objects of the folders -> `directory`/sample.so."""
    objects = sorted(file for folder in folders for file in folder.glob("*.o"))
    subprocess.run(
        [*compiler.command("g++"), "-shared", "-Wl,--build-id=none", "-o", directory / "sample.so", *objects], check=True
    )


if __name__ == "__main__":
    for name, file in sample_files().items():
        print(name, file)
