"""add_section: a section made from a file's call frame information."""

from __future__ import annotations

import os
from dataclasses import replace as changed_to
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from cfi.errors import FormatError, naming
from linker.existing.add_or_replace import Stored, base_of, change_for, is_written, plan_section
from linker.existing.find_section import extents
from linker.files.refusals import ANOTHER, Refusal, RefusedError
from linker.files.target import Target
from linker.inject.apply import write_all
from linker.inject.image import kept_in_place
from linker.inject.kernel_versions import KernelChange, safe_on
from linker.inject.plan import risk_of
from linker.objects.given_file import Objects, given
from sframegen.api.added import Package, Summary, detached_already, nothing_to_add, summary_of, total
from sframegen.api.common import (
    check_linked,
    from_cfi,
    is_package,
    not_taken,
    planned,
    signed,
    verify_plan,
    with_written,
)
from sframegen.api.options import check_compression, check_jobs, check_paths, check_reader, layout_of, level_of
from sframegen.conversion.sources import find_sources
from sframegen.detached.companion import is_detached
from sframegen.elf.dynamic import read_dynamic
from sframegen.elf.records import SHF_COMPRESSED
from sframegen.elf.role import role_of
from sframegen.format.locate import read_sframe, unloaded_of
from sframegen.packages.kinds import is_layout
from sframegen.tables.compare import agree
from sframegen.tables.optimize import MAX_GAP

if TYPE_CHECKING:
    from collections.abc import Sequence

    from linker.files.read_back import Reader
    from sframegen.api.packaged import PassedPackage
    from sframegen.conversion.coverage import Coverage
    from sframegen.elf.compressed import Compression
    from sframegen.elf.file import ElfFile
    from sframegen.format.layouts import FormatVersion, Layout
    from sframegen.program.workers import Progress
    from sframegen.tables.optimize import LevelName

MODULE_SECTION = ".gnu.linkonce.this_module"  # struct module: every kernel module has it, and no other object
KERNEL_MODULE = (
    "nothing to add: a kernel module; the kernel walks its own stacks by ORC tables or frame pointers, and takes SFrame sections "
    "of processes only"
)


