"""The public function `add_section`, which makes an SFrame section from a file's call frame information and adds it.

For a linked file: find the base, which is the file without a section that we added before; convert its call frame information; plan
where the encoded section goes; write the file, unless it already has this section. Objects: adding_to_objects.py.
"""

from __future__ import annotations

from bisect import bisect_right
from contextlib import suppress
from dataclasses import replace as changed_to
from functools import partial
from operator import itemgetter

from linker.existing.add_or_replace import Base, find_base, has_change, has_same_unloaded_section, make_change, plan_section
from linker.existing.in_place import find_sframe_extents
from linker.inject.apply import write_changed_file
from linker.inject.image import unmoved_prefix_size
from linker.inject.layout import UNLOADED_ADDRESS
from linker.inject.plan import describe_loader_risk, plan_unloaded
from sframegen.api.add_summary import Outcome, Summary
from sframegen.api.by_kind import change_by_kind, read_by_kind
from sframegen.api.common import add_output, check_linked, check_signatures, plan_for_result, verify_plan, warn_of_rejection
from sframegen.api.making import convert_file, note_nothing_to_add, summarize_detached
from sframegen.api.options import AddOptions, SectionOptions, WriteOptions
from sframegen.base.errors import DIFFERENT_SECTION, FormatError, Refusal, RefusedError, SframegenError
from sframegen.base.quick_typing import TYPE_CHECKING, NamedTuple
from sframegen.detached.detached_file import is_detached
from sframegen.elf.dynamic import DT, determine_role, read_dynamic
from sframegen.format.layouts import LAYOUTS
from sframegen.format.locate import find_unloaded_section, read_sframe
from sframegen.format.model import OUTERMOST
from sframegen.format.words import are_expressible
from sframegen.program.workers import JobOptions
from sframegen.tables.compare import claim_spans, have_same_rules
from sframegen.tables.optimize import MAX_GAP

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from linker.existing.in_place import Exchange
    from linker.files.target import Target
    from linker.inject.plan import InjectionPlan
    from linker.objects.given_file import Objects
    from sframegen.api.options import StrPath
    from sframegen.conversion.convert import Converted
    from sframegen.conversion.coverage import Coverage
    from sframegen.elf.file import ElfFile
    from sframegen.elf.ranges import Extent
    from sframegen.format.decode import SframeSection
    from sframegen.format.encode import Encoder
    from sframegen.format.layouts import FormatVersion, Layout
    from sframegen.format.model import FunctionTable
    from sframegen.program.workers import Progress
    from sframegen.tables.levels import LevelName


def add_section(
    path: str | os.PathLike[str],
    *,
    output: str | os.PathLike[str] | None = None,
    verify: bool = True,
    dry_run: bool = False,
    debug_file: str | os.PathLike[str] | None = None,
    version: FormatVersion = 3,
    optimize: LevelName = "fast",
    replace: bool = False,
    force: bool = False,
    hard_links: Sequence[str | os.PathLike[str]] = (),
    synthesize: bool = False,
    min_kernel: str | None = None,
    unloaded: bool = False,
    detached: str | os.PathLike[str] | None = None,
    object_file: str | os.PathLike[str] | None = None,
    jobs: int = 1,
    progress: Progress | None = None,
) -> Summary:
    """Add an SFrame section to an ELF file, made from its call frame information: in place, or in a new file `output`.

    A relocatable object gets sections with relocations, as an assembler writes them; so does each object of an archive. A file
    that has the same section already is left unchanged.

    - `output`: the file to write; `path` is left unchanged.
    - `verify`: read the new file back with another library before it replaces the old one.
    - `dry_run`: write nothing; the result has the plan.
    - `debug_file`: a separate debug file, or a directory of them, for code that `.eh_frame` does not describe; also of an object,
      such as a kernel module.
    - `version`: the version of the format, 3 or 2.
    - `optimize`: how small to make the section: "none", "fast" or "size".
    - `replace`: replace an existing SFrame section, whoever produced it.
    - `force`: also change a file that is signed, or that may be a dynamic loader.
    - `hard_links`: other names of the file; they become names of the new file.
    - `synthesize`: also describe code of a linked file without call frame information, if its instructions prove the rows.
    - `min_kernel`: the oldest Linux that the result must run on, by default "5.18"; newer kernels allow more.
    - `unloaded`: add a section that is not mapped at run time, for tools that read the file; no program header changes.
    - `detached`: a directory; the section becomes a file of its own in it, named after the build-id, and `path` is only read.
    - `object_file`: a path; the section becomes a relocatable object for the next link of the image `path`, which is only read.
    - `jobs`: number of processes that read the instructions; above 1, they are forked.
    - `progress`: called with the bytes of code analysed so far and the current estimate of the total; a byte may be counted more
      than once.

    Raises FormatError if the file cannot be read, or is of a kind that has no section; RefusedError if it may not be changed;
    VerificationError if the new file differs from the plan; and OSError. Raises ValueError for an unknown version, level or kernel,
    for `detached` or `object_file` with `output` or `unloaded`, and for `jobs` below 1; TypeError if `hard_links` is a single path.
    After an error the target is unchanged, except after an OSError that says that a name in `hard_links` keeps the old file, or
    that the target is replaced.
    """
    section = SectionOptions(version, optimize, debug_file=debug_file, synthesize=synthesize)
    writing = WriteOptions(
        output=output, verify=verify, dry_run=dry_run, hard_links=hard_links, force=force, replace=replace, min_kernel=min_kernel,
        unloaded=unloaded, detached=detached, object_file=object_file,
    )  # fmt: skip
    return add(path, AddOptions(section, writing, JobOptions(jobs, progress)))


