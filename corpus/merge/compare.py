"""Compares the sections of two linked files, with GNU's readers and with ours; lists what may differ."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import sframegen
from corpus.merge import fdes
from sframegen.elf.file import open_elf
from sframegen.elf.records import SHF
from sframegen.elf.symbols import read_functions
from tests.support.oracles import sframe_text
from tests.support.oracles.rules import NOTHING, Interner, Rule, pieces

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from corpus.merge.fdes import Fde, Section
    from sframegen.elf.file import ElfFile
    from tests.support.oracles.rules import Table
    from tests.support.peers import Peers

KEPT = 5  # differences that are reported

PLT_GOT = "rows of `.plt.got`, where GNU ld's are wrong"
PLT_NONE = "FDEs of PLTs, of which the linker makes none (GNU ld with `--gc-sections`, lld, mold)"
PLT_SILENT = "rules for PLTs for which the linker wrote no CFI (lld, mold)"
NO_BYTES = "FDEs of no bytes, which linkers keep"
GNU_PLT_GOT = Rule("sp+16", "same", "c-8", signal=False)


@dataclass
class Outcome:
    """What came of one comparison. Nothing in `differences`: what was to be shown is so."""

    fdes: int = 0
    rows: int = 0
    known: Counter[str] = field(default_factory=Counter)  # FDEs, by why they may differ
    differences: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def found(self, difference: str) -> None:
        self.differences.append(difference)

    def joined(self, others: Iterable[Outcome]) -> Outcome:
        for other in others:
            self.known += other.known
            self.differences += other.differences
            self.notes += other.notes
        return self


class Reader:
    """Sections as GNU's tools read them."""

    def __init__(self, peers: Peers, prefix: str = "") -> None:
        self.peers, self.readelf = peers, peers.tool(f"{prefix}readelf")

    def is_native(self, file: Path) -> bool:
        """True if an object holds code, and not what LTO makes code of."""
        return not any(one.name.startswith(".gnu.lto_") for one in open_elf(file).sections)

    def fdes(self, file: Path) -> Section:
        return fdes.read(self.readelf, file, self.peers)

    def rules(self, file: Path, rules: Interner[Rule | None]) -> Table:
        """What holds where, however FDEs divide it."""
        blocks = [fde.block for fde in self.fdes(file).fdes]
        return sframe_text.read(self.readelf, str(file), rules, blocks).table


def sections_of(elf: ElfFile, start: str = "") -> list[tuple[str, int, int]]:
    """(name, address, size) of executable sections whose names begin so."""
    return [
        (one.name, one.header.sh_addr, one.header.sh_size)
        for one in elf.sections
        if one.header.sh_flags & SHF.EXECINSTR and one.name.startswith(start)
    ]


def fde_for_fde(reader: Reader, gnu: Path, ours: Path) -> Outcome:
    """`ours` against the section that GNU ld, or mold, made for the same code."""
    theirs, own = reader.fdes(gnu), reader.fdes(ours)
    outcome = Outcome(len(own.fdes), own.rows)
    plts = sections_of(open_elf(ours), ".plt")
    has_plts = any(_within(fde.start, plts) for fde in theirs.fdes)
    addresses = set()
    for address, what in fdes.differences(theirs, own):
        addresses.add(address)
        first, second = (_at(address, one.fdes) for one in (theirs, own))
        why = _known(address, first, second, plts, has_plts=has_plts)
        if why:
            outcome.known[why] += abs(len(first) - len(second)) or len(second)
        elif len(outcome.differences) < KEPT:
            outcome.found(what)
    tables = [_own(file) for file in (gnu, ours)]
    for address in sorted(tables[0].keys() | tables[1].keys()):
        if (tables[0].get(address) != tables[1].get(address)) != (address in addresses):
            outcome.found(f"{address:#x}: our own reading sees another difference than GNU readelf's")
            break
    return outcome


def _at(address: int, fdes: list[Fde]) -> list[Fde]:
    return [fde for fde in fdes if fde.start == address]


def _within(address: int, sections: list[tuple[str, int, int]]) -> str:
    return next((name for name, start, size in sections if start <= address < start + size), "")


def _known(address: int, gnu: list[Fde], ours: list[Fde], plts: list[tuple[str, int, int]], *, has_plts: bool) -> str:
    if [fde for fde in gnu if fde.size] == [fde for fde in ours if fde.size]:
        return NO_BYTES
    section = _within(address, plts)
    if section and not gnu and not has_plts:
        return PLT_NONE
    if section == ".plt.got" and [fde._replace(rows=()) for fde in gnu] == [fde._replace(rows=()) for fde in ours]:
        texts = [[text for fde in one for _, text in fde.rows] for one in (gnu, ours)]
        return PLT_GOT if texts == [["sp+16 u f"], ["sp+8 u f"]] else ""
    return ""


