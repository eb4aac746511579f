"""A section against the call frame information of its file, at every byte of executable code."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from itertools import compress
from typing import TYPE_CHECKING

from sframegen.base.columns import ascends, order_of, zeros
from sframegen.checks.against_cfi import sweep
from sframegen.checks.against_cfi.differences import KEY_B, REASONS, SIGNAL, Ranges, absent, by_fde, place_names, undescribed, wrong
from sframegen.checks.finding import Finding, Severity
from sframegen.conversion.convert import convert_sources
from sframegen.conversion.split import Unsaid
from sframegen.elf.columns import Spans, spans_of
from sframegen.format.columns import Functions
from sframegen.format.model import OUTERMOST, FdeType, Rule, Where
from sframegen.format.reasons import Reason
from sframegen.format.words import RuleWords

if TYPE_CHECKING:
    from collections.abc import Callable

    from sframegen.checks.against_cfi.differences import ComparedSection
    from sframegen.conversion.sources import Sources
    from sframegen.elf.file import ElfFile
    from sframegen.format.abi import Abi
    from sframegen.format.model import FunctionTable

# Registers that rules may name. Whether stack tracers have the register is another check.
ALL_REGISTERS = range(32)
ROOM = 1 << 16  # ranges that are recorded; of further ones only the bytes are counted


class Verdict(Enum):
    """What the section says of a byte of executable code, compared with the CFI. The value is the text for people."""

    # The order is that of sweep.py.

    EQUAL = "as the CFI says"  #: the section has the CFI's rule
    ABSENT = "missing: expressible, but not covered"  #: the section has none, though SFrame can say the CFI's
    INEXPRESSIBLE = "missing: not expressible in SFrame"  #: the section has none, as SFrame cannot say the CFI's
    WRONG = "wrong"  #: the section has another rule than the CFI
    UNDESCRIBED = "covered without CFI"  #: the section has a rule, the CFI has none
    SILENT = "neither covered nor described by CFI"  #: neither has a rule


@dataclass
class Truth:
    """Bytes of executable code by verdict, and the findings.

    `table`: what SFrame can say of the CFI. `wrong`: ranges of code of which the section says something wrong, ascending; None
    where there are too many to know.
    """

    code: dict[Verdict, int]
    table: FunctionTable
    wrong: list[tuple[int, int]] | None = None
    findings: list[Finding] = field(default_factory=list)

    @property
    def compared_bytes(self) -> int:
        """Bytes of code that both the section and the CFI describe."""
        return self.code[Verdict.EQUAL] + self.code[Verdict.WRONG]


def compare(elf: ElfFile, section: ComparedSection, sources: Sources, abi: Abi) -> Truth:
    """Compare a section with the CFI on all executable code of its file, which is for that ABI.

    Raises FormatError where the section or the CFI cannot be read, or executable segments overlap or are not in the file.
    """
    code = _code(elf)
    table, coverage, _ = convert_sources(sources, elf.executable_ranges(), abi._replace(base_registers=ALL_REGISTERS))
    rules: dict[Rule, Rule] = {}
    truth, left_out, given = _walker(table, abi, rules), _reasons(_readable(coverage.unsaid)), _walker(section.table, abi, rules)
    marks = SIGNAL if section.layout.signal else 0
    sayable = bytes(map(any, map(RuleWords(abi, section.layout).of, rules.values())))
    compared = bytes(marks | (KEY_B if rule.ra_signed else 0) for rule in rules)

    terms = sweep.Terms(sayable, compared, SIGNAL & ~marks)

    def run(wanted: int, code: Spans = code) -> tuple[array[int], Ranges, bool]:
        """(bytes of each verdict, ranges of the wanted one, whether these are all)."""
        totals = zeros("Q", len(Verdict))
        found = Ranges(zeros("Q", ROOM), zeros("Q", ROOM), zeros("I", ROOM), zeros("i", ROOM), zeros("i", ROOM), zeros("B", ROOM))
        ranges = sweep.VerdictRanges(*found)
        sweep.sweep(code, truth(), left_out(), given(), terms, wanted, ranges, totals)
        count, total = ranges.count, ranges.total
        del ranges  # which borrows the columns
        for column in found:
            del column[count:]
        return totals, found, count == total

    totals, found, is_all = run(sweep.WRONG)
    recorded = list(zip(found.start, found.end, strict=True))
    result = Truth(dict(zip(Verdict, totals, strict=True)), table, recorded if is_all else None)
    if result.code[Verdict.WRONG]:
        ranges = list(by_fde(found, coverage.pieces))
        result.findings += wrong(elf, section, abi, list(rules.values()), ranges, result.code[Verdict.WRONG])
    if result.code[Verdict.ABSENT]:
        _, found, _ = run(sweep.ABSENT)
        result.findings.append(absent(elf, list(by_fde(found, coverage.pieces)), result.code[Verdict.ABSENT]))
    if result.code[Verdict.UNDESCRIBED]:
        silent = coverage.silent(elf)
        totals, found, _ = run(sweep.UNDESCRIBED, spans_of(silent))
        if totals[sweep.UNDESCRIBED]:
            result.findings.append(undescribed(elf, found, totals[sweep.UNDESCRIBED]))
    names = place_names(elf, [fault.start for fault in coverage.faults])
    result.findings += [
        Finding("cfi-fde", Severity.NOTE, f"{names[fault.start]}: its CFI cannot be read: {fault}", address=fault.start)
        for fault in coverage.faults
    ]
    if coverage.faulty_fdes > len(coverage.faults):
        rest = coverage.faulty_fdes - len(coverage.faults)
        result.findings.append(Finding("cfi-fde", Severity.NOTE, f"{rest:,} more FDEs cannot be read"))
    if not sources.sections:
        result.findings.append(Finding("cfi-none", Severity.NOTE, "no call frame information to compare it with"))
    return result


def _code(elf: ElfFile) -> Spans:
    """The executable ranges: apart, and no more of them than the file holds."""
    starts, ends = array("Q"), array("Q")
    for start, end in elf.executable_ranges():
        elf.at(start, end - start)
        if ends and start < ends[-1]:
            raise elf.error(f"executable segments overlap at {start:#x}", "program header table")
        starts.append(start)
        ends.append(end)
    if sum(ends) - sum(starts) > len(elf.data):
        raise elf.error("executable segments are larger than the file", "program header table")
    return Spans(starts, ends)


def _walker(table: FunctionTable, abi: Abi, rules: dict[Rule, Rule]) -> Callable[[], sweep.RuleWalker]:
    """Add the table's rules to `rules`: plain form -> rule to print. The order of `rules` numbers them."""
    order = array("I") if ascends(table.start) else order_of(table.start, 0, len(table))
    plain = [_plain(rule, abi) for rule in [OUTERMOST, *table.rules]]
    for form, rule in zip(plain, [OUTERMOST, *table.rules], strict=True):
        rules.setdefault(form, rule)
    place = {form: number for number, form in enumerate(rules)}
    outermost, *said = (place[form] for form in plain)
    return partial(
        sweep.RuleWalker,
        order, table.columns(), array("i", said),
        bytes(SIGNAL * kind.signal + KEY_B * kind.key_b for kind in table.kinds),
        bytes(kind.rep_size if kind.mask else 0 for kind in table.kinds),
        array("i", [-1 if kind.fde_type is FdeType.FLEX else outermost for kind in table.kinds]),
    )  # fmt: skip


