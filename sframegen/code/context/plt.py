"""The procedure linkage table (PLT) of linkers: entries, recognised by their instructions, with their rows and targets."""

from __future__ import annotations

from itertools import islice

from sframegen.base.quick_typing import TYPE_CHECKING, NamedTuple
from sframegen.code.isa.effects import Flow
from sframegen.code.isa.machines import machine_of
from sframegen.elf.records import MAX_ADDRESS, SHF, SHT
from sframegen.format.model import FunctionTable, Kind, Rule, Where

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sframegen.code.decoding.decoded_code import DecodedCode
    from sframegen.code.isa.instruction_set import Stub
    from sframegen.elf.file import ElfFile
    from sframegen.elf.ranges import Range
    from sframegen.format.abi import Abi

MAX_SIZE = 1 << 26  # bytes of a section: four million entries
LONGEST = 32  # bytes of an entry up to its jump
NAMES = (".plt", ".plt.got", ".plt.sec", ".plt.bnd", ".iplt")


class StubRun(NamedTuple):
    """A run of `number` adjacent stubs of one form."""

    start: int
    number: int
    stub: Stub


class Plt(NamedTuple):
    """The PLT of a linked file: ascending runs without overlaps; none for unknown code."""

    abi: Abi
    runs: list[StubRun]

    def entries(self) -> set[int]:
        return {run.start + number * run.stub.size for run in self.runs for number in range(run.number)}

    def functions(self, within: list[Range] | None = None) -> FunctionTable:
        """Return the functions that a linker adds for the PLT, at absolute addresses, ascending.

        Kinds as GNU ld's: entries in one function whose rows repeat with their size, the first one in a function of its own.
        `within`: only stubs that lie in these ranges, which ascend without overlaps.
        """
        table = FunctionTable()
        ra = Where(None, self.abi.fixed_ra_offset, deref=True) if self.abi.fixed_ra_offset else None
        kinds: dict[Kind, int] = {}
        rules: dict[Rule, int] = {}
        for runs in _group_alike(_inside(self.runs, within)):
            start, end = runs[0].start, _end(runs[-1])
            stub = runs[0].stub
            kind = Kind(rep_size=stub.size, mask=True) if stub.repeats and len(runs) == 1 else Kind()
            rows = [
                (offset, rules.setdefault(Rule(Where(self.abi.sp, above_sp), ra), len(rules))) for offset, above_sp in stub.rows
            ]
            table.append(start, end - start, kinds.setdefault(kind, len(kinds)), rows)
        table.kinds, table.rules = list(kinds), list(rules)
        return table


def find_plt(elf: ElfFile, abi: Abi) -> Plt:
    """Find the PLT in one pass over the sections; of sections that overlap only the first counts."""
    runs: list[StubRun] = []
    for run in sorted(_find_runs(elf, abi), key=lambda run: run.start):
        if run.stub.rows and (not runs or run.start >= _end(runs[-1])):
            runs.append(run)
    return Plt(abi, runs)


def plt_slot_of(piece: DecodedCode) -> int | None:
    """Return the address of the pointer that an entry jumps through. `piece`: its first bytes."""
    jump = next(piece.flow_points(), None)
    if jump is None or jump.flow is not Flow.INDIRECT:
        return None
    find = piece.frames.isa.slot
    if jump.slot is not None or find is None:
        return jump.slot
    return find(map(piece.instruction, range(len(piece))), jump.address)


def _end(run: StubRun) -> int:
    return run.start + run.number * run.stub.size


def _find_runs(elf: ElfFile, abi: Abi) -> Iterator[StubRun]:
    for name in NAMES:
        section = elf.section(name)
        if section is None or section.header.sh_type != SHT.PROGBITS or not section.header.sh_flags & SHF.EXECINSTR:
            continue
        code = elf.contents(section)
        address = section.header.sh_addr
        if len(code) > MAX_SIZE or address + len(code) > MAX_ADDRESS:
            raise elf.error(f"{len(code):#x} bytes at address {address:#x}: no PLT", name)
        known = machine_of(abi).plt  # imported only here: a merge of objects, without PLT, takes less time than the import
        at = 0
        while at < len(code):
            stubs = known.others if at else (*known.first, *known.others)
            found = next(((stub, end) for stub in stubs if (end := _match_stubs(stub, code, at)) > at), None)
            if found is None:
                break
            stub, end = found
            yield StubRun(address + at, (end - at) // stub.size, stub)
            at = end


def _match_stubs(stub: Stub, code: memoryview, at: int) -> int:
    """Return the end of the stubs that begin at `at`; `at` if there are none. GNU ld leaves unused entries zero."""
    unused = bytes(stub.size)
    used, end = False, at
    while (matches := stub.code.match(code, end) is not None) or (stub.repeats and code[end : end + stub.size] == unused):
        used |= matches
        end += stub.size
        if not stub.repeats:
            break
    return end if used else at


def _inside(runs: list[StubRun], within: list[Range] | None) -> Iterator[StubRun]:
    """Return the parts of the runs that are in the ranges, as whole stubs."""
    if within is None:
        yield from runs
        return
    place = 0
    for start, number, stub in runs:
        end = start + number * stub.size
        while place < len(within) and within[place][1] <= start:
            place += 1
        for low, high in islice(within, place, None):
            if low >= end:
                break
            first = max(0, -(-(low - start) // stub.size))
            last = min(number, (high - start) // stub.size)
            if first < last:
                yield StubRun(start + first * stub.size, last - first, stub)


def _group_alike(runs: Iterator[StubRun]) -> Iterator[list[StubRun]]:
    """Group adjacent entries of different forms that have the same single row."""
    group: list[StubRun] = []
    for run in runs:
        if group and not _joins(group[-1], run):
            yield group
            group = []
        group.append(run)
    if group:
        yield group


def _joins(one: StubRun, other: StubRun) -> bool:
    stubs = one.stub, other.stub
    alike = one.stub.rows == other.stub.rows and len(one.stub.rows) == 1
    return alike and _end(one) == other.start and one.stub is not other.stub and all(stub.repeats for stub in stubs)
