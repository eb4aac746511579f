"""The public functions `read` and `check`, which read a file's section and compare it with the file."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from sframegen.api.by_kind import read_contents_by_kind
from sframegen.api.options import check_flags, check_paths
from sframegen.base.errors import FormatError, name_file_in_errors
from sframegen.base.quick_typing import TYPE_CHECKING, BinaryIO, NamedTuple
from sframegen.checks.check import check_file
from sframegen.checks.finding import CONSUMERS
from sframegen.checks.object_check import check_objects
from sframegen.detached.stores import Stores
from sframegen.elf.file import ElfFile, map_file, open_elf
from sframegen.elf.function_names import CopiedSymbols
from sframegen.format.locate import find_sframe
from sframegen.program.workers import JobOptions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from linker.objects.given_file import Objects
    from sframegen.api.options import StrPath
    from sframegen.checks.finding import CheckReport, Consumer
    from sframegen.format.decode import SframeSection
    from sframegen.program.workers import Progress

    Readable = StrPath | bytes | bytearray | memoryview | BinaryIO  # a path, or the content of a file


def read(path: Readable, *, sections: Sequence[str | os.PathLike[str]] = ()) -> SframeSection:
    """Return the SFrame section of an ELF file, of any producer and version: a copy, of which only the header is decoded.

    `path` is a path, the bytes of a file, or a file object in binary mode, which is read to its end. `rule_at` searches the bytes
    of the section, also by the names of functions; `functions()` goes through all; `table`, the decoded section in columns, is
    made when it is first used.

    - `sections`: directories with detached sections, for a file that has none itself.

    Raises FormatError if the file has no section, or one with a bad header, OSError, and TypeError if `sections` is a single path,
    or `path` is none of these.
    """
    check_paths("sections", sections)
    content = load_content(path)
    elf = open_elf(content.name) if content.data is None else ElfFile(content.data, content.name)
    section = Stores(sections).open_for_file(elf)
    return replace(section, data=memoryview(bytes(section.data)), names=CopiedSymbols(elf))


def check(
    path: Readable,
    *,
    consumer: Consumer = "all",
    debug_file: str | os.PathLike[str] | None = None,
    sections: Sequence[str | os.PathLike[str]] = (),
    instructions: bool = False,
    second_reader: bool = False,
    jobs: int = 1,
    progress: Progress | None = None,
) -> CheckReport:
    """Report what is wrong with the SFrame section of an ELF file, and what it says of every executable byte.

    `path` is a path, the bytes of a file, or a file object in binary mode, which is read to its end.

    All sections of an object, or of the objects of an archive, are checked together, without consumers: these read linked files,
    except kernels, which read those of their modules.

    - `consumer`: who is going to read the section: "kernel", "glibc", "gnu", "arm64-kernel" or "all".
    - `debug_file`: a separate debug file, or a directory of them, whose call frame information is used as well.
    - `sections`: directories with detached sections, for a file that has none itself.
    - `instructions`: also compare the section and the call frame information with the instructions.
    - `second_reader`: also read the call frame information with pyelftools, and compare the section with that.
    - `jobs`: number of processes that read the instructions; above 1, they are forked.
    - `progress`: called with the bytes of call frame information that pyelftools has read, and their total; then, with
      `instructions`, with the bytes of code analysed so far and the current estimate of the total, which may count a byte more than
      once.

    Faults of the section are findings, and so is a missing section. Raises FormatError if the file cannot be read or is of a
    kind that has no section, if `second_reader` is given for a file that is not linked, `debug_file` for an archive, or
    `instructions` for an ABI whose instructions are not read; OSError; ValueError for an unknown consumer and for `jobs` below 1;
    and TypeError if `sections` is a single path, or `path` is none of these.
    """
    running = JobOptions(jobs, progress)
    check_flags(instructions=instructions, second_reader=second_reader)
    check_paths("sections", sections)
    if consumer not in CONSUMERS:
        raise ValueError(f"unknown consumer {consumer!r}, only {', '.join(CONSUMERS)}")

    def check_linked(elf: ElfFile) -> CheckReport:
        stores = Stores(sections)
        report = check_file(
            elf, detached=_find_detached_section(elf, stores), consumer=consumer,
            debug_file=None if debug_file is None else Path(debug_file), instructions=instructions,
            second_reader=second_reader, jobs=running.jobs, progress=running.progress,
        )  # fmt: skip
        return replace(report, warnings=(*stores.take_notes(), *report.warnings))

    def check_unlinked(objects: Objects) -> CheckReport:
        if second_reader:
            raise FormatError("the second reader reads the call frame information of linked files only")
        return check_objects(objects, None if debug_file is None else Path(debug_file), consumer, running if instructions else None)

    name, data = load_content(path)
    with name_file_in_errors(name):
        if data is None:
            data, _ = map_file(name)
        return read_contents_by_kind(data, name, check_linked, check_unlinked)


def _find_detached_section(elf: ElfFile, stores: Stores) -> memoryview | None:
    """Return the section in a store for a file without one; None if a store has none, or the file has one, even a damaged one."""
    try:
        return stores.find_for_file(elf, lambda data: data) if find_sframe(elf) is None else None
    except FormatError:
        return None


class FileContent(NamedTuple):
    """The content of an input. `name`: its path, or a name for messages. `data`: None for a path, which is not opened yet."""

    name: str
    data: memoryview | None


def load_content(file: Readable) -> FileContent:
    """Return the content of a path, of bytes, or of a file object, which is read to its end. Bytes are never taken for a path.

    Raises FormatError if it is empty, OSError, and TypeError.
    """
    if isinstance(file, (str, os.PathLike)):
        return FileContent(os.fspath(file), None)
    name, data = "<bytes>", file
    if not isinstance(file, (bytes, bytearray, memoryview)):
        if not hasattr(file, "read"):
            raise TypeError(f"path is {file!r}: give a path, bytes, or a file object")
        file_name = getattr(file, "name", None)
        name, data = file_name if isinstance(file_name, str) else "<file>", file.read()
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise TypeError(f"{name} does not return bytes; open it in binary mode ('rb')")
    if not data:
        raise FormatError("the file is empty, or was read to its end before", file=name)
    return FileContent(name, memoryview(data).cast("B"))
