"""GNU as on CFI programs made at random: sframegen always agrees with the CFI, GNU as except in the kinds of gnu_as.txt.

SFRAMEGEN_PROGRAMS: how many programs for each ABI. SFRAMEGEN_SEED: what they are made from.
"""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from sframegen import Severity, Verdict, add_section, check
from tests import ROOT
from tests.differential.against_gas import BATCH, Bench, Reading, kinds_of, needs_shrinking, shape
from tests.support.inputs.cfi_programs import TARGETS, Target, programs, source_of
from tests.support.loops import for_each
from tests.support.oracles import compare
from tests.support.oracles.rules import Rule
from tests.support.peers import Peers

PROGRAMS = int(os.environ.get("SFRAMEGEN_PROGRAMS", "100"))
SEED = int(os.environ.get("SFRAMEGEN_SEED", "1"))
KNOWN = ROOT / "tests" / "differential" / "gnu_as.txt"
ABI_NAMES = {"AMD64": "amd64", "AArch64": "arm64", "AArch64 big-endian": "arm64-be", "s390x": "s390x"}


def made(target: Target, count: int) -> list[list[str]]:
    """`count` programs, or a few less: the same for the same SEED."""
    found: list[list[str]] = []

    @seed(SEED)
    @settings(max_examples=count, database=None, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(programs(target))
    def collect(program: list[str]) -> None:
        found.append(program)

    collect()
    return found


def judge_ours(target: Target, peers: Peers, directory: Path, functions: list[list[str]]) -> compare.Report:
    plain = target.link(peers, source_of([*target.plain, *functions]), directory)
    ours = directory / "ours.so"
    add_section(plain, output=ours, verify=False)
    report = check(ours, second_reader=True)
    assert report.worst() in (None, Severity.NOTE), report.findings
    return compare.compare(plain, ours, peers)


@pytest.mark.dear
@for_each("abi", ABI_NAMES)
def test_programs(peers: Peers, tmp_path: Path, abi: str) -> None:
    begin = time.monotonic()
    target = TARGETS[ABI_NAMES[abi]]
    functions = made(target, PROGRAMS)
    bench = Bench(target, peers, tmp_path)
    readings: list[Reading] = []
    verdicts: Counter[compare.Verdict] = Counter()
    for first in range(0, len(functions), BATCH):
        batch = functions[first : first + BATCH]
        report = judge_ours(target, peers, tmp_path, batch)
        assert report.ok, report
        verdicts += report.rows
        readings += bench.read(batch)
    assert not [body for body, reading in zip(functions, readings, strict=True) if reading.said == "refused"]

    differences = [reading.difference for reading in readings]
    unclear = [number for number, difference in enumerate(differences) if difference and needs_shrinking(difference)]
    smallest = bench.shrink([functions[number] for number in unclear], [differences[number] for number in unclear])
    shapes = dict(zip(unclear, (shape(target, body) for body in smallest), strict=True))
    kinds: Counter[str] = Counter()
    unknown = []
    for number, difference in enumerate(differences):
        found = kinds_of(difference, shapes.get(number, ""))
        kinds.update(found[:1] if difference else [])
        if difference and not found:
            unknown.append((difference, smallest[unclear.index(number)]))
    assert not unknown, unknown[:5]

    pairs = [pair for reading in readings for pair in zip(reading.cfi, reading.gnu, strict=False)]
    agreed = sum(row.rule is not None and row.rule == rule for row, rule in pairs)
    rows = sum(len(reading.cfi) for reading in readings)
    print(f"\n{abi}: seed {SEED}, {len(functions)} programs, {rows} rows, {time.monotonic() - begin:.0f} s")
    print(f"  sframegen: {dict(Counter({verdict.name.lower(): rows for verdict, rows in verdicts.items()}))}")
    print(f"  GNU as: {agreed} rows as the CFI, {sum(not d for d in differences)} programs without a difference; with one:")
    print("".join(f"    {count:5} {kind}\n" for kind, count in kinds.most_common()))
    assert agreed > rows / 20  # there was something to compare


class Example(NamedTuple):
    kind: str
    abi: str
    program: str
    cfi: str
    gnu: str
    ours: str


def examples() -> list[Example]:
    """The lines of gnu_as.txt, each under the name of its kind."""
    sections = KNOWN.read_text().split("\n# ")[1:]
    return [Example(kind, *line.split(" | ")) for kind, *lines in map(str.splitlines, sections) for line in lines if line]


def told(rule: Rule | None, otherwise: str) -> str:
    if rule is None:
        return otherwise
    return "RA undefined" if rule.ra == "undefined" else " ".join(filter(None, (*rule[:3], "signal" * rule.signal, rule.key)))


def verdict_of(example: Example) -> Verdict:
    """Of the last row that GNU as wrote, or did not write, for a program of tests/differential/gnu_as.txt."""
    if example.kind == "Registers that stack tracers do not have":
        return Verdict.EQUAL  # true, and of no use
    if example.kind == "FDEs without rows":
        return Verdict.WRONG
    if re.match(r"RA undefined|\(?(?:sp|fp|r\d+)[+-]", example.gnu):
        return Verdict.WRONG
    return Verdict.INEXPRESSIBLE if example.ours == "nothing" else Verdict.ABSENT


@for_each("example", examples(), ids=lambda example: f"{example.kind}: {example.abi}: {example.program}")
def test_the_examples(peers: Peers, tmp_path: Path, example: Example) -> None:
    """The last row is as gnu_as.txt has it, and nothing can be left out of the program."""
    target = TARGETS[ABI_NAMES[example.abi]]
    body = [line.strip() for line in example.program.split(";")]
    bench = Bench(target, peers, tmp_path)
    (reading,) = bench.read([body])
    report = judge_ours(target, peers, tmp_path, [body])
    assert report.ok, report

    assert told(reading.cfi[-1].rule, reading.cfi[-1].reason) == example.cfi
    assert (reading.said or told(reading.gnu[-1], "nothing")) == example.gnu
    assert example.ours == (example.cfi if reading.cfi[-1].rule else "nothing")
    assert example.kind in kinds_of(reading.difference, shape(target, body))
    assert bench.shrink([body], [reading.difference]) == [body]

    if example.kind != "The assembler stops":  # of GNU as's section `check` says the same
        gnu = check(target.link(peers, source_of([["nop"], body]), tmp_path, "--gsframe"))
        expected = verdict_of(example)
        assert gnu.code[expected] >= target.nop_size
        assert (gnu.code[Verdict.WRONG] > 0) == (expected is Verdict.WRONG)
        errors = {finding.rule for finding in gnu.findings if finding.severity is Severity.ERROR}
        assert errors <= {"cfi-rule", "cfi-inexpressible"}