def add_section(
    path: str | os.PathLike[str],
    *,
    output: str | os.PathLike[str] | None = None,
    verify: bool | Reader = True,
    dry_run: bool = False,
    debug_file: str | os.PathLike[str] | None = None,
    preserve_timestamps: bool = False,
    version: FormatVersion = 3,
    optimize: LevelName = "fast",
    replace: bool = False,
    per_function: bool = False,
    force: bool = False,
    hard_links: Sequence[str | os.PathLike[str]] = (),
    synthesize: bool = False,
    min_kernel: str | None = None,
    unloaded: bool = False,
    compress: Compression | None = None,
    detached: str | os.PathLike[str] | None = None,
    jobs: int = 1,
    progress: Progress | None = None,
) -> Summary:
    """Add an SFrame section to an ELF file, made from its call frame information: in place, or in a new file `output`.

    A relocatable object gets sections with relocations, as an assembler writes them; so does each object of an archive. In a
    package, such as a wheel, a .deb or a container image, each program and library gets a section; refused ones are warnings. A
    file that has the same section already is left unchanged.

    - `output`: the file to write; `path` is left unchanged.
    - `verify`: read the new file back with another library before it replaces the old one. "lief" or "elftools" chooses it.
    - `dry_run`: write nothing; the result has the plan.
    - `debug_file`: a separate debug file, or a directory of them, for code that `.eh_frame` does not describe.
    - `preserve_timestamps`: keep the access and modification times.
    - `version`: the version of the format, 3 or 2.
    - `optimize`: how small to make the section: "none", "share", "fast" or "size".
    - `replace`: replace an existing SFrame section, whoever produced it.
    - `per_function`: the result lists what became of each function.
    - `force`: also change a file that is signed, or that may be a dynamic loader.
    - `hard_links`: other names of the file; they become names of the new file.
    - `synthesize`: also describe code of a linked file without call frame information, if its instructions prove the rows.
    - `min_kernel`: the oldest Linux that the result must run on, such as "5.18"; newer kernels allow more.
    - `unloaded`: add a section that no segment has, for readers of files; no program header changes.
    - `compress`: "zstd" compresses a section that is unloaded or detached, if that makes it smaller.
    - `detached`: a directory; the section becomes a file of its own in it, named after the build-id, and `path` is only read.
    - `jobs`: number of processes that read the instructions; above 1, they are forked.
    - `progress`: called with the bytes of code analysed so far and the current estimate of the total; a byte may be counted more
      than once.

    Raises FormatError if the file cannot be read, or is of a kind that has no section; RefusedError if it may not be changed;
    VerificationError if the new file differs from the plan; and OSError. Raises ValueError for an unknown version, level, kernel,
    reader or compression, for `compress` of a loaded section, for `detached` with `output` or `unloaded`, and for `jobs` below 1;
    TypeError if `hard_links` is a single path. After an error the target is unchanged, except after an OSError that says that a
    name in `hard_links` keeps the old file, or that the target is replaced.
    """
    check_compression(compress, unloaded=unloaded or detached is not None)
    check_reader(verify)
    check_jobs(jobs)
    check_paths("hard_links", hard_links)
    layout, level, safe = layout_of(version), level_of(optimize), safe_on(min_kernel)
    each = partial(
        add_section,
        verify=verify,
        dry_run=dry_run,
        debug_file=debug_file,
        version=version,
        optimize=optimize,
        replace=replace,
        per_function=per_function,
        force=force,
        synthesize=synthesize,
        min_kernel=min_kernel,
        unloaded=unloaded,
        compress=compress,
        detached=detached,
        jobs=jobs,
        progress=progress,
    )
    if detached is not None:
        if unloaded or output is not None:
            raise ValueError("detached leaves the file unchanged: it takes neither output nor unloaded")
        if is_layout(path) or is_package(os.fspath(path)):
            from sframegen.api.packaged import read_package  # noqa: PLC0415 - here and below: only for packages

            return _of_package(os.fspath(path), read_package(path, each))
        from sframegen.api.detaching import add_detached  # noqa: PLC0415

        return add_detached(
            path,
            detached,
            layout=layout,
            level=level,
            debug_file=debug_file,
            synthesize=synthesize,
            compress=compress,
            verify=verify,
            dry_run=dry_run,
            per_function=per_function,
            jobs=jobs,
            progress=progress,
        )
    if is_layout(path):
        from sframegen.api.packaged import change_layout  # noqa: PLC0415

        return _of_package(os.fspath(path), change_layout(path, each, output=output, dry_run=dry_run, force=force))
    forced = frozenset([KernelChange.SEGMENT_IN_A_LOADER] if force else ()) - safe
    target = Target(path, output, verify=verify, dry_run=dry_run, preserve_timestamps=preserve_timestamps, hard_links=hard_links)
    with naming(str(target.path)), target:
        if is_package(str(target.path), target.data):
            from sframegen.api.packaged import change_package  # noqa: PLC0415

            return _of_package(str(target.path), change_package(target, each, force=force))
        elf = given(target.data, str(target.path), target.source)
        if isinstance(elf, Objects):
            if synthesize:
                raise FormatError("only linked files can have synthesized rows")
            if unloaded:
                raise FormatError("only linked files can have a section that is not loaded")
            if any(one.section(MODULE_SECTION) for one in elf.members.values()):
                module = Summary(str(target.path), note=KERNEL_MODULE)
                return module if target.in_place else with_written(module, target.write(elf.copy, lambda *_: None))
            from sframegen.api.adding_objects import add_to_objects  # noqa: PLC0415 - not for linked files

            return add_to_objects(elf, target, layout, level, replace=replace, per_function=per_function, force=force)
        check_linked(elf)
        if is_detached(elf):
            return with_written(detached_already(str(target.path)), target.copy(elf))
        base = base_of(elf)
        present = extents(elf)
        if (replace or not present) and not synthesize:  # which forks processes
            target.begin_copy(elf, kept_in_place(base.elf))
        sources = find_sources(base.elf, None if debug_file is None else Path(debug_file))
        converted = from_cfi(base.elf, sources, layout, synthesize=synthesize, jobs=jobs, progress=progress)
        summary = summary_of(str(target.path), base.elf, sources, converted, per_function=per_function)
        if not len(converted.table):
            return with_written(nothing_to_add(summary), target.copy(elf))
        if present and base.given is elf and not replace:
            if (unloaded_of(elf) is not None) != unloaded or not _says(elf, converted.coverage, layout):
                raise _other_section(elf, unloaded=unloaded)
            section = unloaded_of(elf)
            size = sum(extent.size for extent in present)
            if section is not None:
                packed = size if section.header.sh_flags & SHF_COMPRESSED else 0
                summary, size = changed_to(summary, unloaded=True, compressed_bytes=packed), elf.contents_size(section)
            return with_written(_unchanged(summary, size), target.copy(elf))

        warnings = summary.warnings + (() if unloaded else not_taken(base.elf, layout))
        encoder = converted.encoder(base.elf, level)
        stored = Stored.of(encoder, compress, elf.byte_order) if unloaded else None
        plan = plan_section(base, encoder, safe | forced, stored)
        if forced and not unloaded and (risk := risk_of(role_of(base.elf, read_dynamic(base.elf)))):
            warnings += (risk,)
        summary = changed_to(summary, section_bytes=encoder.size_bytes, rows=len(encoder.table.row_start), warnings=warnings)
        if stored is not None:
            summary = changed_to(summary, unloaded=True, compressed_bytes=len(stored.data) if stored.flags else 0)
        if dry_run and not present:
            return changed_to(summary, plan=planned(plan), warnings=warnings + signed([elf], target, force=force))
        change = change_for(plan, base, encoder, stored)
        if present and (is_written(elf, base, change) if stored is None else stored.is_in(elf)):
            return with_written(_unchanged(summary, encoder.size_bytes), target.copy(elf))
        if present and not replace:
            raise _other_section(elf, unloaded=unloaded)
        summary = changed_to(summary, plan=planned(plan), warnings=warnings + signed([elf], target, force=force))
        written = target.write(
            partial(write_all, elf, change, record=base.record, copy=target.copy_to), partial(verify_plan, plan, base)
        )
        return with_written(summary, written)


