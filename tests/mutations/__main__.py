"""Draws mutants of the modules whose errors are silent; shows which the nearest folder of tests lets pass."""

from __future__ import annotations

import signal
import sys
import tempfile
from collections import Counter
from pathlib import Path
from random import SystemRandom

from corpus import measured
from tests import ROOT
from tests.mutations.draw import Mutant, draw
from tests.mutations.judge import Judge, Outcome, packages_of, tests_of

ROOMS = ("cfi", "sframegen/format", "sframegen/conversion", "sframegen/tables", "linker/inject", "sframegen/profile/walk")

Judged = list[tuple[str, Mutant, "Outcome"]]  # room, ...


def main() -> None:
    parser = measured.argument_parser("tests.mutations", __doc__)
    parser.add_argument("--environment", type=Path, default=ROOT / ".venv-pure", help="an interpreted build (default: .venv-pure)")
    parser.add_argument("--root", type=Path, default=ROOT, help="where the folder `tests` is (default: the checkout)")
    parser.add_argument("--room", action="append", help=f"default: {', '.join(ROOMS)}")
    parser.add_argument("--count", type=int, default=200, help="mutants to draw (default: %(default)s)")
    parser.add_argument("--seed", type=int, help="default: another one each time, which is printed")
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
    measured.write(options.json, {"mutants": len(drawn), "possible": possible, "seed": seed, **records(judged)})


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


def records(judged: Judged) -> dict[str, object]:
    """Counts of each room, and the survivors. `hung`: out of time, which counts as killed, too."""
    rooms = []
    for room in dict.fromkeys(room for room, _, _ in judged):
        count = Counter(outcome for of, _, outcome in judged if of == room)
        killed = count["killed"] + count["hung"]
        rooms.append({"room": room, "tests": tests_of(room), "mutants": count.total(), "killed": killed, "hung": count["hung"]})
    survivors = [
        {"at": f"{mutant.module}:{mutant.line}", "before": " ".join(mutant.before.split()), "after": " ".join(mutant.after.split())}
        for _, mutant, outcome in judged
        if outcome == "survived"
    ]
    return {"rooms": rooms, "survivors": survivors}


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends the tests that run, and removes the copy
    main()
