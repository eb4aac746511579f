"""The report of one merge: numbers, text, JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from sframegen.api.planned import Plan, json_of
from sframegen.elf.text import count_of, most_first, printable, shortened

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from linker.merge.inputs import Inputs
    from linker.merge.merge_objects import Counts


class Linked(NamedTuple):
    """What a merge is made of, besides the linked file."""

    inputs: Inputs
    map_file: Path
    file: str  # as messages name the result


@dataclass(frozen=True)
class Merged:
    """What `merge` did. The objects' sections have `functions` - `plt_functions` + `dropped` + `unknown` functions."""

    file: str  #: the linked file
    output: str = ""  #: the path written, "" if none
    objects: int = 0  #: objects whose sections are merged
    objects_without: int = 0  #: objects without a section
    objects_unlinked: int = 0  #: objects that were not linked
    functions: int = 0  #: in the new section
    dropped: int = 0  #: functions without code in the linked file
    unknown: int = 0  #: functions left out because the map does not show which of several sections has them
    plt_functions: int = 0  #: of `functions`, those of the procedure linkage table
    rows: int = 0  #: of the new section
    section_bytes: int = 0  #: its size
    versions: tuple[int, ...] = ()  #: of the objects' sections
    left_out: Mapping[str, int] = field(default_factory=dict)  #: bytes of code by reason
    others: tuple[str, ...] = ()  #: files with code in the link that were not given
    undescribed: Mapping[str, int] = field(default_factory=dict)  #: bytes of linked code sections without a function, by reason
    silent: tuple[str, ...] = ()  #: "FILE: SECTION" of code that the `.sframe` of its own object does not describe
    plan: Plan | None = None  #: what changes in the file; None if nothing does
    warnings: tuple[str, ...] = ()  #: a line each

    def one_line(self) -> str:
        """The line that the command prints by default."""
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
        """Lines for what was left out, by reason."""
        lines = [f"  versions merged: {', '.join(map(str, self.versions))}"]
        lines += [f"  {count_of(self.plt_functions, 'function')} of the PLT"] * bool(self.plt_functions)
        lines += [f"  {count_of(self.objects_unlinked, 'object')} not linked"] * bool(self.objects_unlinked)
        lines += [f"  not given, though linked: {printable(name)}" for name in self.others]
        for what, reasons in (("left out", self.left_out), ("not described", self.undescribed)):
            lines += [f"  {what}: {count_of(size, 'byte')}: {reason}" for reason, size in most_first(reasons)]
        return lines + [f"  says nothing of its section: {shortened(printable(name))}" for name in self.silent]

    def to_json(self) -> dict[str, Any]:
        """The object that `--json` prints; docs/json.md has the keys."""
        return json_of(self, self.plan)


def merged_of(file: str, counts: Counts) -> Merged:
    return Merged(file, **(vars(counts) | {"silent": tuple(counts.silent)}))
