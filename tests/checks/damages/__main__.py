"""Damages the sections of real files in every way of tests/checks/damages, and shows what `check` found of each kind.

A file is given as FILE, FILE:LEVEL or FILE:LEVEL:VERSION; it gets a section of that level of optimisation (fast) and version (3) in
memory. FILE is a path, or a name of corpus/manifest.toml. Nothing is written but --json.
"""

from __future__ import annotations

import sys
from pathlib import Path
from random import Random
from typing import NamedTuple, cast

from corpus import measured
from sframegen.tables.levels import LevelName
from tests.checks.damages import DAMAGES, NowhereError, Subject, tried, with_section
from tests.support.peers import corpus_file

FILES = ("libc", "s390x-libc:none:2", "arm64-libc", "libstdcxx:none:2", "libcrypto")


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
    parser = measured.argument_parser("tests.checks.damages", __doc__)
    parser.add_argument("files", nargs="*", metavar="FILE", default=FILES, help=f"default: {' '.join(FILES)}")
    parser.add_argument("--times", type=int, default=25, help="of each kind and file (default %(default)s)")
    options = parser.parse_args()
    counts = dict.fromkeys(DAMAGES, Count())
    names = []
    for given in options.files:
        subject = opened(given)
        names.append(subject.name)
        for name in DAMAGES:
            counts[name] += counted(name, subject, options.times)
    rows = [{"damage": name, "rule": DAMAGES[name].rule, **count._asdict()} for name, count in counts.items()]
    measured.write(options.json, {"files": names, "times": options.times, **sum(counts.values(), Count())._asdict(), "kinds": rows})
    sys.exit(any(count.named < count.applied for count in counts.values()))


if __name__ == "__main__":
    main()
