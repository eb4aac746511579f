"""Build the sdist and the wheels of a commit: `make wheel`. Exit status 1: a file is incomplete, or --compare found other bytes.

What is not committed is not in them. --compare builds in another folder and compares with what is in --dist.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from hashlib import sha256
from pathlib import Path

from tools.release.building import Source, missing_in
from tools.release.machines import MACHINES

POLICY = re.compile(r'platform tag: "(manylinux_\w+)"')


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.release", description=__doc__)
    parser.add_argument("--dist", type=Path, default=Path("dist"), metavar="DIR", help="the files' folder")
    names = [one.name for one in MACHINES]
    parser.add_argument("--machine", choices=names, action="append", help="build the wheel of this machine; default: all")
    parser.add_argument("--sdist", action="store_true", help="build the sdist only, into DIR")
    parser.add_argument("--commit", default="HEAD", help="what is built")
    parser.add_argument("--compare", action="store_true", help="change nothing in DIR: build again, and compare")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="release-") as work:
        new = Path(work, "dist")
        new.mkdir()
        try:
            complete = build(Path(work), new, options.commit, None if options.sdist else options.machine or names)
        except (OSError, subprocess.CalledProcessError) as error:  # what failed has printed why
            print(f"nothing is built: {error}", file=sys.stderr)
            complete = False
        if not complete:
            return 1
        if options.compare:
            return compare(new, options.dist)
        options.dist.mkdir(exist_ok=True)
        for old in [*options.dist.glob("sframegen-*.whl"), *options.dist.glob("sframegen-*.tar.gz")]:
            old.unlink()
        for made in sorted(new.iterdir()):
            (options.dist / made.name).write_bytes(made.read_bytes())
            print(f"{options.dist / made.name}: {made.stat().st_size:,} bytes")
    return 0


def build(work: Path, output: Path, commit: str, machines: list[str] | None) -> bool:
    """Build everything into a folder, or the sdist only. False, with a line on stderr, where a wheel lacks a file."""
    folder = work / "source"
    folder.mkdir()
    source = Source(folder, commit)
    print("building the sdist", flush=True)
    source.sdist(output)
    if machines is None:
        return True
    print("building the pure wheel", flush=True)
    wheels = {source.pure_wheel(output): False}
    for machine in MACHINES:
        if machine.name in machines:
            print(f"building the wheel for {machine.name}", flush=True)
            wheels[tagged(source.build("wheel", output, machine.environment()), source.date)] = True
    complete = True
    for wheel, compiled in wheels.items():
        if missing := missing_in(wheel, compiled=compiled):
            print(f"{wheel.name} lacks {', '.join(missing)}: could not be compiled", file=sys.stderr)
            complete = False
    return complete


def tagged(wheel: Path, date: int) -> Path:
    """The wheel with the tag of the oldest glibc that has the symbols its modules need, as auditwheel finds it."""
    shown = subprocess.run([sys.executable, "-m", "auditwheel", "show", wheel], check=True, text=True, capture_output=True)
    found = POLICY.search(re.sub(r"\s+", " ", shown.stdout))
    if found is None:
        raise SystemExit(f"auditwheel finds no manylinux tag for {wheel.name}: {shown.stdout}{shown.stderr}")
    retag = ["-m", "wheel", "tags", "--remove", "--platform-tag", found[1], wheel]
    dated = os.environ | {"SOURCE_DATE_EPOCH": str(date)}
    name = subprocess.run([sys.executable, *retag], env=dated, check=True, text=True, stdout=subprocess.PIPE).stdout.split()[-1]
    return wheel.with_name(name)


def compare(new: Path, dist: Path) -> int:
    """Print for each file whether both folders have the same bytes. 1 if they have not."""
    status = 0
    for made in sorted(new.iterdir()):
        other = dist / made.name
        same = other.exists() and sha256(other.read_bytes()).digest() == sha256(made.read_bytes()).digest()
        print(f"{made.name}: {'the same bytes' if same else 'other bytes'}")
        status |= not same
    return status


if __name__ == "__main__":
    sys.exit(main())
