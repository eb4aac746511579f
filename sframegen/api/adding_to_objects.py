"""The work of `add_section` on objects and archives of them."""

from __future__ import annotations

from dataclasses import replace as changed_to
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from linker.objects.change_objects import check_object, prepare, write_object
from linker.objects.given_file import open_given
from sframegen.api.add_summary import Outcome, Summary, total
from sframegen.api.common import check_signatures, refuse, with_written
from sframegen.api.making import nothing_to_add, summary_of
from sframegen.base.errors import FormatError
from sframegen.conversion.kernel_code import is_module
from sframegen.format.abi import abi_of

if TYPE_CHECKING:
    from linker.files.read_back import Reader
    from linker.files.target import Target
    from linker.objects.given_file import Objects
    from sframegen.api.options import Adding


def add_to_objects(objects: Objects, target: Target, options: Adding) -> Summary:
    """Add a section to each object of a file."""
    making, writing = options.making, options.writing
    if making.synthesize:
        raise FormatError("only linked files can have synthesized rows")
    if writing.unloaded:
        raise FormatError("only linked files can have a section that is not loaded")
    if making.debug_file is not None and objects.is_archive:
        raise FormatError("an archive has no separate debug file")
    prepare_one = partial(
        prepare, layout=making.layout, level=making.level, replace=writing.replace,
        debug_file=None if making.debug_file is None else Path(making.debug_file),
    )  # fmt: skip
    prepared = {at: prepare_one(elf) for at, elf in objects.members.items()}
    parts, changed = [], []
    for change, sources, converted in prepared.values():
        part = summary_of(change.elf.name, change.placed.image, sources, converted)
        size = sum(len(new.contents) for new in change.sections)
        outcome = Outcome.ADDED if change.sections else Outcome.UNCHANGED if len(change.table) else Outcome.NOTHING
        parts.append(changed_to(part, outcome=outcome, section_bytes=size, rows=len(change.table.row_start)))
        if change.sections:
            changed.append(change.elf)
    summary = total(str(target.path), parts)
    summary = changed_to(summary, warnings=summary.warnings + check_signatures(changed, target, force=writing.force))
    if summary.outcome is Outcome.NOTHING and not objects.is_archive:
        summary = nothing_to_add(summary)
    elif changed:
        summary = changed_to(summary, note=abi_of(changed[0]).unread_modules if is_module(changed[0]) else summary.note)
    if not summary.section_bytes and target.in_place:
        return summary
    writers = {at: partial(write_object, one.change) for at, one in prepared.items()}
    checks = {at: partial(check_object, one.change) for at, one in prepared.items()}

    def check(written: Path, _reader: Reader) -> None:
        refuse(objects.check(checks, open_given(str(written))))

    return with_written(summary, target.write(partial(objects.write, writers), check))
