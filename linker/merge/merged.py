"""What one merge did, in numbers and as text."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any

from sframegen.elf.text import count_of, printable, shortened


@dataclass
class Merged:
    """What `merge` did. Functions of the objects' sections are `functions`, less those of the PLT, `dropped` and `unknown`."""

    file: str  #: the linked file
    output: str = ""  #: the path written, "" if none
    objects: int = 0  #: whose sections are merged
    objects_without: int = 0  #: without a section
    objects_unlinked: int = 0  #: that the link was without
    functions: int = 0  #: in the new section
    dropped: int = 0  #: functions without code in the linked file
    unknown: int = 0  #: left out: the map does not tell which of several sections they are in
    plt_functions: int = 0  #: of `functions`, those that no object brings along
    rows: int = 0  #: of the new section
    section_bytes: int = 0  #: its size
    versions: list[int] = field(default_factory=list)  #: of the objects' sections
    left_out: dict[str, int] = field(default_factory=dict)  #: reason -> bytes of code
    others: list[str] = field(default_factory=list)  #: files with code in the link, that were not given
    undescribed: dict[str, int] = field(default_factory=dict)  #: why -> bytes of linked sections of code without a function
    silent: list[str] = field(default_factory=list)  #: of these, "FILE: SECTION", if that object's `.sframe` has other functions
    plan: object | None = None  #: what changes in the file, as lines by str()
    warnings: list[str] = field(default_factory=list)  #: a line each

    def one_line(self) -> str:
        """What is printed of it by default."""
        line = (
            f"{printable(self.output or self.file)}: {count_of(self.functions, 'function')} of {count_of(self.objects, 'object')}, "
            f"{count_of(self.rows, 'row')}; .sframe {count_of(self.section_bytes, 'byte')}"
        )
        lost, undescribed = sum(self.left_out.values()), sum(self.undescribed.values())
        parts = {
            f"{count_of(self.objects_without, 'object')} without .sframe": self.objects_without,
            f"{count_of(self.dropped, 'function')} without code left out": self.dropped,
            f"{count_of(self.unknown, 'function')} left out that the map does not tell apart": self.unknown,
            f"{count_of(lost, 'byte')} of code left out": lost,
            f"{count_of(undescribed, 'byte')} of linked code that no object describes": undescribed,
        }
        return "; ".join([line, *(part for part, holds in parts.items() if holds)])

    def details(self) -> list[str]:
        """Lines that say what was left out, and why."""
        lines = [f"  versions merged: {', '.join(map(str, self.versions))}"]
        lines += [f"  {count_of(self.plt_functions, 'function')} of the PLT"] * bool(self.plt_functions)
        lines += [f"  {count_of(self.objects_unlinked, 'object')} not linked"] * bool(self.objects_unlinked)
        lines += [f"  not given, though linked: {printable(name)}" for name in self.others]
        for what, reasons in (("left out", self.left_out), ("not described", self.undescribed)):
            most = sorted(reasons.items(), key=lambda item: (-item[1], item[0]))
            lines += [f"  {what}: {count_of(size, 'byte')}: {reason}" for reason, size in most]
        return lines + [f"  says nothing of its section: {shortened(printable(name))}" for name in self.silent]

    def to_json(self) -> dict[str, Any]:
        """What `--json` prints; docs/json.md has the keys."""
        return asdict(replace(self, plan=None if self.plan is None else str(self.plan).splitlines()))
