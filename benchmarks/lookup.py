"""Look-ups of random PCs: sframegen's against libsframe's, on GNU's layout and on that of each level.

Both find the row of each PC in compiled loops, and neither reads its offsets. The best of the rounds, layouts and readers in turn.
"""

from __future__ import annotations

import ctypes
import random
import subprocess
import tempfile
from array import array
from itertools import accumulate
from pathlib import Path
from time import perf_counter_ns
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.figures import Figure
from benchmarks.ours import ADDRESS, open_input, section_of
from benchmarks.places import corpus_file, libsframe
from corpus.samples import ALL, sample_files
from sframegen.format.decode import open_section
from sframegen.format.locate import find_sframe
from sframegen.tables.levels import LEVELS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.ours import Input
    from sframegen.format.model import FunctionTable

PART = "look-up"
PCS = 100_000
PASSES = 4  # a round
ENTRY_BYTES = 256  # room for libsframe's row: more than any of its versions needs
GNU = "GNU's layout"


class Layout(NamedTuple):
    """One section, at the address that it is made for."""

    name: str
    section: bytes
    address: int


def layouts_of(source: Input) -> list[Layout]:
    """GNU's section first; where a file has none, `none` stands for it: one FDE a function."""
    own = find_sframe(source.elf)
    gnu = Layout(GNU, bytes(own[0]), own[1]) if own else Layout(GNU, bytes(section_of(source, "none")), ADDRESS)
    return [gnu, *(Layout(level, bytes(section_of(source, level)), ADDRESS) for level in LEVELS if own or level != "none")]


def random_pcs(table: FunctionTable) -> array[int]:
    """Random PCs in the code that the table covers; every byte is equally likely."""
    choose = random.Random(1)  # noqa: S311 - the same PCs in every run
    ends = list(accumulate(table.size))
    functions = choose.choices(range(len(table)), cum_weights=ends, k=PCS)
    return array("Q", [table.start[function] + choose.randrange(table.size[function]) for function in functions])


class Libsframe:
    """GNU's library with a compiled loop around its look-up."""

    def __init__(self, scratch: Path) -> None:
        loop = scratch / "lookup.so"
        subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-o", loop, Path(__file__).with_name("lookup.c")], check=True)
        self._loop = ctypes.CDLL(str(loop)).look_up
        self._loop.restype = ctypes.c_int64
        self._library = ctypes.CDLL(str(libsframe()))
        self._library.sframe_decode.restype = ctypes.c_void_p
        self._entry = ctypes.create_string_buffer(ENTRY_BYTES)

    def open(self, section: bytes) -> ctypes.c_void_p:
        error = ctypes.c_int()
        context = self._library.sframe_decode(section, ctypes.c_size_t(len(section)), ctypes.byref(error))
        if not context:
            raise ValueError(f"libsframe refuses the section: error {error.value}")
        return ctypes.c_void_p(context)

    def nanoseconds(self, context: ctypes.c_void_p, pcs: array[int], address: int) -> int:
        """For all PCs; each must be found."""
        relative = array("q", [pc - address for pc in pcs])
        found = ctypes.c_int64()
        place, count = relative.buffer_info()
        taken: int = self._loop(
            self._library.sframe_find_fre, context, ctypes.c_void_p(place), ctypes.c_int64(count), self._entry, ctypes.byref(found)
        )
        if found.value != count:
            raise ValueError(f"libsframe finds {found.value} of {count} PCs")
        return taken


def measure(rounds: int) -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as scratch:
        gnu = Libsframe(Path(scratch))
    files = {ALL: sample_files()[ALL], "libLLVM": corpus_file("libLLVM"), "libxul": corpus_file("libxul")}
    for name, file in files.items():
        yield from _of_file(name, layouts_of(open_input(file)), gnu, rounds)


def _of_file(name: str, layouts: list[Layout], gnu: Libsframe, rounds: int) -> Iterator[Figure]:
    sections = [open_section(layout.section, layout.address) for layout in layouts]
    contexts = [gnu.open(layout.section) for layout in layouts]
    pcs = random_pcs(sections[0].table)
    functions, rows = array("q", bytes(8 * PCS)), array("q", bytes(8 * PCS))
    taken: dict[str, list[int]] = {f"{reader} on {layout.name}": [] for reader in ("libsframe", "ours") for layout in layouts}
    for _ in range(PASSES * rounds):
        for layout, section, context in zip(layouts, sections, contexts, strict=True):
            section.seeker.scanned = 0
            started = perf_counter_ns()
            section.seeker.find_all(pcs, functions, rows)
            taken[f"ours on {layout.name}"].append(perf_counter_ns() - started)
            if min(rows) < 0:
                raise ValueError(f"not all PCs are found in {layout.name}")
            taken[f"libsframe on {layout.name}"].append(gnu.nanoseconds(context, pcs, layout.address))
    for layout, section in zip(layouts, sections, strict=True):
        yield Figure(PART, f"rows scanned on {layout.name}", name, section.seeker.scanned / PCS, "mean")
    base = f"libsframe on {GNU}"
    for of in ("", base):
        for what, times in taken.items():
            if what != of:
                yield Figure(PART, what, name, min(times) / PCS, "ns", of)
