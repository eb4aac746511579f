"""add-section on the corpus' largest files, against copying the file and against reading its CFI with GNU readelf.

usage: python benchmarks/add_section.py [--rounds N] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

from measure import Figures, in_turn

FILES = ("libLLVM", "libxul")
BASE = "readelf -wF"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5, help="counted runs of each command (default %(default)s)")
    parser.add_argument("--json", type=Path, help="write the figures to this file too")
    options = parser.parse_args()
    cache = Path(os.environ.get("SFRAMEGEN_CACHE") or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "sframegen"))
    peers = Path(os.environ.get("SFRAMEGEN_PEERS") or cache / "peers")
    lock = json.loads((cache / "corpus" / "lock.json").read_text())
    results: dict[str, dict[str, Figures]] = {}
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        out = Path(scratch, "out")
        add: list[str | Path] = [sys.executable, "-m", "sframegen", "add-section", "-q", "-o", out]
        for name in FILES:
            file = cache / "corpus" / lock[name]["file"]
            results[name] = in_turn(
                {
                    "cp": ["cp", file, out],
                    BASE: [peers / "bin" / "readelf", "-wF", file],
                    "add-section --no-verify": [*add, "--no-verify", file],
                    "add-section": [*add, file],
                    "start-up: --version": [sys.executable, "-m", "sframegen", "--version"],
                },
                options.rounds,
                out,
            )
            print(table(name, file.stat().st_size, results[name]), flush=True)
    if options.json:
        options.json.write_text(
            json.dumps({name: {k: v._asdict() for k, v in rows.items()} for name, rows in results.items()}, indent=1)
        )


def table(name: str, size: int, rows: dict[str, Figures]) -> str:
    lines = [
        f"{name}, {size / 1e6:.0f} MB: medians; x: share of {BASE}'s time",
        f"  {'command':26}{'wall s':>8}{'x':>7}{'CPU s':>8}{'x':>7}{'peak MB':>9}{'anonymous MB':>14}",
    ]
    base = rows[BASE]
    lines += [
        f"  {command:26}{row.wall_seconds:8.3f}{row.wall_seconds / base.wall_seconds:7.2f}{row.cpu_seconds:8.3f}"
        f"{row.cpu_seconds / base.cpu_seconds:7.2f}{row.peak_bytes / 1e6:9.0f}{row.anonymous_bytes / 1e6:14.0f}"
        for command, row in rows.items()
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
