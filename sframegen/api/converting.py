"""The public function `convert`, which writes a file's section in another version of the format, or smaller."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial

from linker.existing.add_or_replace import find_base, find_kernel_changes, make_change, plan_section
from linker.existing.in_place import SEVERAL_SECTIONS, find_slot, plan_exchange, verify_exchange
from linker.existing.original import check_undo_record, restore_original
from linker.inject.apply import Change, write_changed_file
from linker.inject.layout import UNLOADED_ADDRESS
from sframegen.api.add_summary import Plan, result_to_json
from sframegen.api.by_kind import change_by_kind
from sframegen.api.common import add_output, find_differences, plan_for_result, raise_for_findings
from sframegen.api.options import ConversionOptions, WriteOptions
from sframegen.base.columns import is_ascending
from sframegen.base.errors import FormatError, Refusal, RefusedError
from sframegen.base.quick_typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple
from sframegen.base.text import format_count, printable, sort_by_count
from sframegen.conversion.convert import find_borders
from sframegen.detached.detached_file import Companion, is_detached
from sframegen.elf.file import open_elf
from sframegen.format.encode import EMPTY_COLUMN
from sframegen.format.layouts import F_FDE_SORTED
from sframegen.format.locate import find_unloaded_section, is_sframe_section, open_joined_sections, read_sframe
from sframegen.format.words import EncodedRules, RuleWords, are_expressible
from sframegen.tables.compare import find_difference, have_same_rules
from sframegen.tables.gather import Merger
from sframegen.tables.lower import lower_table
from sframegen.tables.optimize import MAX_GAP, Borders, build_optimized_encoder

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from linker.existing.in_place import Exchange
    from linker.files.read_back import Reader
    from linker.files.target import Target
    from linker.inject.plan import InjectionPlan
    from sframegen.api.options import StrPath
    from sframegen.elf.file import ElfFile, Section
    from sframegen.format.abi import Abi
    from sframegen.format.encode import Encoder
    from sframegen.format.layouts import FormatVersion, Layout
    from sframegen.format.model import FunctionTable
    from sframegen.tables.levels import Level, LevelName

MAX_JOIN_ROUNDS = 8  # times that functions are joined; real sections need one or two


@dataclass(frozen=True)
class VersionChange:
    """What `convert` did to one file. Sizes are in bytes."""

    file: str  #: as given
    from_version: int  #: of the old section; the lowest if there were several
    to_version: int  #: of the new one
    output: str = ""  #: the path written, "" if none
    functions: int = 0  #: in the new section; 0 if unchanged
    rows: int = 0  #: of the new section
    section_bytes_before: int = 0  #: size of the old section; 0 if unchanged and without `optimize`
    section_bytes: int = 0  #: size of the new section; 0 if unchanged
    pieces: int = 1  #: sections that a linker wrote one after the other
    dead: int = 0  #: functions whose code the linker had dropped
    left_out: Mapping[str, int] = field(default_factory=dict)  #: bytes of code by reason
    plan: Plan | None = None  #: what changes in the file; None if nothing does
    warnings: tuple[str, ...] = ()  #: a line each

    def one_line(self) -> str:
        """The line that the command prints by default."""
        file = printable(self.file)
        if not self.section_bytes:
            size = f", and no smaller than {self.section_bytes_before:,} bytes" if self.section_bytes_before else ""
            return f"{file}: SFrame version {self.to_version} already{size}"
        other = f"{self.from_version} -> " if self.from_version != self.to_version else ""
        line = (
            f"{file}: SFrame version {other}{self.to_version}, {format_count(self.functions, 'FDE')}, "
            f"{format_count(self.rows, 'row')}; .sframe {self.section_bytes_before:,} -> {self.section_bytes:,} bytes"
        )
        if self.pieces > 1:
            line += f"; {self.pieces} sections merged into one"
        if self.dead:
            line += f"; {format_count(self.dead, 'FDE')} without code left out"
        lost = sum(self.left_out.values())
        return f"{line}; {lost:,} bytes of code left out" if lost else line

    def details(self) -> list[str]:
        """Lines for what was left out, by reason, most first."""
        lines = [f"  left out: {size:,} bytes: {reason}" for reason, size in sort_by_count(self.left_out)]
        return [*lines, f"  written: {printable(self.output)}"] if self.output else lines

    def to_json(self) -> dict[str, Any]:
        """The object that `--json` prints; docs/json-schema.json has the keys."""
        return result_to_json(self, self.plan)


def convert(
    path: str | os.PathLike[str],
    version: FormatVersion | None = None,
    *,
    optimize: LevelName | None = None,
    output: str | os.PathLike[str] | None = None,
    verify: bool = True,
    dry_run: bool = False,
    hard_links: Sequence[str | os.PathLike[str]] = (),
) -> VersionChange:
    """Write the SFrame section of an ELF file in another version of the format, or smaller; in place, or in a new file `output`.

    A section that is not loaded stays so.

    Sections that a linker wrote one after the other, of any version, or unsorted, become one sorted section. What the version
    cannot express is left out and counted. A file whose section is complete, has the version and holds nothing that readers of the
    version do not know is left unchanged, unless `optimize` makes the section smaller.

    - `version`: the version of the format, 3 or 2; None: the section's own, 3 for version 1.
    - `optimize`: how small the section becomes, as for `add_section`; None: "fast".
    - `output`: the file to write; `path` is unchanged.
    - `verify`: read the new file back, also with another library, and compare the rules.
    - `dry_run`: write nothing; the result has the plan.
    - `hard_links`: other names of the file; they become names of the new file.

    Raises FormatError if there is no section, or it cannot be read, RefusedError if the new one does not fit in its place or would
    be empty, VerificationError if the new file is wrong, OSError, ValueError for an unknown version or level, or for
    neither version nor level, and TypeError if `hard_links` is a single path. The target is then unchanged, except after an OSError
    that says that a name in `hard_links` keeps the old file, or that the target is replaced.
    """
    writing = WriteOptions(output=output, verify=verify, dry_run=dry_run, hard_links=hard_links)
    return convert_section(path, ConversionOptions(version, optimize), writing)


def convert_section(path: StrPath, conversion: ConversionOptions, writing: WriteOptions) -> VersionChange:
    """Do the work of `convert`, whose keywords are already checked and grouped."""
    return change_by_kind(path, writing, partial(_convert_linked, conversion=conversion))


def _convert_linked(elf: ElfFile, target: Target, conversion: ConversionOptions) -> VersionChange:
    """Merge the file's SFrame sections, lower their rules to the version, encode them as one section, and write the file."""
    if is_detached(elf):
        raise FormatError(f"{Companion.DETACHED_SECTION}: for another version, add it again from the file that it is for")
    sections = open_joined_sections(elf)
    abi, layout = sections[0].abi, conversion.layout_for(section.header.version for section in sections)
    merger = Merger()
    for section in sections:
        merger.add(section)
    merged, dead = merger.build_table(elf.executable_ranges())
    old_version = min(section.header.version for section in sections)
    change = VersionChange(str(target.path), old_version, layout.version, pieces=len(sections), dead=dead)
    is_one_sorted_section = len(sections) == 1 and bool(sections[0].header.flags & F_FDE_SORTED) and is_ascending(merged.start)
    is_of_the_version = layout.version == old_version and are_expressible(merged.rules, abi, layout)
    is_up_to_date = is_one_sorted_section and not dead and is_of_the_version
    if is_up_to_date and conversion.optimize is None:
        return add_output(change, target.copy(elf))

    table, left_out = lower_table(merged, abi, layout)
    if not len(table):
        message = f"nothing in its SFrame section can be expressed in version {layout.version}"
        raise RefusedError(Refusal.INEXPRESSIBLE, message, file=elf.name)
    encoder = _make_encoder(elf, table, abi, layout, conversion.level)
    encoder.flags |= layout.flags & merger.flags  # F_FRAME_POINTER, if all old sections have it and the version defines it
    size_before = _section_size(elf)
    change = replace(change, section_bytes_before=size_before)
    if is_up_to_date and encoder.size_bytes >= size_before:
        return add_output(change, target.copy(elf))
    replacement = _plan_replacement(elf, encoder)
    change = replace(
        change, functions=len(table), rows=len(encoder.table.row_start), section_bytes=encoder.size_bytes,
        left_out={reason.value: count for reason, count in left_out.items()}, plan=plan_for_result(replacement.plan),
    )  # fmt: skip

    def check(written: Path, reader: Reader) -> None:
        findings, result = replacement.verify(written, reader), read_sframe(open_elf(written)).table
        # Joined functions also cover the padding between them: then the lowered table is compared with both sides.
        is_joined = conversion.level.max_rows > 0
        findings += _find_lost_rules(merged, table if is_joined else result, sum(left_out.values()))
        if is_joined and not have_same_rules(table, result, MAX_GAP, padded={}):
            findings.append("joined functions have other rules than before")
        raise_for_findings(findings or ([] if replacement.restores is None else check_undo_record(replacement.restores, written)))

    return add_output(change, target.write(replacement.write, check))


