"""Functions by address, as columns."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from random import Random

from sframegen.elf.file import ElfFile
from sframegen.elf.records import SHF, SHN, SHT, STT, ByteOrder
from sframegen.elf.symbols import FunctionColumns, Symbol
from tests.support.loops import for_each

NAMES = b"\0local\0global\0sized\0resolver\0data\0elsewhere\0open\0$d\0label\0last\0"
# name, st_info, st_shndx, address, size
SYMBOLS = [
    ("sized", STT.FUNC, 1, 0x1000, 0x10),
    ("local", STT.FUNC, 1, 0xFFFFFFFF80000000, 0),
    ("data", STT.OBJECT, 1, 0x1008, 0),
    ("elsewhere", STT.FUNC | 1 << 4, SHN.UNDEF, 0x1004, 0),
    ("resolver", STT.GNU_IFUNC | 1 << 4, 0x100, 0x1020, 0),
    ("global", STT.FUNC | 1 << 4, 1, 0xFFFFFFFF80000000, 4),
    ("open", STT.FUNC, 1, 0x2000, 0),
    ("$d", STT.NOTYPE, 1, 0x2008, 0),
    ("label", STT.NOTYPE | 1 << 4, 1, 0x2010, 0),
    ("last", STT.FUNC, 1, 0x3000, 0),
]
CODE = range(0x3000, 0x3010)  # of the only section with code


def file_of(
    order: ByteOrder, symbols: Sequence[tuple[str, int, int, int, int]] = SYMBOLS, code_at: Sequence[range] = (CODE,)
) -> ElfFile:
    code = "<" if order == "little" else ">"
    table = b"".join(
        struct.pack(f"{code}IBBHQQ", NAMES.index(b"\0" + name.encode() + b"\0") + 1, info, 0, section, address, size)
        for name, info, section, address, size in symbols
    )
    end = 64 * (4 + len(code_at))
    sections = [
        (0,) * 10,
        (0, SHT.SYMTAB, 0, 0, end, len(table), 2, 0, 8, 24),
        (0, SHT.STRTAB, 0, 0, end + len(table), len(NAMES), 0, 0, 1, 0),
        *((0, SHT.PROGBITS, SHF.EXECINSTR, one.start, 0, one.stop - one.start, 0, 0, 1, 0) for one in code_at),
    ]
    ident = b"\x7fELF" + bytes([2, 1 if order == "little" else 2, 1]) + bytes(9)
    header = ident + struct.pack(f"{code}HHIQQQIHHHHHH", 3, 62, 1, 0, 0, 64, 0, 64, 0, 0, 64, len(sections), 0)
    return ElfFile(memoryview(header + b"".join(struct.pack(f"{code}IIQQQQIIQQ", *one) for one in sections) + table + NAMES))


@for_each("order", ["little", "big"])
def test_the_function_that_holds_an_address(order: ByteOrder) -> None:
    columns = FunctionColumns(file_of(order))

    def at(address: int) -> tuple[str, int] | None:
        return next(((symbol.name, symbol.address) for symbol, _ in columns.functions_at([address])), None)

    assert at(0xFFF) is None
    assert at(0x1000) == at(0x100F) == ("sized", 0x1000)
    assert at(0x1010) is None
    assert at(0x1020) == at(0x1FFF) == ("resolver", 0x1020)
    assert at(0x2000) == at(0x200F) == ("open", 0x2000)  # $d begins data of it
    assert at(0x2010) is at(0x2FFF) is None  # a symbol without a type begins there
    assert at(0x3000) == at(0x300F) == ("last", 0x3000)
    assert at(0x3010) is at(0xFFFFFFFF7FFFFFFF) is None  # its section ends there
    assert at(0xFFFFFFFF80000003) == ("global", 0xFFFFFFFF80000000)
    assert at(0xFFFFFFFF80000004) is None
    assert at(0xFFFFFFFFFFFFFFFF) is None


def test_a_file_without_symbols() -> None:
    ident = b"\x7fELF" + bytes([2, 1, 1]) + bytes(9)
    header = ident + struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 0, 0, 0, 64, 0, 0, 0, 0, 0)
    columns = FunctionColumns(ElfFile(memoryview(header)))
    assert columns.functions_at([0]) == []


@for_each("order", ["little", "big"])
def test_many_addresses_at_once(order: ByteOrder) -> None:
    """The same as one after the other, in any order."""
    columns = FunctionColumns(file_of(order))
    addresses = [one for _, _, _, start, size in SYMBOLS for one in (start - 1, start, start + size, start + 1)]
    addresses = [one % (1 << 64) for one in (*reversed(addresses), 0, (1 << 64) - 1)]

    def shown(symbol: Symbol) -> tuple[str, int, int]:
        return symbol.name, symbol.address, symbol.size

    each = {address: shown(symbol) for address in addresses for symbol, _ in columns.functions_at([address])}
    found = columns.functions_at(addresses)
    assert {address: shown(symbol) for symbol, held in found for address in held} == each
    assert len({symbol.address for symbol, _ in found}) == len(found)
    assert {name for name, _, _ in each.values()} == {"sized", "global", "resolver", "open", "last"}


@for_each("seed", range(40))
def test_sections_beside_one_another(seed: int) -> None:
    """A function without a size ends where the section does that holds its beginning; one may reach round the address space."""
    random = Random(seed)
    top = (1 << 64) - 48
    base = random.choice([0x1000, top])
    borders = sorted(base + random.randrange(48) for _ in range(2 * random.randrange(5)))
    code = [range(start, end) for start, end in zip(borders[::2], [*borders[1:-1:2], base + 63], strict=False)]
    for begin in range(base, base + 48):
        columns = FunctionColumns(file_of("little", [("last", STT.FUNC, 1, begin, 0)], code))
        end = next((one.stop for one in code if one.start <= begin < one.stop), 1 << 64)
        held = [address for address in range(base, base + 48) if begin <= address < end]
        assert [address for _, found in columns.functions_at(range(base, base + 48)) for address in found] == held
