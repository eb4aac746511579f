"""Builds packages of this machine's distribution from their sources, with and without sframegen, and compares: corpus/README.md.

The sources come by `apt-get source`, from where the machine's own packages come from. All is done in a scratch folder. Exit status
1: something is not as it has to be.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from hashlib import md5
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tests.support.packaged import debug_file, elf_files, gdb_says, has_section, is_good, place, with_debhelper, with_sframegen
from tests.support.peers import Peers

if TYPE_CHECKING:
    from collections.abc import Callable

BEGIN, END = "<!-- corpus/packages writes what follows -->", "<!-- until here -->"
SOURCES = ("sources.list", "sources.list.d/debian.sources", "sources.list.d/ubuntu.sources")
TOOLS = ("debhelper", "dpkg-dev", "rpm", "gcc", "gdb")
FUNCTIONS = {"libbz2": "BZ2_bzCompress"}  # by the start of a file's name, whose lines gdb is asked for; else main


class Package(NamedTuple):
    """`tests`: in the tree of the build, with what was packed in the place of what was built; PACKED is where it is."""

    source: str
    what: str
    tests: str


PACKAGES = [
    Package(
        "bzip2",
        "C, a program and its library",
        "packed=PACKED/bzip2/bin/bzip2; library=$(dirname PACKED/libbz2-1.0/lib/*/libbz2.so.1.0);"
        "cp $packed . && LD_LIBRARY_PATH=$library make test && cmp bzip2 $packed",
    ),
    Package(
        "gperf",
        "C++, a program",
        "cp PACKED/gperf/usr/bin/gperf src/gperf && make -C tests check && cmp src/gperf PACKED/gperf/usr/bin/gperf",
    ),
]


class Row(NamedTuple):
    package: str
    made_by: str
    files: int
    given: int
    covered: str
    debug: str
    tests: str


class FailureError(Exception):
    pass


def run(command: list[str], directory: Path, environment: dict[str, str]) -> str:
    done = subprocess.run(
        command,
        cwd=directory,
        env=environment,
        check=False,
        text=True,
        errors="replace",
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    if done.returncode:
        raise FailureError(f"{' '.join(command)}: exit status {done.returncode}\n{done.stdout[-3000:]}")
    return done.stdout


def expect(condition: object, what: str) -> None:
    if not condition:
        raise FailureError(what)


class Apt:
    """The machine's lists of packages with those of sources, in a folder of our own."""

    def __init__(self, directory: Path) -> None:
        parts = directory / "sources"
        for folder in (parts, directory / "lists/partial", directory / "cache/archives/partial"):
            folder.mkdir(parents=True)
        for name in SOURCES:
            file = Path("/etc/apt", name)
            if file.exists():
                text = re.sub(r"^(Types:\s*|)deb\b(?!-src)", r"\1deb-src", file.read_text(), flags=re.MULTILINE)
                (parts / file.name).write_text(text)
        settings = {
            "Dir::Etc::sourcelist": "-",
            "Dir::Etc::sourceparts": parts,
            "Dir::State::lists": directory / "lists",
            "Dir::Cache": directory / "cache",
            "APT::Sandbox::User": "root",
        }
        self.options = [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]
        run(["apt-get", *self.options, "-q", "update"], directory, dict(os.environ))

    def source(self, package: str, directory: Path) -> Path:
        directory.mkdir()
        run(["apt-get", *self.options, "-q", "source", package], directory, dict(os.environ))
        [tree] = (entry for entry in directory.iterdir() if entry.is_dir())
        return tree


def built(tree: Path, into: Path, environment: dict[str, str], edit: Callable[[str], str]) -> dict[str, Path]:
    """The packages by name, unpacked, of a copy of the tree that is always at the same place; `edit`: of debian/rules."""
    copy = tree.parent / "build" / tree.name
    shutil.rmtree(copy.parent, ignore_errors=True)
    shutil.copytree(tree, copy, symlinks=True)
    rules = copy / "debian/rules"
    rules.write_text(edit(rules.read_text()))
    run(["dpkg-buildpackage", "-B", "-d", "-us", "-uc", "-rfakeroot"], copy, environment)
    into.mkdir()
    packages = {}
    for package in sorted(copy.parent.glob("*.deb")):
        name = package.name.partition("_")[0]
        packages[name] = into / name
        shutil.copy(package, into)
        run(["dpkg-deb", "-R", str(package), str(packages[name])], into, environment)
    return packages


def with_sframe(rules: str) -> str:
    changed, lines = re.subn(r"^\tdh \$@$", "\tdh $@ --with sframe", rules, flags=re.MULTILINE)
    expect(lines == 1, "not one line `dh $@` in debian/rules")
    return changed


def of_debian(package: Package, apt: Apt, scratch: Path, environment: dict[str, str], peers: Peers) -> Row:
    tree = apt.source(package.source, scratch / package.source)
    without = built(tree, scratch / f"{package.source}-without", environment, str)
    packages = built(tree, scratch / f"{package.source}-with", with_debhelper(environment), with_sframe)
    expect(list(without) == list(packages), "other packages")
    checked = Counter(outcome for name in packages for outcome in compared(without[name], packages[name]))
    files = given = gdb = covered = code = 0
    for name, directory in packages.items():
        if name.endswith("-dbgsym"):
            [one], [other] = ([*built.parent.glob(f"{name}_*.deb")] for built in (without[name], directory))
            expect(one.read_bytes() == other.read_bytes(), f"{name}: another package than without")
            continue
        for file in elf_files(directory):
            files, given = files + 1, given + has_section(file)
            gdb += judged(file, packages[f"{name}-dbgsym"], peers)
        report = scratch / f"{package.source}/build/{tree.name}/debian/.debhelper/generated/{name}/sframe.json"
        totals = json.loads(report.read_text())["totals"]
        covered, code = covered + totals["covered_bytes"], code + totals["code_bytes"]
    expect(files == given == gdb > 0, f"{files} files, {given} sections, {gdb} found by gdb")
    expect(checked["changed"] == given, f"{checked['changed']} files are others than without")
    command = package.tests.replace("PACKED", str(scratch / f"{package.source}-with"))
    run(["sh", "-ec", command], scratch / package.source / "build" / tree.name, environment)
    debug = f"gdb {gdb} of {files}; packages equal"
    title = f"{package.source} {tree.name.rpartition('-')[2]} ({package.what})"
    return Row(title, "dpkg-buildpackage", files, given, percent(covered, code), debug, "pass")


