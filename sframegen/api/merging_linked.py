"""merge: the section of a program or library."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from linker.existing.add_or_replace import base_of, change_for, plan_section
from linker.inject.apply import write_all
from linker.merge.merge_objects import Counts, in_linked, merge_objects
from sframegen.api.common import not_taken, planned, signed, verify_plan, with_written
from sframegen.api.merged import merged_of

if TYPE_CHECKING:
    from linker.files.target import Target
    from sframegen.api.merged import Linked, Merged
    from sframegen.api.options import Making, Writing
    from sframegen.elf.file import ElfFile


def into_linked(elf: ElfFile, target: Target, making: Making, writing: Writing, linked: Linked) -> Merged:
    counts = Counts()
    warnings = signed([elf], target, force=True)  # another file is written, which is to be signed anyhow
    base = base_of(elf)
    encoder = merge_objects(linked.inputs, in_linked(linked.map_file, base.elf), making.layout, making.level, counts)
    warnings += not_taken(base.elf, making.layout)
    plan = plan_section(base, encoder, writing.safe)
    change = change_for(plan, base, encoder)
    written = target.write(partial(write_all, elf, change, record=base.record), partial(verify_plan, plan, base))
    return with_written(replace(merged_of(linked.file, counts), plan=planned(plan), warnings=warnings), written)
