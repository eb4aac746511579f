"""The public functions: what `import sframegen` offers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from cfi.errors import FormatError
from linker.apply import apply, copy_file
from linker.plan import plan_injection
from linker.replace import write_atomically
from sframegen.abi import abi_of
from sframegen.conversion import convert
from sframegen.elf import ET_CORE, ET_DYN, ET_EXEC, ET_REL, open_elf
from sframegen.format.encode import Encoder
from sframegen.search import find
from sframegen.section import read_sframe
from sframegen.sources import find_sources
from sframegen.summary import Summary

if TYPE_CHECKING:
    import os

    from linker.plan import InjectionPlan
    from sframegen.elf import ElfFile
    from sframegen.format.decode import SframeSection

__all__ = ["FormatError", "Summary", "add_section", "find", "read"]

UNLINKED = {
    ET_REL: "a relocatable object: add the section after linking",
    ET_CORE: "a core file",
}


def read(path: str | os.PathLike[str]) -> SframeSection:
    """The decoded SFrame section of an ELF file. Raises FormatError where it has none or a bad one."""
    return read_sframe(open_elf(Path(path)))


def add_section(
    path: str | os.PathLike[str],
    *,
    output: str | os.PathLike[str] | None = None,
    verify: bool = True,
    dry_run: bool = False,
    debug_file: str | os.PathLike[str] | None = None,
    preserve_timestamps: bool = False,
) -> Summary:
    """Gives a linked ELF file an SFrame section made from its call frame information; in place, or as `output`.

    `verify` reads the new file back with LIEF before it takes its place; `dry_run` only plans. `debug_file`: a separate debug file,
    or a directory of them. Raises FormatError where the file cannot be read or given a section, or OSError; the target is then
    as it was.
    """
    source = Path(path)
    target = Path(output) if output is not None else source
    try:
        return _add_section(
            source, target, verify, dry_run, Path(debug_file) if debug_file is not None else None, preserve_timestamps
        )
    except FormatError as error:
        error.file = error.file or str(source)
        raise


def _add_section(
    source: Path, target: Path, verify: bool, dry_run: bool, debug_file: Path | None, preserve_timestamps: bool
) -> Summary:
    elf = open_elf(source)
    if elf.header.e_type not in (ET_EXEC, ET_DYN):
        raise elf.error(UNLINKED.get(elf.header.e_type, f"ELF type {elf.header.e_type} is neither a program nor a library"))
    abi = abi_of(elf)
    sources = find_sources(elf, debug_file)
    table, coverage = convert(sources.sections, elf.executable_ranges(), abi)
    summary = Summary(
        file=str(source),
        functions=coverage.functions,
        functions_covered=coverage.functions_covered,
        code_bytes=coverage.code_bytes,
        covered_bytes=coverage.covered_bytes,
        rows=len(table.row_start),
        eh_frame_bytes=sum(len(section.data) for section in sources.sections),
        eh_frame_hdr_bytes=sources.eh_frame_hdr_bytes,
        left_out={reason.value: count for reason, count in coverage.left_out.items()},
        ignored_fdes=coverage.ignored_fdes,
    )
    if not len(table):
        summary.note = "nothing to add: " + (
            "none of its call frame information can be said in SFrame" if coverage.functions else "no call frame information"
        )
        if target != source and not dry_run:
            write_atomically(target, lambda out: copy_file(elf, out), source=source, preserve_timestamps=preserve_timestamps)
            summary.output = str(target)
        return summary

    encoder = Encoder(table, abi)
    plan = plan_injection(elf, encoder.size_bytes)
    summary.plan = plan
    summary.section_bytes = encoder.size_bytes
    if dry_run:
        return summary
    section = memoryview(encoder.encode(plan.section_address))

    def write(out: BinaryIO) -> None:
        apply(plan, elf, section, out)

    def check(written: Path) -> None:
        _verify(plan, elf, written)

    links = write_atomically(target, write, check if verify else None, source=source, preserve_timestamps=preserve_timestamps)
    summary.output = str(target)
    if links:
        summary.warnings.append(f"{links} other name{'s' * (links > 1)} (hard links) of {target} keep the old file")
    return summary


def _verify(plan: InjectionPlan, elf: ElfFile, written: Path) -> None:
    from linker.verify import verify  # noqa: PLC0415 - LIEF takes longer to import than most files to convert

    findings = verify(plan, elf, written)
    if findings:
        more = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
        raise elf.error(f"verification failed, nothing was changed: {findings[0]}{more}")
