"""The results of a survey, in Markdown: docs/reports/survey.md."""

from __future__ import annotations

import json
import platform
import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from corpus.run.report import table
from corpus.survey.survey_rows import WITH_SECTION, Sums, eh_frame_bytes, files_of, packages_of, size_ratio
from sframegen.base.text import most_first

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from corpus.survey.judged_files import Judged
    from corpus.survey.survey_packages import Fetched, FetchedGroup
    from sframegen.fleet.result_rows import FileRow, PackageRow

HEAD = Path(__file__).with_name("head.md")
GOOD_COVERAGE = 0.999
SHOWN = 12  # rows of a table that could have many
STEPS = {"fetching": "fetch", "reading": "unpack", "converting": "convert", "writing": "pack"}  # of a package, with a column each
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


def markdown(results: Results) -> str:
    survey = Survey(results)
    lines = [HEAD.read_text(), "## Results", "", sentence(survey), ""]
    lines += [f"Python {platform.python_version()}, {results.run['started'][:10]}.", ""]
    if lost := [name for group in results.groups for name in group.lost]:
        lines += [f"Left out, as the archive lists but does not have them: {', '.join(lost)}.", ""]
    order = list(dict.fromkeys(package.group for package in results.packages))
    lines += sums_table("packages", [(name, survey.group_packages[name], survey.groups[name]) for name in order])
    for title, name in (("By language", "language"), ("By compiler", "compiler"), ("By machine", "machine")):
        by = sorted(survey.by[name].items(), key=lambda item: -item[1].executable)
        lines += [f"### {title}", "", *sums_table(name, [(key, None, sums) for key, sums in by[:SHOWN]])]
    lines += left_out(survey)
    lines += without_section(survey)
    lines += larger(survey)
    lines += growth(results)
    lines += time(survey)
    lines += again(results.judged)
    return "\n".join(lines[:-1]) + "\n"


def sentence(survey: Survey) -> str:
    files = survey.all
    silent = sorted(((sums.silent, name) for name, sums in survey.by["language"].items()), reverse=True)[:2]
    ratio = f"{files.section / files.eh_frame:.3f}" if files.eh_frame else "none"
    sentences = (
        f"{len(survey.packages):,} packages, {sum(package.package_bytes for package in survey.packages):,} bytes;",
        f"unpacked {sum(package.unpacked_bytes for package in survey.packages):,} bytes, with",
        f"{files.seen:,} linked ELF files. {files.files:,} of these get a section. It covers {files.covered:,} of",
        f"{files.code:,} bytes of code with CFI, {percent(files.covered, files.code)},",
        f"and all of it in {survey.whole:,} files.",
        f"Sections take {files.section:,} bytes, {ratio} of .eh_frame + .eh_frame_hdr. Of {files.executable:,} executable bytes,",
        f"{files.silent:,} are code without CFI: {', '.join(f'{size:,} in {name}' for size, name in silent)}.",
    )
    return " ".join(sentences)


def sums_table(first: str, rows: Iterable[tuple[str, int | None, Sums]]) -> list[str]:
    head = (first, "ELF files", "with a section", "bytes with CFI", "covered", "code without CFI", "section", "of .eh_frame + hdr")
    lines = []
    for name, packages, sums in rows:
        silent = f"{100 * sums.silent / (sums.silent + sums.code):.1f} %" if sums.silent + sums.code else ""
        ratio = f"{sums.section / sums.eh_frame:.2f}" if sums.eh_frame else ""
        label = name if packages is None else f"{name} ({packages})"
        lines.append((label, sums.seen, sums.files, sums.code, percent(sums.covered, sums.code), silent, sums.section, ratio))
    return table(head, lines)


def left_out(survey: Survey) -> list[str]:
    lines = ["## Left out", "", *table(("reason", "bytes"), most_first(survey.left_out))]
    rows = sorted(survey.incomplete, key=lambda row: row.covered_bytes / row.code_bytes)
    lines += [f"Files of which less than {100 * GOOD_COVERAGE:g} % is covered:", ""]
    return lines + table(
        ("file", "package", "bytes with CFI", "left out", "covered"),
        [
            (
                f"`{base(row.path)}`",
                package_name(row),
                row.code_bytes,
                row.code_bytes - row.covered_bytes,
                percent(row.covered_bytes, row.code_bytes),
            )
            for row in rows
        ],
    )


