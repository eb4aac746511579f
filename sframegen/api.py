"""The public functions: what `import sframegen` offers."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from cfi.errors import FormatError, naming
from linker.apply import write_all
from linker.base import all_writes, base_of, is_written, plan_section
from linker.exchange import Exchange, find_place, plan_exchange, verify_exchange
from linker.lock import locked
from linker.merge import Merger
from linker.original import original_of
from linker.relocatable import Objects, check_object, open_given, write_object_of
from linker.remove import extents, own_loads, plan_removal, unchanged
from linker.signed import signatures
from linker.target import Target
from sframegen.abi import abi_of
from sframegen.agreement import agree, difference
from sframegen.checks.finding import Finding, Severity
from sframegen.checks.report import CONSUMERS, CheckReport, check_file
from sframegen.conversion import convert_sources
from sframegen.elf import ET_CORE, ET_DYN, ET_EXEC, ET_REL, open_elf
from sframegen.format.encode import Encoder
from sframegen.format.layouts import WRITABLE
from sframegen.format.records import F_FDE_SORTED
from sframegen.lower import lower
from sframegen.merged import Merged
from sframegen.names import FunctionNames
from sframegen.optimize import LEVELS, MAX_GAP, Level, encoder_of
from sframegen.removal import SectionRemoval
from sframegen.resolve import ascends
from sframegen.search import find
from sframegen.section import open_sframe, read_pieces, read_sframe
from sframegen.sources import Sources, find_sources
from sframegen.summary import Summary, total
from sframegen.versions import VersionChange

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Sequence

    from linker.base import Base
    from linker.plan import InjectionPlan
    from sframegen.conversion import Converted
    from sframegen.elf import ElfFile
    from sframegen.format.decode import SframeSection
    from sframegen.format.layouts import Layout
    from sframegen.model import FunctionTable

__all__ = [
    "CheckReport", "Finding", "FormatError", "Merged", "SectionRemoval", "Severity", "Summary", "VersionChange",
    "add_section", "check", "convert", "examine", "find", "merge", "read", "remove",
]  # fmt: skip

ANOTHER = "has an SFrame section, and not the one that would be added; --replace puts that in its place"
UNLINKED = {ET_CORE: "a core file"}


def read(path: str | os.PathLike[str]) -> SframeSection:
    """The SFrame section of an ELF file, for `find`; decoded when its `table` is asked for. FormatError where it has none."""
    return open_sframe(open_elf(Path(path)))


def check(
    path: str | os.PathLike[str], *, consumer: str = "all", debug_file: str | os.PathLike[str] | None = None
) -> list[Finding]:
    """What is wrong with the SFrame section of a program or library, worst first; as `examine`."""
    return examine(path, consumer=consumer, debug_file=debug_file).findings


def examine(
    path: str | os.PathLike[str], *, consumer: str = "all", debug_file: str | os.PathLike[str] | None = None
) -> CheckReport:
    """What `check` finds, and what became of every executable byte.

    `consumer`: who is to read it, kernel, glibc, gnu or all; `debug_file`: a separate debug file, or a directory of them, whose
    call frame information counts too. A file without a section is a finding; FormatError where it is neither program nor library,
    or OSError.
    """
    if consumer not in CONSUMERS:
        raise ValueError(f"no consumer {consumer!r}, only {', '.join(CONSUMERS)}")
    with naming(str(path)):
        return check_file(open_elf(Path(path)), consumer=consumer, debug_file=None if debug_file is None else Path(debug_file))


def add_section(
    path: str | os.PathLike[str],
    *,
    output: str | os.PathLike[str] | None = None,
    verify: bool = True,
    dry_run: bool = False,
    debug_file: str | os.PathLike[str] | None = None,
    preserve_timestamps: bool = False,
    version: int = 3,
    optimize: str = "fast",
    replace: bool = False,
    per_function: bool = False,
    force: bool = False,
    hard_links: Sequence[Path] = (),
) -> Summary:
    """Gives an ELF file an SFrame section made from its call frame information; in place, or as `output`.

    A relocatable object gets sections with relocations, as an assembler makes them; in an archive each object does.

    `verify` reads the new file back with LIEF before it takes its place; `dry_run` only plans. `debug_file`: a separate debug
    file, or a directory of them; `version`: of the format, 3 or 2; `optimize`: a level, none, share, fast or size; `replace`: a
    section that the file has gives way, if it is another; `per_function`: the summary tells what became of each function;
    `force`: also a file that is signed; `hard_links`: other names of the file, which follow it. Raises FormatError where the file
    cannot be read or given a section, or OSError; the target is then as it was.
    """
    target = Target.of(path, output, verify, dry_run, preserve_timestamps, hard_links)
    layout, level = _layout(version), _level(optimize)
    with naming(str(target.source)), locked(target.path):
        elf = open_given(str(target.source))
        if isinstance(elf, Objects):
            return _add_to_objects(elf, target, layout, level, per_function=per_function, force=force)
        if elf.header.e_type not in (ET_EXEC, ET_DYN):
            raise elf.error(UNLINKED.get(elf.header.e_type, f"ELF type {elf.header.e_type} is neither a program nor a library"))
        base = base_of(elf)
        sources = find_sources(base.elf, None if debug_file is None else Path(debug_file))
        converted = convert_sources(sources, base.elf.executable_ranges(), abi_of(elf), layout)
        table, coverage, encoded = converted
        summary = _summary(str(target.source), base.elf, sources, converted, per_function=per_function)
        if not len(table):
            summary.note = "nothing to add: " + (
                "none of its call frame information can be said in SFrame" if coverage.functions else "no call frame information"
            )
            return target.copy(elf, summary)
        present = extents(elf)
        if present and base.given is elf and not replace:
            if not _says(elf, table, layout):
                raise elf.error(ANOTHER)
            return target.copy(elf, _unchanged(summary, sum(extent.size for extent in present)))

        encoder = encoder_of(base.elf, coverage, encoded, level)
        plan = plan_section(base, encoder)
        summary.section_bytes = encoder.size_bytes
        summary.rows = len(encoder.table.row_start)
        if dry_run and not present:
            summary.warnings += _signed([elf], target.source, force=force)
            summary.plan = plan
            return summary
        writes = all_writes(plan, base, encoder)
        if present and is_written(elf, base, writes):
            return target.copy(elf, _unchanged(summary, encoder.size_bytes))
        if present and not replace:
            raise elf.error(ANOTHER)
        summary.warnings += _signed([elf], target.source, force=force)
        summary.plan = plan
        return target.write(summary, partial(write_all, elf, writes, record=base.record), partial(_verify, plan, base))


def _signed(changed: list[ElfFile], source: Path, *, force: bool) -> list[str]:
    """A warning, if what is about to change is signed; without `force` a FormatError."""
    found = ", ".join(dict.fromkeys(what for elf in changed for what in signatures(elf, source)))
    if found and not force:
        raise FormatError(f"signed: {found}; --force changes it all the same, and it is to be signed anew")
    return [f"to be signed anew: {found}"] if found else []


def _says(elf: ElfFile, table: FunctionTable, layout: Layout) -> bool:
    """Whether the file's section has that version, and says that of all code, padding between functions apart."""
    try:
        section = read_sframe(elf)
        return section.header.version == layout.version and agree(section.table, table, MAX_GAP)
    except FormatError:
        return False


