"""Which files are tried: of the machine, of the corpus, and libraries compiled here from sources made by a seed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from corpus.merge.sources import sources
from tests.support.peers import cache_directory

if TYPE_CHECKING:
    from collections.abc import Iterator

SEED, OBJECTS = 10, 24
SUFFIXES = {"c": ".c", "c++": ".cc"}
COMPILERS = (("gcc", ""), ("clang", ""), ("gcc", "aarch64-linux-gnu-"))
LEVELS = ("-O0", "-O1", "-O2", "-O3")
POINTERS = ("-fomit-frame-pointer", "-fno-omit-frame-pointer")


class File(NamedTuple):
    name: str
    path: Path
    slice_bytes: int = 0  #: so much from the middle of its code; 0: all


def real_files() -> Iterator[File]:
    """Those that are there; corpus/fetch gets the rest of the corpus."""
    corpus = cache_directory() / "corpus"
    patterns = (
        ("libc", corpus, "libc/libc.so.6", 0),
        ("libcrypto", corpus, "libcrypto/libcrypto.so.3", 0),
        ("libstdc++", corpus, "libstdcxx/libstdc++.so.6*", 0),
        ("libLLVM, 10 MB", corpus, "libLLVM/libLLVM.so*", 10_000_000),
        ("cc1plus", Path("/usr"), "lib*/gcc/*/*/cc1plus", 0),
        ("git", Path("/usr/bin"), "git", 0),
        ("postgres", Path("/usr/lib/postgresql"), "*/bin/postgres", 0),
        ("libc, arm64", corpus, "arm64-libc/root/usr/lib/*/libc.so.6", 0),
        ("libcrypto, arm64", corpus, "arm64-libcrypto/root/usr/lib/*/libcrypto.so.3", 0),
        ("libstdc++, arm64", corpus, "arm64-libstdcxx/root/usr/lib/*/libstdc++.so.6*", 0),
    )
    for name, folder, pattern, slice_bytes in patterns:
        found = sorted(path for path in folder.glob(pattern) if path.is_file()) if folder.is_dir() else []
        if found:
            yield File(name, found[-1], slice_bytes)


def compiled(directory: Path) -> Iterator[File]:
    """A shared library of the same sources for each compiler, level of optimisation, and with or without frame pointers."""
    for compiler, prefix in COMPILERS:
        cc = shutil.which(prefix + compiler) or next(
            iter(map(str, sorted(Path("/usr/bin").glob(f"{prefix}{compiler}-[0-9]*")))), None
        )
        if cc is None:
            continue
        for level in LEVELS:
            for pointer in POINTERS:
                flags = [level, pointer]
                name = " ".join(filter(None, (prefix.partition("-")[0], compiler, *flags)))
                yield File(name, _library(directory / name.replace(" ", "_"), cc, flags))


def _library(directory: Path, cc: str, flags: list[str]) -> Path:
    directory.mkdir(parents=True)
    objects = []
    for source in sources(SEED, OBJECTS, "x86-64"):
        if source.language not in SUFFIXES:
            continue
        text = directory / (source.name + SUFFIXES[source.language])
        text.write_text(source.text)
        target = directory / (source.name + ".o")
        subprocess.run([cc, "-c", "-w", "-fPIC", *flags, "-o", target, text], check=True)
        objects.append(target)
    library = directory / "library.so"
    subprocess.run([cc, "-shared", "-o", library, *objects], check=True)
    return library