def _make_encoder(elf: ElfFile, table: FunctionTable, abi: Abi, layout: Layout, level: Level) -> Encoder:
    """Return the new section's encoder. Functions are joined until the size stays the same, so that another run changes nothing.

    Raises FormatError if functions may be joined and the file's CFI cannot be read.
    """
    borders = find_borders(elf, table, abi) if level.max_rows else Borders(EMPTY_COLUMN)
    rules = EncodedRules(table.rules, RuleWords(abi, layout))
    smallest = build_optimized_encoder(elf, table, rules, level, borders)
    for _ in range(MAX_JOIN_ROUNDS if level.max_rows else 0):
        encoder = build_optimized_encoder(elf, smallest.table, rules, level, borders)
        if encoder.size_bytes >= smallest.size_bytes:
            break
        smallest = encoder
    return smallest


def _section_size(elf: ElfFile) -> int:
    """Return the size of the file's section in bytes, after decompression."""
    unloaded = find_unloaded_section(elf)
    return find_slot(elf).size if unloaded is None else len(elf.contents(unloaded))


def _find_lost_rules(merged: FunctionTable, table: FunctionTable, expected: int) -> list[str]:
    """Return a finding if `table` loses rules of `merged` for more than the `expected` bytes of code."""
    address, lost = find_difference(merged, table)
    if address is not None:
        return [f"another rule at {address:#x}"]
    return [] if lost == expected else [f"{lost} bytes of code lost their rule, not {expected}"]


