"""The procedure linkage table (PLT), which linkers make: entries are known by their instructions, and have rows here."""

from __future__ import annotations

import re
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from sframegen.elf.file import MAX_ADDRESS, SHF_EXECINSTR, SHT_PROGBITS
from sframegen.format.model import FunctionTable, Kind, Rule, Where

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sframegen.elf.file import ElfFile
    from sframegen.format.abi import Abi

MAX_SIZE = 1 << 26  # bytes of a section: four million entries
NAMES = (".plt", ".plt.got", ".plt.sec", ".plt.bnd", ".iplt")


class Stub(NamedTuple):
    """Code of `size` bytes; its rows (offset, n): CFA = SP + n. Without rows, nothing can be said of it.

    If it `repeats`, all that follow one another are one function.
    """

    code: re.Pattern[bytes]
    size: int
    rows: tuple[tuple[int, int], ...]
    repeats: bool = True


class Stubs(NamedTuple):
    """`first`: those that a section can only begin with. `others` follow in any order, the first that matches counts."""

    first: tuple[Stub, ...]
    others: tuple[Stub, ...]


class Run(NamedTuple):
    """`number` stubs of one form that follow one another."""

    start: int
    number: int
    stub: Stub


def _stub(code: str, *rows: tuple[int, int], repeats: bool = True) -> Stub:
    """`code`: hexadecimal bytes, `..` any byte, `a&m` those bytes that are `a` under the mask `m`."""
    words = code.split()
    return Stub(re.compile(b"".join(map(_pattern, words)), re.DOTALL), len(words), rows, repeats)


def _pattern(word: str) -> bytes:
    if word == "..":
        return b"."
    value, _, mask = word.partition("&")
    fits = [byte for byte in range(256) if byte & int(mask or "ff", 16) == int(value, 16)]
    return b"[" + b"".join(re.escape(bytes([byte])) for byte in fits) + b"]"


