"""Try what `make wheel` made, with each Python that can be had: `make test-wheel`. Exit status 1: a trial failed.

Each trial begins in a root of Debian's Python and bash: no compiler, no network, and one folder of files that pip may install.
The roots and the downloaded dependencies are kept in the cache.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from hashlib import sha256
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any, NamedTuple

from packaging.requirements import Requirement

from benchmarks.figures import written_into
from benchmarks.places import CACHE
from tools.release.machines import MACHINES, ROOT, Machine

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

BEGIN = "<!-- make test-wheel writes this: begin -->"
TESTED_WITH = ("pytest", "hypothesis")
OTHERS = ("setuptools", "Cython", "pip", "uv", "pipx")  # that build it, and install it
PLATFORMS = ("manylinux_2_17", "manylinux2014", "manylinux_2_28", "manylinux_2_34")
SDIST = "sframegen-*[0-9].tar.gz"  # `make release` puts another tarball beside it, the conformance suite's
IN_CHECKOUT = ("tests", "conftest.py", "pyproject.toml", "corpus", "docs", "tools", "cfi", "sframegen", "linker")
ASKED = "import sys; print(sys.version.split()[0], f'cp{sys.version_info[0]}{sys.version_info[1]}' + sys.abiflags)"
KINDS = WHEEL, PURE, SOURCE = "wheel", "pure wheel", "source"
NAMESPACE = (sys.executable, "-m", "tools.release.namespace")


class Python(NamedTuple):
    """An interpreter in a root of Debian's suite."""

    machine: Machine
    suite: str
    path: str = "/usr/bin/python3"
    packages: tuple[str, ...] = ("python3-venv",)
    outside: Path | None = None  # it is not the suite's: the folder that has it

    def root(self) -> Path:
        """Return a root with it. Raises CalledProcessError."""
        name = "-".join([self.suite, self.machine.debian, *self.packages])
        place = CACHE / "roots" / name
        if not place.exists():
            new = place.with_name(f"{name}.{os.getpid()}")
            new.parent.mkdir(parents=True, exist_ok=True)
            suite = f"{self.suite}:{self.machine.debian}"
            subprocess.run([ROOT / "tools/apt-suite", suite, "apt-cache", "stats"], check=True, stdout=subprocess.DEVNULL)
            sources = (CACHE / "apt" / suite.replace(":", "-") / "sources.list").read_text()
            command: list[str | Path] = ["mmdebstrap", "--quiet", "--mode=root", "--skip=check/qemu", "--variant=extract"]
            command += [f"--architectures={self.machine.debian}", "--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr"]
            command += [f"--aptopt={line}" for line in machine_rules()]
            command += [f"--include={','.join([*self.packages, 'bash', 'dash', 'coreutils'])}", self.suite, new, "-"]
            done = subprocess.run([*NAMESPACE, *command], check=False, cwd=ROOT, input=sources, text=True, stderr=subprocess.PIPE)
            if done.returncode:
                sys.stderr.write(done.stderr)
                shutil.rmtree(new, ignore_errors=True)
                done.check_returncode()
            # What its script does, which does not run: pip reads it even without network.
            certificates = sorted(new.glob("usr/share/ca-certificates/*/*.crt"))
            (new / "etc/ssl/certs").mkdir(parents=True, exist_ok=True)
            (new / "etc/ssl/certs/ca-certificates.crt").write_bytes(b"".join(one.read_bytes() for one in certificates))
            new.rename(place)
        return place

    def run(self, *command: str | Path, bind: Sequence[Path] = ()) -> subprocess.CompletedProcess[str]:
        """Run a command in the root, with the paths in it."""
        paths = [*bind, *([self.outside] if self.outside else [])]
        binds = [part for path in paths for part in ("--bind", path)]
        inside: list[str | Path] = [*NAMESPACE, "--root", self.root(), *binds, *command]
        return subprocess.run(inside, check=False, cwd=ROOT, text=True, capture_output=True, errors="replace")


def machine_rules() -> list[str]:
    """How old a suite's index may be on this machine: mmdebstrap does not take that over."""
    dump = subprocess.run(
        ["apt-config", "dump", "Acquire::Check-Valid-Until"], check=True, text=True, stdout=subprocess.PIPE
    ).stdout
    return dump.splitlines()


