"""convert and remove: files that have a section already."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from cfi.errors import naming
from linker.existing.find_section import extents, find_place, own_loads
from linker.existing.original import check_undo, original_of
from linker.existing.overwrite import plan_exchange, verify_exchange
from linker.existing.take_out import plan_removal, unchanged
from linker.files.target import Target
from linker.inject.apply import write_all
from linker.objects.add_to_objects import Objects, given, open_given
from linker.objects.remove_from_objects import Edits, plan_object_removal
from linker.refusals import Refusal, RefusedError
from sframegen.api.common import layout_of, refuse
from sframegen.api.converted import VersionChange
from sframegen.api.removed import SectionRemoval
from sframegen.conversion.resolve import ascends
from sframegen.elf.file import open_elf
from sframegen.elf.records import ET_DYN, ET_EXEC
from sframegen.format.encode import Encoder
from sframegen.format.locate import read_pieces, read_sframe
from sframegen.format.reasons import sayable
from sframegen.format.records import F_FDE_SORTED
from sframegen.tables.compare import difference
from sframegen.tables.gather import Merger
from sframegen.tables.lower import lower

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence
    from pathlib import Path


def convert(
    path: str | os.PathLike[str],
    version: int,
    *,
    output: str | os.PathLike[str] | None = None,
    verify: bool = True,
    dry_run: bool = False,
    preserve_timestamps: bool = False,
    hard_links: Sequence[str | os.PathLike[str]] = (),
) -> VersionChange:
    """Writes an ELF file's SFrame section in another version of the format, in its place; in the file, or as `output`.

    Sections that a linker left one behind the other, of whatever versions, or unsorted, become one sorted section. What it cannot
    say is left out and counted. A file whose section is whole, has the version and says nothing that its readers do not know
    is left unchanged.

    - `version`: of the format, 3 or 2.
    - `output`: the file to write; `path` stays as it is.
    - `verify`: read the new file back, also with LIEF, and compare the rules.
    - `dry_run`: write nothing; the report has the plan.
    - `preserve_timestamps`: keep the times of access and modification.
    - `hard_links`: other names of the file, which follow it.

    Raises FormatError where there is no section, or where the new one does not fit, or OSError: the target is then as it was.
    ValueError for a version that is not written.
    """
    target = Target(path, output, verify=verify, dry_run=dry_run, preserve_timestamps=preserve_timestamps, hard_links=hard_links)
    layout = layout_of(version)
    with naming(str(target.path)), target:
        elf = target.elf()
        pieces = read_pieces(elf)
        abi = pieces[0].abi
        merger = Merger()
        for piece in pieces:
            merger.add(piece)
        merged, dead = merger.merged(elf.executable_ranges())
        change = VersionChange(str(target.path), min(piece.header.version for piece in pieces), layout.version)
        change.pieces, change.dead = len(pieces), dead
        is_good = len(pieces) == 1 and not dead and pieces[0].header.flags & F_FDE_SORTED and ascends(merged.start)
        if layout.version == change.from_version and is_good and sayable(merged.rules, abi, layout):
            return target.copy(elf, change)

        place = find_place(elf)
        table, left_out = lower(merged, abi, layout)
        if not len(table):
            message = f"nothing in its SFrame section can be said in version {layout.version}"
            raise RefusedError(Refusal.INEXPRESSIBLE, message, file=elf.name)
        encoder = Encoder(table, abi, layout, share=abi.shares_rows)
        encoder.flags |= layout.flags & merger.flags
        exchange = plan_exchange(elf, place, encoder.encode(place.address))
        change.functions, change.rows = len(table), len(table.row_start)
        change.section_bytes_before, change.section_bytes = place.size, exchange.size
        change.left_out = {reason.value: count for reason, count in left_out.items()}
        change.plan = exchange

        def check(written: Path) -> None:
            findings = verify_exchange(exchange, elf, written)
            address, lost = difference(merged, read_sframe(open_elf(written)).table)
            if address is not None:
                findings.append(f"another rule at {address:#x}")
            elif lost != sum(left_out.values()):
                findings.append(f"{lost} bytes of code lost their rule, not {sum(left_out.values())}")
            original = original_of(elf)
            if original is not None:
                findings += check_undo(original.elf, written)
            refuse(findings)

        return target.write(change, partial(write_all, elf, exchange.writes), check)


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
    """Makes a file what `add_section` was given, byte for byte, in place or as `output`.

    If others have written the file anew since, its SFrame section is taken out and all else stays. A file without a section stays
    as it is. Of an object, or each object of an archive, all SFrame sections go, with their relocations.

    - `output`: the file to write; `path` stays as it is.
    - `verify`: read the new file back with LIEF.
    - `dry_run`: write nothing; the report has the plan.
    - `force`: also a section that others made.
    - `preserve_timestamps`: keep the times of access and modification.
    - `hard_links`: other names of the file, which follow it.

    Raises FormatError where the file cannot be read, or its section is by others, or OSError: the target is then as it was.
    """
    target = Target(path, output, verify=verify, dry_run=dry_run, preserve_timestamps=preserve_timestamps, hard_links=hard_links)
    with naming(str(target.path)), target:
        elf = given(target.data, str(target.path), target.source)
        if isinstance(elf, Objects):
            return _remove_from_objects(elf, target, force=force)
        if elf.header.e_type not in (ET_EXEC, ET_DYN):
            raise elf.error("neither a program nor a library, nor an object")
        places, size = extents(elf), len(elf.data)
        removal = SectionRemoval(str(target.path), section_bytes=sum(p.size for p in places), size_before=size, size=size)
        if not places:
            return target.copy(elf, removal)

        original = original_of(elf)
        if original is not None:
            removal.restored, removal.still_has_one, removal.size = True, bool(extents(original.elf)), len(original.elf.data)
            result, plan, write = original.elf, unchanged(original.elf), partial(write_all, elf, (), record=original.record)
        elif own_loads(elf) or force:
            result, plan = elf, plan_removal(elf)
            removal.plan, write = plan, partial(write_all, elf, plan.writes)
        else:
            message = "its SFrame section is by others, or by sframegen in the place of theirs"
            raise RefusedError(Refusal.FOREIGN_SECTION, message, file=elf.name)

        def check(written: Path) -> None:
            from linker.inject.verify import verify_writes  # noqa: PLC0415 - LIEF takes longer to import than most files to change

            refuse(verify_writes(result, *plan, written))

        return target.write(removal, write, check)


def _remove_from_objects(objects: Objects, target: Target, *, force: bool) -> SectionRemoval:
    """Each object by its own record, if it has one; `force` is for those that have none."""
    planned = {at: plan_object_removal(elf, force=force) for at, elf in objects.members.items()}
    removals = {at: one for at, one in planned.items() if one is not None}
    report = SectionRemoval(str(target.path), size_before=len(objects.data), size=len(objects.data))
    if not removals:
        return report if target.in_place else target.write(report, objects.copy, lambda _: None)
    report.section_bytes = sum(one.section_bytes for one in removals.values())
    report.size = objects.size_with({at: one.size for at, one in removals.items()})
    report.restored = all(one.record for one in removals.values())
    report.still_has_one = any(one.still_has_one for one in removals.values())
    report.plan = None if report.restored else Edits([(one.elf.name, write) for one in removals.values() for write in one.writes])
    checks = {at: one.check for at, one in removals.items()}

    def check(written: Path) -> None:
        refuse(objects.check(checks, open_given(str(written))))

    return target.write(report, partial(objects.write, {at: one.write for at, one in removals.items()}), check)
