"""How long the tables of `sframegen profile` take to make, how large they are, and the same for all libraries of a system.

usage: python -m benchmarks.profile_tables [FILE...]    a corpus' name, as libxul, or a path; by default libc, libLLVM and libxul
"""

from __future__ import annotations

import os
import select
import sys
import tempfile
from pathlib import Path
from time import perf_counter, process_time
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.places import CORPUS, corpus_file
from cfi.errors import FormatError
from sframegen import add_section
from sframegen.elf.file import open_elf
from sframegen.profile.tables.make_table import MadeTable, Origin, make_table
from sframegen.profile.tables.table_builder import TableBuilder
from sframegen.profile.tables.table_cache import TableCache

if TYPE_CHECKING:
    from collections.abc import Callable

RUNS = 7
LIBRARIES = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu")


class Libraries(NamedTuple):
    """All of a directory: files, tables, bytes of them, seconds."""

    files: int
    tables: int
    size: int
    seconds: float


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        print("CPU milliseconds for a table, the quickest of several runs:")
        for name in sys.argv[1:] or ("libc", "libLLVM", "libxul"):
            one_file(corpus_file(name) if name in CORPUS else Path(name), Path(scratch))
        cache = TableCache(Path(scratch, "of-all"))
        for directory in filter(os.path.isdir, LIBRARIES):
            files = sorted({file.resolve() for file in Path(directory).rglob("*.so*") if file.is_file()})
            for what in ("first run", "from the cache"):
                done = all_files(files, cache)
                print(
                    f"{directory}, {os.cpu_count()} processes, {what}: {done.tables} tables of {done.files} ELF files, "
                    f"{done.size / 1e6:.0f} MB, {done.seconds:.2f} s"
                )


def one_file(file: Path, scratch: Path) -> None:
    add_section(file, output=scratch / "added", verify=False)
    cache = TableCache(scratch / "kept")
    plain, added = open_elf(file), open_elf(scratch / "added")
    make_table(plain, cache)
    ways = {
        "from call frame information": (quickest(lambda: make_table(plain)), Origin.CONVERTED),
        "from its section": (quickest(lambda: make_table(added)), Origin.SECTION),
        "from the cache": (quickest(lambda: make_table(plain, cache)), Origin.CONVERTED),
    }
    for what, ((seconds, made), origin) in ways.items():
        assert made.origin is origin, made.why
        assert made.table is not None
        print(f"  {file.name}: {1e3 * seconds:7.1f} {what}")
    table = ways["from its section"][0][1].table
    assert table is not None
    size = len(table.data)
    print(f"  {file.name}: {size / 1e6:.2f} MB, {table.rows:,} rows, {size / table.rows:.2f} bytes a row, {table.rules:,} rules")


def quickest(make: Callable[[], MadeTable]) -> tuple[float, MadeTable]:
    """(seconds of CPU, the result)."""
    best = float("inf")
    for _ in range(RUNS):
        started = process_time()
        made = make()
        best = min(best, process_time() - started)
    return best, made


def all_files(files: list[Path], cache: TableCache) -> Libraries:
    started = perf_counter()
    count = tables = size = 0
    with TableBuilder(os.cpu_count() or 1, cache) as builder:
        for number, file in enumerate(files):
            try:
                elf = open_elf(file)
            except FormatError:  # a linker script
                continue
            count += 1
            builder.request(number, elf)
        while builder.pending:
            select.select([builder], [], [])
            made = [one.table for one in builder.ready() if one.table is not None]
            tables += len(made)
            size += sum(len(table.data) for table in made)
    return Libraries(count, tables, size, perf_counter() - started)


if __name__ == "__main__":
    main()
