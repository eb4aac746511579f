"""What one run of convert did to one file's section, in numbers and as text."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sframegen.api.planned import Plan, json_of
from sframegen.base.text import count_of, most_first, printable

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class VersionChange:
    """What `convert` did to one file. Sizes are in bytes."""

    file: str  #: as given
    from_version: int  #: of the old section; the lowest if there were several
    to_version: int  #: of the new one
    output: str = ""  #: the path written, "" if none
    functions: int = 0  #: in the new section; 0 if unchanged
    rows: int = 0  #: of the new section
    section_bytes_before: int = 0  #: size of the old section; 0 if unchanged and without `optimize`
    section_bytes: int = 0  #: size of the new section; 0 if unchanged
    pieces: int = 1  #: sections that a linker wrote one after the other
    dead: int = 0  #: functions whose code the linker had dropped
    left_out: Mapping[str, int] = field(default_factory=dict)  #: bytes of code by reason
    plan: Plan | None = None  #: what changes in the file; None if nothing does
    warnings: tuple[str, ...] = ()  #: a line each

    def one_line(self) -> str:
        """The line that the command prints by default."""
        file = printable(self.file)
        if not self.section_bytes:
            size = f", and no smaller than {self.section_bytes_before:,} bytes" if self.section_bytes_before else ""
            return f"{file}: SFrame version {self.to_version} already{size}"
        other = f"{self.from_version} -> " if self.from_version != self.to_version else ""
        line = (
            f"{file}: SFrame version {other}{self.to_version}, {count_of(self.functions, 'function')}, "
            f"{count_of(self.rows, 'row')}; .sframe {self.section_bytes_before:,} -> {self.section_bytes:,} bytes"
        )
        if self.pieces > 1:
            line += f"; {self.pieces} sections merged into one"
        if self.dead:
            line += f"; {count_of(self.dead, 'function')} without code left out"
        lost = sum(self.left_out.values())
        return f"{line}; {lost:,} bytes of code left out" if lost else line

    def details(self) -> list[str]:
        """Lines for what was left out, by reason, most first."""
        lines = [f"  left out: {size:,} bytes: {reason}" for reason, size in most_first(self.left_out)]
        return [*lines, f"  written: {printable(self.output)}"] if self.output else lines

    def to_json(self) -> dict[str, Any]:
        """The object that `--json` prints; docs/json.md has the keys."""
        return json_of(self, self.plan)
