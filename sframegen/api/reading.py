"""read and check: what a file's section says, and whether that is so."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from cfi.errors import FormatError, naming
from linker.objects.object_check import check_objects
from sframegen.api.by_kind import Kinds, is_package, read_kind
from sframegen.api.checked_package import check_package
from sframegen.api.options import Running, check_paths
from sframegen.checks.check import CONSUMERS, check_file
from sframegen.detached.stores import Stores
from sframegen.elf.file import open_elf
from sframegen.format.locate import sframe_of
from sframegen.packages.kinds import is_layout

if TYPE_CHECKING:
    from collections.abc import Sequence

    from linker.objects.given_file import Objects
    from sframegen.checks.check import Consumer
    from sframegen.checks.check_report import CheckReport
    from sframegen.elf.file import ElfFile
    from sframegen.format.decode import SframeSection
    from sframegen.program.workers import Progress


def read(path: str | os.PathLike[str], *, sections: Sequence[str | os.PathLike[str]] = ()) -> SframeSection:
    """Return the SFrame section of an ELF file, of any producer and version: a copy, of which only the header is decoded.

    `rule_at` searches its bytes; `table`, the decoded section, is made when it is first used.

    - `sections`: directories with detached sections, for a file that has none itself.

    Raises FormatError if the file has no section, or one with a bad header, OSError, and TypeError if `sections` is a single path.
    """
    check_paths("sections", sections)
    section = Stores(sections).open_for(open_elf(Path(path)))
    return replace(section, data=memoryview(bytes(section.data)))


def check(
    path: str | os.PathLike[str],
    *,
    consumer: Consumer = "all",
    debug_file: str | os.PathLike[str] | None = None,
    sections: Sequence[str | os.PathLike[str]] = (),
    instructions: bool = False,
    second_reader: bool | None = None,
    jobs: int = 1,
    progress: Progress | None = None,
) -> CheckReport:
    """Report what is wrong with the SFrame section of an ELF file, and what it says of every executable byte.

    All sections of an object, or of the objects of an archive, are checked together, without consumers: these read linked files.
    In a package, each program and library that has a section is checked by itself.

    - `consumer`: who is going to read the section: "kernel", "glibc", "gnu" or "all".
    - `debug_file`: a separate debug file, or a directory of them, whose call frame information is used as well.
    - `sections`: directories with detached sections, for a file that has none itself.
    - `instructions`: also compare the section and the call frame information with the instructions.
    - `second_reader`: also read the call frame information with pyelftools, and compare the section with that. None: if it is small
      enough to take no more than a second or two.
    - `jobs`: number of processes that read the instructions; above 1, they are forked.
    - `progress`: called with the bytes of call frame information that pyelftools has read, and their total; then, with
      `instructions`, with the bytes of code analysed so far and the current estimate of the total, which may count a byte more than
      once.

    Faults of the section are findings, and so is a missing section. Raises FormatError if the file cannot be read or is of a
    kind that has no section, if `instructions`, `debug_file` or `second_reader` are given for a file that is not linked, or
    `instructions` for an ABI whose instructions are not read; OSError; ValueError for an unknown consumer and for `jobs` below 1;
    and TypeError if `sections` is a single path.
    """
    running = Running(jobs, progress)
    check_paths("sections", sections)
    if consumer not in CONSUMERS:
        raise ValueError(f"unknown consumer {consumer!r}, only {', '.join(CONSUMERS)}")
    no_objects = {
        "instructions are checked in linked files only: jumps and calls of an object lead nowhere yet": instructions,
        "an object has no separate debug file": debug_file is not None,
        "the second reader reads the call frame information of linked files only": second_reader,
    }

    def check_linked(elf: ElfFile) -> CheckReport:
        stores = Stores(sections)
        report = check_file(
            elf,
            detached=_detached(elf, stores),
            consumer=consumer,
            debug_file=None if debug_file is None else Path(debug_file),
            instructions=instructions,
            second_reader=second_reader,
            jobs=running.jobs,
            progress=running.progress,
        )
        return replace(report, warnings=(*stores.take_notes(), *report.warnings))

    def check_unlinked(objects: Objects) -> CheckReport:
        for why_not, is_asked in no_objects.items():
            if is_asked:
                raise FormatError(why_not)
        return check_objects(objects)

    with naming(os.fspath(path)):
        if is_layout(path) or is_package(os.fspath(path)):
            return check_package(path, check_linked)
        return read_kind(path, Kinds(check_linked, check_unlinked))


def _detached(elf: ElfFile, stores: Stores) -> memoryview | None:
    """The section in a store for a file that has none; None also where its own is damaged, which the check of the file says."""
    try:
        return stores.find_for(elf, lambda data: data) if sframe_of(elf) is None else None
    except FormatError:
        return None
