"""Detached sections: the size of their files beside the loaded section, and a look-up with a store and without one.

usage: python -m benchmarks.detached [--docs docs/detached.md]    Prints the table, or writes it into the document.

A look-up opens the file, finds its section, and searches one address, in a process that has done so before; processor time.
"""

from __future__ import annotations

import os
import platform
import sys
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from benchmarks.figures import written_into
from benchmarks.places import corpus_file
from corpus.report_pages import measured_with
from sframegen import add_section
from sframegen.detached.stores import Stores
from sframegen.elf.file import open_elf

if TYPE_CHECKING:
    from collections.abc import Iterable

NAMES = ("bash", "libc", "libLLVM", "libxul")
BEGIN = "<!-- make bench-detached writes this: begin -->"
ROUNDS = 15
HEAD = [
    "file", "its bytes", "`.sframe`, loaded", "growth of the file", "detached", "detached, zstd",
    "look-up in the file", "in a store", "in a store, zstd",
]  # fmt: skip


def look_up_seconds(file: Path, stores: Iterable[Path], address: int) -> float:
    times = []
    for _ in range(ROUNDS):
        start = time.process_time()
        found = Stores(stores).open_for(open_elf(file)).look_up(address)
        times.append(time.process_time() - start)
        assert found is not None
    return median(times)


def cells(name: str, directory: Path) -> list[str]:
    file, added = corpus_file(name), directory / name
    summary = add_section(file, output=added, verify=False)
    stores = {"plain": directory / "plain", "zstd": directory / "packed"}
    plain = add_section(file, detached=stores["plain"], verify=False)
    packed = add_section(file, detached=stores["zstd"], compress="zstd", verify=False)
    section = Stores().open_for(open_elf(added))
    address = section.table.start[len(section.table) // 2]
    before = file.stat().st_size
    files = [Path(one.detached).stat().st_size for one in (plain, packed)]
    sizes = [before, summary.section_bytes, added.stat().st_size - before, *files]
    times = [look_up_seconds(added, (), address), *(look_up_seconds(file, [store], address) for store in stores.values())]
    return [name, *(f"{size:,}" for size in sizes), *(f"{1000 * seconds:.1f} ms" for seconds in times)]


def text() -> str:
    load = os.getloadavg()[0]
    with TemporaryDirectory() as directory:
        rows = [HEAD, ["---"] * len(HEAD), *(cells(name, Path(directory)) for name in NAMES)]
    machine = f"{os.cpu_count()} cores, {platform.machine()}; load average {load:.1f} before it."
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return f"{measured_with()}, Python {platform.python_version()}, {machine}\n\n{table}"


if __name__ == "__main__":
    if sys.argv[1:2] == ["--docs"]:
        document = Path(sys.argv[2])
        document.write_text(written_into(document.read_text(), text(), BEGIN))
    else:
        print(text())