class _Replacement(NamedTuple):
    """A plan to put another section in place of the file's, and the functions that write and verify it."""

    plan: InjectionPlan | Exchange
    restores: ElfFile | None  # the file that the new file's undo record restores; None if there is no record
    write: Callable[[BinaryIO], None]
    verify: Callable[[Path, Reader], list[str]]


def _plan_replacement(elf: ElfFile, encoder: Encoder) -> _Replacement:
    """Plan to exchange a loaded section in place if the new one fits; else to remove ours and add a new one with more room."""
    unloaded = find_unloaded_section(elf)
    if unloaded is None and (encoder.size_bytes <= find_slot(elf).room or restore_original(elf) is None):
        return _plan_exchange(elf, encoder)
    return _plan_new_addition(elf, encoder, unloaded)


def _plan_exchange(elf: ElfFile, encoder: Encoder) -> _Replacement:
    """Plan to overwrite the section with the new one, and to renew the undo record, if the file has one."""
    slot = find_slot(elf)
    exchange = plan_exchange(elf, slot, encoder.encode(slot.address))
    original = restore_original(elf)
    restores = None if original is None else original.elf
    write = partial(write_changed_file, elf, Change(exchange.writes))
    return _Replacement(exchange, restores, write, partial(verify_exchange, exchange, elf))


def _plan_new_addition(elf: ElfFile, encoder: Encoder, unloaded: Section | None) -> _Replacement:
    """Plan to remove the section and add the new one at the end of the file. `unloaded`: the section, if it is not loaded."""
    if sum(map(is_sframe_section, elf.sections)) > 1:
        raise elf.error(SEVERAL_SECTIONS)
    base = find_base(elf)
    new_unloaded = encoder.encode(UNLOADED_ADDRESS) if unloaded else None
    plan = plan_section(base, encoder, find_kernel_changes(elf), new_unloaded)
    write = partial(write_changed_file, elf, make_change(plan, base, encoder), record=base.record)
    return _Replacement(plan, base.given, write, partial(find_differences, plan, base))