def compared(without: Path, directory: Path) -> list[str]:
    """What became of each file; raises where more differs than sections. The checksums are of the files that are packed."""
    outcomes = []
    for line in (directory / "DEBIAN/md5sums").read_text().splitlines():
        digest, path = line.split("  ", 1)
        expect(md5((directory / path).read_bytes(), usedforsecurity=False).hexdigest() == digest, f"{path}: another checksum")
    for file in sorted(directory.rglob("*")):
        other = without / file.relative_to(directory)
        expect(other.is_symlink() or other.exists(), f"{file}: only with sframegen")
        expect(file.lstat().st_mode == other.lstat().st_mode, f"{file}: another mode")
        if file.is_file() and not file.is_symlink() and file.parent.name != "DEBIAN":
            outcomes.append("same" if file.read_bytes() == other.read_bytes() else "changed")
    expect(len([*directory.rglob("*")]) == len([*without.rglob("*")]), f"{directory}: files are missing")
    return outcomes


def judged(file: Path, debug: Path, peers: Peers) -> bool:
    """True if gdb finds the lines of the file's function, and without the debug package does not."""
    is_good(file, peers)
    function = next((name for start, name in FUNCTIONS.items() if file.name.startswith(start)), "main")
    expect(debug_file(file, debug).exists(), f"{file}: no debug file for its build-id")
    return "starts at address" in gdb_says(file, debug, function) and "starts at address" not in gdb_says(
        file, file.parent, function
    )


def of_rpm(scratch: Path, environment: dict[str, str], peers: Peers) -> Row:
    """bzip2's sources, as apt-get got them."""
    [archive] = (scratch / "bzip2").glob("*.orig.tar.gz")
    version = archive.name.split("_")[1].removesuffix(".orig.tar.gz")
    top, rpm = scratch / "rpm", place(environment, "--rpm-dir")
    settings = {"_topdir": top, "_sourcedir": archive.parent, "upstream": version, "_sframe_dir": rpm}
    definitions = [word for name, value in settings.items() for word in ("--define", f"{name} {value}")]
    spec = str(Path(__file__).with_name("bzip2.spec"))
    run(["rpmbuild", "--load", f"{rpm}/macros.sframe", *definitions, "-bb", spec], scratch, environment)
    packages = {}
    for package in (top / "RPMS").rglob("*.rpm"):
        name = package.name.partition(f"-{version}-")[0]
        packages[name] = top / "unpacked" / name
        packages[name].mkdir(parents=True)
        run(["sh", "-c", f"rpm2cpio {package} | cpio -idm --quiet"], packages[name], environment)
    files = list(elf_files(packages["bzip2"]))
    gdb = sum(judged(file, packages["bzip2-debuginfo"], peers) for file in files)
    expect(len(files) == gdb == 2, f"{len(files)} files, {gdb} found by gdb")
    [report] = (top / "BUILD").glob("*.sframe.json")
    totals = json.loads(report.read_text())["totals"]
    covered = percent(totals["covered_bytes"], totals["code_bytes"])
    return Row(
        f"bzip2 {version} (the same sources)",
        "rpmbuild",
        len(files),
        sum(map(has_section, files)),
        covered,
        f"gdb {gdb} of {gdb}",
        "pass",
    )


def percent(part: int, whole: int) -> str:
    return f"{10_000 * part // whole / 100:.2f} %"


def table(rows: list[Row]) -> str:
    head = ("package", "by", "ELF files", "good sections", "code covered", "debug files", "its own tests")
    return "\n".join(f"| {' | '.join(map(str, cells))} |" for cells in (head, ["---"] * len(head), *rows)) + "\n"


def versions() -> str:
    """The versions of the tools that build and check the packages."""
    query = ["dpkg-query", "--show", "--showformat=${Package} ${Version}, ", *TOOLS]
    return subprocess.run(query, check=True, text=True, stdout=subprocess.PIPE).stdout.removesuffix(", ") + "."


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m corpus.packages", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--report", type=Path, help="write the table into this document, between its marks")
    parser.add_argument("--keep", type=Path, help="work in this new folder, and leave it")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="corpus-packages-") as temporary:
        scratch = options.keep or Path(temporary)
        (scratch / "bin").mkdir(parents=True)
        (scratch / "apt").mkdir()
        environment, peers = with_sframegen(scratch / "bin"), Peers()
        try:
            apt = Apt(scratch / "apt")
            rows = [of_debian(package, apt, scratch, environment, peers) for package in PACKAGES]
            rows.append(of_rpm(scratch, environment, peers))
        except (FailureError, AssertionError, subprocess.CalledProcessError) as error:
            print(error, file=sys.stderr)
            return 1
    text = f"{table(rows)}\n{versions()}\n"
    if options.report:
        before, rest = options.report.read_text().split(BEGIN)
        options.report.write_text(f"{before}{BEGIN}\n\n{text}\n{END}{rest.split(END)[1]}")
    print(text, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
