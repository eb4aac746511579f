"""The results of a survey, in Markdown: docs/reports/survey.md."""

from __future__ import annotations

import json
import platform
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from corpus.run.report import table
from corpus.survey.figures import STEPS, Figures, Sums, eh_frame_bytes, size_ratio, stored_packages
from sframegen.elf.text import most_first
from sframegen.fleet.output_directory import OutputDirectory
from sframegen.fleet.stored_rows import stored_files

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from corpus.survey.judged_files import Judged
    from corpus.survey.survey_packages import Fetched, FetchedGroup
    from sframegen.fleet.result_rows import FileRow, PackageRow

HEAD = Path(__file__).with_name("head.md")
GOOD_COVERAGE = 0.999
SHOWN = 12  # rows of a table that could have many


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


class Survey:
    """Sums over the run, and what is worth a line of its own."""

    def __init__(self, results: Results) -> None:
        groups = {package.file.name: package.group for package in results.packages}
        self.figures = Figures()
        self.groups: defaultdict[str, Sums] = defaultdict(Sums)
        self.group_packages: Counter[str] = Counter()
        self.incomplete: list[FileRow] = []
        self.large: list[FileRow] = []  # sections larger than .eh_frame + .eh_frame_hdr
        for package in stored_packages(results.surveyed):
            self.figures.add_package(package)
            self.group_packages[groups[base(package.package)]] += 1
        with OutputDirectory.opened(str(results.surveyed)) as surveyed:
            for row in stored_files(surveyed):
                self.figures.add_file(row)
                self.groups[groups[base(row.package)]].add(row)
                if row.section_bytes and row.covered_bytes < GOOD_COVERAGE * row.code_bytes:
                    self.incomplete.append(row)
                if (size_ratio(row) or 0) > 1:
                    self.large.append(row)


def markdown(results: Results) -> str:
    survey = Survey(results)
    lines = [HEAD.read_text(), "## Results", "", sentence(survey.figures), ""]
    lines += [f"Python {platform.python_version()}, {results.run['started'][:10]}.", ""]
    if lost := [name for group in results.groups for name in group.lost]:
        lines += [f"Left out, as the archive lists but does not have them: {', '.join(lost)}.", ""]
    order = list(dict.fromkeys(package.group for package in results.packages))
    lines += sums_table("packages", [(name, survey.group_packages[name], survey.groups[name]) for name in order])
    for title, name in (("By language", "language"), ("By compiler", "compiler"), ("By machine", "machine")):
        by = sorted(survey.figures.by[name].items(), key=lambda item: -item[1].executable)
        lines += [f"### {title}", "", *sums_table(name, [(key, None, sums) for key, sums in by[:SHOWN]])]
    lines += left_out(survey)
    lines += without_section(survey.figures)
    lines += larger(survey)
    lines += growth(results)
    lines += time(survey.figures)
    lines += again(results.judged)
    return "\n".join(lines[:-1]) + "\n"


def sentence(figures: Figures) -> str:
    files, totals = figures.all, figures.totals
    silent = sorted(((sums.silent, name) for name, sums in figures.by["language"].items()), reverse=True)[:2]
    ratio = f"{files.section / files.eh_frame:.3f}" if files.eh_frame else "none"
    sentences = (
        f"{totals.packages.total():,} packages, {totals.package_sums['package_bytes']:,} bytes;",
        f"unpacked {totals.package_sums['unpacked_bytes']:,} bytes, with",
        f"{files.seen:,} linked ELF files. {files.files:,} of these get a section. It covers {files.covered:,} of",
        f"{files.code:,} bytes of code with CFI, {percent(files.covered, files.code)},",
        f"and all of it in {figures.whole:,} files.",
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
    lines = ["## Left out", "", *table(("reason", "bytes"), most_first(survey.figures.totals.left_out))]
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


def without_section(figures: Figures) -> list[str]:
    reasons = sorted(figures.reasons.items(), key=lambda item: (item[0][0], -item[1].number))
    lines = ["## Without a section", ""]
    return lines + table(
        ("", "outcome", "reason", "number", "bytes", "such as"),
        [(of, outcome, text, reason.number, reason.bytes, f"`{base(reason.example)}`") for (of, outcome, text), reason in reasons],
    )


def larger(survey: Survey) -> list[str]:
    files = survey.figures.all
    ours, theirs = sum(row.section_bytes for row in survey.large), sum(map(eh_frame_bytes, survey.large))
    most = sorted(survey.large, key=lambda row: eh_frame_bytes(row) - row.section_bytes)[:SHOWN]
    return [
        "## Larger than .eh_frame + .eh_frame_hdr",
        "",
        f"{len(survey.large):,} of {files.files:,} sections, with {ours:,} bytes to {theirs:,}. The largest differences:",
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
    seconds = dict.fromkeys(STEPS, 0.0)
    for row in stored_packages(results.rewritten):
        if row.new_package_bytes:
            kinds[row.kind].append(row)
            for step in STEPS:
                seconds[step] += getattr(row, f"seconds_{step}")
    lines = ["## Growth of packages", ""]
    lines += [f"All packages of at most {results.rewritten_up_to:g} MB were rewritten, packed as they were before.", ""]
    rows = []
    for kind, packages in sorted(kinds.items()):
        before, after = sum(row.package_bytes for row in packages), sum(row.new_package_bytes for row in packages)
        ordered = sorted(row.new_package_bytes / row.package_bytes - 1 for row in packages)
        middle = ordered[len(ordered) // 2]
        rows.append((kind, len(packages), before, after, f"{100 * (after / before - 1):.2f} %", f"{100 * middle:.2f} %"))
    lines += table(("kind", "packages", "bytes", "rewritten", "growth", "median"), rows)
    return [*lines, shares(seconds), ""] if rows else lines


def shares(seconds: dict[str, float]) -> str:
    total = sum(seconds.values())
    return "Of the time: " + ", ".join(f"{STEPS[step]} {100 * used / total:.0f} %" for step, used in seconds.items()) + "."


def time(figures: Figures) -> list[str]:
    rows = []
    for kind, (size, packages, *seconds) in sorted(figures.steps.items()):
        rate = [f"{used / size * 1e9:.0f}" for used in seconds[:3]]
        rows.append((kind, int(packages), int(size), *rate, f"{sum(seconds[:3]) / size * 1e9:.0f}"))
    lines = ["## Time", ""]
    if not rows:
        return lines
    steps = {step: sum(row[2 + place] for row in figures.steps.values()) for place, step in enumerate(STEPS)}
    lines += [shares(steps), ""]
    lines += ["Seconds of one process for 1 GB of packages, while other work took most of the processors:", ""]
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
