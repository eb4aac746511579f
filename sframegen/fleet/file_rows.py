"""One ELF file of a package -> its row, and the file or section that the run's mode asks for."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Any

from cfi.errors import SframegenError, VerificationError
from linker.files.refusals import Refusal, RefusedError
from sframegen import api
from sframegen.elf.dynamic import DT_NEEDED, DT_STRSZ, DT_STRTAB, read_dynamic
from sframegen.elf.file import ElfFile
from sframegen.elf.notes import build_id_of
from sframegen.elf.opening import map_file
from sframegen.elf.records import ET_DYN, ET_EXEC, SHF_EXECINSTR, SHT_NOBITS
from sframegen.elf.strings import strings_at
from sframegen.fleet.producers import producer_of
from sframegen.fleet.result_rows import FileRow, Outcome, one_line
from sframegen.fleet.run_options import Mode
from sframegen.format.abi import abi_of

if TYPE_CHECKING:
    from pathlib import Path

    from sframegen.api.added import Summary
    from sframegen.fleet.run_options import RunOptions

TYPES = {ET_EXEC: "EXEC", ET_DYN: "DYN"}
NAMES = {"AMD64": "x86-64"}  # of machines, where people have another one than the ABI
DEBUG_FILE = "a separate debug file"


@dataclass
class Files:
    """The files of one package: `visit` is what a pass calls."""

    package: str
    sha256: str
    options: RunOptions
    store: str  #: where detached sections go
    rows: list[FileRow] = field(default_factory=list)

    def visit(self, path: str, given: Path, changed: Path) -> bool:
        """Adds a row. Raises OSError, and MemoryError where another limit of memory could give another row."""
        row = FileRow(self.package, self.sha256, one_line(path), Outcome.REFUSED)
        self.rows.append(row)
        started = perf_counter()
        try:
            return self._converted(row, given, changed)
        except RefusedError as error:
            if error.reason is Refusal.NO_MEMORY_TO_VERIFY:
                raise MemoryError from error
            row.reason = one_line(f"{error.reason.value}: {error.message.removeprefix(f'{error.reason.value}: ')}")
        except VerificationError as error:
            row.reason = one_line(f"verification: {error.message}")
        except SframegenError as error:
            row.reason = one_line(": ".join(filter(None, (error.place, error.message))))
        finally:
            row.seconds = round(perf_counter() - started, 6)
        return False

    def _converted(self, row: FileRow, given: Path, changed: Path) -> bool:
        data, status = map_file(given)
        row.file_bytes = status.st_size
        elf = ElfFile(data, os.fspath(given))
        machine = abi_of(elf).name
        row.machine, row.elf_type = NAMES.get(machine, machine), TYPES.get(elf.header.e_type, "")
        row.build_id = (build_id_of(elf) or b"").hex()
        producer = producer_of(elf, _needed(elf))
        row.producer, row.producer_version, row.language = producer
        if _is_debug_file(elf):
            row.outcome, row.reason = Outcome.NOTHING, DEBUG_FILE
            return False
        del elf, data
        summary = api.add_section(given, replace=True, force=self.options.force, **self._how(changed))
        _fill(row, summary)
        if self.options.mode is Mode.DETACHED and row.outcome is Outcome.UNCHANGED:
            row.outcome = Outcome.ADDED  # another package brought the same file: which of them came first says nothing
        if not changed.exists() or row.outcome is not Outcome.ADDED:
            return False
        row.new_file_bytes = changed.stat().st_size
        return True

    def _how(self, changed: Path) -> dict[str, Any]:
        match self.options.mode:
            case Mode.SURVEY:
                return {"dry_run": True}
            case Mode.DETACHED:
                return {"detached": self.store}
            case Mode.UNLOADED:
                return {"output": changed, "unloaded": True}
            case Mode.REWRITE:
                return {"output": changed}


def _fill(row: FileRow, summary: Summary) -> None:
    if summary.note == "has it already":
        row.outcome = Outcome.UNCHANGED
    elif summary.section_bytes:
        row.outcome = Outcome.ADDED
    else:
        row.outcome, row.reason = Outcome.NOTHING, summary.note.removeprefix("nothing to add: ")
    row.executable_bytes = sum(sum(counts.values()) for counts in summary.fates.values())
    row.code_bytes, row.covered_bytes = summary.code_bytes, summary.covered_bytes
    row.functions, row.functions_covered = summary.functions, summary.functions_covered
    row.rows, row.section_bytes = summary.rows, summary.section_bytes
    row.stored_bytes = summary.compressed_bytes or summary.section_bytes
    row.eh_frame_bytes, row.eh_frame_hdr_bytes = summary.eh_frame_bytes, summary.eh_frame_hdr_bytes
    if summary.plan is not None:
        row.new_file_bytes = summary.plan.file_size or 0
    row.left_out = {fate: count for fate, count in summary.fates.get("left_out", {}).items() if count}
    row.no_cfi = {fate: count for fate, count in summary.fates.get("no_cfi", {}).items() if count}
    row.warnings = [one_line(warning) for warning in summary.warnings]


def _needed(elf: ElfFile) -> list[str]:
    """The libraries that it needs."""
    dynamic = read_dynamic(elf)
    tags = {entry.tag: entry.value for entry in dynamic}
    if DT_STRTAB not in tags:
        return []
    names = bytes(elf.at(tags[DT_STRTAB], tags.get(DT_STRSZ, 0)))
    return strings_at(names, tuple(entry.value for entry in dynamic if entry.tag == DT_NEEDED))


def _is_debug_file(elf: ElfFile) -> bool:
    """True if the sections of its code have no bytes."""
    kinds = {section.header.sh_type for section in elf.sections if section.header.sh_flags & SHF_EXECINSTR}
    return kinds == {SHT_NOBITS}