def _of_package(file: str, done: PassedPackage[Summary]) -> Summary:
    passed, parts = done.passed, done.parts
    changed = sum(part.plan is not None for part in parts)
    refused = len(done.refused) + len(done.faults)
    package = Package(passed.kind, passed.entries, passed.elf_files, changed, refused, done.size_before, done.size, tuple(parts))
    summary = total(file, parts)
    note = "has it already" if summary.section_bytes and not changed else summary.note
    if not passed.elf_files:
        note = "nothing to add: no program or library in it"
    warnings = summary.warnings + done.warnings
    unloaded = {part.unloaded for part in parts if part.section_bytes} == {True}
    summary = changed_to(summary, package=package, note=note, warnings=warnings, unloaded=unloaded, per_function=None)
    return changed_to(summary, output=done.written.output, faults=tuple(done.faults))


def _other_section(elf: ElfFile, *, unloaded: bool) -> RefusedError:
    is_loaded = unloaded_of(elf) is None
    where = "has a loaded SFrame section already" if is_loaded else "has an SFrame section already, which is not loaded"
    return RefusedError(Refusal.OTHER_SECTION, where if is_loaded == unloaded else ANOTHER, file=elf.name)


def _says(elf: ElfFile, coverage: Coverage, layout: Layout) -> bool:
    """True if the file's section has that version and those rules for all code, except padding between functions."""
    try:
        section = read_sframe(elf)
        padded = coverage.final_calls(elf).ends(coverage.table)
        return section.header.version == layout.version and agree(section.table, coverage.table, MAX_GAP, padded)
    except FormatError:
        return False


def _unchanged(summary: Summary, section_bytes: int) -> Summary:
    return changed_to(summary, section_bytes=section_bytes, note="has it already")
