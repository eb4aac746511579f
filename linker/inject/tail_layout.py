"""The tail layout: one new segment holds `.sframe`, a second one the whole program header table.

For shared libraries, as ld.so reads their table from the file; for programs on Linux 5.18 or later, which finds it in the PT_LOAD
that holds it. Earlier kernels find a program's table at (address - offset) of its first PT_LOAD + e_phoff; that equation holds
here, too, but no longer once strip closes the hole before the segments. Never for dynamic loaders: glibc's and musl's find their
own table with such an equation, whatever the kernel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from linker.inject.image import MAX_ADDRESS
from linker.inject.layout import LayoutDraft, gap_after, insert_loads, load_at, no_room, sframe_at
from sframegen.elf.ranges import align_up
from sframegen.elf.records import PHDR_SIZE, PT_PHDR, SHF_ALLOC, SHT_PROGBITS, Shdr

if TYPE_CHECKING:
    from linker.inject.image import Image

NEW_SEGMENTS = 3  # two PT_LOADs and PT_GNU_SFRAME
MAX_HOLE = 64 << 20  # bytes of file between what was loaded and the new segments; .bss of that size


def tail(image: Image, section_size: int) -> LayoutDraft:
    room = image.room
    bias = image.loads[0].p_vaddr - image.loads[0].p_offset
    address = max(align_up(image.end_address, image.page), align_up(room + bias, image.page))
    table_address = align_up(address + section_size, image.page)
    size = (len(image.segments) + NEW_SEGMENTS) * PHDR_SIZE
    if bias < 0 or bias % image.page or table_address + size > MAX_ADDRESS or address - bias - room > MAX_HOLE:
        raise no_room(image, "neither after it nor at the end of the file")
    sframe, section = sframe_at(address - bias, address, section_size)
    table_offset = table_address - bias
    segments = [
        segment._replace(p_offset=table_offset, p_vaddr=table_address, p_paddr=table_address, p_filesz=size, p_memsz=size)
        if segment.p_type == PT_PHDR
        else segment
        for segment in image.segments
    ]
    loads = [load_at(image, section.sh_offset, address, section_size), load_at(image, table_offset, table_address, size)]
    # Without a section over the table, eu-strip takes it for a gap and clears it.
    cover = Shdr(0, SHT_PROGBITS, SHF_ALLOC, table_address, table_offset, size, 0, 0, 8, 0)
    segments = [*insert_loads(segments, loads), sframe]
    dropped = [segment for segment in image.elf.segments if segment not in image.segments]
    gaps, end = gap_after(image, table_offset + size)
    return LayoutDraft(
        "tail", gaps, table_offset, segments, [*loads, sframe], section, end, [], dropped, [(".sframegen.phdrs", cover)]
    )
