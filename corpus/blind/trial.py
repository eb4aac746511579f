"""One file: its CFI hidden, its functions surveyed, and what is found compared with the CFI."""

from __future__ import annotations

import resource
import time
from bisect import bisect_right
from typing import TYPE_CHECKING, NamedTuple

from sframegen.checks.against_code import find_functions
from sframegen.code.context.function_starts import find_starts
from sframegen.code.context.plt import find_plt
from sframegen.code.whole_file.passes import survey, survey_without_cfi
from sframegen.conversion.cfi_sections import find_sources
from sframegen.conversion.convert import convert
from sframegen.elf.file import open_elf
from sframegen.elf.ranges import merge_ranges, subtract_ranges
from sframegen.elf.records import PLT_SECTIONS
from sframegen.elf.symbols import sorted_functions
from sframegen.format.abi import abi_of

from .compare import compare

if TYPE_CHECKING:
    from sframegen.elf.file import ElfFile

    from .compare import Compared, Difference
    from .files import File


class Trial(NamedTuple):
    file: File
    functions: list[tuple[int, int]]
    ranges_known: Compared
    nothing_known: Compared
    names: list[str]  #: of the places that differ
    decoded_bytes: int  #: in all passes, where the ranges are known
    seconds: tuple[float, float]  #: of all processes, and on the clock


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
    functions = find_functions(elf, converted)
    symbols = sorted_functions(elf)
    known = {symbol.address for symbol in symbols if ".cold" not in symbol.name} & {start for start, _ in functions}
    clock, used = time.perf_counter(), _used()
    found = survey(elf, functions, known, jobs)
    seconds = _used() - used, time.perf_counter() - clock
    ranges_known = compare(converted.table, functions, found, abi)
    begins = find_starts(elf, abi) - {elf.header.e_entry}
    found_alone = survey_without_cfi(elf, _without_plt(elf, code), begins, find_plt(elf, abi), jobs)
    nothing_known = compare(converted.table, functions, found_alone, abi)
    addresses = [symbol.address for symbol in symbols]

    def name(one: Difference) -> str:
        place = bisect_right(addresses, one.start) - 1
        if place < 0 or one.start >= symbols[place].address + symbols[place].size:
            return f"{one.start:#x}"
        return f"{symbols[place].name}+{one.start - addresses[place]:#x}"

    names = [
        f"{name(one)}, {one.end - one.start} bytes: {one.kind}{how}"
        for compared, how in ((ranges_known, ""), (nothing_known, ", nothing known"))
        for one in compared.differences
    ]
    return Trial(file, functions, ranges_known, nothing_known, names, found.decoded_bytes, seconds)


def _without_plt(elf: ElfFile, code: list[tuple[int, int]]) -> list[tuple[int, int]]:
    headers = [section.header for section in elf.sections if section.name in PLT_SECTIONS]
    return subtract_ranges(code, merge_ranges((header.sh_addr, header.sh_addr + header.sh_size) for header in headers))


def _used() -> float:
    """Seconds of processors that this process and its ended children have used."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime
