"""Wheels: their entries, what pip and other readers make of them, and their own tests before and after."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import ZipFile

from .obtaining import sources
from .rewriting import check_findings, given_back

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .rewriting import Rewritten

PROGRAMS = Path(__file__).with_name("programs")
RECORD = re.compile(r"[^/]+\.dist-info/RECORD")
TESTS_TIMEOUT = 1200  # seconds
VERIFIED = "import sys; from wheel.wheelfile import WheelFile\nwith WheelFile(sys.argv[1]) as w: [w.read(i) for i in w.infolist()]"


class Environment:
    """A virtual environment of this interpreter."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.python = directory / "bin/python"
        subprocess.run([sys.executable, "-m", "venv", directory], check=True)

    def run(self, *words: str | Path, folder: Path | None = None) -> str:
        """What the environment's Python prints; an exit status that is not 0 is a last line of it."""
        environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        environ |= {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "2", "PYTHONWARNINGS": "ignore"}
        environ["PATH"] = f"{self.directory / 'bin'}:{environ['PATH']}"
        done = subprocess.run(
            [self.python, "-P", *words], cwd=folder, env=environ, check=False, text=True, errors="replace", stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, timeout=TESTS_TIMEOUT,
        )  # fmt: skip
        return done.stdout + (f"exit status {done.returncode}\n" if done.returncode else "")

    def install(self, *words: str | Path) -> None:
        said = self.run("-m", "pip", "install", "--quiet", *words)
        if "exit status" in said:
            raise RuntimeError(said[-2000:])

    def install_wheels(self, wheels: Sequence[Path]) -> None:
        """Only these files, whatever they depend on."""
        self.install("--no-index", "--no-deps", *wheels)

    def others(self, wheels: Sequence[Path]) -> list[str]:
        """All that is installed except these wheels, with versions."""
        mine = {name_of(wheel) for wheel in wheels}
        lines = self.run("-m", "pip", "freeze", "--all").splitlines()
        return [line for line in lines if re.split(r" @ |==", line)[0].lower().replace("-", "_") not in mine]

    def site_packages(self) -> Path:
        [found] = self.directory.glob("lib/python*/site-packages")
        return found


def name_of(wheel: Path) -> str:
    return wheel.name.split("-")[0].lower()


def entries(wheel: Path) -> Iterator[tuple[str, bytes, tuple[object, ...]]]:
    """Name, contents and what else is known of each entry, in order."""
    with ZipFile(wheel) as archive:
        for info in archive.infolist():
            kept = (info.external_attr, info.date_time, info.compress_type, info.create_system, info.comment)
            yield info.filename, archive.read(info), kept


def compared(one: Rewritten, scratch: Path) -> None:
    """Notes every difference of the new wheel that is none of sections."""
    back = given_back(one, scratch / "back")
    changed = 0
    for old, new, restored in zip(entries(one.before), entries(one.after), entries(back), strict=True):
        if (old[0], old[2]) != (new[0], new[2]):
            one.differences.append(f"{old[0]}: another entry, {new[0]}, or another mode, date or compression")
        if RECORD.fullmatch(old[0]):
            continue
        changed += old[1] != new[1]
        if old[1] != new[1] and not old[1].startswith(b"\x7fELF"):
            one.differences.append(f"{old[0]}: changed, and no ELF file")
        if old[1] != restored[1]:
            one.differences.append(f"{old[0]}: other bytes after `sframegen remove`")
    if changed != one.sections:
        one.differences.append(f"{changed} files have changed, {one.sections} are reported")


def read_by_others(one: Rewritten, environment: Environment) -> None:
    """The wheel in the eyes of zipfile's test, of the library `wheel`, which checks RECORD, and of auditwheel."""
    for command in (("-m", "zipfile", "-t", one.after), ("-c", VERIFIED, one.after)):
        said = environment.run(*command)
        if said.strip() not in ("", "Done testing"):
            one.differences.append(f"{' '.join(map(str, command[:2]))[:20]}: {said[-300:]}")
    old, new = (environment.run("-m", "auditwheel", "show", wheel) for wheel in (one.before, one.after))
    if old != new:
        one.differences.append(f"auditwheel show: {new}")


def installed_findings(one: Rewritten, environment: Environment) -> list[str]:
    """Each ELF file of the wheel with a section, where pip put it: what `sframegen check` says."""
    site = environment.site_packages()
    files = []
    for (name, contents, _), (_, new, _) in zip(entries(one.before), entries(one.after), strict=True):
        if contents == new or not contents.startswith(b"\x7fELF"):
            continue
        place = site / name
        if ".data/scripts/" in name:
            place = environment.directory / "bin" / Path(name).name
        elif ".data/" in name:
            place = site / name.split("/", 2)[2]
        if place.read_bytes() != new:
            return [f"{name}: installed is another file"]
        files.append(place)
    return check_findings(files)


def prepared(test: dict[str, Any], folder: Path) -> list[str]:
    """The arguments of pytest; what they name is in the folder, without the rest of the sources."""
    folder.mkdir(parents=True)
    (folder / "pytest.ini").write_text("[pytest]\n")
    if "program" in test:
        shutil.copy(PROGRAMS / test["program"], folder)
        return [test["program"]]
    if "folder" in test:
        archive = sources(**{key: test[key] for key in ("sdist", "source") if key in test})
        whole = folder.with_name(f"{folder.name}-sources")
        with tarfile.open(archive) as tar:
            tar.extractall(whole, filter="data")
        [top] = whole.iterdir()
        (top / test["folder"]).rename(folder / Path(test["folder"]).name)
        shutil.rmtree(whole)
    arguments: list[str] = test["arguments"]
    return arguments


def outcomes(arguments: Sequence[str], folder: Path, environment: Environment) -> Counter[tuple[str, str]]:
    """What became of each test: passed, skipped, failed or error."""
    result = folder / "result.xml"
    result.unlink(missing_ok=True)
    root = environment.site_packages() if "--pyargs" in arguments else folder
    options = ("-c", folder / "pytest.ini", "--rootdir", root, "-q", "-p", "no:cacheprovider", "--junitxml", result)
    said = environment.run("-m", "pytest", *options, *arguments, folder=folder)
    if not result.exists():
        return Counter({(f"no test was run: {said[-500:]}", "error"): 1})
    found: Counter[tuple[str, str]] = Counter()
    for case in ET.parse(result).iter("testcase"):  # noqa: S314 - pytest wrote it
        kinds = {child.tag for child in case} & {"failure", "error", "skipped"}
        name = re.sub("0x[0-9a-f]+", "0x", f"{case.get('classname')}::{case.get('name')}")
        found[name, min(kinds, default="passed")] += 1
    return found


def summary(found: Counter[tuple[str, str]]) -> str:
    by_kind: Counter[str] = Counter()
    for (_, kind), count in found.items():
        by_kind[kind] += count
    names = {"passed": "passed", "failure": "failed", "error": "failed", "skipped": "skipped"}
    totals: Counter[str] = Counter()
    for kind, count in by_kind.items():
        totals[names[kind]] += count
    return ", ".join(f"{totals[kind]:,} {kind}" for kind in ("passed", "failed", "skipped") if totals[kind])
