"""Draws mutants of the modules whose errors are silent; shows which the nearest folder of tests lets pass."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from random import SystemRandom
from typing import TYPE_CHECKING

import sframegen
from tests import ROOT
from tests.mutations.draw import Mutant, draw
from tests.mutations.judge import Judge, packages_of, tests_of

if TYPE_CHECKING:
    from tests.mutations.judge import Outcome

ROOMS = ("cfi", "sframegen/format", "sframegen/conversion", "sframegen/tables", "linker/inject", "sframegen/profile/walk")
BEGIN, END = "<!-- mutations -->", "<!-- end of mutations -->"

Judged = list[tuple[str, Mutant, "Outcome"]]  # room, ...


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description=__doc__)
    parser.add_argument("--environment", type=Path, default=ROOT / ".venv-pure", help="an interpreted build (default: .venv-pure)")
    parser.add_argument("--root", type=Path, default=ROOT, help="where the folder `tests` is (default: the checkout)")
    parser.add_argument("--room", action="append", help=f"default: {', '.join(ROOMS)}")
    parser.add_argument("--count", type=int, default=200, help="mutants to draw (default: %(default)s)")
    parser.add_argument("--seed", type=int, help="default: another one each time, which is printed")
    parser.add_argument("--docs", type=Path, metavar="FILE", help="write the table into a document, between its markers")
    options = parser.parse_args()
    rooms = options.room or ROOMS
    seed = SystemRandom().randrange(10**6) if options.seed is None else options.seed
    packages = packages_of(options.environment)
    modules = sorted(str(file.relative_to(packages)) for room in rooms for file in (packages / room).rglob("*.py"))
    drawn, possible = draw(packages, modules, options.count, seed)
    if not drawn:
        parser.error(f"nothing to change in {', '.join(rooms)}")
    with tempfile.TemporaryDirectory() as directory:
        judged = judge_all(Judge(options.environment.resolve(), options.root, Path(directory)), rooms, drawn)
    today = f"{datetime.now(UTC):%Y-%m-%d}"
    text = f"{table(judged)}\n\n{len(drawn)} of {possible:,} mutants, seed {seed}, sframegen {sframegen.__version__}, {today}."
    print(text)
    if options.docs:
        before, _, rest = options.docs.read_text().partition(BEGIN)
        options.docs.write_text(f"{before}{BEGIN}\n{text}\n{END}{rest.partition(END)[2]}")


def judge_all(judge: Judge, rooms: tuple[str, ...], drawn: list[Mutant]) -> Judged:
    judged: Judged = []
    for room in rooms:
        judge.measure(room)
        for mutant in drawn:
            if mutant.module.startswith(f"{room}/"):
                outcome = judge.judge(mutant, room)
                judged.append((room, mutant, outcome))
                print(f"{len(judged)}/{len(drawn)} {mutant.module}:{mutant.line} {outcome}", file=sys.stderr, flush=True)
                if outcome == "survived":
                    print(mutant, flush=True)
    return judged


def table(judged: Judged) -> str:
    """The figures of each room, and a line for each survivor."""
    counts = {room: Counter(outcome for of, _, outcome in judged if of == room) for room, _, _ in judged}
    lines = ["| modules | tests | mutants | killed | of these, out of time | share |", "| --- | --- | --- | --- | --- | --- |"]
    lines += [f"| `{room}` | `{tests_of(room)}` | {figures(count)} |" for room, count in counts.items()]
    lines.append(f"| **all** | | {figures(sum(counts.values(), Counter()))} |")
    survivors = [mutant for _, mutant, outcome in judged if outcome == "survived"]
    if survivors:
        lines += ["", "| survivor | before | after |", "| --- | --- | --- |"]
    for mutant in survivors:
        code = " | ".join(f"`` {' '.join(text.split())} ``".replace("|", "\\|") for text in (mutant.before, mutant.after))
        lines.append(f"| `{mutant.module}:{mutant.line}` | {code} |")
    return "\n".join(lines)


def figures(count: Counter[Outcome]) -> str:
    killed = count["killed"] + count["hung"]
    return f"{count.total()} | {killed} | {count['hung']} | {killed / count.total():.0%}"


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends the tests that run, and removes the copy
    main()
