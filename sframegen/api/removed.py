"""What one run of remove did to one file, in numbers and as text."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any

from sframegen.elf.text import printable


@dataclass
class SectionRemoval:
    """What `remove` did to one file. Sizes are in bytes."""

    file: str  #: as it was given
    output: str = ""  #: the path written, "" if none
    section_bytes: int = 0  #: of what was taken out; 0 if there was none
    restored: bool = False  #: the file is what add-section was given, byte for byte
    still_has_one: bool = False  #: add-section was given a file with a section, and replaced that
    size_before: int = 0  #: of the file
    size: int = 0  #: of the file now
    plan: object | None = None  #: what changes in the file, as lines by str(); None where it is restored
    warnings: list[str] = field(default_factory=list)  #: a line each

    def one_line(self) -> str:
        """What is printed of it by default."""
        file = printable(self.file)
        if self.restored:
            line = f"{file}: as it was before add-section; {self.size_before:,} -> {self.size:,} bytes"
            return f"{line}; it had an SFrame section then" if self.still_has_one else line
        if self.plan is None:
            return f"{file}: no SFrame section: nothing to remove"
        return f"{file}: .sframe of {self.section_bytes:,} bytes taken out; not restored: there is no record that still holds"

    def to_json(self) -> dict[str, Any]:
        """What `--json` prints; docs/json.md has the keys."""
        return asdict(replace(self, plan=None if self.plan is None else str(self.plan).splitlines()))