def _readable(left_out: Unsaid) -> Unsaid:
    """Leave out the code of FDEs that cannot be read: SFrame may or may not be able to express it."""
    unreadable = REASONS.index(Reason.UNREADABLE)
    if unreadable not in left_out.reason:
        return left_out
    kept = [reason != unreadable for reason in left_out.reason]
    return Unsaid(*(array(code, compress(column, kept)) for code, column in zip("QIB", left_out, strict=True)))


def _reasons(left_out: Unsaid) -> Callable[[], sweep.RuleWalker]:
    """The values of its ranges are the numbers of the reasons."""
    count = len(left_out.start)
    functions = Functions(
        left_out.start, left_out.size, zeros("H", count), array("I", range(count + 1)), zeros("I", count),
        array("I", list(left_out.reason)),
    )  # fmt: skip
    return partial(
        sweep.RuleWalker,
        array("I"), functions, array("i", range(len(REASONS))), bytes(1), bytes(1), array("i", [-1]),
    )  # fmt: skip


def _plain(rule: Rule, abi: Abi) -> Rule:
    """One form for all rules that give the same values: `*(cfa - 8)` with CFA = rsp + 16 is `*(rsp + 8)`."""
    cfa = rule.cfa
    if cfa is None:
        return OUTERMOST

    def plain(where: Where | None, own: int) -> Where | None:
        if where is not None and where.register is None and not cfa.deref:
            where = Where(cfa.register, where.offset + cfa.offset, where.deref)
        return None if where == (own, 0, False) else where

    return rule._replace(ra=plain(rule.ra, abi.ra), fp=plain(rule.fp, abi.fp))
