"""Judges a section outside of sframegen: rules at every PC as GNU readelf prints them, and libsframe's look-up of random PCs."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from tests.support.oracles import cfi_text
from tests.support.oracles.compare import Verdict, compare, judge
from tests.support.oracles.files import elf_facts
from tests.support.oracles.libsframe import Decoder
from tests.support.oracles.rules import ABIS, Interner, Rule

if TYPE_CHECKING:
    from pathlib import Path
    from random import Random

    from corpus.kernel_sections.loaded import Loaded
    from tests.support.peers import Peers

SHOWN = 5


class Judged(NamedTuple):
    """`bytes`: of code, by verdict; `unsaid`: bytes for which SFrame has no words, by reason; `looked_up`: PCs, by verdict."""

    functions: int
    fdes: int
    not_looked_up: int  # FDEs of code that is freed or runs elsewhere
    bytes: Counter[str]
    unsaid: Counter[str]
    looked_up: Counter[str]
    differences: list[str]

    @property
    def is_right(self) -> bool:
        return not self.differences and not self.looked_up["wrong"] and not self.looked_up["missing"]


def judged(loaded: Loaded, path: Path, pcs: int, random: Random, peers: Peers) -> Judged:
    """`path`: where to write it; `pcs`: how many to look up. Raises OracleError."""
    loaded.write(path)
    report = compare(path, path, peers)
    return Judged(
        report.functions,
        report.fdes,
        report.fdes_outside,
        Counter({verdict.name.lower(): report.bytes[verdict] for verdict in Verdict if verdict and report.bytes[verdict]}),
        report.bytes_by_reason,
        _looked_up(loaded, path, pcs, random, peers),
        report.differences[:SHOWN],
    )


def _looked_up(loaded: Loaded, path: Path, pcs: int, random: Random, peers: Peers) -> Counter[str]:
    """Of random PCs in judged code: what libsframe says, beside the CFI."""
    abi, rules = ABIS[loaded.machine], Interner[Rule | None](None, Rule("", "", "", signal=False))
    cfi = cfi_text.read(peers.tool("readelf"), str(path), abi, elf_facts(path).executable())
    code = [piece for piece in loaded.code if piece.judged and piece.data]
    decoder = Decoder(peers.libsframe(), loaded.section[1], loaded.section[0], abi, rules)
    found: Counter[str] = Counter()
    try:
        for piece in random.choices(code, [len(piece.data) for piece in code], k=pcs):
            pc = piece.address + random.randrange(len(piece.data))
            step = cfi.table.at(pc)
            row = cfi.rows.values[cfi.table.ids[step]] if step >= 0 else cfi_text.SILENT
            verdict = judge(row, rules.values[decoder.find(pc)])
            found["padding" if verdict is Verdict.COVERED else verdict.name.lower()] += 1
    finally:
        decoder.close()
    return found
