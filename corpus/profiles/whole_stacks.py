"""How many stacks of programs with code that has no call frame information are whole: assembly, musl, Go. A table.

Needs root, gcc, ffmpeg with libx264, dav1d, openssl, libgmp-dev, musl-tools and golang; what is missing is left out. Each program
is profiled twice with a cache that begins empty: the first time, rules are proven while it runs. Below the table, the places where
stacks end that are not whole.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from corpus.merge.report import table

PROGRAMS = Path(__file__).with_name("programs")
FREQUENCY = "499"
VIDEO = ("ffmpeg", "-loglevel", "error", "-y", "-f", "lavfi", "-i", "testsrc2=duration=6:size=640x360:rate=30")
DECODING = "for number in 1 2 3 4 5 6 7 8; do dav1d -q -i in.ivf -o out --muxer null || exit; done"
GO_FLAGS = {"Go": (), "Go, stripped": ("-ldflags", "-s -w"), "Go, PIE": ("-buildmode=pie",)}
HEADS = ("program", "samples", "whole, first", "with guesses", "whole, then", "with guesses")
PLACES = 6  # of each program


class Program(NamedTuple):
    """`prepare`: commands that make it, run in a folder of its own, as `command` is."""

    name: str
    command: tuple[str, ...]
    prepare: tuple[tuple[str, ...], ...] = ()


def _programs() -> list[Program]:
    numbers, texts = str(PROGRAMS / "numbers.c"), str(PROGRAMS / "texts.c")
    found = [
        Program("libx264", (*VIDEO, "-c:v", "libx264", "-threads", "2", "out.mp4")),
        Program("libdav1d", ("sh", "-c", DECODING), ((*VIDEO, "-c:v", "libsvtav1", "in.ivf"),)),
        Program("libgmp", ("./numbers", "1000"), (("gcc", "-O2", "-o", "numbers", numbers, "-lgmp"),)),
        Program("libcrypto", ("openssl", "speed", "-seconds", "1", "aes-256-cbc", "sha256", "rsa2048", "ecdsap256")),
        Program("musl", ("./texts", "60"), (("musl-gcc", "-O2", "-o", "texts", texts),)),
        Program("musl, static", ("./texts", "60"), (("musl-gcc", "-O2", "-static", "-o", "texts", texts),)),
        Program("musl, stripped", ("./texts", "60"), (("musl-gcc", "-O2", "-static", "-s", "-o", "texts", texts),)),
    ]
    source = ("cp", str(PROGRAMS / "work.go"), ".")
    for name, flags in GO_FLAGS.items():
        found.append(
            Program(name, ("./work", "60"), (source, ("go", "mod", "init", "work"), ("go", "build", "-o", "work", *flags)))
        )
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m corpus.profiles.whole_stacks", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", action="append", help="the name of a program; may be given again")
    options = parser.parse_args()
    rows, ends = [], []
    for program in _programs():
        if options.only and program.name not in options.only:
            continue
        with tempfile.TemporaryDirectory(prefix="corpus-whole-stacks-") as folder:
            try:
                profiles = _profiles(program, Path(folder))
            except (OSError, subprocess.CalledProcessError) as error:
                print(f"{program.name}: left out: {error}", file=sys.stderr)
                continue
        rows.append(_row(program, profiles))
        ends += [f"{program.name}: {place}: {samples}" for place, samples in _ends(profiles).most_common(PLACES)]
    print("\n".join([*table(HEADS, rows), "", *ends]))
    print(f"\n{FREQUENCY} Hz; load average {os.getloadavg()[0]:.1f} after it.")
    return int(not rows)


def _profiles(program: Program, folder: Path) -> list[dict[str, Any]]:
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache"), "GOCACHE": str(folder / "go"), "CGO_ENABLED": "0"}
    for command in program.prepare:
        subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True)
    return [_profile(program.command, folder, environment) for _ in range(2)]


def _row(program: Program, profiles: list[dict[str, Any]]) -> tuple[object, ...]:
    shares = (_share(one[what], one["samples"]) for one in profiles for what in ("complete", "guessed"))
    return (program.name, sum(one["samples"] for one in profiles), *shares)


def _ends(profiles: list[dict[str, Any]]) -> Counter[str]:
    """Samples by why and in which function the walk ended, of stacks that are not whole."""
    found: Counter[str] = Counter()
    for profile in profiles:
        for stack in profile["stacks"]:
            if not stack["complete"]:
                outermost = [profile["frames"][number] for number in stack["frames"]][:2][-1]  # the first says only that
                found[f"{stack['end']}, in {outermost['function']} of {outermost['object']}"] += stack["samples"]
    return found


def _profile(command: tuple[str, ...], folder: Path, environment: dict[str, str]) -> dict[str, Any]:
    output = folder / "profile.json"
    ours = [sys.executable, "-P", "-m", "sframegen", "profile", "-F", FREQUENCY, "-o", str(output), "--", *command]
    subprocess.run(ours, cwd=folder, env=environment, check=True, capture_output=True)
    found: dict[str, Any] = json.loads(output.read_text())
    return found


def _share(part: int, whole: int) -> str:
    return f"{100 * part / max(1, whole):.1f} %"


if __name__ == "__main__":
    sys.exit(main())
