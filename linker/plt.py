"""The procedure linkage table (PLT), which no object brings along: entries are known by their instructions, and have rows here."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from sframegen.elf import MAX_ADDRESS, SHF_EXECINSTR, SHT_PROGBITS
from sframegen.model import FunctionTable, Kind, Rule, Where

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sframegen.abi import Abi
    from sframegen.elf import ElfFile

MAX_SIZE = 1 << 26  # bytes of a section: four million entries


class Stub(NamedTuple):
    """Code of `size` bytes; its rows (offset, n): CFA = SP + n. If it `repeats`, all that follow one another are one function."""

    code: re.Pattern[bytes]
    size: int
    rows: tuple[tuple[int, int], ...]
    repeats: bool = True


def _stub(code: str, *rows: tuple[int, int], repeats: bool = True) -> Stub:
    """`code`: hexadecimal bytes, `..` any byte."""
    words = code.split()
    pattern = b"".join(b"." if word == ".." else re.escape(bytes.fromhex(word)) for word in words)
    return Stub(re.compile(pattern, re.DOTALL), len(words), rows, repeats)


# AMD64. The first entry is jumped to from one that has pushed its number. What follows its jump is never executed.
FIRST = _stub("ff 35 .. .. .. .. ff 25 .. .. .. .. .. .. .. ..", (0, 16), (6, 24), repeats=False)
LAZY = _stub("ff 25 .. .. .. .. 68 .. .. .. .. e9 .. .. .. ..", (0, 8), (11, 16))
LAZY_IBT = _stub("f3 0f 1e fa 68 .. .. .. .. e9 .. .. .. .. 66 90", (0, 8), (9, 16))
TLS_DESCRIPTOR = _stub("f3 0f 1e fa ff 35 .. .. .. .. ff 25 .. .. .. ..", (0, 8), (10, 16), repeats=False)
DIRECT = _stub("ff 25 .. .. .. .. 66 90", (0, 8))
DIRECT_IBT = _stub("f3 0f 1e fa ff 25 .. .. .. .. 66 0f 1f 44 00 00", (0, 8))
# s390x. RA stays in r14, and r15 is not changed.
FIRST_S390X = _stub(
    "e3 10 f0 38 00 24 c0 10 .. .. .. .. d2 07 f0 30 10 08 e3 10 10 10 00 04 07 f1 .. .. .. .. .. ..", (0, 160), repeats=False
)
LAZY_S390X = _stub("c0 10 .. .. .. .. e3 10 10 00 00 04 07 f1 0d 10 e3 10 10 0c 00 14 c0 f4 .. .. .. .. .. .. .. ..", (0, 160))

# ABI -> section -> the stubs that it has, in their order: one of each group, and a section that begins otherwise is not known.
SECTIONS: dict[str, dict[str, tuple[tuple[Stub, ...], ...]]] = {
    "AMD64": {
        ".plt": ((FIRST,), (LAZY, LAZY_IBT), (TLS_DESCRIPTOR,)),
        ".plt.got": ((DIRECT, DIRECT_IBT),),
        ".plt.sec": ((DIRECT_IBT,),),
    },
    "s390x": {".plt": ((FIRST_S390X,), (LAZY_S390X,))},
}


def plt_functions(elf: ElfFile, abi: Abi) -> FunctionTable:
    """The functions that a linker adds for a linked file's PLT, at absolute addresses, ascending; none for code that is not known.

    Kinds as GNU ld's: entries in one function whose rows repeat with their size, the first one in a function of its own.
    """
    table = FunctionTable()
    ra = Where(None, abi.fixed_ra_offset, deref=True) if abi.fixed_ra_offset else None
    kinds: dict[Kind, int] = {}
    rules: dict[Rule, int] = {}
    for start, count, stub in sorted(_stubs(elf, abi), key=lambda found: found[0]):
        table.start.append(start)
        table.size.append(count * stub.size)
        kind = Kind(rep_size=stub.size, mask=True) if stub.repeats else Kind()
        table.kind.append(kinds.setdefault(kind, len(kinds)))
        for offset, above_sp in stub.rows:
            table.row_start.append(offset)
            table.row_rule.append(rules.setdefault(Rule(Where(abi.sp, above_sp), ra), len(rules)))
        table.first_row.append(len(table.row_start))
    table.kinds, table.rules = list(kinds), list(rules)
    return table


def _stubs(elf: ElfFile, abi: Abi) -> Iterator[tuple[int, int, Stub]]:
    """(address, how many there are, what they are) of each run of equal stubs."""
    for name, groups in SECTIONS.get(abi.name, {}).items():
        section = elf.section(name)
        if section is None or section.header.sh_type != SHT_PROGBITS or not section.header.sh_flags & SHF_EXECINSTR:
            continue
        code = elf.contents(section)
        address = section.header.sh_addr
        if len(code) > MAX_SIZE or address + len(code) > MAX_ADDRESS:
            raise elf.error(f"{len(code):#x} bytes at address {address:#x}: no PLT", name)
        at = 0
        for group in groups:
            found = next(((stub, end) for stub in group if (end := _end(stub, code, at)) > at), None)
            if found:
                stub, end = found
                yield address + at, (end - at) // stub.size, stub
                at = end
            elif at == 0:
                break


def _end(stub: Stub, code: memoryview, at: int) -> int:
    """Where the stubs that begin at `at` end; `at` if there are none. Entries that GNU ld reserved and did not use are zero."""
    unused = bytes(stub.size)
    used, end = False, at
    while (matches := stub.code.match(code, end) is not None) or (stub.repeats and code[end : end + stub.size] == unused):
        used |= matches
        end += stub.size
        if not stub.repeats:
            break
    return end if used else at
