"""The public function `merge`, which makes one SFrame section from the sections of several objects."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from linker.existing.add_or_replace import find_base, make_change, plan_section
from linker.inject.apply import write_changed_file
from linker.merge.by_map import MergeCounts, read_map_of_linked_file, read_map_of_object
from linker.merge.inputs import Inputs, check_all_objects
from linker.merge.merge_objects import merge_objects
from linker.objects.change_objects import ObjectChange, check_object, write_object
from linker.objects.laid_out import lay_out
from linker.objects.new_sections import make_section
from sframegen.api.add_summary import Plan, result_to_json
from sframegen.api.common import add_output, check_signatures, plan_for_result, raise_for_findings, verify_plan, warn_of_rejection
from sframegen.api.options import SectionOptions, WriteOptions, check_path, check_paths
from sframegen.base.errors import SframegenError, name_file_in_errors
from sframegen.base.quick_typing import TYPE_CHECKING, Any, NamedTuple
from sframegen.base.text import cut_middle, format_count, printable, sort_by_count
from sframegen.elf.file import open_elf
from sframegen.elf.records import ET
from sframegen.format.abi import abi_of

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping, Sequence

    from linker.files.read_back import Reader
    from linker.files.target import Target
    from sframegen.api.options import StrPath
    from sframegen.elf.file import ElfFile
    from sframegen.format.layouts import FormatVersion
    from sframegen.program.workers import Progress
    from sframegen.tables.levels import LevelName


@dataclass(frozen=True)
class Link:
    """How the objects are linked: a link has made `executable` and a map, or `linker -r` is going to make an object of them."""

    executable: StrPath | None
    map_file: StrPath | None
    linker: str

    def __post_init__(self) -> None:
        if (self.executable is None) != (self.map_file is None):
            raise ValueError("executable and map_file go together: the map is that of the executable's link")


class MergeInputs(NamedTuple):
    """The objects whose sections are merged, and the map of their link."""

    inputs: Inputs
    map_file: Path
    file: str  # the result's name in messages


@dataclass(frozen=True)
class Merged:
    """What `merge` did. The objects' sections have `functions` - `plt_functions` + `dropped` + `unknown` functions."""

    file: str  #: the linked file
    output: str = ""  #: the path written, "" if none
    objects: int = 0  #: objects whose sections are merged
    objects_without: int = 0  #: objects without a section
    objects_unlinked: int = 0  #: objects that were not linked
    functions: int = 0  #: in the new section
    dropped: int = 0  #: functions without code in the linked file
    unknown: int = 0  #: functions left out because the map does not show which of several sections has them
    plt_functions: int = 0  #: of `functions`, those of the procedure linkage table
    rows: int = 0  #: of the new section
    section_bytes: int = 0  #: its size
    versions: tuple[int, ...] = ()  #: of the objects' sections
    left_out: Mapping[str, int] = field(default_factory=dict)  #: bytes of code by reason
    others: tuple[str, ...] = ()  #: files with code in the link that were not given
    undescribed: Mapping[str, int] = field(default_factory=dict)  #: bytes of linked code sections without a function, by reason
    silent: tuple[str, ...] = ()  #: "FILE: SECTION" of code that the `.sframe` of its own object does not describe
    plan: Plan | None = None  #: what changes in the file; None if nothing does
    warnings: tuple[str, ...] = ()  #: a line each

    def one_line(self) -> str:
        """The line that the command prints by default."""
        line = f"{printable(self.output or self.file)}: {format_count(self.functions, 'FDE')} of "
        line += f"{format_count(self.objects, 'object')}, {format_count(self.rows, 'row')}"
        line += f"; .sframe {format_count(self.section_bytes, 'byte')}"
        lost, undescribed = sum(self.left_out.values()), sum(self.undescribed.values())
        parts = {
            f"{format_count(self.objects_without, 'object')} without .sframe": self.objects_without,
            f"{format_count(self.dropped, 'function')} without code left out": self.dropped,
            f"{format_count(self.unknown, 'function')} left out that the map does not tell apart": self.unknown,
            f"{format_count(lost, 'byte')} of code left out": lost,
            f"{format_count(undescribed, 'byte')} of linked code that no object describes": undescribed,
        }
        return "; ".join([line, *(part for part, count in parts.items() if count)])

    def details(self) -> list[str]:
        """Lines for what was left out, by reason."""
        lines = [f"  versions merged: {', '.join(map(str, self.versions))}"]
        lines += [f"  {format_count(self.plt_functions, 'function')} of the PLT"] * bool(self.plt_functions)
        lines += [f"  {format_count(self.objects_unlinked, 'object')} not linked"] * bool(self.objects_unlinked)
        lines += [f"  not given, though linked: {printable(name)}" for name in self.others]
        for label, reasons in (("left out", self.left_out), ("not described", self.undescribed)):
            lines += [f"  {label}: {format_count(size, 'byte')}: {reason}" for reason, size in sort_by_count(reasons)]
        return lines + [f"  does not describe its section: {cut_middle(printable(name))}" for name in self.silent]

    def to_json(self) -> dict[str, Any]:
        """The object that `--json` prints; docs/json-schema.json has the keys."""
        return result_to_json(self, self.plan)


def result_from_counts(file: str, counts: MergeCounts) -> Merged:
    return Merged(file, **(vars(counts) | {"silent": tuple(counts.silent)}))


