"""Is the `.sframe` of a file true to the CFI of the original? GNU readelf's and libsframe's own readings are judged.

usage: python -m tests.support.oracles.compare ORIGINAL WITH_SFRAME; exit status 1: a rule is wrong, missing, or given without CFI.
The tools lie in $SFRAMEGEN_PEERS, or in peers/ of $SFRAMEGEN_CACHE, or of sframegen/ in the user's cache.
"""

from __future__ import annotations

import enum
import re
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tests.support.peers import Peers

from . import cfi_text, sframe_text
from .files import ElfFacts, elf_facts
from .libsframe import Decoder
from .rules import ABIS, Interner, OracleError, Rule, Table, pieces

KEPT_DIFFERENCES = 20  # of each verdict
LONGEST_PADDING = 15  # bytes without CFI between two functions that count as alignment
# Traps, zeros and no-ops by machine; the last no-op may go on in the code after it.
FILLERS = {
    62: re.compile(
        rb"(?:\0|\xcc|[\x66\x2e]*(?:\x90|\x0f\x1f(?:\0|\x40\0|\x44\0\0|\x80\0{4}|\x84\0{5})))*[\x66\x2e]*(?:\x0f(?:\x1f[\x40\x44\x80\x84]?\0{0,4})?)?",
        re.DOTALL,
    ),
    183: re.compile(rb"(?:\0{4}|\x1f\x20\x03\xd5)*"),
    22: re.compile(rb"(?:\0\0|\x07[\0-\x0f]|\x47\0\0\0|\xa7\x04\0\0|\xc0\x04\0{4})*", re.DOTALL),
}
OVERLAP = Rule("overlapping FDEs", "", "", signal=False)


class Verdict(enum.IntEnum):
    """In order of gravity: the gravest that a reader earns at a piece of code is the piece's."""

    SILENT = 0
    AMBIGUOUS = 1  # FDEs of the original disagree: not judged
    INEXPRESSIBLE = 2  # SFrame V3 has no words for it, and nothing is said
    EQUAL = 3
    PADDING = 4  # a rule for alignment between two functions, or that of the function before for what fills a gap
    COVERED = 5  # a rule where CFI says nothing
    MISSING = 6
    WRONG = 7


@dataclass
class Report:
    """Rows (stretches of code within which neither table changes) and bytes of code, by verdict."""

    rows: Counter[Verdict] = field(default_factory=Counter)
    bytes: Counter[Verdict] = field(default_factory=Counter)
    rows_by_reason: Counter[str] = field(default_factory=Counter)  # of INEXPRESSIBLE
    bytes_by_reason: Counter[str] = field(default_factory=Counter)
    differences: list[str] = field(default_factory=list)  # the first of each grave verdict, with all rules
    fdes: int = 0
    fdes_outside: int = 0  # outside executable segments: not judged
    functions: int = 0
    fres: int = 0

    @property
    def ok(self) -> bool:
        return not (self.rows[Verdict.WRONG] or self.rows[Verdict.MISSING] or self.rows[Verdict.COVERED])

    @property
    def coverage(self) -> float:
        """Share of the bytes with CFI whose rule the section gives, and gives right."""
        judged = (Verdict.EQUAL, Verdict.WRONG, Verdict.MISSING, Verdict.INEXPRESSIBLE, Verdict.AMBIGUOUS)
        described = sum(self.bytes[verdict] for verdict in judged)
        return self.bytes[Verdict.EQUAL] / described if described else 0.0

    def __str__(self) -> str:
        lines = [
            f"FDEs {self.fdes} ({self.fdes_outside} outside code)  functions {self.functions}  FREs {self.fres}",
            f"{'':34}{'rows':>12}{'bytes':>14}",
        ]
        for verdict in reversed(Verdict):
            if verdict is not Verdict.SILENT:
                lines.append(f"{verdict.name.lower():34}{self.rows[verdict]:12}{self.bytes[verdict]:14}")
            if verdict is Verdict.INEXPRESSIBLE:
                lines += (
                    f"    {reason:30}{rows:12}{self.bytes_by_reason[reason]:14}"
                    for reason, rows in self.rows_by_reason.most_common()
                )
        lines += [f"coverage of bytes with CFI {self.coverage:.4%}", *self.differences]
        return "\n".join(lines)


