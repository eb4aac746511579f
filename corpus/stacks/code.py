"""What code of a process is: which file's, which section's, and whether its call frame information can be had, and be said."""

from __future__ import annotations

from bisect import bisect_right
from functools import cache
from typing import NamedTuple

from sframegen.base.errors import FormatError
from sframegen.conversion.cfi_sections import find_sources
from sframegen.conversion.convert import REASONS, convert_sources
from sframegen.elf.file import ElfFile, open_elf
from sframegen.elf.records import PT
from sframegen.format.abi import abi_of
from sframegen.format.decode import open_section
from sframegen.format.encode import Encoder

VDSO = "[vdso]"


class File:
    """An original, though the process may have mapped a copy: what was in it is at the same offsets there."""

    def __init__(self, path: str) -> None:
        self.elf: ElfFile = open_elf(path)
        self._abi = abi_of(self.elf)
        self._converted = convert_sources(find_sources(self.elf), self.elf.executable_ranges(), self._abi)
        self._described, self._unsaid = self._converted.coverage.fde_ranges, self._converted.coverage.uncovered

    def has_cfi(self, vaddr: int) -> bool:
        at = bisect_right(self._described.start, vaddr) - 1
        return at >= 0 and vaddr < self._described.end[at]

    def starts_function(self, vaddr: int) -> bool:
        at = bisect_right(self._described.start, vaddr) - 1
        return at >= 0 and vaddr == self._described.start[at]

    def unsaid(self, vaddr: int) -> str:
        at = bisect_right(self._unsaid.start, vaddr) - 1
        found = at >= 0 and vaddr < self._unsaid.start[at] + self._unsaid.size[at]
        return REASONS[self._unsaid.reason[at]].value if found else ""

    def needs_register(self, vaddr: int) -> str:
        """The register of a rule for the CFA that is neither SP nor FP: a caller's is known of these two only."""
        section = open_section(Encoder(self._converted.table, self._abi, encoded=self._converted.encoded).encode(0), 0)
        found = section.look_up(vaddr)
        number = found.rule.cfa.register if found and found.rule.cfa else None
        return "" if number in (None, self._abi.sp, self._abi.fp) else f"the CFA's rule is on register {number}"

    def vaddr(self, offset: int) -> int:
        for segment in self.elf.segments:
            if segment.p_type == PT.LOAD and segment.p_offset <= offset < segment.p_offset + segment.p_filesz:
                return offset - segment.p_offset + segment.p_vaddr
        return 0

    def section(self, vaddr: int) -> str:
        for section in self.elf.sections:
            header = section.header
            if header.sh_addr and header.sh_addr <= vaddr < header.sh_addr + header.sh_size:
                return section.name
        return ""


@cache
def _file(path: str) -> File | None:
    try:
        return File(path)
    except (OSError, FormatError):
        return None


class Place(NamedTuple):
    path: str
    section: str
    has_cfi: bool
    starts_function: bool = False
    unsaid: str = ""  # why SFrame does not describe it

    def __str__(self) -> str:
        name = self.path.rpartition("/")[2]
        return f"{self.section} of {name}" if self.section not in ("", name) else name or "no mapping"


class Code:
    """The code of one process, from the text of /proc/PID/maps."""

    def __init__(self, mappings: str) -> None:
        self._rows: list[tuple[int, int, int, str, bool]] = []
        for line in mappings.splitlines():
            fields = line.split(maxsplit=5)
            start, end = (int(part, 16) for part in fields[0].split("-"))
            self._rows.append((start, end, int(fields[2], 16), fields[5] if len(fields) > 5 else "", "x" in fields[1]))

    def files(self) -> set[str]:
        """That code was loaded from."""
        return {path for _, _, _, path, executable in self._rows if executable and path.startswith("/")}

    def start_of(self, path: str) -> int | None:
        """Where its first byte is."""
        return next((start for start, _, offset, name, _ in self._rows if name == path and offset == 0), None)

    def needs_register(self, address: int) -> str:
        """Why a caller's frame there has no CFA, though a section covers it; empty where it should have one."""
        path, offset = self._find(address)
        file = _file(path) if path.startswith("/") else None
        found = file.needs_register(file.vaddr(offset)) if file else ""
        return f"{found} ({self.place(address)})" if found else ""

    def place(self, address: int) -> Place:
        path, offset = self._find(address)
        file = _file(path) if path.startswith("/") else None
        if file is None:
            return Place(path, path, path == VDSO)
        vaddr = file.vaddr(offset)
        return Place(path, file.section(vaddr), file.has_cfi(vaddr), file.starts_function(vaddr), file.unsaid(vaddr))

    def _find(self, address: int) -> tuple[str, int]:
        """What is mapped there, and the offset in it."""
        found = ((path, address - start + offset) for start, end, offset, path, _ in self._rows if start <= address < end)
        return next(found, ("", 0))

    def without_cfi(self, address: int) -> str:
        """Why whoever needs CFI can only guess there; empty where there is some."""
        place = self.place(address)
        return "" if place.has_cfi else f"no CFI for {place}"

    def unsaid(self, address: int) -> str:
        """Why a section made from CFI does not cover it; empty where it should."""
        place = self.place(address)
        return f"{place.unsaid} ({place})" if place.unsaid else ""