def merge(
    objects: Iterable[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    *,
    executable: str | os.PathLike[str] | None = None,
    map_file: str | os.PathLike[str] | None = None,
    linker: str = "ld",
    version: FormatVersion = 3,
    optimize: LevelName = "none",
    min_kernel: str | None = None,
    verify: bool = True,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> Merged:
    """Make one SFrame section from those of `objects`, objects and archives of objects, as GNU ld does, and write it to `output`.

    - `executable` and `map_file`, together: `output` is a copy of that program or library, with the section in place of one that it
      has. The map is that of its link from `objects`, by GNU ld, gold, lld or mold.
    - `linker`, without a map: `output` is the object that `linker -r` makes of the objects, with the section and its relocations.
    - `version`: the version of the format, 3 or 2.
    - `optimize`: "none" keeps each function as its object has it; "fast" and "size" as for `add_section`.
    - `min_kernel`: the oldest Linux that a linked `output` must run on, as for `add_section`.
    - `verify`: read the new file back.
    - `dry_run`: write nothing; the result has the plan.
    - `progress`: called with the number of files of `objects` that are read, and their total.

    Raises FormatError if a file cannot be read, the link fails or the map is not that of the objects, RefusedError if `executable`
    is not changed for another reason, or there is no such linker, VerificationError if the new file is wrong, OSError, and
    ValueError for an unknown version, level or kernel, without objects, and for only one of `executable` and `map_file`;
    TypeError if `objects` is a single path, or `output` none. `output` is then unchanged, except after
    an OSError that says that it is replaced.
    """
    check_paths("objects", objects)
    check_path("output", output)
    writing = WriteOptions(output=output, verify=verify, dry_run=dry_run, min_kernel=min_kernel)
    link = Link(executable, map_file, linker)
    return merge_sections(list(objects), link, SectionOptions(version, optimize), writing, progress)


def merge_sections(
    objects: Sequence[StrPath], link: Link, options: SectionOptions, writing: WriteOptions, progress: Progress | None
) -> Merged:
    """Do the work of `merge`, whose keywords are already checked and grouped."""
    if not objects:
        raise ValueError("no objects to merge")
    file = str(link.executable or writing.output)
    inputs = Inputs(objects, progress)
    if link.executable is not None and link.map_file is not None:
        return _merge_into(link.executable, options, writing, MergeInputs(inputs, Path(link.map_file), file))
    from linker.merge.merge_objects import check_regular_files, partial_link  # noqa: PLC0415 - not with a map
    from sframegen.program.signals import PrivateDirectory  # noqa: PLC0415 - as above

    check_regular_files(objects)
    with PrivateDirectory() as directory:
        try:
            linked = partial_link(link.linker, objects, Path(directory), inputs.open_early)
        except SframegenError as link_error:
            try:
                check_all_objects(objects)
            except SframegenError as object_error:  # it tells more than the linker: which object cannot be read, and why
                for line in getattr(link_error, "__notes__", ()):
                    object_error.add_note(line)
                raise object_error from link_error
            raise
        merged = _merge_into(linked.output, options, writing, MergeInputs(inputs, linked.map_file, file))
        return replace(merged, warnings=(*linked.messages, *merged.warnings))


def _merge_into(path: StrPath, options: SectionOptions, writing: WriteOptions, linked: MergeInputs) -> Merged:
    """Add the merged section to the linked file or object at `path`, the output of the link of these inputs."""
    target = writing.target(path)
    with name_file_in_errors(linked.file), target:
        elf = target.elf()
        if elf.header.e_type == ET.REL:
            return _merge_into_object(elf, target, options, linked)
        return _merge_into_linked(elf, target, options, writing, linked)


def _merge_into_linked(elf: ElfFile, target: Target, options: SectionOptions, writing: WriteOptions, linked: MergeInputs) -> Merged:
    counts = MergeCounts()
    warnings = check_signatures([elf], target, force=True)  # forced because the output is another file, to be signed anyhow
    base = find_base(elf)
    encoder = merge_objects(
        linked.inputs, read_map_of_linked_file(linked.map_file, base.elf), options.layout, options.level, counts
    )
    warnings += warn_of_rejection(base.elf, options.layout)
    plan = plan_section(base, encoder, writing.safe_changes)
    change = make_change(plan, base, encoder)
    written = target.write(partial(write_changed_file, elf, change, record=base.record), partial(verify_plan, plan, base))
    return add_output(replace(result_from_counts(linked.file, counts), plan=plan_for_result(plan), warnings=warnings), written)


def _merge_into_object(elf: ElfFile, target: Target, options: SectionOptions, linked: MergeInputs) -> Merged:
    counts = MergeCounts()
    placed = lay_out(elf, abi_of(elf), anchors_only=True)
    level = options.level._replace(share=False)
    encoder = merge_objects(linked.inputs, read_map_of_object(linked.map_file, placed), options.layout, level, counts)
    change = ObjectChange(elf, elf, None, placed, encoder.table, [make_section(placed, encoder)], undoable=False)

    def check(written: Path, _reader: Reader) -> None:
        raise_for_findings(check_object(change, open_elf(written)))

    return add_output(result_from_counts(linked.file, counts), target.write(partial(write_object, change), check))
