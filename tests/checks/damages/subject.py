"""A file with a section that is to be damaged: where in it what can be damaged, and the same file with another section."""

from __future__ import annotations

from bisect import bisect_right
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

from linker.existing.add_or_replace import find_base, make_change, plan_section
from linker.existing.in_place import find_slot
from linker.inject.apply import write_changed_file
from sframegen.checks.against_cfi import ALL_REGISTERS
from sframegen.checks.check import check_file
from sframegen.checks.finding import CheckReport, Finding, Severity
from sframegen.conversion.cfi_sections import find_sources
from sframegen.conversion.convert import convert_sources
from sframegen.elf.file import ElfFile, open_elf
from sframegen.format.abi import Abi, abi_of
from sframegen.format.decode import decode
from sframegen.format.layouts import WRITABLE
from sframegen.format.locate import find_sframe
from sframegen.format.model import Rule
from sframegen.tables.levels import LEVELS, LevelName

ROOM = 1 << 13  # zeros after a section: some damages make it longer
MASK = (1 << 64) - 1


class NotHereError(Exception):
    """What was drawn cannot be damaged in that way."""


class NowhereError(Exception):
    """Nothing in this file can."""


class Site(NamedTuple):
    """A row of a function, not of PC type MASK, whose first byte has the rule that the CFI gives it."""

    function: int
    row: int
    start: int
    end: int  # where the next row or no row is
    rule: Rule
    before: Rule | None


def with_section(file: Path, level: LevelName, version: int) -> bytes:
    """The file as add-section makes it, with room after the section."""
    base = find_base(open_elf(file))
    converted = convert_sources(find_sources(base.elf), base.elf.executable_ranges(), abi_of(base.elf), WRITABLE[version])
    encoder = converted.make_encoder(base.elf, LEVELS[level])
    encoder.size_bytes += ROOM
    out = BytesIO()
    write_changed_file(ElfFile(base.elf.data), make_change(plan_section(base, encoder, frozenset()), base, encoder), out)
    return out.getvalue()


class Subject:
    """A program or library with a section, undamaged."""

    def __init__(self, name: str, data: bytes) -> None:
        self.name = name
        self.data = data
        self.elf = ElfFile(memoryview(data), name)
        self.abi: Abi = abi_of(self.elf)
        found = find_sframe(self.elf)
        assert found is not None
        self.section = decode(*found)
        self.table = self.section.table
        self.layout = self.section.layout
        self.report: CheckReport = check_file(self.elf)
        self.known = set(self.report.findings)

    @cached_property
    def code(self) -> tuple[list[tuple[int, int]], list[tuple[int, int, int]]]:
        """What the CFI describes: (start, end) of its functions; (start, end, number of the Reason) of what cannot be said."""
        abi = self.abi._replace(base_registers=ALL_REGISTERS)
        coverage = convert_sources(find_sources(self.elf), self.elf.executable_ranges(), abi).coverage
        _, starts, ends = coverage.fde_ranges
        unsaid = [(start, start + size, reason) for start, size, reason in zip(*coverage.uncovered, strict=True)]
        return list(zip(starts, ends, strict=True)), unsaid

    def described(self, address: int) -> bool:
        """True if the CFI describes the code there, in a function of which the section says nothing wrong."""
        pieces = self.code[0]
        number = bisect_right(pieces, (address, MASK)) - 1
        if number < 0 or not pieces[number][0] <= address < pieces[number][1]:
            return False
        return pieces[number] not in self._faulty

    @cached_property
    def _faulty(self) -> set[tuple[int, int]]:
        wrong = [finding.address for finding in self.known if finding.rule.startswith("cfi-") and finding.address is not None]
        return {(start, end) for start, end in self.code[0] if any(start <= address < end for address in wrong)}

    @cached_property
    def sites(self) -> list[Site]:
        found = []
        for function in range(len(self.table)):
            if self.table.kinds[self.table.kind[function]].mask:
                continue
            start, rows = self.table.start[function], self.table.rows(function)
            ends = [offset for offset, _ in rows[1:]] + [self.table.size[function]]
            rules = [None, *(rule for _, rule in rows)]
            for row, ((offset, rule), end) in enumerate(zip(rows, ends, strict=True)):
                if self.described(start + offset):
                    found.append(Site(function, row, start + offset, start + end, rule, rules[row]))
        return found

    def file(self, section: bytes) -> bytearray:
        """The file with that section in the place of its own. NotHereError where it does not fit."""
        place = find_slot(self.elf)
        if len(section) > place.size:
            raise NotHereError
        data = bytearray(self.data)
        data[place.offset : place.offset + place.size] = section.ljust(place.size, b"\0")
        return data

    def new_findings(self, data: bytes | bytearray) -> list[Finding]:
        """Of the file when it is damaged, without those that it has undamaged."""
        report = check_file(ElfFile(memoryview(bytes(data)), self.name))
        return [finding for finding in report.findings if finding not in self.known]

    @property
    def faults(self) -> set[str]:
        """Rules that it breaks undamaged."""
        return {finding.rule for finding in self.known if finding.severity > Severity.NOTE}