def without_section(survey: Survey) -> list[str]:
    reasons = sorted(survey.reasons.items(), key=lambda item: (item[0][0], -item[1].number))
    lines = ["## Without a section", ""]
    return lines + table(
        ("", "outcome", "reason", "number", "bytes", "such as"),
        [(of, outcome, text, one.number, one.bytes, f"`{one.example}`") for (of, outcome, text), one in reasons],
    )


def larger(survey: Survey) -> list[str]:
    ours, theirs = sum(row.section_bytes for row in survey.large), sum(map(eh_frame_bytes, survey.large))
    most = sorted(survey.large, key=lambda row: eh_frame_bytes(row) - row.section_bytes)[:SHOWN]
    return [
        "## Larger than .eh_frame + .eh_frame_hdr",
        "",
        f"{len(survey.large):,} of {survey.all.files:,} sections, with {ours:,} bytes to {theirs:,}. The largest differences:",
        "",
        *table(
            ("file", "package", "section", ".eh_frame + hdr", "ratio"),
            [
                (f"`{base(row.path)}`", package_name(row), row.section_bytes, eh_frame_bytes(row), f"{size_ratio(row):.2f}")
                for row in most
            ],
        ),
    ]


def growth(results: Results) -> list[str]:
    """The growth of the packages that were rewritten."""
    kinds: defaultdict[str, list[PackageRow]] = defaultdict(list)
    for row in packages_of(results.rewritten):
        if row.new_package_bytes:
            kinds[row.kind].append(row)
    lines = ["## Growth of packages", ""]
    lines += [f"All packages of at most {results.rewritten_up_to:g} MB were rewritten, packed as they were before.", ""]
    rows = []
    for kind, packages in sorted(kinds.items()):
        before, after = sum(row.package_bytes for row in packages), sum(row.new_package_bytes for row in packages)
        ordered = sorted(row.new_package_bytes / row.package_bytes - 1 for row in packages)
        middle = ordered[len(ordered) // 2]
        rows.append((kind, len(packages), before, after, f"{100 * (after / before - 1):.2f} %", f"{100 * middle:.2f} %"))
    lines += table(("kind", "packages", "bytes", "rewritten", "growth", "median"), rows)
    return [*lines, shares(row for packages in kinds.values() for row in packages), ""] if rows else lines


def shares(packages: Iterable[PackageRow]) -> str:
    seconds = dict.fromkeys(STEPS.values(), 0.0)
    for row in packages:
        for step, text in STEPS.items():
            seconds[text] += getattr(row, f"seconds_{step}")
    total = sum(seconds.values())
    return "Of the time: " + ", ".join(f"{text} {100 * used / total:.0f} %" for text, used in seconds.items()) + "."


def time(survey: Survey) -> list[str]:
    kinds: defaultdict[str, list[PackageRow]] = defaultdict(list)
    for row in survey.packages:
        kinds[row.kind or "unknown"].append(row)
    lines = ["## Time", ""]
    if not kinds:
        return lines
    lines += [shares(survey.packages), ""]
    lines += ["Seconds of one process for 1 GB of packages, while other work took most of the processors:", ""]
    rows = []
    for kind, packages in sorted(kinds.items()):
        size = sum(row.package_bytes for row in packages)
        seconds = [sum(getattr(row, f"seconds_{step}") for row in packages) / size * 1e9 for step in list(STEPS)[:3]]
        rows.append((kind, len(packages), size, *(f"{used:.0f}" for used in seconds), f"{sum(seconds):.0f}"))
    return lines + table(("kind", "packages", "bytes", "read the file", "unpack", "convert", "in all"), rows)


def again(judged: Sequence[Judged]) -> list[str]:
    faults = [f"- `{one.path}`: {fault}" for one in judged for fault in one.faults]
    code = sum(one.code_bytes for one in judged)
    return [
        "## Looked at again",
        "",
        f"{len(judged):,} files with {code:,} bytes with CFI, drawn with a seed: {len(faults)} differences.",
        *faults,
        "",
    ]


def percent(part: int, of: int) -> str:
    """Return a share that is never rounded up to 100 %."""
    if not of:
        return ""
    return "100 %" if part == of else f"{int(1e5 * part / of) / 1e3:.3f} %"


def base(path: str) -> str:
    return path.rpartition("/")[2]


def package_name(row: FileRow) -> str:
    """Return a package's name without its version, and the machine that it is for."""
    name = base(row.package)
    return f"{name.partition('-' if name.endswith('.whl') else '_')[0]}, {row.machine}"