# AMD64. The first entry is jumped to from one that has pushed its number. What follows its jump is never executed.
FIRST = _stub("ff 35 .. .. .. .. ff 25 .. .. .. .. .. .. .. ..", (0, 16), (6, 24), repeats=False)
FIRST_BND = _stub("ff 35 .. .. .. .. f2 ff 25 .. .. .. .. 0f 1f 00", (0, 16), (6, 24), repeats=False)
LAZY = _stub("ff 25 .. .. .. .. 68 .. .. .. .. e9 .. .. .. ..", (0, 8), (11, 16))
LAZY_BND = _stub("68 .. .. .. .. f2 e9 .. .. .. .. 0f 1f 44 00 00", (0, 8), (5, 16))
LAZY_IBT = _stub("f3 0f 1e fa 68 .. .. .. .. e9 .. .. .. .. 66 90", (0, 8), (9, 16))
LAZY_IBT_BND = _stub("f3 0f 1e fa 68 .. .. .. .. f2 e9 .. .. .. .. 90", (0, 8), (9, 16))
TLS_DESCRIPTOR = _stub("f3 0f 1e fa ff 35 .. .. .. .. ff 25 .. .. .. ..", (0, 8), (10, 16), repeats=False)
TLS_DESCRIPTOR_PLAIN = _stub("ff 35 .. .. .. .. ff 25 .. .. .. .. 0f 1f 40 00", (0, 8), (6, 16), repeats=False)
DIRECT = _stub("ff 25 .. .. .. .. 66 90", (0, 8))
DIRECT_BND = _stub("f2 ff 25 .. .. .. .. 90", (0, 8))
DIRECT_IBT = _stub("f3 0f 1e fa ff 25 .. .. .. .. 66 0f 1f 44 00 00", (0, 8))
DIRECT_IBT_BND = _stub("f3 0f 1e fa f2 ff 25 .. .. .. .. 0f 1f 44 00 00", (0, 8))
# mold's entries have their number in r11, which its first entry pushes itself.
FIRST_MOLD = _stub(f"f3 0f 1e fa 41 53 ff 35 .. .. .. .. ff 25 .. .. .. .. {'cc ' * 14}", (0, 8), (6, 16), (12, 24), repeats=False)
LAZY_MOLD = _stub("f3 0f 1e fa 41 bb .. .. .. .. ff 25 .. .. .. ..", (0, 8))
DIRECT_MOLD = _stub("f3 0f 1e fa ff 25 .. .. .. .. cc cc cc cc cc cc", (0, 8))
LAZY_MOLD_PLAIN = _stub("41 bb .. .. .. .. ff 25 .. .. .. .. cc cc cc cc", (0, 8))
DIRECT_MOLD_PLAIN = _stub("ff 25 .. .. .. .. cc cc", (0, 8))
# lld's with -z retpolineplt. All call a function that puts the target in the place of its return address, and returns to it. Where
# the first entry calls it as the others do, their stacks differ at that return: it is left to those who follow instructions.
LOAD_R11, TRAP, TO_R11 = "4c 8b 1d .. .. .. ..", "f3 90 0f ae e8 eb f9", f"4c 89 1c 24 c3 {'cc ' * 11}"
FIRST_RETPOLINE = _stub(f"ff 35 .. .. .. .. {LOAD_R11} e8 0e 00 00 00 {TRAP} {'cc ' * 7}", (0, 16), (6, 24), repeats=False)
FIRST_RETPOLINE_NOW = _stub(f"e8 0b 00 00 00 {TRAP} {'cc ' * 4} {TO_R11}", (0, 8), (20, 16), repeats=False)
RETPOLINE = _stub(TO_R11, repeats=False)
LAZY_RETPOLINE = _stub(f"{LOAD_R11} e8 .. .. .. .. e9 .. .. .. .. 68 .. .. .. .. e9 .. .. .. .. {'cc ' * 5}", (0, 8), (22, 16))
DIRECT_RETPOLINE = _stub(f"{LOAD_R11} e9 .. .. .. .. {'cc ' * 4}", (0, 8))
# AArch64, little-endian in either byte order: RA stays in x30.
ADRP, LOAD, ADD = "10&1f .. .. 90&9f", "11 02&03 40&c0 f9", "10 02&03 00&c0 91"  # x16; x17 by it; x16
BR, NOP, BTI, AUTHENTICATE, PUSH = "20 02 1f d6", "1f 20 03 d5", "5f 24 03 d5", "9f 21 03 d5", "f0 7b bf a9"
BEGINS = ("", BTI)  # with and without a landing pad
ADDS = (ADD, NOP)  # GNU ld 2.47: a no-op for an addition of nothing
FIRST_AARCH64 = tuple(
    _stub(f"{begin} {PUSH} {ADRP} {LOAD} {add} {BR}", (0, 0), (len(begin.split()) + 4, 16), repeats=False)
    for begin in BEGINS
    for add in ADDS
)
OTHERS_AARCH64 = (
    *(
        _stub(f"{begin} {ADRP} {LOAD} {middle} {BR}", (0, 0))
        for begin in BEGINS
        for middle in ("", *ADDS, *(f"{add} {AUTHENTICATE}" for add in ADDS))
    ),
    _stub(NOP, (0, 0)),
    _stub("00 7d 20 d4", (0, 0)),  # a trap: mold's padding
    *(
        _stub(
            f"{begin} e2 0f bf a9 02&1f .. .. 90&9f 03&1f .. .. 90&9f 42 00&03 40&c0 f9 {add} 40 00 1f d6",
            (0, 0), (len(begin.split()) + 4, 16), repeats=False,
        )
        for begin in BEGINS
        for add in ("63 00&03 00&c0 91", NOP)
    ),
)  # fmt: skip
# s390x. RA stays in r14, and r15 is not changed.
FIRST_S390X = _stub(
    "e3 00&ef f0 38 00 24 c0 10 .. .. .. .. d2 07 f0 30 10 08 e3 10 10 10 00 04 07 f1 .. .. .. .. .. ..", (0, 160), repeats=False
)
LAZY_S390X = _stub("c0 10 .. .. .. .. e3 10 10 00 00 04 07 f1 0d 10 e3 10 10 0c 00 14 c0 f4 .. .. .. .. .. .. .. ..", (0, 160))
# mold's: of versions after 1, an entry's address tells its number.
FIRST_S390X_MOLD = _stub(
    "b9 09 00 01 a7 0b ff c2 eb 10 00 01 00 0c b9 08 00 01 "
    "e3 00 f0 38 00 24 c0 10 .. .. .. .. d2 07 f0 30 10 08 e3 10 10 10 00 04 07 f1 00 00 00 00", (0, 160), repeats=False
)  # fmt: skip
LAZY_S390X_MOLD = _stub("c0 10 .. .. .. .. e3 10 10 00 00 04 0d 01 00 00", (0, 160))
LAZY_S390X_MOLD_1 = _stub(f"c0 10 .. .. .. .. e3 10 10 00 00 04 c0 01 .. .. .. .. 07 f1 {'07 00 ' * 6}", (0, 160))
DIRECT_S390X_MOLD = _stub("c0 10 .. .. .. .. e3 10 10 00 00 04 07 f1 00&f8 00", (0, 160))

