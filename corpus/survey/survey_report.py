"""The results of a survey, as docs/measured/survey.json has them."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, NamedTuple

from corpus.survey.survey_rows import WITH_SECTION, Sums, eh_frame_bytes, files_of, packages_of, size_ratio

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from corpus.survey.judged_files import Judged
    from corpus.survey.survey_packages import Fetched, FetchedGroup
    from sframegen.fleet.result_rows import FileRow, PackageRow

GOOD_COVERAGE = 0.999
SHOWN = 12  # records of a list that could have many
STEPS = {"fetching": "fetch", "reading": "unpack", "converting": "convert", "writing": "pack"}  # of a package
NUMBER = re.compile(r"\b(?:0x[0-9a-f]+|\d[\d,]{2,})\b", re.IGNORECASE)
KEYS: dict[str, Callable[[FileRow], str]] = {  # of files
    "language": lambda row: row.language or "unknown",
    "compiler": lambda row: f"{row.producer} {row.producer_version.partition('.')[0]}".strip() or "unknown",
    "machine": lambda row: row.machine or "unknown",
}


class Results(NamedTuple):
    groups: Sequence[FetchedGroup]
    surveyed: Path  # directories of runs
    rewritten: Path
    rewritten_up_to: float  # MB
    judged: Sequence[Judged]

    @property
    def packages(self) -> list[Fetched]:
        return [package for group in self.groups for package in group.packages]

    @property
    def run(self) -> dict[str, str]:
        """What wrote the rows, which may have been another version than this one: `--from-results`."""
        run: dict[str, str] = json.loads((self.surveyed / "run.json").read_bytes())
        return run


class Reason:
    """Files or packages that have no section for the same reason, with the first of them as the example."""

    def __init__(self, example: str) -> None:
        self.number = 0
        self.bytes = 0
        self.example = example


class Survey:
    """Sums over the run, and what is worth a line of its own."""

    def __init__(self, results: Results) -> None:
        groups = {package.file.name: package.group for package in results.packages}
        self.packages = packages_of(results.surveyed)
        self.group_packages = Counter(groups[base(package.package)] for package in self.packages)
        self.all = Sums()
        self.groups: defaultdict[str, Sums] = defaultdict(Sums)
        self.by: dict[str, defaultdict[str, Sums]] = {name: defaultdict(Sums) for name in KEYS}
        self.left_out: Counter[str] = Counter()  # bytes of code by reason
        self.reasons: dict[tuple[str, str, str], Reason] = {}  # by file or package, outcome, text
        self.whole = 0  # files of which all code with CFI is covered
        self.incomplete: list[FileRow] = []
        self.large: list[FileRow] = []  # sections larger than .eh_frame + .eh_frame_hdr
        for package in self.packages:
            if package.reason:
                self._reason("package", package, package.package, package.package_bytes)
        for row in files_of(results.surveyed):
            self._add(row, groups[base(row.package)])

    def _add(self, row: FileRow, group: str) -> None:
        for sums in (self.all, self.groups[group], *(by[KEYS[name](row)] for name, by in self.by.items())):
            sums.add(row)
        self.left_out.update(row.left_out)
        if row.outcome not in WITH_SECTION:
            self._reason("file", row, row.path, row.file_bytes)
        elif row.code_bytes:
            self.whole += row.covered_bytes == row.code_bytes
        if row.section_bytes and row.covered_bytes < GOOD_COVERAGE * row.code_bytes:
            self.incomplete.append(row)
        if size_ratio(row) > 1:
            self.large.append(row)

    def _reason(self, of: str, row: FileRow | PackageRow, name: str, size: int) -> None:
        """Reasons that differ only in an address or a size count together."""
        reason = self.reasons.setdefault((of, str(row.outcome), NUMBER.sub("…", row.reason)), Reason(base(name)))
        reason.number += 1
        reason.bytes += size


def summed(results: Results) -> dict[str, object]:
    survey = Survey(results)
    packages, files = survey.packages, survey.all
    order = dict.fromkeys(package.group for package in results.packages)
    larger = sorted(survey.large, key=lambda row: eh_frame_bytes(row) - row.section_bytes)
    return {
        "packages": len(packages),
        "package_bytes": sum(package.package_bytes for package in packages),
        "unpacked_bytes": sum(package.unpacked_bytes for package in packages),
        "lost": [name for group in results.groups for name in group.lost],
        **_sums(files),
        "covered_bytes": files.covered,
        "wholly_covered_files": survey.whole,
        "executable_bytes": files.executable,
        "bytes_without_cfi": {name: sums.silent for name, sums in survey.by["language"].items() if sums.silent},
        "groups": [{"group": name, "packages": survey.group_packages[name], **_sums(survey.groups[name])} for name in order],
        **{f"by_{name}": _by(name, sums) for name, sums in survey.by.items()},
        "left_out_bytes": dict(survey.left_out.most_common()),
        "incomplete": list(map(_incomplete, sorted(survey.incomplete, key=lambda row: row.covered_bytes / row.code_bytes))),
        "without_section": [
            {"of": of, "outcome": outcome, "reason": text, "number": one.number, "bytes": one.bytes, "such_as": one.example}
            for (of, outcome, text), one in sorted(survey.reasons.items(), key=lambda item: (item[0][0], -item[1].number))
        ],
        "larger_sections": len(larger),
        "larger_section_bytes": sum(row.section_bytes for row in larger),
        "larger_eh_frame_bytes": sum(map(eh_frame_bytes, larger)),
        "larger": list(map(_larger, larger[:SHOWN])),
        "rewritten": growth(results),
        "time": time(packages),
        "judged_files": len(results.judged),
        "judged_code_bytes": sum(one.code_bytes for one in results.judged),
        "judged_differences": [f"{one.path}: {fault}" for one in results.judged for fault in one.faults],
    }


def _sums(sums: Sums) -> dict[str, object]:
    """`covered` and `without_cfi`: percentages; `of_eh_frame`: the section's size in proportion to .eh_frame + .eh_frame_hdr."""
    code = sums.silent + sums.code
    return {
        "elf_files": sums.seen,
        "with_section": sums.files,
        "code_bytes": sums.code,
        "covered": percent(sums.covered, sums.code),
        "without_cfi": round(100 * sums.silent / code, 1) if code else None,
        "section_bytes": sums.section,
        "of_eh_frame": round(sums.section / sums.eh_frame, 3) if sums.eh_frame else None,
    }


