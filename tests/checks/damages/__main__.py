"""Damages the sections of real files in every way of tests/checks/damages, and shows what `check` found: a table, a row each kind.

A file is given as FILE, FILE:LEVEL or FILE:LEVEL:VERSION; it gets a section of that level of optimisation (fast) and version (3) in
memory. FILE is a path, or a name of corpus/manifest.toml. Nothing is written but the document.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, NamedTuple, cast

from tests.checks.damages import DAMAGES, NowhereError, Subject, tried, with_section
from tests.support.peers import corpus_file

if TYPE_CHECKING:
    from sframegen.tables.levels import LevelName

FILES = ("libc", "s390x-libc:none:2", "arm64-libc", "libstdcxx:none:2", "libcrypto")
BEGIN, END = "<!-- damages -->", "<!-- end of damages -->"


class Count(NamedTuple):
    applied: int = 0
    found: int = 0
    named: int = 0

    def __add__(self, other: tuple[int, ...]) -> Count:  # type: ignore[override]
        return Count(*(one + more for one, more in zip(self, other, strict=True)))


def counted(name: str, subject: Subject, times: int) -> Count:
    """Of one kind. Where it was not found under its name, says so to stderr."""
    count = Count()
    for number in range(times):
        try:
            outcome = tried(DAMAGES[name], subject, Random(f"{name} {number}"))
        except NowhereError:
            break
        count += (1, outcome.found, outcome.named)
        if not outcome.named:
            print(f"{subject.name}: {name}, number {number}: {outcome}", file=sys.stderr)
    return count


def opened(given: str) -> Subject:
    """The file with its section."""
    path, level, version = (given.split(":") + ["fast", "3"][given.count(":") :])[:3]
    file = Path(path) if "/" in path else corpus_file(path)
    subject = Subject(f"{Path(path).name} ({level}, version {version})", with_section(file, cast("LevelName", level), int(version)))
    print(subject.report.one_line(), file=sys.stderr, flush=True)
    return subject


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.checks.damages", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="*", metavar="FILE", default=FILES, help=f"default: {' '.join(FILES)}")
    parser.add_argument("--times", type=int, default=25, help="of each kind and file (default %(default)s)")
    parser.add_argument("--docs", type=Path, metavar="FILE", help="write the table into a document, between its markers")
    options = parser.parse_args()
    counts = dict.fromkeys(DAMAGES, Count())
    names = []
    for given in options.files:
        subject = opened(given)
        names.append(subject.name)
        for name in DAMAGES:
            counts[name] += counted(name, subject, options.times)
    text = table(counts, names, options.times)
    print(text)
    if options.docs:
        before, _, rest = options.docs.read_text().partition(BEGIN)
        options.docs.write_text(f"{before}{BEGIN}\n{text}\n{END}{rest.partition(END)[2]}")
    sys.exit(any(count.named < count.applied for count in counts.values()))


def table(counts: dict[str, Count], names: list[str], times: int) -> str:
    lines = ["| damage | rule | done | found | under its name |", "| --- | --- | --- | --- | --- |"]
    for name, count in counts.items():
        rules = ", ".join(f"`{rule}`" for rule in DAMAGES[name].rules)
        lines.append(f"| {name} | {rules} | " + " | ".join(f"{number:,}" for number in count) + " |")
    total = sum(counts.values(), Count())
    lines.append("| **all** | | " + " | ".join(f"**{number:,}**" for number in total) + " |")
    return "\n".join([*lines, "", f"{len(counts)} kinds, each {times} times where it can be done, in: {', '.join(names)}."])


if __name__ == "__main__":
    main()
