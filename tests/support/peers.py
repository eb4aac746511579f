"""Foreign tools and files that tests use: where they are, or why a test is skipped."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from functools import cache
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest


def cache_directory() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("SFRAMEGEN_CACHE") or Path(home, "sframegen")).absolute()


class Peers:
    """The tools that tools/get-peers unpacked: in $SFRAMEGEN_PEERS, else in the cache."""

    def __init__(self) -> None:
        self.directory = Path(os.environ.get("SFRAMEGEN_PEERS") or cache_directory() / "peers").absolute()

    def tool(self, name: str) -> str:
        """Path of a peer's program (`as`, `readelf`, `eu-strip`, `s390x-linux-gnu-as`); skips the test without it."""
        program = self.directory / "bin" / name
        if not program.exists():
            pytest.skip(f"no {program}: run tools/get-peers")
        return str(program)

    def libsframe(self) -> str:
        """Path of GNU's decoder library, for ctypes; skips the test without it."""
        libraries = sorted(self.directory.glob("root/usr/lib/*/libsframe.so.3"))
        if not libraries:
            pytest.skip(f"no libsframe.so.3 in {self.directory}: run tools/get-peers")
        return str(libraries[0])


def needs_compiler(*names: str) -> None:
    """Skips the test without one of these compilers of C or C++, or where it is incomplete: a cross gcc without a C library."""
    for name in names:
        if shutil.which(name) is None:
            pytest.skip(f"no {name} on this machine")
        if not _links(name):
            pytest.skip(f"no {name} on this machine that makes programs: it lacks a C library, or its headers")


@cache
def _links(name: str) -> bool:
    source = "#include <stdio.h>\nint main(void) { return puts(__VERSION__) < 0; }\n"
    with TemporaryDirectory() as folder:
        command = [name, "-x", "c++" if name.endswith("++") else "c", "-", "-o", f"{folder}/a.out"]
        return subprocess.run(command, input=source, text=True, capture_output=True, check=False).returncode == 0


class Compiler:
    """Compiles C with the machine's gcc, each source once in a session. The files are shared: copy one before changing it.

    With a `prefix`, `s390x-linux-gnu-`, it is that cross compiler.
    """

    def __init__(self, peers: Peers, directory: Path, prefix: str = "") -> None:
        self.peers = peers
        self.directory = directory
        self.prefix = prefix
        self.digests: dict[Path, bytes | None] = {}
        self.given: set[Path] = set()  # since the last `check`

    def __call__(self, source: str, *flags: str, name: str = "a.out", peer_binutils: bool = False) -> Path:
        """The file called `name` made by `gcc FLAGS`, `-x c++` among them for C++.

        With `peer_binutils`, as and ld are the peers', so that `-Wa,--gsframe` works.
        """
        needs_compiler(*(self.prefix + compiler for compiler in (("gcc", "g++") if "c++" in flags else ("gcc",))))
        if peer_binutils:
            flags = ("-B", str(Path(self.peers.tool("as")).parent), *flags)
        key = sha256(repr((source, flags)).encode()).hexdigest()[:16]
        file = self.directory / key / name
        if not file.exists():
            file.parent.mkdir(exist_ok=True)
            source_file = file.parent / "source.c"
            source_file.write_text(source)
            libraries = [flag for flag in flags if flag.startswith("-l")]  # come after what needs them
            options = [flag for flag in flags if not flag.startswith("-l")]
            subprocess.run([self.prefix + "gcc", *options, "-o", file, source_file, *libraries], check=True)
            self.digests[file] = _digest(file)
        self.given.add(file)
        return file

    def check(self) -> None:
        """Fails the test that has changed a file, which others may get after it."""
        given, self.given = self.given, set()
        changed = [file for file in given if _digest(file) != self.digests[file]]
        for file in changed:
            file.unlink(missing_ok=True)
        assert not changed, f"the test has changed {changed[0]}, which others use: copy it first"


def _digest(file: Path) -> bytes | None:
    return sha256(file.read_bytes()).digest() if file.exists() else None


def corpus_file(name: str) -> Path:
    """The file that corpus/fetch got for this name of corpus/manifest.toml; skips the test without it."""
    corpus = cache_directory() / "corpus"
    lock_file = corpus / "lock.json"
    lock = json.loads(lock_file.read_text()) if lock_file.exists() else {}
    if name not in lock:
        pytest.skip(f"no {name} in {corpus}: run python -m corpus.fetch {name}")
    return corpus / str(lock[name]["file"])