def _own(file: Path) -> dict[int, list[object]]:
    """By address, what our own reader says of the FDEs there."""
    table = sframegen.read(file).table
    found: dict[int, list[object]] = {}
    for number, start in enumerate(table.start):
        found.setdefault(start, []).append(repr((table.size[number], table.kinds[table.kind[number]], table.rows(number))))
    return {start: sorted(one, key=str) for start, one in found.items()}


class Functions:
    """The functions of a linked file by its symbol table."""

    def __init__(self, file: Path) -> None:
        elf = open_elf(file)
        self.names: dict[int, set[str]] = {}
        ends: dict[int, int] = {}
        for symbol in read_functions(elf):
            self.names.setdefault(symbol.address, set()).add(symbol.name)
            ends[symbol.address] = max(ends.get(symbol.address, 0), symbol.address + symbol.size)
        self._starts = sorted(ends)
        self._ends = [ends[start] for start in self._starts]
        self._plts = sections_of(elf, ".plt")

    def name(self, address: int) -> str:
        """What begins there; of several names all."""
        return " = ".join(sorted(self.names.get(address, ()))) or _within(address, self._plts)

    def covering(self, address: int) -> set[str]:
        """The names of the function that holds this address."""
        place = bisect_right(self._starts, address) - 1
        return self.names[self._starts[place]] if place >= 0 and address < self._ends[place] else set()

    def spans(self) -> Iterator[tuple[int, int, set[str]]]:
        for start, end in zip(self._starts, self._ends, strict=True):
            yield start, end, self.names[start]


def by_name(reader: Reader, one: Path, two: Path) -> Outcome:
    """FDE for FDE, where the two files have the same functions at other addresses: by the symbols at which they begin. FDEs of no
    bytes are left out: which function they stand before depends on the addresses.
    """
    both = []
    outcome = Outcome()
    for file in (one, two):
        functions, section = Functions(file), reader.fdes(file)
        outcome.fdes, outcome.rows = len(section.fdes), section.rows
        both.append(Counter((functions.name(fde.start), *_relative(fde)) for fde in section.fdes if fde.size))
    for side, where in ((both[0] - both[1], "only the first has"), (both[1] - both[0], "only the second has")):
        for what, count in list(side.items())[:KEPT]:
            outcome.found(f"{where}{f', {count} times,' if count > 1 else ''} {what}"[:500])
    return outcome


def _relative(fde: Fde) -> tuple[object, ...]:
    return (fde.size, fde.block, fde.attributes, *((at if fde.block else at - fde.start, text) for at, text in fde.rows))


def described(reader: Reader, file: Path) -> set[str]:
    """Names of the functions that have an FDE."""
    names = Functions(file).names
    return {name for fde in reader.fdes(file).fdes if fde.size for name in names.get(fde.start, ())}


def rule_for_rule(reader: Reader, expected: Path, found: Path, judged: set[str]) -> Outcome:
    """Where `found` says something `expected` says it too, and where `expected` does, in functions of the names `judged`, `found`
    does. Both are files of the same code. PLTs, which no object describes, are compared where `found` describes them.
    """
    rules: Interner[Rule | None] = Interner(None, Rule("overlapping FDEs", "", "", signal=False))
    tables = [reader.rules(file, rules) for file in (expected, found)]
    section, functions = reader.fdes(found), Functions(found)
    plts = sections_of(open_elf(found), ".plt")
    outcome = Outcome(len(section.fdes), section.rows)
    last = (0, NOTHING)  # where the piece before ended, and what `found` said of it
    for start, end, one, two in pieces(*tables):
        names = functions.covering(start)
        before, last = last, (end, two)
        if one == two or (not two and not names & judged):
            continue
        if not one and not names and before == (start, two):
            continue  # padding after a function
        if _within(start, plts) == ".plt.got" and rules.values[two] == GNU_PLT_GOT:
            outcome.known[PLT_GOT] += 1
        elif not one and _within(start, plts):
            outcome.known[PLT_SILENT] += 1
        elif len(outcome.differences) < KEPT:
            outcome.found(f"{start:#x}..{end:#x} in {' = '.join(sorted(names))}: {rules.values[one]} / {rules.values[two]}")
    return outcome
