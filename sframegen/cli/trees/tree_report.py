"""Reports the outcomes of `add-tree` for the files of trees, as one line and as JSON (docs/packaging.md)."""

from __future__ import annotations

import json
import os
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from sframegen.api.add_summary import Outcome, Summary, format_shares
from sframegen.base.text import format_count

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sframegen.conversion.coverage import CategoryBytes

SCHEMA = 1
REFUSED = "refused"
SUMMED_FIELDS = ("functions", "functions_covered", "code_bytes", "covered_bytes", "section_bytes")


@dataclass
class Entry:
    """The outcome for one file, with the numbers of its Summary. All paths are relative to the root."""

    path: str
    links: list[str]  # other names (hard links)
    outcome: str
    reason: str = ""
    warnings: list[str] = field(default_factory=list)
    build_id: str = ""  # hexadecimal
    functions: int = 0
    functions_covered: int = 0
    code_bytes: int = 0
    covered_bytes: int = 0
    section_bytes: int = 0
    fates: CategoryBytes = field(default_factory=dict)  # by group and category, without categories of 0 bytes

    @classmethod
    def from_summary(cls, path: str, links: list[str], build_id: str, summary: Summary) -> Entry:
        fates = {group: {category: size for category, size in sizes.items() if size} for group, sizes in summary.fates.items()}
        numbers = {name: getattr(summary, name) for name in SUMMED_FIELDS}
        reason = summary.note if summary.outcome is Outcome.NOTHING else ""
        return cls(path, links, summary.outcome, reason, list(summary.warnings), build_id, **numbers, fates=fates)


class Totals:
    """Sums of the outcomes and numbers of entries."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self.files = dict.fromkeys((*Outcome, REFUSED), 0)
        self.numbers = dict.fromkeys(SUMMED_FIELDS, 0)
        self.categories: dict[str, Counter[str]] = {}  # bytes by group and category; `fates` in JSON
        for entry in entries:
            self.files[entry.outcome] += 1
            for name in SUMMED_FIELDS:
                self.numbers[name] += getattr(entry, name)
            for group, sizes in entry.fates.items():
                self.categories.setdefault(group, Counter()).update(sizes)

    def one_line(self, *, dry_run: bool = False) -> str:
        files = self.files
        covered, code, size = (self.numbers[name] for name in ("covered_bytes", "code_bytes", "section_bytes"))
        would_be = "would be " if dry_run else ""
        line = (
            f"{format_count(files[Outcome.ADDED], 'file')} {would_be}given a section, {files[Outcome.UNCHANGED]:,} unchanged, "
            f"{files[Outcome.NOTHING]:,} without CFI, {files[REFUSED]:,} refused"
        )
        return f"{line}; {format_shares(covered, code, self.categories)}; .sframe {format_count(size, 'byte')}" if size else line

    def to_json(self) -> dict[str, Any]:
        return {"files": self.files, **self.numbers, "fates": self.categories}


def to_json(trees: dict[str, list[Entry]]) -> str:
    """Return the report as JSON. It has only the base name of each root, so that equal trees give equal reports."""
    report = {
        "schema": SCHEMA,
        "totals": Totals(entry for entries in trees.values() for entry in entries).to_json(),
        "trees": [
            {
                "root": os.path.basename(root.rstrip("/")),  # noqa: PTH119 - a name, whatever pathlib would make of it
                "totals": Totals(entries).to_json(),
                "files": [asdict(entry) for entry in sorted(entries, key=lambda entry: entry.path)],
            }
            for root, entries in trees.items()
        ],
    }
    return json.dumps(report, indent=1, sort_keys=True) + "\n"
