"""Does the work of `add_section` on a relocatable object, or on each object of an archive."""

from __future__ import annotations

from dataclasses import replace as changed_to
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from linker.objects.change_objects import check_object, convert_object, write_object
from linker.objects.given_file import open_input
from sframegen.api.add_summary import Outcome, Summary, sum_summaries
from sframegen.api.common import add_output, check_signatures, raise_for_findings
from sframegen.api.making import note_nothing_to_add, summarize_before_writing
from sframegen.base.errors import FormatError
from sframegen.conversion.kernel_code import is_module
from sframegen.format.abi import abi_of

if TYPE_CHECKING:
    from linker.files.read_back import Reader
    from linker.files.target import Target
    from linker.objects.given_file import Objects
    from sframegen.api.options import AddOptions


def add_to_objects(objects: Objects, target: Target, options: AddOptions) -> Summary:
    """Add a section to each object of a file, and return the sum of their summaries."""
    section_options, writing = options.section, options.writing
    if section_options.synthesize:
        raise FormatError("only linked files can have synthesized rows")
    if writing.unloaded:
        raise FormatError("only linked files can have a section that is not loaded")
    if section_options.debug_file is not None and objects.is_archive:
        raise FormatError("an archive has no separate debug file")
    prepare_member = partial(
        convert_object, layout=section_options.layout, level=section_options.level, replace=writing.replace,
        debug_file=None if section_options.debug_file is None else Path(section_options.debug_file),
    )  # fmt: skip
    prepared = {at: prepare_member(elf) for at, elf in objects.members.items()}
    summaries, changed = [], []
    for change, sources, converted in prepared.values():
        object_summary = summarize_before_writing(change.elf.name, change.placed.image, sources, converted)
        size = sum(len(new.contents) for new in change.sections)
        outcome = Outcome.ADDED if change.sections else Outcome.UNCHANGED if len(change.table) else Outcome.NOTHING
        rows = len(change.table.row_start)
        summaries.append(changed_to(object_summary, outcome=outcome, section_bytes=size, rows=rows))
        if change.sections:
            changed.append(change.elf)
    summary = sum_summaries(str(target.path), summaries)
    summary = changed_to(summary, warnings=summary.warnings + check_signatures(changed, target, force=writing.force))
    if summary.outcome is Outcome.NOTHING and not objects.is_archive:
        summary = note_nothing_to_add(summary)
    elif changed:
        summary = changed_to(summary, note=abi_of(changed[0]).module_note if is_module(changed[0]) else summary.note)
    if not summary.section_bytes and target.in_place:
        return summary
    writers = {at: partial(write_object, member.change) for at, member in prepared.items()}
    checks = {at: partial(check_object, member.change) for at, member in prepared.items()}

    def check(written: Path, _reader: Reader) -> None:
        raise_for_findings(objects.check(checks, open_input(str(written))))

    return add_output(summary, target.write(partial(objects.write, writers), check))