def add(path: StrPath, options: AddOptions) -> Summary:
    """Do the work of `add_section`, whose keywords are already checked and grouped in `options`."""
    if options.writing.detached is not None or options.writing.object_file is not None:
        from sframegen.api.detaching import add_detached, add_for_linking, refuse_objects  # noqa: PLC0415 - only for these

        write_section = add_for_linking if options.writing.detached is None else add_detached
        return read_by_kind(path, partial(write_section, options=options), refuse_objects)

    def add_to_each_object(objects: Objects, target: Target) -> Summary:
        from sframegen.api.adding_to_objects import add_to_objects  # noqa: PLC0415 - only for these

        return add_to_objects(objects, target, options)

    return change_by_kind(path, options.writing, partial(_add_to_linked, options=options), add_to_each_object)


class _InputFile(NamedTuple):
    """A linked file before the change. `base`: the file that the section is added to, without a section that we added before."""

    elf: ElfFile
    base: Base
    sections: list[Extent]  # file ranges of its SFrame sections

    @property
    def has_foreign_section(self) -> bool:
        """Return True if the file has a section made by another tool, which no undo record can remove."""
        return bool(self.sections) and self.base.given is self.elf  # no undo record leads to an earlier file


class _NewSection(NamedTuple):
    """The section to add, and the plan that places it in the file."""

    encoder: Encoder
    unloaded: memoryview | None  # the bytes of a section that is not loaded; None for a loaded one, which depends on its address
    plan: InjectionPlan | Exchange


def _add_to_linked(elf: ElfFile, target: Target, options: AddOptions) -> Summary:
    """Add a section to a linked file, unless it already has the same one or there is nothing to add."""
    check_linked(elf)
    if is_detached(elf):
        return add_output(summarize_detached(str(target.path)), target.copy(elf))
    file = _InputFile(elf, find_base(elf), find_sframe_extents(elf))
    if (options.writing.replace or not file.sections) and not options.section.synthesize:
        target.begin_copy(elf, unmoved_prefix_size(file.base.elf))  # not before synthesizing, which forks processes
    summary, converted = convert_file(file.base.elf, str(target.path), options.section, options.running)
    if not len(converted.table):
        return add_output(note_nothing_to_add(summary), target.copy(elf))
    if file.has_foreign_section and not options.writing.replace:
        if options.writing.unloaded or not _covers_only_start_files(elf, converted.coverage):
            return add_output(_summarize_existing(file, summary, converted, options), target.copy(elf))
        options = options._replace(writing=changed_to(options.writing, replace=True))
        summary = changed_to(summary, note="replaced a section of the start files alone")
    new = _plan_new_section(file, converted, options)
    return _write_if_changed(file, new, _summarize_section(file, new, summary, options), target, options.writing)


def _summarize_existing(file: _InputFile, summary: Summary, converted: Converted, options: AddOptions) -> Summary:
    """Return the summary for a file with another tool's section. Raises RefusedError if that differs from the new one."""
    section = find_unloaded_section(file.elf)
    is_same_kind = (section is not None) == options.writing.unloaded
    if not is_same_kind or not _has_same_rules(file.elf, converted.coverage, options.section.layout):
        _plan_new_section(file, converted, options)  # raises if `replace`, which the refusal below names, would fail
        raise _other_section_error(file.elf, unloaded=options.writing.unloaded)
    size = sum(extent.size for extent in file.sections)
    if section is None:
        return _mark_unchanged(summary, size)
    return _mark_unchanged(changed_to(summary, unloaded=True), file.elf.contents_size(section))


def _covers_only_start_files(elf: ElfFile, coverage: Coverage) -> bool:
    """Return True if the loaded section describes only the start files (crt1.o, crti.o), and the new one has its rules and more."""
    starts = {elf.header.e_entry, *(entry.value for entry in read_dynamic(elf) if entry.tag in (DT.INIT, DT.FINI))}
    try:
        section = read_sframe(elf)
        has_few_functions = section.header.num_fdes <= len(starts)  # tested first, because `table` decodes all functions
        if find_unloaded_section(elf) is not None or not has_few_functions or not starts.issuperset(section.table.start):
            return False
    except FormatError:
        return False
    return sum(section.table.size) < coverage.covered_bytes and _keeps_rules(section, coverage.table)


