"""Locates the functions of an object's `.sframe` sections by the relocations of their start fields, as linkers do.

The start field of an FDE means nothing before the link: its relocation's symbol and addend say where in which section the code is.
"""

from __future__ import annotations

from functools import cache

from linker.objects.laid_out import check_disjoint, is_sframe, starts_are_section_relative
from sframegen.base.quick_typing import TYPE_CHECKING, NamedTuple
from sframegen.elf.records import SHN, SHT, Rela
from sframegen.elf.relocations import relocation_rows
from sframegen.elf.symbols import SymbolTable
from sframegen.format.abi import BY_SFRAME_ID, Relocation, abi_of
from sframegen.format.locate import split_joined_sections

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sframegen.elf.file import ElfFile
    from sframegen.format.decode import SframeSection

R_NONE = 0  # on all ABIs


class DescribedSection(NamedTuple):
    """An SFrame section with a decoded header, and the location of each of its functions.

    `numbers`: the code section of each function, or SHN_UNDEF if a linker has dropped it. `offsets`: its offset in that section.
    """

    section: SframeSection
    numbers: Sequence[int]
    offsets: Sequence[int]


def described_sections(elf: ElfFile) -> Iterator[DescribedSection]:
    """Yield each SFrame section of an object, or each part of one that a linker joined from several. Raises FormatError."""
    abi = abi_of(elf)
    check_disjoint(elf)
    for section in filter(is_sframe, elf.sections):
        tables = (SymbolTable(elf, table) for table in elf.sections if table.header.sh_type == SHT.SYMTAB)
        symbols = next(tables, None)
        by_offset = {rela.r_offset: rela for rela in map(Rela._make, relocation_rows(elf, section))}
        for piece in split_joined_sections(elf.contents(section), section.header.sh_addr):
            if piece.abi.sframe_id != abi.sframe_id:
                raise elf.error(f"an SFrame section for {piece.abi.name} in an object for {abi.name}", section.name, 4)
            is_direct = piece.relative or starts_are_section_relative(elf, section)
            yield _locate_functions(elf, piece, piece.address - section.header.sh_addr, is_direct, by_offset, symbols)


def _locate_functions(
    elf: ElfFile, piece: SframeSection, base: int, is_direct: bool, by_offset: dict[int, Rela], symbols: SymbolTable | None
) -> DescribedSection:
    """Locate the functions of one SFrame section. `base`: the offset of `piece` in its ELF section.

    `is_direct`: relocations name the functions themselves. Otherwise, addends include the distance of the field from `base`, so
    that the pc-relative relocation results in a start that counts from `base`.
    """
    step, kind = piece.layout.index_size, start_relocation(piece.abi.sframe_id, piece.layout.start_width)
    numbers, offsets = [], []
    index_start = base + piece.index_at
    for function in range(piece.header.num_fdes):
        at = index_start + function * step
        rela = by_offset.get(at)
        if rela is None:
            raise elf.error(f"function {function} has no relocation", ".sframe", at)
        if rela.type == R_NONE or rela.symbol == 0:
            numbers.append(SHN.UNDEF)
            offsets.append(0)
            continue
        if rela.type != kind:
            raise elf.error(f"relocation type {rela.type} cannot mark the start of a function", ".sframe", at)
        number, value = _read_symbol(elf, symbols, rela.symbol)
        offset = value + rela.r_addend - (0 if is_direct else at - base)
        if number != SHN.UNDEF and not 0 <= offset <= elf.sections[number].header.sh_size:
            hint = "" if is_direct else "; without FUNC_START_PCREL it counts from the section"
            raise elf.error(f"function {function} at {offset:#x} is not inside of {elf.sections[number].name}{hint}", ".sframe", at)
        numbers.append(number)
        offsets.append(offset)
    return DescribedSection(piece, numbers, offsets)


@cache
def start_relocation(sframe_id: int, width: int) -> int:
    """Return the relocation type for a function start field of `width` bytes."""
    relocations = BY_SFRAME_ID[sframe_id].relocations.items()
    return next(number for number, kind in relocations if kind == Relocation(width, pc_relative=True))


def _read_symbol(elf: ElfFile, table: SymbolTable | None, number: int) -> tuple[int, int]:
    """Return (section number, value) of a symbol."""
    count = len(table) if table else 0
    if table is None or number >= count:
        raise elf.error(f"relocation by symbol {number}, of {count}", ".rela.sframe")
    symbol = table[number]
    section = table.section_of(number, symbol)
    return (section if section < len(elf.sections) else SHN.UNDEF), symbol.st_value
