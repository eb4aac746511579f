"""Names places in code by source file and line, as `.debug_line` has them."""

from __future__ import annotations

import io
from bisect import bisect_right
from operator import itemgetter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from elftools.dwarf.lineprogram import LineProgram

    from sframegen.elf.file import ElfFile


def source_lines(elf: ElfFile, addresses: Collection[int]) -> dict[int, str]:
    """Return `file.s:8` for each address that has a line. pyelftools reads the lines; none if it cannot. Does not raise."""
    if not addresses or elf.section(".debug_line") is None or elf.section(".debug_info") is None:
        return {}
    from elftools.elf.elffile import ELFFile  # noqa: PLC0415 - for findings only

    try:
        dwarf = ELFFile(io.BytesIO(elf.data)).get_dwarf_info(relocate_dwarf_sections=False)
        rows = sorted(row for unit in dwarf.iter_CUs() for row in _rows(dwarf.line_program_for_CU(unit)))
    except Exception:  # noqa: BLE001 - pyelftools raises whatever damaged debug information leads to
        return {}
    found = {}
    for address in addresses:
        number = bisect_right(rows, address, key=itemgetter(0)) - 1
        if number >= 0 and rows[number][1]:
            found[address] = rows[number][1]
    return found


def _rows(program: LineProgram | None) -> Iterator[tuple[int, str]]:
    """Yield (address, `file:line`) for each row of a line program; the text is "" at the end of a sequence."""
    if program is None:
        return
    files = program.header["file_entry"]
    first = 0 if program.header["version"] >= 5 else 1  # number of the first file
    for entry in program.get_entries():
        state = entry.state
        if state is not None:
            number = state.file - first
            known = not state.end_sequence and 0 <= number < len(files)
            yield state.address, f"{files[number].name.decode(errors='replace')}:{state.line}" if known else ""
