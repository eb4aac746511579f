"""What one run of convert did to one file's section, in numbers and as text."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any

from sframegen.elf.text import printable


@dataclass
class VersionChange:
    """What `convert` did to one file. Sizes are in bytes."""

    file: str  #: as it was given
    from_version: int  #: of the section that was there; of several the least
    to_version: int  #: of the new one
    output: str = ""  #: the path written, "" if none
    functions: int = 0  #: in the new section; 0 where it stays as it is
    rows: int = 0  #: of the new section
    section_bytes_before: int = 0  #: size of what was there
    section_bytes: int = 0  #: size of the new section; 0 where it stays as it is
    pieces: int = 1  #: sections that a linker left one behind the other
    dead: int = 0  #: functions of which the linker had dropped the code
    left_out: dict[str, int] = field(default_factory=dict)  #: reason -> bytes of code
    plan: object | None = None  #: what changes in the file, as lines by str()
    warnings: list[str] = field(default_factory=list)  #: a line each

    def one_line(self) -> str:
        """What is printed of it by default."""
        file = printable(self.file)
        if not self.section_bytes:
            return f"{file}: SFrame version {self.to_version} already"
        line = (
            f"{file}: SFrame version {self.from_version} -> {self.to_version}, {self.functions:,} functions, {self.rows:,} rows; "
            f".sframe {self.section_bytes_before:,} -> {self.section_bytes:,} bytes"
        )
        if self.pieces > 1:
            line += f"; {self.pieces} sections merged into one"
        if self.dead:
            line += f"; {self.dead:,} functions without code left out"
        lost = sum(self.left_out.values())
        return f"{line}; {lost:,} bytes of code left out" if lost else line

    def details(self) -> list[str]:
        """Lines that say what was left out, and why; most first."""
        reasons = sorted(self.left_out.items(), key=lambda item: (-item[1], item[0]))
        lines = [f"  left out: {size:,} bytes: {reason}" for reason, size in reasons]
        return [*lines, f"  written: {printable(self.output)}"] if self.output else lines

    def to_json(self) -> dict[str, Any]:
        """What `--json` prints; docs/json.md has the keys."""
        return asdict(replace(self, plan=None if self.plan is None else str(self.plan).splitlines()))