def _unchanged(summary: Summary, section_bytes: int) -> Summary:
    summary.section_bytes = section_bytes
    summary.note = "has it already"
    return summary


def _summary(file: str, elf: ElfFile, sources: Sources, converted: Converted, *, per_function: bool) -> Summary:
    """What is known before there is a section."""
    coverage = converted.coverage
    summary = Summary(
        file=file,
        functions=coverage.functions,
        functions_covered=coverage.functions_covered,
        code_bytes=coverage.code_bytes,
        covered_bytes=coverage.covered_bytes,
        rows=len(converted.table.row_start),
        eh_frame_bytes=sum(len(section.data) for section in sources.sections),
        eh_frame_hdr_bytes=sources.eh_frame_hdr_bytes,
        fates=coverage.fates(elf),
        ignored_fdes=coverage.ignored_fdes,
        warnings=sources.warnings,
    )
    if per_function:
        summary.per_function = list(coverage.per_function(FunctionNames(elf.function_symbols())))
    return summary


def _add_to_objects(objects: Objects, target: Target, layout: Layout, level: Level, *, per_function: bool, force: bool) -> Summary:
    prepared = objects.prepare(layout, level)
    parts, changed = [], []
    for filled, sources, converted in prepared.values():
        part = _summary(filled.elf.name, filled.placed.image, sources, converted, per_function=per_function)
        part.section_bytes = sum(len(piece.section) for piece in filled.pieces)
        part.rows = len(filled.table.row_start)
        parts.append(part)
        if filled.pieces:
            changed.append(filled.elf)
    summary = total(str(target.source), parts)
    summary.warnings += _signed(changed, target.source, force=force)
    if not summary.section_bytes and target.path == target.source:
        return summary

    def check(written: Path) -> None:
        _refuse(objects.check(prepared, open_given(str(written))))

    return target.write(summary, partial(objects.write, prepared), check)


