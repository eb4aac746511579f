"""add_section: objects, one or those of an archive."""

from __future__ import annotations

from dataclasses import replace as changed_to
from functools import partial
from typing import TYPE_CHECKING

from linker.objects.add_to_objects import check_object, prepare, write_object
from linker.objects.given_file import open_given
from sframegen.api.added import summary_of, total
from sframegen.api.common import refuse, signed, with_written

if TYPE_CHECKING:
    from pathlib import Path

    from linker.files.read_back import Reader
    from linker.files.target import Target
    from linker.objects.given_file import Objects
    from sframegen.api.added import Summary
    from sframegen.format.layouts import Layout
    from sframegen.tables.optimize import Level


def add_to_objects(
    objects: Objects, target: Target, layout: Layout, level: Level, *, replace: bool, per_function: bool, force: bool
) -> Summary:
    prepared = {at: prepare(elf, layout, level, replace=replace) for at, elf in objects.members.items()}
    parts, changed = [], []
    for filled, sources, converted in prepared.values():
        part = summary_of(filled.elf.name, filled.placed.image, sources, converted, per_function=per_function)
        size = sum(len(piece.section) for piece in filled.pieces)
        parts.append(changed_to(part, section_bytes=size, rows=len(filled.table.row_start)))
        if filled.pieces:
            changed.append(filled.elf)
    summary = total(str(target.path), parts)
    summary = changed_to(summary, warnings=summary.warnings + signed(changed, target, force=force))
    if not summary.section_bytes and target.in_place:
        return summary
    writers = {at: partial(write_object, one.filled) for at, one in prepared.items()}
    checks = {at: partial(check_object, one.filled) for at, one in prepared.items()}

    def check(written: Path, _reader: Reader) -> None:
        refuse(objects.check(checks, open_given(str(written))))

    return with_written(summary, target.write(partial(objects.write, writers), check))
