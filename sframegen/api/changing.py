"""convert and remove: files that have a section already."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from linker.existing.add_or_replace import Stored, base_of, change_for, plan_section
from linker.existing.find_section import SEVERAL, extents, find_place, own_loads
from linker.existing.original import check_undo, original_of
from linker.existing.overwrite import plan_exchange, verify_exchange
from linker.existing.take_out import plan_removal, unchanged
from linker.inject.apply import Change, write_all
from linker.objects.given_file import open_given
from linker.objects.remove_from_objects import Edits, plan_object_removal
from sframegen.api.by_kind import Kinds, change_kind
from sframegen.api.common import findings_of, planned, refuse, with_written
from sframegen.api.converted import VersionChange
from sframegen.api.options import Making, Writing
from sframegen.api.planned import plan_of
from sframegen.api.removed import SectionRemoval
from sframegen.base.columns import ascends
from sframegen.base.errors import FormatError, Refusal, RefusedError
from sframegen.conversion.convert import borders_of
from sframegen.detached.companion import Companion, is_detached
from sframegen.elf.file import open_elf
from sframegen.elf.records import ET_DYN, ET_EXEC, SHF_COMPRESSED
from sframegen.format.encode import EMPTY
from sframegen.format.layouts import F_FDE_SORTED, V3, WRITABLE
from sframegen.format.locate import is_sframe_section, read_pieces, read_sframe, unloaded_of
from sframegen.format.reasons import sayable
from sframegen.format.words import EncodedRules, RuleWords
from sframegen.tables.compare import agree, difference
from sframegen.tables.gather import Merger
from sframegen.tables.lower import lower
from sframegen.tables.optimize import MAX_GAP, Borders, encoder_of

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from linker.existing.overwrite import Exchange
    from linker.files.read_back import Reader
    from linker.files.target import Target
    from linker.inject.plan import InjectionPlan
    from linker.objects.given_file import Objects
    from sframegen.elf.file import ElfFile, Section
    from sframegen.format.abi import Abi
    from sframegen.format.encode import Encoder
    from sframegen.format.layouts import FormatVersion, Layout
    from sframegen.format.model import FunctionTable
    from sframegen.tables.levels import Level, LevelName

MOST_ROUNDS = 8  # real sections need one or two


def convert(
    path: str | os.PathLike[str],
    version: FormatVersion | None = None,
    *,
    optimize: LevelName | None = None,
    output: str | os.PathLike[str] | None = None,
    verify: bool = True,
    dry_run: bool = False,
    preserve_timestamps: bool = False,
    hard_links: Sequence[str | os.PathLike[str]] = (),
) -> VersionChange:
    """Write the SFrame section of an ELF file in another version of the format, or smaller; in place, or in a new file `output`.

    A section that is not loaded stays so, and compressed if it was.

    Sections that a linker wrote one after the other, of any version, or unsorted, become one sorted section. What the version
    cannot express is left out and counted. A file whose section is complete, has the version and holds nothing that readers of the
    version do not know is left unchanged, unless `optimize` makes the section smaller.

    - `version`: the version of the format, 3 or 2; None: the section's own, 3 for version 1.
    - `optimize`: how small the section becomes, as for `add_section`; None: "fast".
    - `output`: the file to write; `path` is unchanged.
    - `verify`: read the new file back, also with another library, and compare the rules.
    - `dry_run`: write nothing; the result has the plan.
    - `preserve_timestamps`: keep the access and modification times.
    - `hard_links`: other names of the file; they become names of the new file.

    Raises FormatError if there is no section, or it cannot be read, RefusedError if the new one does not fit in its place or would
    be empty, VerificationError if the new file is wrong, OSError, ValueError for an unknown version or level, or for
    neither version nor level, and TypeError if `hard_links` is a single path. The target is then unchanged, except after an OSError
    that says that a name in `hard_links` keeps the old file, or that the target is replaced.
    """
    given: dict[str, Any] = {"version": version, "optimize": optimize}
    given = {name: value for name, value in given.items() if value is not None}
    if not given:
        raise ValueError("give a version, or a level for optimize")
    making = Making(given.get("version", 3), given.get("optimize", "fast"))
    writing = Writing(output=output, verify=verify, dry_run=dry_run, preserve_timestamps=preserve_timestamps, hard_links=hard_links)
    wanted = _Wanted(making.layout if "version" in given else None, making.level, smaller="optimize" in given)
    return change_kind(path, writing, Kinds(partial(_convert, wanted=wanted)))


class _Wanted(NamedTuple):
    layout: Layout | None  # None: the section's own
    level: Level
    smaller: bool  # also if nothing else changes

    def layout_for(self, versions: Iterable[int]) -> Layout:
        return self.layout or WRITABLE.get(max(versions), V3)

    def encoder(self, elf: ElfFile, table: FunctionTable, abi: Abi, layout: Layout) -> Encoder:
        """Joined functions are joined again as long as that helps, so that another run has nothing to do.

        Raises FormatError where functions may be joined and the file's CFI cannot be read.
        """
        borders = borders_of(elf, table, abi) if self.level.max_rows else Borders(EMPTY)
        rules = EncodedRules(table.rules, RuleWords(abi, layout))
        found = encoder_of(elf, table, rules, self.level, borders)
        for _ in range(MOST_ROUNDS if self.level.max_rows else 0):
            again = encoder_of(elf, found.table, rules, self.level, borders)
            if again.size_bytes >= found.size_bytes:
                break
            found = again
        return found


def _convert(elf: ElfFile, target: Target, wanted: _Wanted) -> VersionChange:
    if is_detached(elf):
        raise FormatError(f"{Companion.DETACHED_SECTION}: for another version, add it again from the file that it is for")
    pieces = read_pieces(elf)
    abi, layout = pieces[0].abi, wanted.layout_for(piece.header.version for piece in pieces)
    merger = Merger()
    for piece in pieces:
        merger.add(piece)
    merged, dead = merger.merged(elf.executable_ranges())
    before = min(piece.header.version for piece in pieces)
    change = VersionChange(str(target.path), before, layout.version, pieces=len(pieces), dead=dead)
    is_good = len(pieces) == 1 and not dead and bool(pieces[0].header.flags & F_FDE_SORTED) and ascends(merged.start)
    is_good = is_good and layout.version == before and sayable(merged.rules, abi, layout)
    if is_good and not wanted.smaller:
        return with_written(change, target.copy(elf))

    table, left_out = lower(merged, abi, layout)
    if not len(table):
        message = f"nothing in its SFrame section can be expressed in version {layout.version}"
        raise RefusedError(Refusal.INEXPRESSIBLE, message, file=elf.name)
    encoder = wanted.encoder(elf, table, abi, layout)
    encoder.flags |= layout.flags & merger.flags
    size_before = _size_of(elf)
    change = replace(change, section_bytes_before=size_before)
    if is_good and encoder.size_bytes >= size_before:
        return with_written(change, target.copy(elf))
    step = _step(elf, encoder)
    change = replace(
        change,
        functions=len(table),
        rows=len(encoder.table.row_start),
        section_bytes=encoder.size_bytes,
        left_out={reason.value: count for reason, count in left_out.items()},
        plan=planned(step.plan),
    )

    def check(written: Path, reader: Reader) -> None:
        result, joins = read_sframe(open_elf(written)).table, wanted.level.max_rows > 0
        findings = step.verify(written, reader) + _lost(merged, table if joins else result, sum(left_out.values()))
        if joins and not agree(table, result, MAX_GAP, {}):
            findings.append("joined functions have other rules than before")
        refuse(findings or ([] if step.restores is None else check_undo(step.restores, written)))

    return with_written(change, target.write(step.write, check))


def _size_of(elf: ElfFile) -> int:
    """Bytes of its section, not compressed."""
    unloaded = unloaded_of(elf)
    return find_place(elf).size if unloaded is None else len(elf.contents(unloaded))


def _lost(merged: FunctionTable, table: FunctionTable, expected: int) -> list[str]:
    """The finding, if `table` does not say what `merged` does, except for `expected` bytes of code."""
    address, lost = difference(merged, table)
    if address is not None:
        return [f"another rule at {address:#x}"]
    return [] if lost == expected else [f"{lost} bytes of code lost their rule, not {expected}"]


class _Step(NamedTuple):
    """How the section gets its other contents."""

    plan: InjectionPlan | Exchange
    restores: ElfFile | None  # what the new file's undo record restores; None if it has none
    write: Callable[[BinaryIO], None]
    verify: Callable[[Path, Reader], list[str]]


def _step(elf: ElfFile, encoder: Encoder) -> _Step:
    """A loaded section stays in its place if it fits there. Otherwise ours is added again: Version 2 can need more room."""
    unloaded = unloaded_of(elf)
    if unloaded is None and (encoder.size_bytes <= find_place(elf).room or original_of(elf) is None):
        return _exchange(elf, encoder)
    return _add_again(elf, encoder, unloaded)


def _exchange(elf: ElfFile, encoder: Encoder) -> _Step:
    place = find_place(elf)
    exchange = plan_exchange(elf, place, encoder.encode(place.address))
    original = original_of(elf)
    restores = None if original is None else original.elf
    write = partial(write_all, elf, Change(exchange.writes))
    return _Step(exchange, restores, write, partial(verify_exchange, exchange, elf))


def _add_again(elf: ElfFile, encoder: Encoder, unloaded: Section | None) -> _Step:
    """The section is taken out, and the new one added. `unloaded`: where it is not loaded."""
    if sum(map(is_sframe_section, elf.sections)) > 1:
        raise elf.error(SEVERAL)
    base = base_of(elf)
    stored = None
    if unloaded is not None:
        stored = Stored.of(encoder, "zstd" if unloaded.header.sh_flags & SHF_COMPRESSED else None, elf.byte_order)
    plan = plan_section(base, encoder, stored=stored)
    write = partial(write_all, elf, change_for(plan, base, encoder, stored), record=base.record)
    return _Step(plan, base.given, write, partial(findings_of, plan, base))


def remove(
    path: str | os.PathLike[str],
    *,
    output: str | os.PathLike[str] | None = None,
    verify: bool = True,
    dry_run: bool = False,
    force: bool = False,
    preserve_timestamps: bool = False,
    hard_links: Sequence[str | os.PathLike[str]] = (),
) -> SectionRemoval:
    """Remove the SFrame section of an ELF file; in place, or in a new file `output`.

    The result is the input of `add_section`, byte for byte. If another tool has written the file since, the section is cut out and
    the rest is kept. A file without a section is left unchanged. An object, or each object of an archive, loses all SFrame
    sections, with their relocations.

    - `output`: the file to write; `path` is unchanged.
    - `verify`: read the new file back with another library before it replaces the old one.
    - `dry_run`: write nothing; the result has the plan.
    - `force`: also remove a section that another tool produced.
    - `preserve_timestamps`: keep the access and modification times.
    - `hard_links`: other names of the file; they become names of the new file.

    Raises FormatError if the file cannot be read, RefusedError if another tool produced its section, VerificationError if the new
    file is wrong, OSError, and TypeError if `hard_links` is a single path. The target is then
    unchanged, except after an OSError that says that a name in `hard_links` keeps the old file, or that the target is replaced.
    """
    writing = Writing(
        output=output, verify=verify, dry_run=dry_run, preserve_timestamps=preserve_timestamps, hard_links=hard_links, force=force
    )
    linked, objects = (partial(remove_from, force=force) for remove_from in (_remove_from_linked, _remove_from_objects))
    return change_kind(path, writing, Kinds(linked, objects))


def _remove_from_linked(elf: ElfFile, target: Target, *, force: bool) -> SectionRemoval:
    if elf.header.e_type not in (ET_EXEC, ET_DYN):
        raise elf.error("neither a program nor a library, nor an object")
    places, size = [] if is_detached(elf) else extents(elf), len(elf.data)
    removal = SectionRemoval(str(target.path), section_bytes=sum(p.size for p in places), size_before=size, size=size)
    if not places:
        note = f"{Companion.DETACHED_SECTION}; delete the file to remove it" if is_detached(elf) else ""
        return with_written(replace(removal, note=note), target.copy(elf))

    original = original_of(elf)
    if original is not None:
        has_one, size = bool(extents(original.elf)), len(original.elf.data)
        removal = replace(removal, restored=True, identical=True, still_has_one=has_one, size=size)
        result, plan, write = original.elf, unchanged(original.elf), partial(write_all, elf, Change(()), record=original.record)
    elif own_loads(elf) or unloaded_of(elf) is not None or force:
        result, plan = elf, plan_removal(elf)
        removal, write = replace(removal, plan=plan_of(plan)), partial(write_all, elf, Change(plan.writes))
    else:
        message = "another tool produced its SFrame section, or sframegen replaced one of another tool"
        raise RefusedError(Refusal.FOREIGN_SECTION, message, file=elf.name)

    def check(written: Path, reader: Reader) -> None:
        from linker.inject.verify import verify_writes  # noqa: PLC0415 - only where results are read back

        refuse(verify_writes(result, *plan, written, reader))

    return with_written(removal, target.write(write, check))


def _remove_from_objects(objects: Objects, target: Target, *, force: bool) -> SectionRemoval:
    """Each object by its own record, if it has one; `force` is for those that have none."""
    planned = {at: plan_object_removal(elf, force=force) for at, elf in objects.members.items()}
    removals = {at: one for at, one in planned.items() if one is not None}
    before = len(objects.data)
    if not removals:
        nothing = SectionRemoval(str(target.path), size_before=before, size=before)
        return nothing if target.in_place else with_written(nothing, target.write(objects.copy, lambda *_: None))
    restored = all(one.record for one in removals.values())
    identical = restored and not objects.is_archive
    report = SectionRemoval(
        str(target.path),
        section_bytes=sum(one.section_bytes for one in removals.values()),
        restored=restored,
        identical=identical,
        differs="its symbol index was made again" if restored and not identical else "",
        still_has_one=any(one.still_has_one for one in removals.values()),
        size_before=before,
        size=objects.size_with({at: one.size for at, one in removals.items()}),
        plan=None if restored else plan_of(Edits([(one.elf.name, write) for one in removals.values() for write in one.writes])),
    )
    checks = {at: one.check for at, one in removals.items()}

    def check(written: Path, _reader: Reader) -> None:
        refuse(objects.check(checks, open_given(str(written))))

    write = partial(objects.write, {at: one.write for at, one in removals.items()})
    return with_written(report, target.write(write, check))