AARCH64_STUBS = Stubs(FIRST_AARCH64, OTHERS_AARCH64)
STUBS = {
    "AMD64": Stubs(
        (FIRST, FIRST_BND, FIRST_MOLD, FIRST_RETPOLINE, FIRST_RETPOLINE_NOW),
        (
            LAZY, LAZY_IBT, DIRECT, DIRECT_IBT, TLS_DESCRIPTOR, TLS_DESCRIPTOR_PLAIN,
            LAZY_MOLD, DIRECT_MOLD, LAZY_BND, LAZY_IBT_BND, DIRECT_BND, DIRECT_IBT_BND,
            LAZY_MOLD_PLAIN, DIRECT_MOLD_PLAIN, LAZY_RETPOLINE, DIRECT_RETPOLINE, RETPOLINE,
        ),
    ),
    "AArch64": AARCH64_STUBS,
    "AArch64 big-endian": AARCH64_STUBS,
    "s390x": Stubs((FIRST_S390X, FIRST_S390X_MOLD), (LAZY_S390X, LAZY_S390X_MOLD, LAZY_S390X_MOLD_1, DIRECT_S390X_MOLD)),
}  # fmt: skip


class Plt(NamedTuple):
    """The PLT of a linked file: runs that ascend without overlaps; none for code that is not known."""

    abi: Abi
    runs: list[Run]

    def entries(self) -> set[int]:
        """Addresses of stubs."""
        return {run.start + number * run.stub.size for run in self.runs for number in range(run.number)}

    def functions(self, within: list[tuple[int, int]] | None = None) -> FunctionTable:
        """The functions that a linker adds for it, at absolute addresses, ascending.

        Kinds as GNU ld's: entries in one function whose rows repeat with their size, the first one in a function of its own.
        `within`: only stubs that lie in these ranges, which ascend without overlaps.
        """
        table = FunctionTable()
        ra = Where(None, self.abi.fixed_ra_offset, deref=True) if self.abi.fixed_ra_offset else None
        kinds: dict[Kind, int] = {}
        rules: dict[Rule, int] = {}
        for runs in _alike(_inside(self.runs, within)):
            start, end = runs[0].start, _end(runs[-1])
            stub = runs[0].stub
            table.start.append(start)
            table.size.append(end - start)
            kind = Kind(rep_size=stub.size, mask=True) if stub.repeats and len(runs) == 1 else Kind()
            table.kind.append(kinds.setdefault(kind, len(kinds)))
            for offset, above_sp in stub.rows:
                table.row_start.append(offset)
                table.row_rule.append(rules.setdefault(Rule(Where(self.abi.sp, above_sp), ra), len(rules)))
            table.first_row.append(len(table.row_start))
        table.kinds, table.rules = list(kinds), list(rules)
        return table


def find_plt(elf: ElfFile, abi: Abi) -> Plt:
    """By one pass over the sections; of those that overlap only the first counts."""
    runs: list[Run] = []
    for run in sorted(_found(elf, STUBS[abi.name]), key=lambda run: run.start):
        if run.stub.rows and (not runs or run.start >= _end(runs[-1])):
            runs.append(run)
    return Plt(abi, runs)


def _end(run: Run) -> int:
    return run.start + run.number * run.stub.size


def _found(elf: ElfFile, known: Stubs) -> Iterator[Run]:
    for name in NAMES:
        section = elf.section(name)
        if section is None or section.header.sh_type != SHT_PROGBITS or not section.header.sh_flags & SHF_EXECINSTR:
            continue
        code = elf.contents(section)
        address = section.header.sh_addr
        if len(code) > MAX_SIZE or address + len(code) > MAX_ADDRESS:
            raise elf.error(f"{len(code):#x} bytes at address {address:#x}: no PLT", name)
        at = 0
        while at < len(code):
            stubs = known.others if at else (*known.first, *known.others)
            found = next(((stub, end) for stub in stubs if (end := _match(stub, code, at)) > at), None)
            if found is None:
                break
            stub, end = found
            yield Run(address + at, (end - at) // stub.size, stub)
            at = end


def _match(stub: Stub, code: memoryview, at: int) -> int:
    """Where the stubs that begin at `at` end; `at` if there are none. Entries that GNU ld reserved and did not use are zero."""
    unused = bytes(stub.size)
    used, end = False, at
    while (matches := stub.code.match(code, end) is not None) or (stub.repeats and code[end : end + stub.size] == unused):
        used |= matches
        end += stub.size
        if not stub.repeats:
            break
    return end if used else at


def _inside(runs: list[Run], within: list[tuple[int, int]] | None) -> Iterator[Run]:
    """What of the runs is in the ranges, as whole stubs; they may follow one another in a range."""
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
                yield Run(start + first * stub.size, last - first, stub)


def _alike(runs: Iterator[Run]) -> Iterator[list[Run]]:
    """Entries of different forms that follow one another and have the same one row, together."""
    group: list[Run] = []
    for run in runs:
        if group and not _joins(group[-1], run):
            yield group
            group = []
        group.append(run)
    if group:
        yield group


def _joins(one: Run, other: Run) -> bool:
    stubs = one.stub, other.stub
    alike = one.stub.rows == other.stub.rows and len(one.stub.rows) == 1
    return alike and _end(one) == other.start and one.stub is not other.stub and all(stub.repeats for stub in stubs)
