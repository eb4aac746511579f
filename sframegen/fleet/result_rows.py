"""The results for each package, and for each ELF file in it: rows of the tables."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from sframegen.elf.text import printable, shortened


class Outcome(StrEnum):
    """The outcome for a file, or for a package as a whole."""

    ADDED = "added"  #: it has a section now, or would have one; of a package: it was worked on to its end
    UNCHANGED = "unchanged"  #: it has the same section already; of a package: nothing in it changed
    NOTHING = "nothing to add"  #: no call frame information, or none that SFrame can say; of a package: no ELF file for it
    REFUSED = "refused"  #: good or damaged input that is not changed; `reason`
    EXCLUDED = "excluded"  #: of files: the run leaves it out, as a policy says
    FAILED = "failed"  #: of packages: not fetched, its worker died, it took too much time or memory, sframegen failed; `reason`


@dataclass
class FileRow:
    """One ELF file of a package. Sizes are in bytes."""

    package: str
    package_sha256: str
    path: str  #: in the package
    outcome: Outcome
    reason: str = ""
    build_id: str = ""  #: hexadecimal
    machine: str = ""  #: "x86-64", "AArch64", "s390x"
    elf_type: str = ""  #: "EXEC", "DYN"
    producer: str = ""  #: the compiler that .comment names most, without its version: "GCC", "clang", "rustc", "Go"
    producer_version: str = ""
    language: str = ""  #: if the file says so: "C", "C++", "Rust", "Go", ...
    file_bytes: int = 0
    new_file_bytes: int = 0  #: with the section
    executable_bytes: int = 0
    code_bytes: int = 0  #: those with call frame information
    covered_bytes: int = 0  #: those of `code_bytes` with a rule
    functions: int = 0
    functions_covered: int = 0
    rows: int = 0
    section_bytes: int = 0
    stored_bytes: int = 0  #: of the section in the file: less if it is compressed
    eh_frame_bytes: int = 0
    eh_frame_hdr_bytes: int = 0
    left_out: dict[str, int] = field(default_factory=dict)  #: bytes of code by reason
    no_cfi: dict[str, int] = field(default_factory=dict)  #: bytes of code by fate
    warnings: list[str] = field(default_factory=list)
    seconds: float = 0.0  #: of conversion and writing


@dataclass
class PackageRow:
    """One package. Sizes are in bytes."""

    package: str  #: its file name, or path from the source on
    source: str  #: the path or URL it was read from
    sha256: str = ""  #: of its content; of a directory: of its list of names and contents
    new_sha256: str = ""  #: of the rewritten one; "" if nothing was written, and of directories
    kind: str = ""  #: as `Passed.kind`
    outcome: Outcome = Outcome.FAILED
    reason: str = ""  #: one line
    package_bytes: int = 0
    new_package_bytes: int = 0  #: of the rewritten one, else 0
    unpacked_bytes: int = 0
    entries: int = 0
    elf_files: int = 0
    warnings: list[str] = field(default_factory=list)
    seconds_fetching: float = 0.0
    seconds_reading: float = 0.0  #: unpacking
    seconds_converting: float = 0.0
    seconds_writing: float = 0.0  #: packing
    peak_memory_bytes: int = 0
    worker: str = ""  #: host and process that did it


@dataclass
class PackageResult:
    """What one task gives: the JSON file of one package."""

    package: PackageRow
    files: list[FileRow] = field(default_factory=list)


class Finished(NamedTuple):
    """What a task returns besides its result: a few bytes."""

    key: str
    outcome: Outcome
    reason: str = ""
    is_new: bool = True  #: not from an earlier run


def one_line(text: str) -> str:
    """A reason or warning as rows have it."""
    return shortened(printable(text))
