"""A local user who wants to harm root, who profiles the machine: names, files in /tmp, links where root writes."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

from corpus.churn.profiled import PROFILE, Profiled, profile

NOBODY = 65534
KINDS = {
    "names": "a name with escape sequences; a map with a name of 4 MB",
    "fifo": "a FIFO as its map",
    "shadow": "a link to /etc/shadow as its map",
    "many": "a map of 3,000,000 lines",
}
MOST_MEMORY = 1 << 30  # bytes resident
PRINTED = {"\n"}
HOSTILE_FILE = "\033[31m\nlost: 7 samples\r\x9b2J"
LONG = "x" * 250
LEVELS = 15  # directories with long names


class HostileRow(NamedTuple):
    kind: str
    seconds: float
    peak: int
    faults: list[str]


def hostile(folder: Path, seconds: float) -> list[HostileRow]:
    folder.chmod(0o755)
    maps = set(_maps())
    rows = [_of_run(kind, _profile([folder / "hostile", seconds, kind])) for kind in KINDS]
    for path in set(_maps()) - maps:
        path.unlink()
    with tempfile.TemporaryDirectory(prefix="corpus-churn-") as name:
        theirs = Path(name)
        theirs.chmod(0o755)
        rows.append(_of_run("a file name with escape sequences", _profile([_copy(folder, theirs, HOSTILE_FILE), seconds, "none"])))
        deep = theirs
        for _ in range(LEVELS):
            deep = deep / LONG
            deep.mkdir()
        rows.append(_of_run("a path of 3,800 characters", _profile([_copy(folder, deep, "program"), seconds, "none"])))
        rows.append(_cache(folder, theirs))
        rows.append(_output(folder, theirs))
    return rows


def _maps() -> list[Path]:
    """Return the maps of nobody's processes."""
    return [path for path in Path("/tmp").glob("perf-*.map") if path.lstat().st_uid == NOBODY]  # noqa: S108 - where they are


def _profile(command: list[object]) -> tuple[Profiled, str]:
    """Profile a command of nobody's; return also what is printed without --output."""
    as_nobody = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", *map(str, command)]
    table = subprocess.run([*PROFILE, "--", *as_nobody], capture_output=True, check=False)
    return profile("--", *as_nobody, frequency=99), (table.stdout + table.stderr).decode(errors="surrogateescape")


def _of_run(kind: str, run: tuple[Profiled, str]) -> HostileRow:
    profiled, table = run
    faults = [profiled.fault] if profiled.fault else []
    if "cpu-clock" not in table:
        faults.append(f"no table: {table[-300:]}")
    faults += [f"control characters are printed: {bad!r}" for bad in _controls(table) | _controls(profiled.errors)]
    for line in (*table.splitlines(), *profiled.errors.splitlines()):
        if line.startswith(("lost: 9", "lost: 7")):
            faults.append("a name made a line of its own")
    text = str(profiled.profile) + table
    faults += ["a line of /etc/shadow is in the report" for line in _secrets() if line in text]
    if profiled.peak > MOST_MEMORY:
        faults.append(f"{profiled.peak >> 20} MiB of memory")
    return HostileRow(KINDS.get(kind, kind), profiled.seconds, profiled.peak, faults)


def _controls(text: str) -> set[str]:
    return {character for character in text if not character.isprintable() and character not in PRINTED}


def _secrets() -> list[str]:
    return [line for line in Path("/etc/shadow").read_text().splitlines() if len(line) > 10]


def _copy(folder: Path, to: Path, name: str) -> Path:
    (to / name).write_bytes((folder / "hostile").read_bytes())
    (to / name).chmod(0o755)
    return to / name


def _cache(folder: Path, theirs: Path) -> HostileRow:
    """XDG_CACHE_HOME is a directory of theirs, where `sframegen` is a link."""
    victim, cache = folder / "victim", theirs / "cache"
    victim.mkdir(exist_ok=True)
    cache.mkdir()
    (cache / "sframegen").symlink_to(victim)
    os.chown(cache / "sframegen", NOBODY, NOBODY, follow_symlinks=False)
    os.chown(cache, NOBODY, NOBODY)
    run = profile("--", folder / "executed", environment={"XDG_CACHE_HOME": str(cache)})
    faults = [run.fault] if run.fault else []
    faults += [f"made through the link: {path.name}" for path in victim.iterdir()]
    return HostileRow("XDG_CACHE_HOME in a directory of theirs, with a link", run.seconds, run.peak, faults)


def _output(folder: Path, theirs: Path) -> HostileRow:
    """Root writes into a directory of theirs, where the name is a link to a file of root's."""
    victim, directory = folder / "victim.json", theirs / "out"
    victim.write_text("of root")
    directory.mkdir()
    (directory / "profile.json").symlink_to(victim)
    os.chown(directory / "profile.json", NOBODY, NOBODY, follow_symlinks=False)
    os.chown(directory, NOBODY, NOBODY)
    run = subprocess.run(
        [*PROFILE, "-o", directory / "profile.json", "--", folder / "executed"], capture_output=True, text=True, check=False
    )
    faults = [] if victim.read_text() == "of root" else ["root's file was overwritten"]
    if run.returncode != 1 or "another user controls" not in run.stderr:
        faults.append(f"status {run.returncode}: {run.stderr[-300:]}")
    return HostileRow("--output into a directory of theirs, with a link", 0, 0, faults)
