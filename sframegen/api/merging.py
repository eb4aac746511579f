"""merge: one section out of those of objects."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from cfi.errors import SframegenError, naming
from linker.existing.add_or_replace import all_writes, base_of, plan_section
from linker.files.target import Target
from linker.inject.apply import write_all
from linker.inject.kernel_versions import safe_on
from linker.merge.merged import Merged
from linker.objects.add_to_objects import check_object, write_object
from sframegen.api.common import layout_of, level_of, not_taken, refuse, signed, verify_plan
from sframegen.elf.file import open_elf
from sframegen.elf.records import ET_REL

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator, Sequence

    from linker.inject.kernel_versions import Change
    from sframegen.format.layouts import Layout
    from sframegen.program.workers import Progress
    from sframegen.tables.optimize import Level, LevelName


def merge(
    objects: Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    *,
    executable: str | os.PathLike[str] | None = None,
    map_file: str | os.PathLike[str] | None = None,
    linker: str = "ld",
    version: int = 3,
    optimize: LevelName = "none",
    min_kernel: str | None = None,
    verify: bool = True,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> Merged:
    """One SFrame section out of those of `objects` (objects, archives of them), as GNU ld makes it, in `output`.

    - `executable` and `map_file`, together: `output` is a copy of that program or library with the section, which takes the place
      of one that it has; the map is that of the link which made it of `objects`, by GNU ld, gold, lld or mold.
    - `linker`, without a map: `output` is what `linker -r` makes of the objects, with the section and its relocations.
    - `version`: of the format, 3 or 2.
    - `optimize`: at none each function is as its object has it; share, fast and size as for `add_section`.
    - `min_kernel`: the oldest Linux that a linked `output` must run on, as for `add_section`.
    - `verify`: read the new file back.
    - `dry_run`: write nothing; the report has the plan.
    - `progress`: called with the number of files in `objects` that are read, and of all.

    Raises FormatError where a file cannot be read or the objects are not those of the map, or OSError: `output` is then as it
    was. ValueError for a version or level that there is not.
    """
    layout, level, safe = layout_of(version), level_of(optimize), safe_on(min_kernel)
    report = Merged(str(executable or output))
    if executable is not None and map_file is not None:
        target = Target(executable, output, verify=verify, dry_run=dry_run)
        return _merge_into(target, Path(map_file), _counted(objects, progress), layout, level, safe, report)
    from tempfile import TemporaryDirectory  # noqa: PLC0415 - this and what merges take a tenth of the time to import everything

    from linker.merge.merge_objects import read_all  # noqa: PLC0415
    from linker.merge.partial_link import link  # noqa: PLC0415

    with TemporaryDirectory() as directory:
        try:
            made = link(linker, objects, Path(directory))
        except SframegenError as failed:
            try:
                read_all(objects)
            except SframegenError as better:  # an object is the reason
                for line in getattr(failed, "__notes__", ()):
                    better.add_note(line)
                raise better from failed
            raise
        target = Target(made.output, output, verify=verify, dry_run=dry_run)
        report.warnings += made.messages
        return _merge_into(target, made.map_file, _counted(objects, progress), layout, level, safe, report)


def _counted(objects: Sequence[str | os.PathLike[str]], progress: Progress | None) -> Iterator[str | os.PathLike[str]]:
    for number, path in enumerate(objects, 1):
        yield path
        if progress is not None:
            progress(number, len(objects))


def _merge_into(
    target: Target,
    map_file: Path,
    objects: Iterable[str | os.PathLike[str]],
    layout: Layout,
    level: Level,
    safe: frozenset[Change],
    report: Merged,
) -> Merged:
    from linker.merge.merge_objects import fill, in_linked, merge_objects  # noqa: PLC0415

    with naming(report.file), target:
        elf = target.elf()
        if elf.header.e_type == ET_REL:
            filled = fill(elf, map_file, objects, layout, level, report)

            def check(written: Path) -> None:
                refuse(check_object(filled, open_elf(written)))

            return target.write(report, partial(write_object, filled), check)
        report.warnings += signed([elf], target, force=True)  # another file is written, which is to be signed anyhow
        base = base_of(elf)
        encoder = merge_objects(objects, in_linked(map_file, base.elf), layout, level, report)
        report.warnings += not_taken(base.elf, layout)
        plan = plan_section(base, encoder, safe)
        writes = all_writes(plan, base, encoder)
        report.plan = plan
        return target.write(report, partial(write_all, elf, writes, record=base.record), partial(verify_plan, plan, base))
