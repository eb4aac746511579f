"""Ranges of code where a section and the call frame information differ -> findings."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, NamedTuple, Protocol

from sframegen.base.text import count_of, printable
from sframegen.checks.finding import Finding, Severity
from sframegen.elf.function_names import FunctionNames
from sframegen.elf.records import SHF_EXECINSTR
from sframegen.elf.symbols import function_symbols_before
from sframegen.format.equations import equation
from sframegen.format.reasons import Reason

if TYPE_CHECKING:
    from array import array
    from collections.abc import Iterator, Sequence

    from sframegen.conversion.resolve import Pieces
    from sframegen.elf.file import ElfFile
    from sframegen.format.abi import Abi
    from sframegen.format.layouts import Layout
    from sframegen.format.model import FunctionTable, Rule

REASONS = tuple(Reason)
SIGNAL, KEY_B = 1, 2  # flavours
GIVEN = 4  # bits that those of the section are shifted by
SHOWN = 1000  # functions that have findings of their own
NAMED = 3  # functions that a note names


class ComparedSection(Protocol):
    """The side that is compared with the CFI: an SframeSection, or the functions of several."""

    @property
    def table(self) -> FunctionTable: ...

    @property
    def layout(self) -> Layout: ...

    @property
    def index_at(self) -> int | None: ...  # offset of the function index, where all functions have one


class Ranges(NamedTuple):
    """The ranges that a sweep records, as columns."""

    start: array[int]
    end: array[int]
    function: array[int]
    expected: array[int]
    given: array[int]
    flavours: array[int]


class Stretch(NamedTuple):
    """The part of one range that FDE number `fde` describes."""

    fde: int
    start: int
    end: int
    function: int
    expected: int
    given: int
    flavours: int


def wrong(
    elf: ElfFile, section: ComparedSection, abi: Abi, rules: Sequence[Rule], found: list[Stretch], code: int
) -> list[Finding]:
    """One finding for each function of the CFI and each kind of error; `code`: wrong bytes, recorded or not."""
    groups: dict[tuple[int, str], list[Stretch]] = {}
    for one in found:
        groups.setdefault((one.fde, _fault(one, section, abi, rules)[0]), []).append(one)
    shown = list(groups.items())[:SHOWN]
    names = place_names(elf, [group[0].start for _, group in shown])
    findings = []
    for (_, rule), group in shown:
        first = group[0]
        given = equation(rules[first.given], abi)
        message = f"{names[first.start]}, {_bytes(group[:1])}: {given}{_fault(first, section, abi, rules)[1]}"
        if len(group) > 1:
            message += f"; {_bytes(group)} of the function in {len(group):,} ranges"
        offset = None if section.index_at is None else section.index_at + first.function * section.layout.index_size
        findings.append(Finding(rule, Severity.ERROR, message, offset=offset, address=first.start))
    rest = code - sum(one.end - one.start for _, group in shown for one in group)
    if rest:
        findings.append(Finding("cfi-more", Severity.ERROR, f"{rest:,} bytes of other functions are also wrong"))
    return findings


def absent(elf: ElfFile, found: list[Stretch], code: int) -> Finding:
    """`code`: bytes that are absent, recorded or not."""
    first = {one.fde: one.start for one in reversed(found)}
    return _note(elf, "cfi-absent", f"{code:,} bytes of code have CFI that SFrame could express, but are not covered", first)


def undescribed(elf: ElfFile, found: Ranges, code: int) -> Finding:
    """`code`: bytes that the section describes and no CFI does, without padding, recorded or not."""
    first = dict(zip(reversed(found.function), reversed(found.start), strict=True))
    return _note(elf, "cfi-silent", f"{code:,} bytes of code are covered, but have no CFI", first)


def _note(elf: ElfFile, rule: str, says: str, functions: dict[int, int]) -> Finding:
    """`functions`: each with the address of its first range, the last function first."""
    first = [*functions.values()][::-1]
    names = place_names(elf, first[:NAMED])
    message = f"{says}: {', '.join(names.values())}" + (", ..." if len(first) > NAMED else "")
    return Finding(rule, Severity.NOTE, message, address=first[0])


def by_fde(ranges: Ranges, pieces: Pieces) -> Iterator[Stretch]:
    """The ranges, cut where one FDE's code ends and the next one's begins."""
    for start, end, *said in zip(*ranges, strict=True):
        fde = bisect_right(pieces.start, start) - 1
        here = start
        while here < end:
            limit = min(end, pieces.end[fde])
            yield Stretch(fde, here, limit, *said)
            here = limit
            fde += 1


def _fault(one: Stretch, section: ComparedSection, abi: Abi, rules: Sequence[Rule]) -> tuple[str, str]:
    """(the finding's rule, what the CFI says instead)."""
    if one.expected < 0:
        return "cfi-inexpressible", f"; SFrame cannot express the CFI: {REASONS[-1 - one.expected].value}"
    if one.expected != one.given:
        return "cfi-rule", f"; the CFI says {equation(rules[one.expected], abi)}"
    if section.layout.signal and (one.flavours ^ one.flavours >> GIVEN) & SIGNAL:
        is_signal = one.flavours & SIGNAL
        return (
            "cfi-signal",
            f", {'not ' if is_signal else ''}marked as a signal frame; the CFI {'does' if is_signal else 'does not'}",
        )
    keys = ("A", "B") if one.flavours & KEY_B else ("B", "A")
    return "cfi-key", f" with key {keys[0]}; the CFI says key {keys[1]}"


def _bytes(ranges: Sequence[Stretch]) -> str:
    return count_of(sum(one.end - one.start for one in ranges), "byte")


def place_names(elf: ElfFile, addresses: Sequence[int]) -> dict[int, str]:
    """Return `main+0x4`, or without a symbol `.plt.got+0x8`."""
    names = FunctionNames(function_symbols_before(elf, addresses))
    sections = sorted((s.header.sh_addr, s.header.sh_size, s.name) for s in elf.sections if s.header.sh_flags & SHF_EXECINSTR)

    def place(address: int) -> str:
        number = bisect_right(sections, address, key=lambda section: section[0]) - 1
        start, size, name = sections[number] if number >= 0 else (0, 0, "")
        return f"{printable(name)}+{address - start:#x}" if address < start + size else f"{address:#x}"

    return {address: names.at(address) or place(address) for address in addresses}
