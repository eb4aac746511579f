"""Fuzzes targets in turn and prints a table; exits with 1 where there is a bug, with the recipe that repeats it."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from tests.fuzz.branches import Flags
from tests.fuzz.engine import Bug, Fuzzer
from tests.fuzz.recipes import parse

HERE = Path(__file__).parent
TARGETS = sorted(path.stem for path in (HERE / "targets").glob("[a-z]*.py"))
KEPT = HERE / "kept"  # a file each target: inputs that found a bug once, and such as take many branches
NO_LIMIT = 1 << 60


def main() -> int:
    options = arguments()
    flags = Flags()
    with tempfile.TemporaryDirectory() as temporary:
        fuzzers = {name: fuzzer(name, flags, Path(options.corpus or temporary, name), options) for name in options.targets}
        if options.repeat:
            return repeat(fuzzers[options.targets[0]], Path(options.repeat))
        print(f"{'target':<14}{'inputs':>10}{'seconds':>9}{'kept':>7}{'branches':>10}{'bugs':>6}", flush=True)
        for name, one in fuzzers.items():
            begin = time.monotonic()
            one.fuzz(options.inputs or NO_LIMIT, options.seconds or NO_LIMIT)
            row = (one.inputs, round(time.monotonic() - begin), len(one.kept), one.branches, len(one.bugs))
            print(f"{name:<14}{row[0]:>10,}{row[1]:>9,}{row[2]:>7,}{row[3]:>10,}{row[4]:>6}", flush=True)
    print(f"{'all':<14}{sum(one.inputs for one in fuzzers.values()):>10,}")
    found = [(name, bug) for name, one in fuzzers.items() for bug in one.bugs.values()]
    for name, bug in found:
        print("\n".join(told(name, bug)))
    return int(bool(found))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(TARGETS)}; all of them by default")
    parser.add_argument("--inputs", type=int, help="of each target")
    parser.add_argument("--seconds", type=float, help="for each target")
    parser.add_argument("--cpu-seconds", type=float, default=2, help="that one input may take")
    parser.add_argument("--random-seed", type=int, default=1)
    parser.add_argument("--corpus", help="directory of inputs that are worth mutating, to go on from and to add to")
    parser.add_argument("--repeat", metavar="RECIPE", help="try this file's input alone, on the one TARGET")
    options = parser.parse_args()
    unknown = set(options.targets) - set(TARGETS)
    if unknown:
        parser.error(f"no target {', '.join(sorted(unknown))}")
    if options.repeat and len(options.targets) != 1:
        parser.error("--repeat takes one TARGET")
    if not (options.inputs or options.seconds or options.repeat):
        parser.error("how long? --inputs or --seconds")
    options.targets = options.targets or TARGETS
    return options


def fuzzer(name: str, flags: Flags, directory: Path, options: argparse.Namespace) -> Fuzzer:
    """Modules that the target needs are imported now, so that their branches are known."""
    target = import_module(f"tests.fuzz.targets.{name}")
    seeds = import_module("tests.fuzz.seeds").available(target.SEEDS)
    file = KEPT / f"{name}.txt"
    kept = [parse(recipe) for recipe in file.read_text().split("\n\n") if recipe.strip()] if file.exists() else []
    return Fuzzer(target.run, seeds, kept, directory, flags.taken, options.random_seed, options.cpu_seconds)


def repeat(fuzzer: Fuzzer, file: Path) -> int:
    what, details = fuzzer.ending(parse(file.read_text()))
    print(details or what or "no bug")
    return int(bool(what))


def told(name: str, bug: Bug) -> Iterator[str]:
    yield f"\n{name}: {bug.what}\n{bug.details}".rstrip()
    yield f"-- to repeat it, put this into a file: python -m tests.fuzz {name} --repeat FILE"
    yield str(bug.recipe)


sys.exit(main())