def pythons(given: Sequence[Path]) -> Iterator[Python]:
    """The interpreters that can be had: of Debian's suites, and those that are given."""
    amd64, arm64, s390x = MACHINES
    yield Python(amd64, "bookworm")
    for path in given:
        home = subprocess.run(
            [path, "-c", "import sys; print(sys.base_prefix)"], check=True, text=True, stdout=subprocess.PIPE
        ).stdout.strip()
        yield Python(amd64, "bookworm", f"{home}/bin/python3", outside=Path(home))
    yield Python(amd64, "trixie")
    yield Python(amd64, "forky")
    yield Python(amd64, "forky", "/usr/bin/python3.15", ("python3.15-venv",))
    yield Python(arm64, "bookworm")
    yield Python(arm64, "trixie")
    yield Python(s390x, "bookworm")


def dependencies(python: Python, version: str, abi: str) -> Path:
    """Return a folder of wheels: what sframegen and its tests need on that machine, if there are wheels of it."""
    minor = ".".join(version.split(".")[:2])
    folder = CACHE / "release-links" / f"{python.machine.name}-{abi}"
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    target = {"platform_machine": python.machine.name, "python_version": minor, "python_full_version": version}
    wanted = [one for one in map(Requirement, listed) if one.marker is None or one.marker.evaluate(target)]
    pip: list[str | Path] = [sys.executable]
    options = ["-m", "pip", "download", "--quiet", "--dest", str(folder), "--only-binary", ":all:"]
    if python.outside:  # it runs here, and knows best which wheels it loads
        pip = [python.path]
    else:
        options += [part for name in PLATFORMS for part in ("--platform", f"{name}_{python.machine.name}")]
        options += ["--python-version", minor, "--implementation", "cp", "--abi", abi, "--abi", "none", "--abi", "abi3"]
    for name in [*(f"{one.name}{one.specifier}" for one in wanted), *TESTED_WITH, *OTHERS]:
        mark = folder / f".{re.sub(r'[^a-zA-Z0-9]+', '-', name)}"
        if not mark.exists():
            done = subprocess.run([*pip, *options, name], check=False, text=True, capture_output=True)
            if done.returncode:
                why = done.stderr.strip().splitlines()[-1]
                print(f"{python.machine.name}, Python {minor}: no wheel of {name}: {why}", file=sys.stderr)
            else:
                mark.touch()
    return folder


class Trial(NamedTuple):
    python: Python
    way: str  # pip, uv or pipx
    kind: str  # one of KINDS

    @property
    def name(self) -> str:
        python = self.python
        return f"{python.suite} {python.machine.name} {python.path} {self.way} {self.kind}"

    def run(self, file: Path) -> dict[str, Any]:
        """Install from a folder in a fresh root, and return what inside.py found."""
        python, dist = self.python, file.parent
        row: dict[str, Any] = {"machine": python.machine.name, "suite": python.suite, "way": self.way, "what": self.kind}
        asked = python.run(python.path, "-c", ASKED)
        if asked.returncode:
            return row | {
                "python": python.path,
                "failed": (asked.stderr.strip().splitlines() or ["does not run"])[-1],
            }
        version, abi = asked.stdout.split()
        links = dependencies(python, version, abi)
        checkout = [ROOT / name for name in IN_CHECKOUT]
        what = "sframegen" if self.kind == WHEEL else str(file)  # the name, so that the installer chooses among all files
        command: list[str | Path] = [ROOT / "tools/release/inside.py", self.way, ROOT, f"{links},{dist}", what]
        done = python.run(python.path, *command, bind=[links, dist, *checkout])
        sys.stderr.write(done.stderr)
        lines = done.stdout.strip().splitlines()
        found = json.loads(lines[-1]) if lines else {"failed": (done.stderr.strip().splitlines() or ["nothing printed"])[-1]}
        return row | {"python": version, "load": os.getloadavg()[0]} | found

    def chosen(self, dist: Path) -> Path | None:
        """Return the file that it should choose; None where that was not made."""
        if self.kind == SOURCE:
            return next(dist.glob(SDIST), None)
        return next(
            dist.glob("sframegen-*-py3-none-any.whl" if self.kind == PURE else f"sframegen-*_{self.python.machine.name}.whl"), None
        )


def contents(file: Path) -> str:
    """A digest of what a file installs: of an sdist its bytes, of a wheel all but the description in its metadata, and dates."""
    if not file.name.endswith(".whl"):
        return sha256(file.read_bytes()).hexdigest()
    with zipfile.ZipFile(file) as wheel:
        [metadata] = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
        [record] = [name for name in wheel.namelist() if name.endswith(".dist-info/RECORD")]
        lines = [line for line in wheel.read(record).splitlines() if not line.startswith(metadata.encode())]
        return sha256(b"\n".join([*lines, wheel.read(metadata).partition(b"\n\n")[0]])).hexdigest()