def compare(original: str | Path, injected: str | Path, peers: Peers) -> Report:
    """Judges the `.sframe` of `injected` against the CFI of `original` at every row boundary of either, and at the last
    byte before the next. OracleError where a tool fails or warns."""
    readelf = str(peers.tool("readelf"))
    facts = elf_facts(original)
    if facts.machine not in ABIS:
        raise OracleError(f"{original} is for machine {facts.machine}, of which nothing is known here")
    abi = ABIS[facts.machine]
    cfi = cfi_text.read(readelf, str(original), abi, facts.executable())
    rules: Interner[Rule | None] = Interner(None, OVERLAP)
    segment = elf_facts(injected).sframe()
    with Path(injected).open("rb") as file:
        file.seek(segment.offset)
        section = file.read(segment.filesz)
    decoder = Decoder(str(peers.libsframe()), section, segment.address, abi, rules)
    try:
        sframe = sframe_text.read(readelf, str(injected), rules, decoder.block_sizes)
        report = Report(fdes=cfi.fdes, fdes_outside=cfi.outside, functions=sframe.functions, fres=sframe.rows)
        judge_all(cfi, sframe.table, rules, decoder, report, partial(is_filler, original, facts))
    finally:
        decoder.close()
    return report


def judge_all(
    cfi: cfi_text.CfiText,
    sframe: Table,
    rules: Interner[Rule | None],
    decoder: Decoder,
    report: Report,
    fills: Callable[[int, int], bool],
) -> None:
    """`fills(start, end)`: whether nothing but fillers is there."""
    find = decoder.find
    verdicts: dict[tuple[int, int, int, int], Verdict] = {}  # by CFI row and what each reader reads
    reasons = [row.reason for row in cfi.rows.values]
    kept: Counter[Verdict] = Counter()
    for start, end, row, rule in pieces(cfi.table, sframe):
        key = (row, rule, find(start), find(end - 1))
        verdict = verdicts.get(key)
        if verdict is None:
            verdict = verdicts[key] = judge_readings(cfi.rows.values[row], [rules.values[reading] for reading in key[1:]])
        if verdict is Verdict.COVERED:
            readings = [rules.values[reading] for reading in key[1:]]
            if is_padding(cfi.table, start) or (goes_on(cfi, start, readings) and fills(start, end)):
                verdict = Verdict.PADDING
        report.rows[verdict] += 1
        report.bytes[verdict] += end - start
        if verdict is Verdict.INEXPRESSIBLE:
            report.rows_by_reason[reasons[row]] += 1
            report.bytes_by_reason[reasons[row]] += end - start
        elif verdict >= Verdict.COVERED and kept[verdict] < KEPT_DIFFERENCES:
            kept[verdict] += 1
            report.differences.append(
                describe(start, end, verdict, cfi.rows.values[row], [rules.values[reading] for reading in key[1:]])
            )


def judge_readings(row: cfi_text.CfiRow, readings: list[Rule | None]) -> Verdict:
    return max(judge(row, reading) for reading in readings)


def judge(row: cfi_text.CfiRow, rule: Rule | None) -> Verdict:
    if row == cfi_text.SILENT:
        return Verdict.SILENT if rule is None else Verdict.COVERED
    if row == cfi_text.AMBIGUOUS:
        return Verdict.AMBIGUOUS
    if rule is None:
        return Verdict.MISSING if row.rule else Verdict.INEXPRESSIBLE
    return Verdict.EQUAL if rule == row.rule else Verdict.WRONG


def is_padding(table: Table, address: int) -> bool:
    """Is `address`, without CFI, in a short gap between two ranges that have some?"""
    step = table.at(address)
    return 0 <= step < len(table.starts) - 1 and table.starts[step + 1] - table.starts[step] <= LONGEST_PADDING


def goes_on(cfi: cfi_text.CfiText, address: int, readings: list[Rule | None]) -> bool:
    """Does code with CFI end at `address`, and do all readings have its last rule there?"""
    step = cfi.table.at(address - 1)
    return (
        0 <= step < len(cfi.table.starts) - 1
        and cfi.table.starts[step + 1] == address
        and judge_readings(cfi.rows.values[cfi.table.ids[step]], readings) is Verdict.EQUAL
    )


def is_filler(path: str | Path, facts: ElfFacts, start: int, end: int) -> bool:
    with Path(path).open("rb") as file:
        file.seek(facts.offset(start))
        return FILLERS[facts.machine].fullmatch(file.read(end - start)) is not None


def describe(start: int, end: int, verdict: Verdict, row: cfi_text.CfiRow, readings: list[Rule | None]) -> str:
    readers = ["readelf", "libsframe", "libsframe at the last byte"] if len(set(readings)) > 1 else ["SFrame"]
    told = "; ".join(f"{reader}: {spell(rule)}" for reader, rule in zip(readers, readings, strict=False))
    reason = f" ({row.reason})" if row.reason else ""
    return f"{start:#x}..{end:#x} {verdict.name.lower()}: CFI: {spell(row.rule)}{reason}; {told}"


def spell(rule: Rule | None) -> str:
    if rule is None:
        return "no rule"
    marks = (" signal" if rule.signal else "") + (f" key {rule.key}" if rule.key else "")
    return f"cfa={rule.cfa} fp={rule.fp} ra={rule.ra}{marks}"


if __name__ == "__main__":
    print(report := compare(sys.argv[1], sys.argv[2], Peers()))
    sys.exit(not report.ok)
