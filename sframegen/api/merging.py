"""merge: one section out of those of objects."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from cfi.errors import SframegenError, naming
from linker.merge.inputs import Inputs, read_all
from sframegen.api.merged import Linked
from sframegen.api.options import Making, Writing, check_path, check_paths
from sframegen.elf.records import ET_REL

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable

    from sframegen.api.merged import Merged
    from sframegen.api.options import StrPath
    from sframegen.format.layouts import FormatVersion
    from sframegen.program.workers import Progress
    from sframegen.tables.optimize import LevelName


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
    objects = list(objects)
    if not objects:
        raise ValueError("no objects to merge")
    if (executable is None) != (map_file is None):
        raise ValueError("executable and map_file go together: the map is that of the executable's link")
    making = Making(version, optimize)
    writing = Writing(output=output, verify=verify, dry_run=dry_run, min_kernel=min_kernel)
    file = str(executable or output)
    inputs = Inputs(objects, progress)
    if executable is not None and map_file is not None:
        return _merge_into(executable, making, writing, Linked(inputs, Path(map_file), file))
    from linker.merge.partial_link import check_regular_files, partial_link  # noqa: PLC0415 - not with a map
    from sframegen.program.signals import PrivateDirectory  # noqa: PLC0415 - as above

    def meanwhile() -> None:
        import_module("sframegen.api.merging_object")
        inputs.open_first()

    check_regular_files(objects)
    with PrivateDirectory() as directory:
        try:
            made = partial_link(linker, objects, Path(directory), meanwhile)
        except SframegenError as failed:
            try:
                read_all(objects)
            except SframegenError as better:  # an object is the reason
                for line in getattr(failed, "__notes__", ()):
                    better.add_note(line)
                raise better from failed
            raise
        merged = _merge_into(made.output, making, writing, Linked(inputs, made.map_file, file))
        return replace(merged, warnings=(*made.messages, *merged.warnings))


def _merge_into(path: StrPath, making: Making, writing: Writing, linked: Linked) -> Merged:
    target = writing.target(path)
    with naming(linked.file), target:
        elf = target.elf()
        if elf.header.e_type == ET_REL:
            from sframegen.api.merging_object import into_object  # noqa: PLC0415 - here and below: a merge needs one of these

            return into_object(elf, target, making, linked)
        from sframegen.api.merging_linked import into_linked  # noqa: PLC0415

        return into_linked(elf, target, making, writing, linked)
