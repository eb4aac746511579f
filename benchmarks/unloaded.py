"""How far sections that are not loaded compress, and what that costs: against .eh_frame, and against compressed debug sections.

usage: python -m benchmarks.unloaded [--docs docs/reports/unloaded.md]    Prints the tables, or writes them into the document.

The second table is about this machine's C library, whose debug file Debian's libc6-dbg has.
"""

from __future__ import annotations

import ctypes.util
import os
import platform
import sys
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.figures import written_into
from benchmarks.ours import open_input, section_of
from benchmarks.places import corpus_file
from corpus.report_pages import measured_with
from linker.inject.unloaded_layout import ADDRESS
from sframegen.elf.compressed import ELFCOMPRESS_ZSTD, compress, expand
from sframegen.elf.file import open_elf
from sframegen.elf.notes import build_id_of
from sframegen.elf.records import CHDR_SIZE

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.ours import Input

NAMES = ("bash", "libc", "libcrypto", "libLLVM", "libxul")
BEGIN = "<!-- make bench-unloaded writes this: begin -->"
ROUNDS = 5
FRAMES = (".eh_frame", ".eh_frame_hdr")


class Row(NamedTuple):
    """Sizes in bytes, processor times in seconds."""

    name: str
    frames: int  # .eh_frame and .eh_frame_hdr
    frames_compressed: int
    section: int
    compressed: int
    to_compress: float
    to_expand: float

    def cells(self) -> list[str]:
        sizes = [f"{size:,}" for size in (self.frames, self.frames_compressed, self.section, self.compressed)]
        shares = [f"{self.compressed / self.section:.2f}", f"{self.compressed / self.frames:.2f}"]
        return [self.name, *sizes, *shares, f"{self.to_compress:.2f} s", f"{1000 * self.to_expand:.1f} ms"]


def seconds(work: Callable[[], object]) -> float:
    times = []
    for _ in range(ROUNDS):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return median(times)


def stored(data: memoryview) -> bytes:
    """As `add-section --unloaded --compress zstd` stores it."""
    return compress(bytes(data), 8, "little") or bytes(data)


def frames_of(source: Input) -> dict[str, memoryview]:
    return {section.name: source.elf.contents(section) for section in source.elf.sections if section.name in FRAMES}


def measure(name: str, file: Path) -> Row:
    source = open_input(file)
    section = section_of(source, "fast", ADDRESS)
    start = time.process_time()
    data = stored(section)
    to_compress = time.process_time() - start
    frames = frames_of(source).values()
    frame = memoryview(data)[CHDR_SIZE:]
    return Row(
        name,
        sum(map(len, frames)),
        sum(len(stored(part)) for part in frames),
        len(section),
        len(data),
        to_compress,
        seconds(lambda: expand(ELFCOMPRESS_ZSTD, frame, len(section))),
    )


def table(rows: list[list[str]]) -> str:
    return "\n".join(["| " + " | ".join(row) + " |" for row in (rows[0], ["---"] * len(rows[0]), *rows[1:])])


def debug_table(file: Path) -> str:
    """The C library's sections beside those of its debug file; "" without one."""
    source = open_input(file)
    identity = (build_id_of(source.elf) or b"").hex()
    debug_file = Path("/usr/lib/debug/.build-id", identity[:2], f"{identity[2:]}.debug")
    if not debug_file.exists():
        return ""
    debug = open_elf(debug_file)
    parts = [section for section in debug.sections if section.name.startswith(".debug_")]
    expanded = [debug.contents(part) for part in parts]
    section = section_of(source, "fast", ADDRESS)
    lines = [
        ("debug sections, as Debian ships them", sum(map(len, expanded)), sum(len(debug.stored(part)) for part in parts)),
        ("debug sections, zstd as here", sum(map(len, expanded)), sum(len(stored(part)) for part in expanded)),
        *(
            (part.name, len(data), len(stored(data)))
            for part, data in zip(parts, expanded, strict=True)
            if part.name in (".debug_frame", ".debug_line")
        ),
        *((name, len(data), len(stored(data))) for name, data in frames_of(source).items()),
        (".sframe", len(section), len(stored(section))),
    ]
    rows = [[name, f"{size:,}", f"{small:,}", f"{small / size:.2f}"] for name, size, small in lines]
    return table([["this machine's libc", "bytes", "in the file", "of its bytes"], *rows])


def system_libc() -> Path:
    """The C library that this process has loaded."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    name = ctypes.util.find_library("c") or "libc.so.6"
    return Path(next(line.split()[-1] for line in maps if line.endswith(f"/{name}")))


def text() -> str:
    load = os.getloadavg()[0]
    head = [
        "file", ".eh_frame + .eh_frame_hdr", "zstd", ".sframe", "zstd", "of .sframe", "of .eh_frame + .eh_frame_hdr",
        "to compress", "to expand",
    ]  # fmt: skip
    rows = [measure(name, corpus_file(name)).cells() for name in NAMES]
    machine = f"{os.cpu_count()} cores, {platform.machine()}; load average {load:.1f} before it."
    about = f"{measured_with()}, Python {platform.python_version()}, {machine}"
    return "\n\n".join(filter(None, [about, table([head, *rows]), debug_table(system_libc())]))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--docs"]:
        document = Path(sys.argv[2])
        document.write_text(written_into(document.read_text(), text(), BEGIN))
    else:
        print(text())
