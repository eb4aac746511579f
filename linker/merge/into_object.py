"""The section of an object that `ld -r` made of others: where it put their code, and the symbols that name it."""

from __future__ import annotations

from collections import defaultdict
from operator import itemgetter
from typing import TYPE_CHECKING

from linker.merge.by_map import LinkerMap
from linker.merge.merge_objects import merge_objects
from linker.objects.add_to_objects import Filled
from linker.objects.laid_out import place
from linker.objects.new_sections import piece
from sframegen.base.errors import FormatError
from sframegen.format.abi import abi_of

if TYPE_CHECKING:
    import os

    from linker.merge.inputs import Inputs
    from linker.merge.maps import Placement
    from linker.merge.merge_objects import Counts
    from linker.objects.laid_out import Placed
    from sframegen.elf.file import ElfFile
    from sframegen.format.layouts import Layout
    from sframegen.tables.levels import Level


def in_object(map_file: str | os.PathLike[str], placed: Placed) -> LinkerMap:
    """The map of the link (-r) that made an object. Sections of one name are distinguished by their order in map and object."""
    addresses: dict[str, list[int]] = defaultdict(list)
    for start, _, number in sorted(placed.sections, key=itemgetter(2)):
        addresses[placed.image.sections[number].name].append(start)
    numbers: dict[str, list[int]] = defaultdict(list)

    def address_of(placement: Placement) -> int | None:
        if not placement.size or placement.output not in addresses:
            return None
        known = numbers[placement.output]
        if not known or known[-1] != placement.output_number:
            known.append(placement.output_number)
        starts = addresses[placement.output]
        if len(known) > len(starts):
            raise FormatError(
                f"it has {len(known)} output sections {placement.output}, {placed.image.name} {len(starts)}", file=str(map_file)
            )
        return starts[len(known) - 1] + placement.address

    return LinkerMap(map_file, placed.image, address_of, lambda output, *_: output in addresses)


def fill(
    elf: ElfFile,
    map_file: str | os.PathLike[str],
    inputs: Inputs,
    layout: Layout,
    level: Level,
    counts: Counts,
) -> Filled:
    """An object that a linker made of others, and the one section that it is to have, as `ld -r` makes it."""
    placed = place(elf, abi_of(elf), anchors_only=True)
    encoder = merge_objects(inputs, in_object(map_file, placed), layout, level._replace(share=False), counts)
    return Filled(elf, elf, None, placed, encoder.table, [piece(placed, encoder, None)], undoable=False)