def _keeps_rules(old: SframeSection, new: FunctionTable) -> bool:
    """Return True if `new` has all rules of the old section, or "outermost frame" where the old version cannot express that."""
    allowed_changes = () if are_expressible((OUTERMOST,), old.abi, LAYOUTS[old.header.version]) else (OUTERMOST,)
    new_spans = list(claim_spans(new))
    for start, end, row in claim_spans(old.table):
        index = bisect_right(new_spans, start, key=itemgetter(0)) - 1
        _, new_end, new_row = new_spans[index] if index >= 0 else (0, 0, row)
        if end > new_end or not (new_row == row or new_row.rule in allowed_changes):
            return False
    return True


def _plan_new_section(file: _InputFile, converted: Converted, options: AddOptions) -> _NewSection:
    writing = options.writing
    encoder = converted.make_encoder(file.base.elf, options.section.level)
    unloaded = encoder.encode(UNLOADED_ADDRESS) if writing.unloaded else None
    allowed_changes = writing.safe_changes | writing.forced_changes
    try:
        return _NewSection(encoder, unloaded, plan_section(file.base, encoder, allowed_changes, unloaded))
    except SframegenError as error:
        raise error if writing.unloaded else _suggest_unloaded(error, file.base, encoder) from None


def _suggest_unloaded(error: SframegenError, base: Base, encoder: Encoder) -> SframegenError:
    """Return the error, or a refusal that suggests `unloaded` if such a section is possible and there is no other remedy."""
    if not isinstance(error, RefusedError) or error.reason is Refusal.NO_ROOM:
        with suppress(SframegenError):
            plan_unloaded(base.elf, len(encoder.encode(UNLOADED_ADDRESS)))
            return RefusedError(Refusal.NO_ROOM_LOADED, error.message, error.place, error.offset, error.file)
    return error


def _summarize_section(file: _InputFile, new: _NewSection, summary: Summary, options: AddOptions) -> Summary:
    """Return the summary with the new section's size and rows, and with warnings about readers that would not accept it."""
    size, rows = new.encoder.size_bytes, len(new.encoder.table.row_start)
    summary = changed_to(summary, outcome=Outcome.ADDED, section_bytes=size, rows=rows)
    if new.unloaded is not None:
        return changed_to(summary, unloaded=True)
    warnings = summary.warnings + warn_of_rejection(file.base.elf, options.section.layout)
    if options.writing.forced_changes and (
        risk := describe_loader_risk(determine_role(file.base.elf, read_dynamic(file.base.elf)))
    ):
        warnings += (risk,)
    return changed_to(summary, warnings=warnings)


def _write_if_changed(file: _InputFile, new: _NewSection, summary: Summary, target: Target, writing: WriteOptions) -> Summary:
    """Write the file, unless it already has this section. Raises RefusedError if it has a different one."""
    elf, base = file.elf, file.base
    if writing.dry_run and not file.sections:  # the plan does not need the section's bytes, so they are not encoded
        return _add_plan(elf, new, summary, target, writing)
    change = make_change(new.plan, base, new.encoder)
    if file.sections:
        is_same = has_change(elf, base, change) if new.unloaded is None else has_same_unloaded_section(elf, new.unloaded)
        if is_same:
            return add_output(_mark_unchanged(summary, new.encoder.size_bytes), target.copy(elf))
        if not writing.replace:
            raise _other_section_error(elf, unloaded=writing.unloaded)
    summary = _add_plan(elf, new, summary, target, writing)
    write = partial(write_changed_file, elf, change, record=base.record, copy=target.copy_to)
    return add_output(summary, target.write(write, partial(verify_plan, new.plan, base)))


def _add_plan(elf: ElfFile, new: _NewSection, summary: Summary, target: Target, writing: WriteOptions) -> Summary:
    warnings = summary.warnings + check_signatures([elf], target, force=writing.force)
    return changed_to(summary, plan=plan_for_result(new.plan), warnings=warnings)


def _other_section_error(elf: ElfFile, *, unloaded: bool) -> RefusedError:
    """Return the refusal for a file with a different section. `unloaded`: whether the new section is to be unloaded."""
    is_loaded = find_unloaded_section(elf) is None
    message = "already has a loaded SFrame section" if is_loaded else "already has an SFrame section that is not loaded"
    return RefusedError(Refusal.OTHER_SECTION, message if is_loaded == unloaded else DIFFERENT_SECTION, file=elf.name)


def _has_same_rules(elf: ElfFile, coverage: Coverage, layout: Layout) -> bool:
    """Return True if the file's section has this version and the same rules for all code, except padding between functions."""
    try:
        section = read_sframe(elf)
        padded_ends = coverage.final_calls(elf).padding_ends(coverage.table)
        return section.header.version == layout.version and have_same_rules(section.table, coverage.table, MAX_GAP, padded_ends)
    except FormatError:
        return False


def _mark_unchanged(summary: Summary, section_bytes: int) -> Summary:
    return changed_to(summary, outcome=Outcome.UNCHANGED, section_bytes=section_bytes, note="has it already")
