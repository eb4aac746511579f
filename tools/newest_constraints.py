"""Writes tests/constraints/newest.txt: the newest releases that pyproject.toml allows, as pip finds them for this Python today."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parents[1]
FILE = ROOT / "tests" / "constraints" / "newest.txt"


def main() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = [*project["project"]["dependencies"], *project["build-system"]["requires"]]
    pip = (sys.executable, "-m", "pip", "--quiet", "install", "--dry-run", "--ignore-installed", "--no-deps", "--report", "-")
    report = json.loads(subprocess.run([*pip, *wanted], check=True, stdout=subprocess.PIPE).stdout)
    found = sorted((one["metadata"] for one in report["install"]), key=lambda metadata: metadata["name"].lower())
    lines = [f"{metadata['name']}=={metadata['version']}" for metadata in found]
    today = datetime.now(UTC).date()
    heading = f"# The newest releases on {today}, from tools/newest_constraints.py; `make test-newest` tries them."
    FILE.write_text("\n".join([heading, *lines]) + "\n")
    print(FILE.read_text(), end="")


if __name__ == "__main__":
    main()
