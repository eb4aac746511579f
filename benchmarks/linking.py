"""What `sframegen link` adds to a link of a small program: by itself, and in what a compiler takes.

Prints the table.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.figures import Figure, markdown
from benchmarks.measure import in_turn
from benchmarks.places import CACHE, versions
from corpus import measured
from sframegen.program.build import build_kind

if TYPE_CHECKING:
    from collections.abc import Iterator

SOURCE = "#include <stdio.h>\nint main(int count, char **words) { return count < 2 ? 0 : puts(words[1]); }\n"
LINKERS = ("bfd", "gold", "lld", "mold")


def measure(rounds: int) -> Iterator[Figure]:
    """A column each linker of this machine: gcc that links one object, without and with the shims."""
    tool = (sys.executable, "-P", "-m", "sframegen", "link", "--install")
    with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
        shims, source, compiled, out = (Path(scratch, name) for name in ("shims", "main.c", "main.o", "out"))
        source.write_text(SOURCE)
        subprocess.run([*tool, shims], check=True, stdout=subprocess.DEVNULL)
        subprocess.run(["gcc", "-O2", "-c", "-o", compiled, source], check=True)
        os.environ.pop("SFRAMEGEN_LINK_OPTIONS", None)
        for linker in LINKERS:
            if not shutil.which(f"ld.{linker}"):
                continue
            link = ("gcc", f"-fuse-ld={linker}", "-o", out, compiled)
            results = in_turn({"gcc": link, "gcc -B shims": [*link, "-B", shims]}, rounds, out)
            plain, ours = results["gcc"].wall_seconds, results["gcc -B shims"].wall_seconds
            for name, seconds in (("gcc", plain), ("gcc -B shims", ours), ("the difference", ours - plain)):
                yield Figure("time", name, linker, seconds, "s")
            yield Figure("time", "gcc -B shims", linker, ours, "s", "gcc")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15, help="counted runs of each command (default %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file")
    options = parser.parse_args()
    if build_kind() != "compiled":
        parser.error("this sframegen is interpreted: measure the compiled build")
    figures = list(measure(options.rounds))
    print(markdown(figures))
    if options.json:
        measured.write(options.json, {**versions(), "rounds": options.rounds, "figures": figures})


if __name__ == "__main__":
    main()
