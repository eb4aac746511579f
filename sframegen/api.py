"""The public functions: what `import sframegen` offers."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from cfi.errors import FormatError
from linker.apply import apply, copy_file
from linker.exchange import apply_exchange, find_place, plan_exchange, verify_exchange
from linker.original import apply_original, original_of
from linker.plan import plan_injection
from linker.remove import Removal, apply_removal, extents, own_loads, plan_removal
from linker.replace import relink, write_atomically
from sframegen import conversion
from sframegen.abi import abi_of
from sframegen.agreement import difference
from sframegen.elf import ET_CORE, ET_DYN, ET_EXEC, ET_REL, open_elf
from sframegen.format.encode import Encoder
from sframegen.format.layouts import WRITABLE
from sframegen.lower import lower
from sframegen.names import FunctionNames
from sframegen.optimize import LEVELS, Level, encoder_of
from sframegen.removal import SectionRemoval
from sframegen.search import find
from sframegen.section import open_sframe, read_sframe
from sframegen.sources import Sources, find_sources
from sframegen.summary import Summary
from sframegen.versions import VersionChange

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Sequence

    from linker.plan import InjectionPlan
    from sframegen.abi import Abi
    from sframegen.conversion import Converted
    from sframegen.elf import ElfFile
    from sframegen.format.decode import SframeSection
    from sframegen.format.layouts import Layout

__all__ = ["FormatError", "SectionRemoval", "Summary", "VersionChange", "add_section", "convert", "find", "read", "remove"]

UNLINKED = {
    ET_REL: "a relocatable object: add the section after linking",
    ET_CORE: "a core file",
}


def read(path: str | os.PathLike[str]) -> SframeSection:
    """The SFrame section of an ELF file, for `find`; decoded when its `table` is asked for. FormatError where it has none."""
    return open_sframe(open_elf(Path(path)))


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
    per_function: bool = False,
    hard_links: Sequence[Path] = (),
) -> Summary:
    """Gives a linked ELF file an SFrame section made from its call frame information; in place, or as `output`.

    `verify` reads the new file back with LIEF before it takes its place; `dry_run` only plans. `debug_file`: a separate debug file,
    or a directory of them; `version`: of the format, 3 or 2; `optimize`: a level, none, share, fast or size; `per_function`: the
    summary tells what became of each function; `hard_links`: other names of the file, which follow it. Raises FormatError where the
    file cannot be read or given a section, or OSError; the target is then as it was.
    """
    source = Path(path)
    target = Path(output) if output is not None else source
    layout, level = _layout(version), _level(optimize)
    with _naming(source):
        elf = open_elf(source)
        if elf.header.e_type not in (ET_EXEC, ET_DYN):
            raise elf.error(UNLINKED.get(elf.header.e_type, f"ELF type {elf.header.e_type} is neither a program nor a library"))
        abi = abi_of(elf)
        sources = find_sources(elf, None if debug_file is None else Path(debug_file))
        table, coverage, encoded = _convert_sources(elf, sources, abi, layout)
        summary = Summary(
            file=str(source),
            functions=coverage.functions,
            functions_covered=coverage.functions_covered,
            code_bytes=coverage.code_bytes,
            covered_bytes=coverage.covered_bytes,
            rows=len(table.row_start),
            eh_frame_bytes=sum(len(section.data) for section in sources.sections),
            eh_frame_hdr_bytes=sources.eh_frame_hdr_bytes,
            fates=coverage.fates(elf),
            ignored_fdes=coverage.ignored_fdes,
            warnings=sources.warnings,
        )
        if per_function:
            summary.per_function = list(coverage.per_function(FunctionNames(elf.function_symbols())))
        if not len(table):
            summary.note = "nothing to add: " + (
                "none of its call frame information can be said in SFrame" if coverage.functions else "no call frame information"
            )
            if target != source and not dry_run:
                write_atomically(target, partial(copy_file, elf), source=source, preserve_timestamps=preserve_timestamps)
                summary.output = str(target)
            return summary

        encoder = encoder_of(elf, coverage, encoded, level)
        plan = plan_injection(elf, encoder.size_bytes)
        summary.plan = plan
        summary.section_bytes = encoder.size_bytes
        summary.rows = len(encoder.table.row_start)
        if dry_run:
            return summary
        section = memoryview(encoder.encode(plan.section_address))
        if verify:
            _import_lief()
        write, check = partial(apply, plan, elf, section), partial(_verify, plan, elf)
        links = write_atomically(target, write, check if verify else None, source=source, preserve_timestamps=preserve_timestamps)
        summary.output = str(target)
        summary.warnings += _relink(target, hard_links, links)
        return summary


def _convert_sources(elf: ElfFile, sources: Sources, abi: Abi, layout: Layout) -> Converted:
    """All sections; where one that nobody asked for cannot be read, a warning, and those before it."""
    code = elf.executable_ranges()
    try:
        return conversion.convert(sources.sections, code, abi, layout)
    except FormatError as error:
        if error.place != sources.optional:
            raise
        sources.warnings.append(f"{error}; not used")
        return conversion.convert(sources.sections[:1], code, abi, layout)


def _import_lief() -> None:
    """Before there is a temporary file: an interrupted import of LIEF ends the process."""
    import linker.verify  # noqa: F401, PLC0415 - takes longer than most files to convert


def _verify(plan: InjectionPlan, elf: ElfFile, written: Path) -> None:
    from linker.verify import verify  # noqa: PLC0415 - LIEF takes longer to import than most files to convert

    _refuse(elf, verify(plan, elf, written))


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

    What the version cannot say is left out and counted. `verify` reads the new file back, also with LIEF, and compares the rules;
    `hard_links`: other names of the file, which follow it. Raises FormatError where there is no section, or where the new one does
    not fit, or OSError; the target is then as it was.
    """
    source = Path(path)
    target = Path(output) if output is not None else source
    layout = _layout(version)
    with _naming(source):
        elf = open_elf(source)
        section = read_sframe(elf)
        change = VersionChange(str(source), section.header.version, layout.version)
        if layout.version == section.header.version:
            if target != source and not dry_run:
                write_atomically(target, partial(copy_file, elf), source=source, preserve_timestamps=preserve_timestamps)
                change.output = str(target)
            return change

        place = find_place(elf)
        table, left_out = lower(section.table, section.abi, layout)
        if not len(table):
            raise elf.error(f"nothing in its SFrame section can be said in version {layout.version}")
        exchange = plan_exchange(
            elf, place, Encoder(table, section.abi, layout, share=section.abi.shares_rows).encode(place.address)
        )
        change.functions, change.rows = len(table), len(table.row_start)
        change.section_bytes_before, change.section_bytes = place.size, exchange.size
        change.left_out = {reason.value: count for reason, count in left_out.items()}
        change.plan = exchange
        if dry_run:
            return change
        if verify:
            _import_lief()

        def check(written: Path) -> None:
            findings = verify_exchange(exchange, elf, written)
            address, lost = difference(section.table, read_sframe(open_elf(written)).table)
            if address is not None:
                findings.append(f"another rule at {address:#x}")
            elif lost != sum(left_out.values()):
                findings.append(f"{lost} bytes of code lost their rule, not {sum(left_out.values())}")
            _refuse(elf, findings)

        write = partial(apply_exchange, exchange, elf)
        links = write_atomically(target, write, check if verify else None, source=source, preserve_timestamps=preserve_timestamps)
        change.output = str(target)
        change.warnings += _relink(target, hard_links, links)
        return change


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
    source = Path(path)
    target = Path(output) if output is not None else source
    with _naming(source):
        elf = open_elf(source)
        if elf.header.e_type not in (ET_EXEC, ET_DYN):
            raise elf.error("neither a program nor a library")
        places = extents(elf)
        removal = SectionRemoval(str(source), section_bytes=sum(place.size for place in places), size_before=len(elf.data))
        original = original_of(elf) if places else None
        if not places:
            removal.size = len(elf.data)
            if target != source and not dry_run:
                write_atomically(target, partial(copy_file, elf), source=source, preserve_timestamps=preserve_timestamps)
                removal.output = str(target)
            return removal

        if original is not None:
            result, plan = original.elf, Removal(original.elf.segments, original.elf.sections, [])
            write = partial(apply_original, original, elf)
            removal.restored = True
        elif own_loads(elf) or force:
            result, plan = elf, plan_removal(elf)
            write = partial(apply_removal, plan, elf)
            removal.plan = plan
        else:
            raise elf.error("its SFrame section is by others, or by sframegen in the place of theirs; --force takes it out")
        removal.size = len(result.data)
        if dry_run:
            return removal
        if verify:
            _import_lief()

        def check(written: Path) -> None:
            from linker.verify import verify_writes  # noqa: PLC0415 - LIEF takes longer to import than most files to change

            _refuse(elf, verify_writes(result, *plan, written))

        links = write_atomically(target, write, check if verify else None, source=source, preserve_timestamps=preserve_timestamps)
        removal.output = str(target)
        removal.warnings += _relink(target, hard_links, links)
        return removal


@contextmanager
def _naming(file: Path) -> Iterator[None]:
    """A FormatError of the block names the file, if it names none."""
    try:
        yield
    except FormatError as error:
        error.file = error.file or str(file)
        raise


def _refuse(elf: ElfFile, findings: list[str]) -> None:
    if findings:
        more = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
        raise elf.error(f"verification failed, nothing was changed: {findings[0]}{more}")


def _layout(version: int) -> Layout:
    if version not in WRITABLE:
        raise ValueError(f"SFrame version {version} is not written, only {', '.join(map(str, WRITABLE))}")
    return WRITABLE[version]


def _level(name: str) -> Level:
    if name not in LEVELS:
        raise ValueError(f"no level of optimisation {name!r}, only {', '.join(LEVELS)}")
    return LEVELS[name]


def _relink(target: Path, names: Sequence[Path], links: int) -> list[str]:
    """Makes these names follow the new file; a warning, if more than they had been other names of the old one."""
    for name in names:
        relink(target, name)
    left = links - len(names)
    return [f"{left} other name{'s' * (left > 1)} (hard links) of {target} keep the old file"] if left else []
