"""Where the measured files and the programs that they are measured against are."""

from __future__ import annotations

import json
import os
import platform
import sys
from pathlib import Path

CACHE = Path(
    os.environ.get("SFRAMEGEN_CACHE") or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "sframegen")
).absolute()
PEERS = Path(os.environ.get("SFRAMEGEN_PEERS") or CACHE / "peers").absolute()

# By size of .eh_frame.
CORPUS = ("bash", "libc", "libcrypto", "libLLVM", "librustc_driver", "libxul")


def peer(program: str) -> Path:
    return PEERS / "bin" / program


def profiler(program: str) -> Path:
    """Return the path of perf or bpftrace, as `tools/get-peers --profilers` got it."""
    return CACHE / "profilers" / "bin" / program


def libsframe() -> Path:
    return next(PEERS.glob("root/usr/lib/*/libsframe.so.3"))


def corpus_file(name: str) -> Path:
    """The file that corpus/fetch got for a name of its manifest."""
    corpus = CACHE / "corpus"
    lock = json.loads((corpus / "lock.json").read_text())
    if name not in lock:
        sys.exit(f"no {name} in {corpus}: run python -m corpus.fetch {name}")
    return corpus / str(lock[name]["file"])


def versions() -> dict[str, str]:
    """Of what is measured against, and the processor."""
    packages = dict(line.split() for file in (PEERS, CACHE / "gcc") for line in (file / "versions").read_text().splitlines())
    found = {
        name: next(version for package, version in packages.items() if package.startswith(package_name))
        for name, package_name in (("binutils", "binutils"), ("gcc", "gcc-"), ("llvm", "llvm-"))
    }
    model = next(
        (line.partition(": ")[2] for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")), ""
    )
    return found | {"processor": model or platform.machine()}
