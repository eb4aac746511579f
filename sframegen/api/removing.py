"""The public function `remove`, which restores the input of `add_section`, or cuts out the section of another tool."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from linker.existing.in_place import find_own_loads, find_sframe_extents
from linker.existing.original import restore_original
from linker.existing.take_out import Removal, plan_removal
from linker.inject.apply import Change, write_changed_file
from linker.objects.change_objects import plan_object_removal
from linker.objects.given_file import Objects, open_input
from sframegen.api.add_summary import Plan, plan_from_change, result_to_json
from sframegen.api.by_kind import change_by_kind
from sframegen.api.common import add_output, raise_for_findings
from sframegen.api.options import WriteOptions
from sframegen.base.errors import Refusal, RefusedError
from sframegen.base.text import printable
from sframegen.detached.detached_file import Companion, is_detached
from sframegen.elf.records import ET
from sframegen.format.locate import find_unloaded_section

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence
    from pathlib import Path

    from linker.files.read_back import Reader
    from linker.files.target import Target
    from sframegen.api.options import StrPath
    from sframegen.elf.file import ElfFile


@dataclass(frozen=True)
class SectionRemoval:
    """What `remove` did to one file. Sizes are in bytes."""

    file: str  #: as given
    output: str = ""  #: the path written, "" if none
    section_bytes: int = 0  #: of the removed section; 0 if there was none
    restored: bool = False  #: the contents are those of the input of `add_section`: the file's, or of all files in a package
    identical: bool = False  #: proven: the whole file is that input, byte for byte
    still_has_one: bool = False  #: the input of `add_section` had a section, which is there again
    size_before: int = 0  #: of the file
    size: int = 0  #: of the file now
    plan: Plan | None = None  #: what changes in the file; None if it is restored
    note: str = ""  #: why the file is unchanged, if it has a section
    differs: str = ""  #: why the file may differ from the input of `add_section`, although its contents are restored
    warnings: tuple[str, ...] = ()  #: a line each
    faults: tuple[str, ...] = ()  #: files in a package at which sframegen failed, through a fault of its own; a line each

    def one_line(self) -> str:
        """The line that the command prints by default."""
        file = printable(self.file)
        if self.note:
            return f"{file}: nothing to remove: {self.note}"
        if self.restored:
            state = "contents as before add-section" + f", {self.differs}" * bool(self.differs)
            state = "as it was before add-section" if self.identical else state
            line = f"{file}: {state}; {self.size_before:,} -> {self.size:,} bytes"
            return f"{line}; it had an SFrame section then" if self.still_has_one else line
        if self.plan is None:
            return f"{file}: no SFrame section: nothing to remove"
        return f"{file}: .sframe of {self.section_bytes:,} bytes taken out; not restored: no valid undo record"

    def to_json(self) -> dict[str, Any]:
        """The object that `--json` prints; docs/json-schema.json has the keys."""
        return result_to_json(self, self.plan)


def remove(
    path: str | os.PathLike[str],
    *,
    output: str | os.PathLike[str] | None = None,
    verify: bool = True,
    dry_run: bool = False,
    force: bool = False,
    hard_links: Sequence[str | os.PathLike[str]] = (),
) -> SectionRemoval:
    """Remove the SFrame section of an ELF file; in place, or in a new file `output`.

    The result is the input of `add_section`, byte for byte. If another tool has written the file since, the section is cut out and
    the rest is kept. A file without a section is left unchanged. An object, or each object of an archive, is only restored.

    - `output`: the file to write; `path` is unchanged.
    - `verify`: read the new file back with another library before it replaces the old one.
    - `dry_run`: write nothing; the result has the plan.
    - `force`: also remove a section that another tool produced; not from an object.
    - `hard_links`: other names of the file; they become names of the new file.

    Raises FormatError if the file cannot be read, RefusedError if another tool produced its section, VerificationError if the new
    file is wrong, OSError, and TypeError if `hard_links` is a single path. The target is then
    unchanged, except after an OSError that says that a name in `hard_links` keeps the old file, or that the target is replaced.
    """
    return remove_section(path, WriteOptions(output=output, verify=verify, dry_run=dry_run, hard_links=hard_links, force=force))


def remove_section(path: StrPath, writing: WriteOptions) -> SectionRemoval:
    """Do the work of `remove`, whose keywords are already checked and grouped."""
    return change_by_kind(path, writing, partial(_remove_from_linked, force=writing.force), _remove_from_objects)


def _remove_from_linked(elf: ElfFile, target: Target, *, force: bool) -> SectionRemoval:
    """Restore the original if the file has its undo record, else cut the section out if it is ours or `force` is set."""
    if elf.header.e_type not in (ET.EXEC, ET.DYN):
        raise elf.error("neither a program nor a library, nor an object")
    extents = [] if is_detached(elf) else find_sframe_extents(elf)
    section_bytes, size = sum(extent.size for extent in extents), len(elf.data)
    removal = SectionRemoval(str(target.path), section_bytes=section_bytes, size_before=size, size=size)
    if not extents:
        note = f"{Companion.DETACHED_SECTION}; delete the file to remove it" if is_detached(elf) else ""
        return add_output(replace(removal, note=note), target.copy(elf))

    original = restore_original(elf)
    if original is not None:
        has_one, size = bool(find_sframe_extents(original.elf)), len(original.elf.data)
        removal = replace(removal, restored=True, identical=True, still_has_one=has_one, size=size)
        result, plan = original.elf, Removal(original.elf.segments, original.elf.sections, [])
        write = partial(write_changed_file, elf, Change(()), record=original.record)
    elif find_own_loads(elf) or find_unloaded_section(elf) is not None or force:
        result, plan = elf, plan_removal(elf)
        removal, write = replace(removal, plan=plan_from_change(plan)), partial(write_changed_file, elf, Change(plan.writes))
    else:
        message = "another tool produced its SFrame section, or sframegen replaced one of another tool"
        raise RefusedError(Refusal.FOREIGN_SECTION, message, file=elf.name)

    def check(written: Path, reader: Reader) -> None:
        from linker.inject.verify import verify_writes  # noqa: PLC0415 - only where results are read back

        raise_for_findings(verify_writes(result, *plan, written, reader))

    return add_output(removal, target.write(write, check))


def _remove_from_objects(objects: Objects, target: Target) -> SectionRemoval:
    """Restore each object of a file from its own undo record. Dictionaries have the objects' header offsets as keys."""
    plans = {at: plan_object_removal(elf) for at, elf in objects.members.items()}
    removals = {at: plan for at, plan in plans.items() if plan is not None}
    before = len(objects.data)
    if not removals:
        nothing = SectionRemoval(str(target.path), size_before=before, size=before)
        return nothing if target.in_place else add_output(nothing, target.write(objects.copy, lambda *_: None))
    report = SectionRemoval(
        str(target.path), section_bytes=sum(removal.section_bytes for removal in removals.values()), restored=True,
        identical=not objects.is_archive, differs="its symbol index was made again" if objects.is_archive else "",
        still_has_one=any(removal.still_has_one for removal in removals.values()), size_before=before,
        size=objects.size_with({at: removal.size for at, removal in removals.items()}),
    )  # fmt: skip
    checks = {at: removal.check for at, removal in removals.items()}

    def check(written: Path, _reader: Reader) -> None:
        raise_for_findings(objects.check(checks, open_input(str(written))))

    write = partial(objects.write, {at: removal.write for at, removal in removals.items()})
    return add_output(report, target.write(write, check))
