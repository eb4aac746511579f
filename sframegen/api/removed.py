"""What one run of remove did to one file, in numbers and as text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sframegen.api.planned import Plan, json_of
from sframegen.base.text import printable


@dataclass(frozen=True)
class SectionRemoval:
    """What `remove` did to one file. Sizes are in bytes."""

    file: str  #: as given
    output: str = ""  #: the path written, "" if none
    section_bytes: int = 0  #: of the removed section; 0 if there was none
    restored: bool = False  #: the contents are those of the input of `add_section`: the file's, or of all files in a package
    identical: bool = False  #: proven: the whole file is that input, byte for byte
    still_has_one: bool = False  #: the input of `add_section` had a section, which is there again
    size_before: int = 0  #: of the file
    size: int = 0  #: of the file now
    plan: Plan | None = None  #: what changes in the file; None if it is restored
    note: str = ""  #: why the file is unchanged, if it has a section
    differs: str = ""  #: why the file may differ from the input of `add_section`, although its contents are restored
    warnings: tuple[str, ...] = ()  #: a line each
    faults: tuple[str, ...] = ()  #: files in a package at which sframegen failed, through a fault of its own; a line each

    def one_line(self) -> str:
        """The line that the command prints by default."""
        file = printable(self.file)
        if self.note:
            return f"{file}: nothing to remove: {self.note}"
        if self.restored:
            what = (
                "as it was before add-section"
                if self.identical
                else ", ".join(filter(None, ("contents as before add-section", self.differs)))
            )
            line = f"{file}: {what}; {self.size_before:,} -> {self.size:,} bytes"
            return f"{line}; it had an SFrame section then" if self.still_has_one else line
        if self.plan is None:
            return f"{file}: no SFrame section: nothing to remove"
        return f"{file}: .sframe of {self.section_bytes:,} bytes taken out; not restored: no valid undo record"

    def to_json(self) -> dict[str, Any]:
        """The object that `--json` prints; docs/json.md has the keys."""
        return json_of(self, self.plan)
