"""The projects of corpus/projects/projects.toml; their sources, from Debian's packages, kept in CACHE/projects/NAME."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import tempfile
import tomllib
from dataclasses import dataclass, field, fields
from pathlib import Path

from tests import ROOT
from tests.support.peers import cache_directory

MANIFEST = Path(__file__).with_name("projects.toml")
APT_SUITE = ROOT / "tools" / "apt-suite"
CHANGED = {"before", "configure", "build", "test"}  # what `with` may have


@dataclass(frozen=True)
class Project:
    """An entry of the manifest, whose head says what is what."""

    name: str
    package: str
    suite: str
    version: str
    sha256: str
    system: str
    sources: str
    build: str
    test: str
    changed: dict[str, str] = field(metadata={"key": "with"})
    outputs: int
    before: str = ""
    configure: str = ""
    passed: str = ""
    tried: str = ""
    restless: str = ""

    def command(self, which: str, *, with_step: bool) -> str:
        plain: str = getattr(self, which)
        return (self.changed.get(which, plain) if with_step else plain).strip()


def projects(text: str) -> list[Project]:
    keys = {one.metadata.get("key", one.name): one.name for one in fields(Project) if one.name != "name"}
    found = []
    for name, entry in tomllib.loads(text).items():
        if unknown := (entry.keys() - keys.keys()) | (entry["with"].keys() - CHANGED):
            raise ValueError(f"{name}: {', '.join(sorted(unknown))}")
        re.compile(entry.get("passed", ""))
        found.append(Project(name=name, **{keys[key]: value for key, value in entry.items()}))
    return found


def fetched(project: Project) -> tuple[Path, str, list[str]]:
    """The archive of the project's sources, its version, and what is not as recorded."""
    directory = cache_directory() / "projects" / project.package
    if not directory.exists():
        directory.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=directory.parent, prefix=".") as scratch:
            new = Path(scratch, "new")
            new.mkdir()
            command = (APT_SUITE, f"{project.suite}:source", "apt-get", "-qq", "source", "--tar-only", "--download-only")
            subprocess.run([*command, project.package], cwd=new, check=True)
            new.rename(directory)
    [archive] = directory.glob("*.orig.tar.*[!c]")  # not its signature, .asc
    version = archive.name.partition("_")[2].partition(".orig")[0]
    found = {"version": version, "sha256": hashlib.sha256(archive.read_bytes()).hexdigest()}
    changed = [
        f"{name} {value}, recorded was {getattr(project, name)}" for name, value in found.items() if getattr(project, name) != value
    ]
    return archive, version, changed


def unpack(archive: Path, directory: Path) -> None:
    """The one folder that the archive has, as `directory`."""
    directory.mkdir(parents=True)
    subprocess.run(["tar", "-xf", archive, "-C", directory, "--strip-components=1", "--no-same-owner"], check=True)


def environment(program: str) -> dict[str, str]:
    """For builds: with sframegen on PATH, without what would change them, and without what is left of an earlier one."""
    unwanted = {"CFLAGS", "CXXFLAGS", "LDFLAGS", "RUSTFLAGS", "MAKEFLAGS", "MAKELEVEL", "MFLAGS", "CARGO_TARGET_DIR", "PYTHONPATH"}
    kept = {name: value for name, value in os.environ.items() if name not in unwanted and not name.startswith("SFRAMEGEN_LINK")}
    return kept | {"CCACHE_DISABLE": "1", "PATH": f"{Path(program).parent}:{os.environ['PATH']}", "LC_ALL": "C"}
