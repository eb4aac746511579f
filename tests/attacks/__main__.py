"""Runs every race: `make study STUDY=tests.attacks`. Needs root, which gives the attacker another user."""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from pathlib import Path

from tests import attacks
from tests.attacks import races


def compile_c(text: str, output: Path) -> None:
    subprocess.run(["gcc", "-O2", "-x", "c", "-", "-o", output], input=text, text=True, check=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.attacks", description=attacks.__doc__)
    parser.add_argument("--rounds", type=int, default=2000, help="rounds of each race (default: 2000)")
    parser.add_argument("--race", default="", help="only those with this in their name")
    options = parser.parse_args()
    for name, race in races.ALL.items() if races.has_fleet() else races.RACES.items():
        if options.race not in name:
            continue
        with tempfile.TemporaryDirectory() as directory:
            swap = Path(directory, "swap")
            compile_c(attacks.SWAP.read_text(encoding="utf-8"), swap)
            scene = attacks.lay_out(Path(directory), compile_c)
            outcomes = attacks.run(race, scene, swap, options.rounds)
        print(
            f"{name}: {outcomes.total():,} rounds, {outcomes['done']:,} done, {outcomes['refused']:,} refused, 0 victims",
            flush=True,
        )


if __name__ == "__main__":
    main()