def _by(name: str, sums: dict[str, Sums]) -> list[dict[str, object]]:
    most = sorted(sums.items(), key=lambda item: -item[1].executable)[:SHOWN]
    return [{name: key, **_sums(one)} for key, one in most]


def _incomplete(row: FileRow) -> dict[str, object]:
    left_out = row.code_bytes - row.covered_bytes
    return {"file": base(row.path), "package": package_name(row), "code_bytes": row.code_bytes, "left_out": left_out}


def _larger(row: FileRow) -> dict[str, object]:
    sizes = {"section_bytes": row.section_bytes, "eh_frame_bytes": eh_frame_bytes(row)}
    return {"file": base(row.path), "package": package_name(row), **sizes}


def growth(results: Results) -> list[dict[str, object]]:
    """Of the packages that were rewritten, packed as they were before."""
    found: list[dict[str, object]] = []
    for kind, packages in by_kind(row for row in packages_of(results.rewritten) if row.new_package_bytes):
        ordered = sorted(row.new_package_bytes / row.package_bytes - 1 for row in packages)
        found.append(
            {
                "kind": kind,
                "packages": len(packages),
                "bytes": sum(row.package_bytes for row in packages),
                "new_bytes": sum(row.new_package_bytes for row in packages),
                "median_growth": round(ordered[len(ordered) // 2], 4),
            }
        )
    return found


def time(packages: Iterable[PackageRow]) -> list[dict[str, object]]:
    """Seconds of one process for 1 GB of packages."""
    found: list[dict[str, object]] = []
    for kind, of_kind in by_kind(packages):
        size = sum(row.package_bytes for row in of_kind)
        seconds = {text: sum(getattr(row, f"seconds_{step}") for row in of_kind) for step, text in STEPS.items()}
        found.append(
            {"kind": kind, "packages": len(of_kind), "bytes": size}
            | {f"{text}_seconds": round(used / size * 1e9) for text, used in seconds.items()}
        )
    return found


def by_kind(packages: Iterable[PackageRow]) -> list[tuple[str, list[PackageRow]]]:
    kinds: defaultdict[str, list[PackageRow]] = defaultdict(list)
    for row in packages:
        kinds[row.kind or "unknown"].append(row)
    return sorted(kinds.items())


def percent(part: int, of: int) -> float | None:
    """Return a share that is never rounded up to 100."""
    return int(1e5 * part / of) / 1e3 if of else None


def base(path: str) -> str:
    return path.rpartition("/")[2]


def package_name(row: FileRow) -> str:
    """Return a package's name without its version, and the machine that it is for."""
    name = base(row.package)
    return f"{name.partition('-' if name.endswith('.whl') else '_')[0]}, {row.machine}"
