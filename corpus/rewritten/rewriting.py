"""One package rewritten with the command, and what is true of every rewritten package."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

LARGE = 100_000_000  # bytes of a package that is rewritten only once: torch's takes minutes


@dataclass
class Rewritten:
    """A package before and after. Sizes are in bytes; `differences`: what may not be."""

    name: str
    before: Path
    after: Path
    seconds: float
    elf_files: int = 0
    sections: int = 0
    section_bytes: int = 0
    refused: list[str] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)
    tests: str = ""

    @property
    def is_large(self) -> bool:
        return self.before.stat().st_size > LARGE

    @property
    def growth(self) -> str:
        before, after = self.before.stat().st_size, self.after.stat().st_size
        return f"{(after - before) / before:+.1%}"


def sframegen(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).with_name("sframegen")
    return subprocess.run([program, *arguments], check=False, capture_output=True, text=True)


def rewritten(name: str, package: Path, folder: Path) -> Rewritten:
    """The package with sections, in `folder`; unless it is large, it is rewritten a second time, to compare."""
    folder.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    done = sframegen("add-section", "--json", "--output-dir", folder, package)
    one = Rewritten(name, package, folder / package.name, time.monotonic() - started)
    if done.returncode:
        one.differences.append(f"add-section: exit status {done.returncode}: {done.stderr[-300:]}")
        shutil.copy(package, one.after)
        return one
    [said] = json.loads(done.stdout)
    one.elf_files, one.sections = said["package"]["elf_files"], said["package"]["changed"]
    one.section_bytes, one.refused = said["section_bytes"], said["warnings"]
    if not one.is_large:
        again = folder / "again"
        again.mkdir(exist_ok=True)
        sframegen("add-section", "--output-dir", again, package)
        if (again / package.name).read_bytes() != one.after.read_bytes():
            one.differences.append("rewritten a second time, it has other bytes")
        shutil.rmtree(again)
    return one


def given_back(one: Rewritten, folder: Path) -> Path:
    """The rewritten package after `sframegen remove`; the package that was given, if it is large."""
    if one.is_large:
        return one.before
    folder.mkdir(parents=True, exist_ok=True)
    done = sframegen("remove", "--output-dir", folder, one.after)
    if done.returncode:
        one.differences.append(f"remove: exit status {done.returncode}: {done.stderr[-300:]}")
        return one.before
    return folder / one.after.name


def check_findings(files: list[Path]) -> list[str]:
    """What `sframegen check` reports on files that have sections."""
    if not files:
        return []
    done = sframegen("check", "--quiet", *files)
    return [f"check: {line}" for line in (done.stdout + done.stderr).splitlines()[:20]] or ["check fails"] * bool(done.returncode)