def changed_since(sdist: Path) -> list[str]:
    """Names of files of the packages that this checkout, which has the tests, has otherwise than an sdist."""
    with tarfile.open(sdist) as archive:
        files = {entry.name.partition("/")[2]: archive.extractfile(entry) for entry in archive if entry.isfile()}
        ours = {name: stream for name, stream in files.items() if stream and name.startswith(("cfi/", "linker/", "sframegen/"))}
        return [name for name, stream in ours.items() if not (ROOT / name).exists() or (ROOT / name).read_bytes() != stream.read()]


def trials(given: Sequence[Path]) -> Iterator[Trial]:
    """All that is tried: each Python with pip and the wheel that pip chooses, and other ways with one of them."""
    amd64 = MACHINES[0]
    for python in pythons(given):
        yield Trial(python, "pip", WHEEL)
    for way in ("uv", "pipx"):
        yield Trial(Python(amd64, "trixie"), way, WHEEL)
    yield Trial(Python(amd64, "trixie"), "pip", PURE)
    yield Trial(Python(amd64, "trixie", packages=("python3-venv", "python3-dev", "gcc", "libc6-dev")), "pip", SOURCE)


PARTS = ("`--synthesize`",)  # which needs capstone; as inside.py calls it
HEAD = """| machine | Python | with | seconds to install | MB | what works |
| --- | --- | --- | --- | --- | --- |"""


def row_of(found: dict[str, Any]) -> str:
    """A row of the table in docs/installing.md."""
    emulated = " (qemu)" if found["machine"] != platform.machine() else ""
    cells = [found["machine"] + emulated, found["python"], f"`{found['way']}`, {found['what']}"]
    if "failed" in found:
        cells += ["", "", f"no: {shorten(found['failed'], 60, placeholder=' ...')}"]
    else:
        parts = [found["build"], *(f"no {part}" for part in PARTS if found[part] is not True)]
        tests = [f"{found['tests']} tests"] if "tests" in found else []
        cells += [f"{found['install']:.1f}", f"{found['bytes'] / 1e6:.0f}", ", ".join([*parts, *tests])]
    return f"| {' | '.join(cells)} |"


def place_of(found: dict[str, Any]) -> tuple[object, ...]:
    """What rows of the table are sorted by."""
    machines = [machine.name for machine in MACHINES]
    version = [int(part) for part in re.findall(r"\d+", found["python"])]
    kind = KINDS.index(found["what"])
    return machines.index(found["machine"]), kind, found["way"], version


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.release.trial", description=__doc__)
    parser.add_argument("--dist", type=Path, default=Path("dist"), metavar="DIR", help="what `make wheel` made")
    parser.add_argument("--only", default="", metavar="TEXT", help="trials whose line has the text, as `bookworm s390x`, only")
    parser.add_argument("--again", action="store_true", help="also what has been tried with files of the same contents")
    parser.add_argument(
        "--python", type=Path, action="append", default=[], metavar="PATH", help="try this Python of the machine, too"
    )
    parser.add_argument("--docs", type=Path, metavar="FILE", help="write the table into a document, between its markers")
    options = parser.parse_args()
    released = sorted(options.dist.glob("sframegen-*.whl")) + sorted(options.dist.glob(SDIST))
    if not released:
        parser.error(f"{options.dist} has no wheels: make wheel")
    for sdist in options.dist.glob(SDIST):
        if changed := changed_since(sdist):
            parser.error(f"{options.dist} is of other sources than this checkout, such as {changed[0]}: make wheel")
    # What was found with files of the same contents: the table has the rows of earlier runs, too.
    places = {file.name: CACHE / "release-trials" / contents(file) for file in released}
    for trial in trials(options.python):
        file = trial.chosen(options.dist.absolute())
        if file is None:
            continue
        result = places[file.name] / f"{trial.name.replace('/', '-')}.json"
        if options.only in trial.name and (options.again or not result.exists() or "failed" in json.loads(result.read_text())):
            result.parent.mkdir(parents=True, exist_ok=True)
            result.write_text(json.dumps(trial.run(file)))
            print(f"{trial.name}: {result.read_text()}", flush=True)
    rows = sorted((json.loads(row.read_text()) for place in places.values() for row in place.glob("*.json")), key=place_of)
    table = "\n".join([HEAD, *map(row_of, rows)])
    if options.docs:
        options.docs.write_text(written_into(options.docs.read_text(), table, BEGIN))
    else:
        print(table)
    return any("failed" in row for row in rows)


if __name__ == "__main__":
    sys.exit(main())