def _verify(plan: InjectionPlan | Exchange, base: Base, written: Path) -> None:
    from linker.verify import verify  # noqa: PLC0415 - LIEF takes longer to import than most files to convert

    _refuse(verify_exchange(plan, base.given, written) if isinstance(plan, Exchange) else verify(plan, base.elf, written))


def convert(
    path: str | os.PathLike[str],
    version: int,
    *,
    output: str | os.PathLike[str] | None = None,
    verify: bool = True,
    dry_run: bool = False,
    preserve_timestamps: bool = False,
    hard_links: Sequence[Path] = (),
) -> VersionChange:
    """Writes an ELF file's SFrame section in another version (3 or 2), in its place; in the file, or as `output`.

    Sections that a linker left one behind the other, of whatever versions, or unsorted, become one sorted section. What it cannot
    say is left out and counted. `verify` reads the new file back, also with LIEF, and compares the rules; `hard_links`: other
    names of the file, which follow it. Raises FormatError where there is no section, or where the new one does not fit, or OSError;
    the target is then as it was.
    """
    target = Target.of(path, output, verify, dry_run, preserve_timestamps, hard_links)
    layout = _layout(version)
    with naming(str(target.source)), locked(target.path):
        elf = open_elf(target.source)
        pieces = read_pieces(elf)
        abi = pieces[0].abi
        merger = Merger()
        for piece in pieces:
            merger.add(piece)
        merged, dead = merger.merged(elf.executable_ranges())
        change = VersionChange(str(target.source), min(piece.header.version for piece in pieces), layout.version)
        change.pieces, change.dead = len(pieces), dead
        is_good = len(pieces) == 1 and not dead and pieces[0].header.flags & F_FDE_SORTED and ascends(merged.start)
        if layout.version == change.from_version and is_good:
            return target.copy(elf, change)

        place = find_place(elf)
        table, left_out = lower(merged, abi, layout)
        if not len(table):
            raise elf.error(f"nothing in its SFrame section can be said in version {layout.version}")
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
            _refuse(findings)

        return target.write(change, partial(write_all, elf, exchange.writes), check)


def remove(
    path: str | os.PathLike[str],
    *,
    output: str | os.PathLike[str] | None = None,
    verify: bool = True,
    dry_run: bool = False,
    force: bool = False,
    preserve_timestamps: bool = False,
    hard_links: Sequence[Path] = (),
) -> SectionRemoval:
    """Makes a file what `add_section` was given, byte for byte, in place, or as `output`.

    If others have written the file anew since, its SFrame section is taken out and all else stays; so it is, with `force`, if
    others made the section. `verify` reads the new file back with LIEF; `hard_links`: other names of the file, which follow it. A
    file without a section stays as it is. Raises FormatError or OSError; the target is then as it was.
    """
    target = Target.of(path, output, verify, dry_run, preserve_timestamps, hard_links)
    with naming(str(target.source)), locked(target.path):
        elf = open_elf(target.source)
        if elf.header.e_type not in (ET_EXEC, ET_DYN):
            raise elf.error("neither a program nor a library")
        places, size = extents(elf), len(elf.data)
        removal = SectionRemoval(str(target.source), section_bytes=sum(p.size for p in places), size_before=size, size=size)
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
            raise elf.error("its SFrame section is by others, or by sframegen in the place of theirs; --force takes it out")

        def check(written: Path) -> None:
            from linker.verify import verify_writes  # noqa: PLC0415 - LIEF takes longer to import than most files to change

            _refuse(verify_writes(result, *plan, written))

        return target.write(removal, write, check)


