"""One file: its CFI hidden, its functions surveyed, and what is found compared with the CFI."""

from __future__ import annotations

import resource
import time
from bisect import bisect_right
from typing import TYPE_CHECKING, NamedTuple

from sframegen.abi import abi_of
from sframegen.checks.instructions import functions_of
from sframegen.code.analysis import rule_of
from sframegen.code.survey import survey
from sframegen.code.verdict import RIGHT, UNDECIDED
from sframegen.conversion import convert
from sframegen.elf import open_elf
from sframegen.sources import find_sources

from .compare import NOT_FOUND, compare

if TYPE_CHECKING:
    from .compare import Compared, Difference
    from .files import File


class Trial(NamedTuple):
    file: File
    code_bytes: int  #: that the CFI describes and SFrame can say
    compared: Compared
    functions: list[tuple[int, int]]
    names: list[str]  #: of the first places that differ
    decoded_bytes: int  #: in all passes
    seconds: tuple[float, float]  #: of all processes, and on the clock

    @property
    def emitted(self) -> int:
        return self.code_bytes - self.compared.bytes_by_verdict[NOT_FOUND]

    @property
    def right(self) -> int:
        return self.compared.bytes_by_verdict[RIGHT]

    @property
    def incomparable(self) -> int:
        return self.compared.bytes_by_verdict[UNDECIDED]

    @property
    def different(self) -> int:
        return self.emitted - self.right - self.incomparable


def try_blind(file: File, jobs: int) -> Trial:
    elf = open_elf(file.path)
    abi = abi_of(elf)
    sources = find_sources(elf)
    code = elf.executable_ranges()
    if file.slice_bytes:
        start, end = max(code, key=lambda part: part[1] - part[0])
        middle = (start + end - file.slice_bytes) // 2
        code = [(middle, middle + file.slice_bytes)]
    converted = convert(sources.sections, code, abi)
    functions = functions_of(elf, converted)
    starts = {start for start, _ in functions}
    symbols = elf.function_symbols()
    known = {symbol.address for symbol in symbols if ".cold" not in symbol.name} & starts
    clock, used = time.perf_counter(), _used()
    found = survey(elf, functions, known, jobs)
    seconds = _used() - used, time.perf_counter() - clock
    emits = [rule_of(state, abi.sp, abi.fp, abi.fixed_ra_offset) is not None for state in found.states]
    compared = compare(converted.table, functions, found, emits, abi)
    addresses = [symbol.address for symbol in symbols]

    def name(one: Difference) -> str:
        place = bisect_right(addresses, one.start) - 1
        if place < 0 or one.start >= symbols[place].address + symbols[place].size:
            return f"{one.start:#x}"
        return f"{symbols[place].name}+{one.start - addresses[place]:#x}"

    names = [f"{name(one)}, {one.end - one.start} bytes: {one.kind}" for one in compared.differences]
    return Trial(file, sum(compared.bytes_by_verdict.values()), compared, functions, names, found.decoded_bytes, seconds)


def _used() -> float:
    """Seconds of processors that this process and its ended children have used."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime
