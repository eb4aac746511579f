"""merge: the section of an object that `ld -r` made."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from linker.merge.into_object import fill
from linker.merge.merge_objects import Counts
from linker.objects.add_to_objects import check_object, write_object
from sframegen.api.common import refuse, with_written
from sframegen.api.merged import merged_of
from sframegen.elf.file import open_elf

if TYPE_CHECKING:
    from pathlib import Path

    from linker.files.read_back import Reader
    from linker.files.target import Target
    from sframegen.api.merged import Linked, Merged
    from sframegen.api.options import Making
    from sframegen.elf.file import ElfFile


def into_object(elf: ElfFile, target: Target, making: Making, linked: Linked) -> Merged:
    counts = Counts()
    filled = fill(elf, linked.map_file, linked.inputs, making.layout, making.level, counts)

    def check(written: Path, _reader: Reader) -> None:
        refuse(check_object(filled, open_elf(written)))

    return with_written(merged_of(linked.file, counts), target.write(partial(write_object, filled), check))
