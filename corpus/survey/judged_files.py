"""Files of surveyed packages, looked at again with others' tools: pyelftools counts the code, add-section really writes."""

from __future__ import annotations

import random
import subprocess
import sys
import tarfile
import zipfile
from typing import TYPE_CHECKING, NamedTuple

from elftools.dwarf.callframe import FDE
from elftools.elf.elffile import ELFFile

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from sframegen.fleet.result_rows import FileRow

LARGEST_EH_FRAME = 1 << 20  # pyelftools needs seconds for each megabyte
EXECUTABLE = 1  # PF_X


class Judged(NamedTuple):
    """A file, and what is not as the survey says: [] if all is."""

    path: str
    code_bytes: int
    faults: list[str]


def sample(rows: Iterable[FileRow], number: int, seed: int) -> list[FileRow]:
    """Some of the files that get a section: each has the same chance, however many its package has."""
    chosen: list[FileRow] = []
    draw = random.Random(seed)  # noqa: S311 - of files
    seen = 0
    for row in rows:
        if row.section_bytes and row.eh_frame_bytes <= LARGEST_EH_FRAME:
            seen += 1
            if len(chosen) < number:
                chosen.append(row)
            elif (place := draw.randrange(seen)) < number:
                chosen[place] = row
    return chosen


def judge(row: FileRow, package: Path, scratch: Path) -> Judged:
    """Raises CalledProcessError where add-section fails."""
    file = scratch / "file"
    file.write_bytes(content_of(package, row.path))
    with file.open("rb") as stream:
        elf = ELFFile(stream)
        sizes = [section_size(elf, name) for name in (".eh_frame", ".eh_frame_hdr")]
        if row.eh_frame_bytes > sizes[0]:
            sizes[0] += section_size(elf, ".debug_frame")  # where it describes what .eh_frame does not
        code = total(within(described(elf), executable(elf)))
    command = [sys.executable, "-P", "-m", "sframegen", "add-section", "--quiet", "--replace", str(file)]
    subprocess.run(command, check=True)
    with file.open("rb") as stream:
        section = section_size(ELFFile(stream), ".sframe")
    compared = {
        "code with CFI": (row.code_bytes, code),
        ".eh_frame and .debug_frame": (row.eh_frame_bytes, sizes[0]),
        ".eh_frame_hdr": (row.eh_frame_hdr_bytes, sizes[1]),
        "section": (row.section_bytes, section),
        **({"file": (row.new_file_bytes, file.stat().st_size)} if row.new_file_bytes else {}),
    }
    faults = [f"{what}: {said:,}, found are {found:,} bytes" for what, (said, found) in compared.items() if said != found]
    return Judged(f"{row.package}: {row.path}", row.code_bytes, faults)


def content_of(package: Path, path: str) -> bytes:
    if package.suffix == ".whl":
        with zipfile.ZipFile(package) as wheel:
            return wheel.read(path)
    with (
        subprocess.Popen(["dpkg-deb", "--fsys-tarfile", package], stdout=subprocess.PIPE) as dpkg,
        tarfile.open(fileobj=dpkg.stdout, mode="r|") as tar,
    ):
        found = b""
        for member in tar:  # to the end, so that dpkg-deb ends as well
            if member.isreg() and member.name.removeprefix("./") == path:
                found = (tar.extractfile(member) or sys.stdin.buffer).read()
        return found


def section_size(elf: ELFFile, name: str) -> int:
    section = elf.get_section_by_name(name)
    return int(section["sh_size"]) if section else 0


def described(elf: ELFFile) -> list[tuple[int, int]]:
    """The (start, end) of all FDEs, merged."""
    dwarf = elf.get_dwarf_info(relocate_dwarf_sections=False)
    entries = [*(dwarf.EH_CFI_entries() if dwarf.has_EH_CFI() else ()), *(dwarf.CFI_entries() if dwarf.has_CFI() else ())]
    fdes = (entry for entry in entries if isinstance(entry, FDE))
    return merged((fde["initial_location"], fde["initial_location"] + fde["address_range"]) for fde in fdes)


def executable(elf: ELFFile) -> list[tuple[int, int]]:
    loads = [segment for segment in elf.iter_segments("PT_LOAD") if segment["p_flags"] & EXECUTABLE]
    return merged((load["p_vaddr"], load["p_vaddr"] + load["p_filesz"]) for load in loads)


def merged(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    result: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if result and start <= result[-1][1]:
            result[-1] = (result[-1][0], max(end, result[-1][1]))
        else:
            result.append((start, end))
    return result


def within(ranges: Sequence[tuple[int, int]], others: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    return [(max(a, c), min(b, d)) for a, b in ranges for c, d in others if max(a, c) < min(b, d)]


def total(ranges: Iterable[tuple[int, int]]) -> int:
    return sum(end - start for start, end in ranges)
