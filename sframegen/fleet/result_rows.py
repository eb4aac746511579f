"""The result for a package: its row in the table of packages, a row for each ELF file in it, and the short answer to the run.

The process that works on a package writes the whole result to a file named by its key, and sends only a `Finished` to the run.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple, get_type_hints

from sframegen.api import add_summary
from sframegen.base.text import cut_middle, printable

KEY = re.compile(r"[0-9a-f]{64}")  # a result's key, from RunOptions.make_key: a SHA256
SCHEMA_KEY = "sframegen.schema"  # key in the tables' metadata
SCHEMA_VERSION = 1  # version of the tables: changes if a column is removed or changes its meaning, not if one is added


class RowOutcome(StrEnum):
    """The outcome for a file, or for a package as a whole."""

    ADDED = add_summary.Outcome.ADDED  #: it has a section now, or would have one; of a package: a file in it does
    UNCHANGED = add_summary.Outcome.UNCHANGED  #: it has the same section already; of a package: nothing in it changed
    NOTHING = add_summary.Outcome.NOTHING  #: no call frame information that SFrame can express; of a package: no ELF file
    REFUSED = "refused"  #: valid or damaged input that is not changed, for the `reason`
    GOOD = "good"  #: `--mode check`: its section has no error
    WRONG = "wrong"  #: `--mode check`: its section has errors, which are in `findings`
    NO_SECTION = "no section"  #: `--mode check`: it has no section to check
    FAILED = "failed"  #: of packages: not fetched, worker died, too much time or memory, or sframegen failed; see `reason`


@dataclass
class FileRow:
    """One ELF file of a package. Sizes are in bytes."""

    package: str  #: the package, as in packages.parquet
    package_sha256: str  #: of the package's content
    path: str  #: in the package
    outcome: RowOutcome  #: `added`, `unchanged`, `nothing to add`, `refused`; or `good`, `wrong`, `no section`
    reason: str = ""  #: why it has no section, in one line
    build_id: str = ""  #: hexadecimal
    machine: str = ""  #: "x86-64", "AArch64", "s390x"
    elf_type: str = ""  #: "EXEC", "DYN"
    producer: str = ""  #: the compiler that .comment names most, without its version: "GCC", "clang", "rustc", "Go"
    producer_version: str = ""  #: of the compiler
    language: str = ""  #: if the file says so: "C", "C++", "Rust", "Go", ...
    file_bytes: int = 0  #: of the file
    new_file_bytes: int = 0  #: with the section
    executable_bytes: int = 0  #: in executable segments or sections
    code_bytes: int = 0  #: executable bytes with call frame information
    covered_bytes: int = 0  #: bytes of `code_bytes` for which the section has a rule
    functions: int = 0  #: in the call frame information
    functions_covered: int = 0  #: functions for which the section has a rule
    rows: int = 0  #: in the section
    section_bytes: int = 0  #: size of the section
    stored_bytes: int = 0  #: the same; smaller in tables of 0.3.0, which could compress sections
    eh_frame_bytes: int = 0  #: of .eh_frame
    eh_frame_hdr_bytes: int = 0  #: of .eh_frame_hdr
    left_out: dict[str, int] = field(default_factory=dict)  #: bytes of code whose CFI SFrame cannot express, by reason
    no_cfi: dict[str, int] = field(default_factory=dict)  #: executable bytes without CFI, by category: padding, code, ...
    warnings: list[str] = field(default_factory=list)  #: a line each
    seconds: float = 0.0  #: time for conversion and writing, or for the check
    findings: list[str] = field(default_factory=list)  #: errors and warnings of `--mode check`, the worst first; ten of each rule


@dataclass
class PackageRow:
    """One package. Sizes are in bytes."""

    package: str  #: its file name, or its path relative to the source
    source: str  #: the path or URL it was read from
    sha256: str = ""  #: of its content
    new_sha256: str = ""  #: of the rewritten package; "" if nothing was written
    kind: str = ""  #: "deb", "wheel", "tar"
    outcome: RowOutcome = RowOutcome.FAILED  #: `added`, `unchanged`, `nothing to add`, `refused`, `failed`; or as for files
    reason: str = ""  #: one line
    package_bytes: int = 0  #: of the package
    new_package_bytes: int = 0  #: of the rewritten package, else 0
    unpacked_bytes: int = 0  #: of the files in it
    entries: int = 0  #: files, directories and links in it
    elf_files: int = 0  #: linked ELF files
    warnings: list[str] = field(default_factory=list)  #: a line each
    seconds_fetching: float = 0.0  #: time until its content and SHA256 were known
    seconds_reading: float = 0.0  #: time for unpacking
    seconds_converting: float = 0.0  #: sum over its files
    seconds_writing: float = 0.0  #: time for packing
    peak_memory_bytes: int = 0  #: of the process that worked on it
    worker: str = ""  #: host and number of the process that worked on it


@dataclass
class PackageResult:
    """The result for one package, which is the contents of its JSON file."""

    package: PackageRow
    files: list[FileRow] = field(default_factory=list)


COLUMN_TYPES: dict[type, dict[str, Any]] = {row_type: get_type_hints(row_type) for row_type in (FileRow, PackageRow)}


class AnswerKind(StrEnum):
    """The kind of an answer for a package from another process or machine."""

    FINISHED = "finished"  #: followed by the values of Finished
    FAILED = "failed"  #: followed by the reason
    NO_MEMORY = "no memory"
    CANNOT_WORK = "cannot work"  #: the worker is unfit for the run; followed by the reason


class Finished(NamedTuple):
    """The summary of a finished package, whose whole result is in the file of this key."""

    key: str
    outcome: RowOutcome
    reason: str = ""
    is_new: bool = True  #: False if the result is from an earlier run


def parse_finished(values: object) -> Finished:
    """Parse the values of a Finished from another process or machine. Raises ValueError if they are damaged."""
    match values:
        case [str(key), str(outcome), str(reason), bool(is_new)] if KEY.fullmatch(key):
            return Finished(key, RowOutcome(outcome), to_one_line(reason), is_new)
    raise ValueError("not the result of a package")


def to_one_line(text: str) -> str:
    """Return a reason or warning as one printable, shortened line for a row."""
    return cut_middle(printable(text))
