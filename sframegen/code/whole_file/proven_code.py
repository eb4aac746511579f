"""Adds rules for code without call frame information (CFI), which its instructions prove, to the rules of a file."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from sframegen.base.errors import FormatError
from sframegen.base.text import format_count
from sframegen.conversion.cfi_sections import find_sources
from sframegen.conversion.convert import Converted, convert_sources
from sframegen.elf.ranges import index_of_containing_range
from sframegen.format.abi import Abi, abi_of
from sframegen.format.encode import Encoder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sframegen.elf.file import ElfFile
    from sframegen.elf.ranges import Range
    from sframegen.format.model import FunctionTable

MAX_WITHOUT_CFI = 4 << 20  # bytes of code: each MiB takes about a second
PROVEN = "unwind rules for code without call frame information were derived from the instructions"
TOO_LARGE = "without call frame information: too many to derive rules from the instructions while sampling"


class ProvenCode(NamedTuple):
    """A table with proven functions. `why`: one line for users about the proven functions, or why they are missing.

    `code`: the ranges of proven functions, ascending. The table may have split them, or joined several of them.
    """

    functions: FunctionTable
    why: str = ""
    code: Sequence[Range] = ()


def add_proven_code(functions: FunctionTable, elf: ElfFile, abi: Abi, described: Sequence[Range] = ()) -> ProvenCode:
    """Add functions for code that neither the file's CFI nor `functions` has. Raises FormatError if executable segments overlap.

    `described`: ranges of those of `functions` whose rules are known without a proof, though the CFI may not have them.
    """
    converted, bytes_without_cfi = convert_with_proven_code(elf, abi, described)
    if bytes_without_cfi > MAX_WITHOUT_CFI:
        return ProvenCode(functions, f"{format_count(bytes_without_cfi, 'byte')} of code {TOO_LARGE}")
    ranges = sorted(one for ranges in converted.coverage.synthesized for one in ranges)
    added = merge_functions(functions, converted.table, ranges)
    return ProvenCode(added, PROVEN, converted.coverage.proven) if len(added) > len(functions) else ProvenCode(added)


def convert_with_proven_code(elf: ElfFile, abi: Abi, described: Sequence[Range] = ()) -> tuple[Converted, int]:
    """Convert a file's CFI, and add proven functions if at most MAX_WITHOUT_CFI bytes have no CFI; also return how many have none.

    Raises FormatError if executable segments overlap.
    """
    converted = convert_sources(find_sources(elf), elf.executable_ranges(), abi)
    ignored = [*converted.coverage.ignored_ranges, *described]
    converted = converted._replace(coverage=replace(converted.coverage, ignored_ranges=ignored))
    bytes_without_cfi = sum(end - start for start, end in converted.coverage.ranges_without_cfi(elf))
    if not 0 < bytes_without_cfi <= MAX_WITHOUT_CFI:
        return converted, bytes_without_cfi
    from sframegen.code.whole_file.synthesize import synthesize  # noqa: PLC0415 - capstone is slow to import, and few files need it

    return synthesize(elf, converted), bytes_without_cfi


def merge_functions(functions: FunctionTable, found: FunctionTable, ranges: Sequence[Range] | None = None) -> FunctionTable:
    """Return `functions` with those of `found` that begin in `ranges` and do not overlap any of `functions`."""
    existing = sorted((start, start + size) for start, size in zip(functions.start, functions.size, strict=True))
    existing_starts = [start for start, _ in existing]
    merged = functions.select(range(len(functions)))
    kinds = {kind: number for number, kind in enumerate(merged.kinds)}
    rules = {rule: number for number, rule in enumerate(merged.rules)}
    rule_numbers: dict[int, int] = {}  # number in `found` -> number in the result
    for function, (start, size) in enumerate(zip(found.start, found.size, strict=True)):
        if ranges is not None and index_of_containing_range(ranges, start) is None:
            continue
        next_existing = bisect_left(existing_starts, start + size)
        if next_existing and existing[next_existing - 1][1] > start:
            continue
        rows = [*found.numbered_rows(function)]
        for _, rule in rows:
            if rule not in rule_numbers:
                rule_numbers[rule] = rules.setdefault(found.rules[rule], len(rules))
        kind = found.kinds[found.kind[function]]
        merged.append(start, size, kinds.setdefault(kind, len(kinds)), [(offset, rule_numbers[rule]) for offset, rule in rows])
    merged.kinds, merged.rules = list(kinds), list(rules)
    return merged


def make_section_from_cfi(file: ElfFile, *, proves: bool) -> memoryview | None:
    """Return the bytes of the file's section, made for link-time address 0; None if SFrame can express none of its code.

    `proves`: add rules for code without CFI, which its instructions prove.
    """
    try:
        abi = abi_of(file)
        converted = (
            convert_with_proven_code(file, abi)[0] if proves else convert_sources(find_sources(file), file.executable_ranges(), abi)
        )
        return Encoder(converted.table, abi, encoded=converted.encoded).encode(0) if len(converted.table) else None
    except FormatError:
        return None