def merge(
    objects: Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    *,
    executable: str | os.PathLike[str] | None = None,
    map_file: str | os.PathLike[str] | None = None,
    linker: str = "ld",
    version: int = 3,
    optimize: str = "none",
    verify: bool = True,
    dry_run: bool = False,
    progress: Callable[[Iterable[str | os.PathLike[str]]], Iterable[str | os.PathLike[str]]] = iter,
) -> Merged:
    """One SFrame section out of those of `objects` (objects, archives of them), as GNU ld makes it, in `output`.

    With `map_file`, the linker's map of the link that made `executable` of them: a copy of that with the section, which takes the
    place of one that it has. Else: what `linker -r` makes of the objects, with the section and its relocations. `optimize`: at
    "none" each function is as its object has it; else as for `add_section`. `progress` is given the objects when they are read, and
    passes them on. Raises FormatError or OSError; `output` is then as it was.
    """
    layout, level = _layout(version), _level(optimize)
    report = Merged(str(executable or output))
    if executable is not None and map_file is not None:
        target = Target(Path(executable), Path(output), verify, dry_run)
        return _merge_into(target, Path(map_file), progress(objects), layout, level, report)
    from tempfile import TemporaryDirectory  # noqa: PLC0415 - this and what merges take a tenth of the time to import everything

    from linker.merging import read_all  # noqa: PLC0415
    from linker.partial_link import link  # noqa: PLC0415

    with TemporaryDirectory() as directory:
        try:
            made = link(linker, objects, Path(directory))
        except FormatError:
            read_all(objects)  # which says it better, if an object is the reason
            raise
        target = Target(made.output, Path(output), verify, dry_run)
        report.warnings += made.messages
        return _merge_into(target, made.map_file, progress(objects), layout, level, report)


def _merge_into(
    target: Target, map_file: Path, objects: Iterable[str | os.PathLike[str]], layout: Layout, level: Level, report: Merged
) -> Merged:
    from linker.merging import fill, in_linked, merge_objects  # noqa: PLC0415

    with naming(report.file), locked(target.path):
        elf = open_elf(target.source)
        if elf.header.e_type == ET_REL:
            filled = fill(elf, map_file, objects, layout, level, report)

            def check(written: Path) -> None:
                _refuse(check_object(filled, open_elf(written)))

            return target.write(report, partial(write_object_of, filled), check)
        report.warnings += _signed([elf], target.source, force=True)  # another file is written, which is to be signed anyhow
        base = base_of(elf)
        encoder = merge_objects(objects, in_linked(map_file, base.elf), layout, level, report)
        plan = plan_section(base, encoder)
        writes = all_writes(plan, base, encoder)
        report.plan = plan
        return target.write(report, partial(write_all, elf, writes, record=base.record), partial(_verify, plan, base))


def _refuse(findings: list[str]) -> None:
    if findings:
        more = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
        raise FormatError(f"verification failed, nothing was changed: {findings[0]}{more}")


def _layout(version: int) -> Layout:
    if version not in WRITABLE:
        raise ValueError(f"SFrame version {version} is not written, only {', '.join(map(str, WRITABLE))}")
    return WRITABLE[version]


def _level(name: str) -> Level:
    if name not in LEVELS:
        raise ValueError(f"no level of optimisation {name!r}, only {', '.join(LEVELS)}")
    return LEVELS[name]
