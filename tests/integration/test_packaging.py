"""Packages, by dpkg-buildpackage and rpmbuild: sections in what is packed, debug packages that match, nothing lost."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import zlib
from collections.abc import Iterator
from hashlib import md5
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

import pytest

import sframegen
from sframegen import check
from sframegen.checks.finding import Severity
from sframegen.elf.file import open_elf
from sframegen.elf.notes import read_build_id, read_debug_link
from sframegen.format.locate import find_sframe
from tests import ROOT
from tests.packages.package_makers import needs
from tests.support.peers import Peers

pytestmark = pytest.mark.full

PAGE = ROOT / "docs/packaging.md"

FILES = {
    "frames.h": "int frames_step(int n);\n",
    "frames.c": """#include "frames.h"
static int (*volatile next)(int) = frames_step;
int frames_step(int n) { volatile int kept = n; return n > 0 ? next(n - 1) + kept : 0; }
""",
    "main.c": '#include <stdio.h>\n#include "frames.h"\nint main(void) { printf("%d\\n", frames_step(10)); return 0; }\n',
    "plugin.c": "int plugin(int n) { return n + 1; }\n",
    "Makefile": """all: frames plugin.so
CFLAGS += -g -O2 -ffile-prefix-map=$(CURDIR)=.
LDFLAGS += -Wl,--build-id
frames: main.c libframes.so.1
	$(CC) $(CFLAGS) $(LDFLAGS) -o $@ main.c libframes.so.1
libframes.so.1: frames.c
	$(CC) $(CFLAGS) $(LDFLAGS) -shared -fPIC -Wl,-soname,$@ -o $@ $<
plugin.so: plugin.c
	$(CC) $(CFLAGS) $(LDFLAGS) -shared -fPIC -o $@ $<
install:
	install -D frames $(DESTDIR)/usr/bin/frames
	ln $(DESTDIR)/usr/bin/frames $(DESTDIR)/usr/bin/frames-too
	install -m 644 -D libframes.so.1 $(DESTDIR)/usr/lib/libframes.so.1
	install -m 444 -D plugin.so $(DESTDIR)/usr/lib/frames/plugin.so
""",
}
DEBIAN = {
    "control": """Source: frames
Section: libs
Priority: optional
Maintainer: Nobody <nobody@example.org>
Build-Depends: debhelper-compat (= 13)
Standards-Version: 4.6.2

Package: libframes1
Architecture: any
Depends: ${shlibs:Depends}, ${misc:Depends}
Description: frames, the library
 It is small.

Package: frames
Architecture: any
Depends: ${shlibs:Depends}, ${misc:Depends}
Description: frames, the program
 It is small.

Package: frames-data
Architecture: all
Depends: ${misc:Depends}
Description: frames, what is the same everywhere
 It is a foreign file.
""",
    "changelog": """frames (1:1.2-3) unstable; urgency=low

  * New.

 -- Nobody <nobody@example.org>  Thu, 01 Jan 2026 00:00:00 +0000
""",
    "frames.install": "usr/bin\n",
    "libframes1.install": "usr/lib\n",
    "rules": """#!/usr/bin/make -f
%:
	dh $@ --with sframe
override_dh_auto_test:
execute_after_dh_fixperms:
	chmod 4755 debian/frames/usr/bin/frames
	mkdir -p debian/frames-data/usr/lib
	cp libframes.so.1 debian/frames-data/usr/lib/foreign
override_dh_sframe:
	dh_sframe --register -X/plug $(DH_SFRAME)
""",
}
SPEC = """Name: frames
Version: 1.2
Release: 3
Summary: Frames
License: none
%global __requires_exclude .*
AutoReqProv: no
{header}
%description
Frames.
{debug}
%prep
cp {source}/* .
%build
make
%install
make install DESTDIR=%{{buildroot}}
chmod 755 %{{buildroot}}/usr/lib/*.so.1
%files
%attr(4755,root,root) /usr/bin/frames
/usr/bin/frames-too
/usr/lib/libframes.so.1
/usr/lib/frames/plugin.so
"""


class Built(NamedTuple):
    tree: Path  # of the sources
    packages: dict[str, Path]  # by name of the package
    log: str

    @property
    def beside(self) -> Path:
        return self.tree.parent


def written(directory: Path, files: dict[str, str]) -> None:
    directory.mkdir(parents=True)
    for name, text in files.items():
        (directory / name).write_text(text)


def documented(start: str) -> str:
    """The indented lines of docs/packaging.md, from the one that begins so to the next that is not."""
    lines = PAGE.read_text().splitlines()
    [first] = [number for number, line in enumerate(lines) if line.startswith(f"    {start}")]
    return "\n".join(line[4:] for line in takewhile(lambda line: line.startswith("    "), lines[first:]))


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """With this sframegen on PATH, by a program in a directory, and without what builds are given."""
    program = tmp_path_factory.mktemp("bin") / "sframegen"
    packages = shlex.quote(str(Path(sframegen.__file__).parents[1]))
    program.write_text(f'#!/bin/sh\nPYTHONPATH={packages} exec {shlex.quote(sys.executable)} -P -m sframegen "$@"\n')
    program.chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("DEB_", "DH_", "RPM_"))}
    return kept | {"PATH": f"{program.parent}:{os.environ['PATH']}", "LC_ALL": "C.UTF-8"}


def run(command: list[str], directory: Path, environment: dict[str, str], *, status: int = 0) -> str:
    done = subprocess.run(
        command, cwd=directory, env=environment, check=False, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert (done.returncode == 0) is (status == 0), done.stdout[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def debian(tmp_path_factory: pytest.TempPathFactory, environment: dict[str, str]) -> Built:
    directory = tmp_path_factory.mktemp("debian")
    needs("dpkg-buildpackage", "dh", "fakeroot", "gcc", "make")
    tree = directory / "frames-1.2"
    written(tree, FILES)
    written(tree / "debian", DEBIAN)
    (tree / "debian/rules").chmod(0o755)
    recipe = documented("dir=$(sframegen integration --debhelper-dir)")
    log = run(["sh", "-ec", f"{recipe} -d -us -uc -rfakeroot"], tree, environment)
    packages = {}
    (directory / "unpacked").mkdir()
    for package in sorted(directory.glob("*.deb")):
        name = package.name.partition("_")[0]
        packages[name] = directory / "unpacked" / name
        subprocess.run(["dpkg-deb", "-R", package, packages[name]], check=True)
    return Built(tree, packages, log)


@pytest.fixture
def tree(debian: Built, tmp_path: Path) -> Path:
    return shutil.copytree(debian.tree, tmp_path / "tree", symlinks=True)


# -- Debian


def test_debian_packages_have_sections(debian: Built, peers: Peers) -> None:
    assert set(debian.packages) == {"frames", "frames-data", "frames-dbgsym", "libframes1", "libframes1-dbgsym"}
    found = {file.name: file for name in ("frames", "libframes1") for file in elf_files(debian.packages[name])}
    assert set(found) == {"frames", "frames-too", "libframes.so.1", "plugin.so"}
    for name in ("frames", "frames-too", "libframes.so.1"):
        is_good(found[name], peers)
    libraries = str(found["libframes.so.1"].parent)
    done = subprocess.run([found["frames"]], env={"LD_LIBRARY_PATH": libraries}, check=True, text=True, capture_output=True)
    assert done.stdout == "55\n"
    assert found["frames"].samefile(found["frames-too"])
    assert not has_section(found["plugin.so"])  # left out by an option
    assert not has_section(debian.packages["frames-data"] / "usr/lib/foreign")


def test_debian_checksums_are_of_the_new_files(debian: Built) -> None:
    for name in ("frames", "libframes1"):
        lines = (debian.packages[name] / "DEBIAN/md5sums").read_text().splitlines()
        assert lines
        for line in lines:
            digest, path = line.split("  ", 1)
            assert md5((debian.packages[name] / path).read_bytes(), usedforsecurity=False).hexdigest() == digest


def test_debian_modes_owners_and_times(debian: Built) -> None:
    [package] = debian.beside.glob("frames_*.deb")
    listed = run(["dpkg-deb", "-c", str(package)], debian.beside, dict(os.environ, TZ="UTC"))
    [line] = [line for line in listed.splitlines() if "./usr/bin/frames" in line and " link to " not in line]
    assert line.startswith("-rwsr-xr-x root/root ")
    assert "2026-01-01 00:00" in line  # by the changelog, as of everything that a build makes


def test_debian_debug_packages_match(debian: Built) -> None:
    for package, path, function in (("frames", "usr/bin/frames", "main"), ("libframes1", "usr/lib/libframes.so.1", "frames_step")):
        file, debug = debian.packages[package] / path, debian.packages[f"{package}-dbgsym"]
        assert debug_file(file, debug)
        assert (read_build_id(open_elf(file)) or b"").hex() in (debug / "DEBIAN/control").read_text()
        needs("gdb")
        assert "starts at address" in gdb_says(file, debug, function)
        assert "starts at address" not in gdb_says(file, debian.packages["frames-data"], function)


def test_debian_report_is_a_build_artefact(debian: Built) -> None:
    for name, paths in (("frames", ["usr/bin/frames"]), ("libframes1", ["usr/lib/libframes.so.1"])):
        report = (debian.tree / f"debian/.debhelper/generated/{name}/sframe.json").read_text()
        [tree] = json.loads(report)["trees"]
        assert (tree["root"], [entry["path"] for entry in tree["files"]]) == (name, paths)
        [beside] = debian.beside.glob(f"{name}-sframe_*.json")
        assert beside.name.startswith(f"{name}-sframe_1.2-3_")
        assert beside.read_text() == report
        for kind in ("buildinfo", "changes"):
            [listing] = debian.beside.glob(f"*.{kind}")
            assert beside.name in listing.read_text()


@pytest.mark.parametrize(
    ("options", "variables", "expected"),
    [
        (["--", "-q"], {"DEB_BUILD_PROFILES": "nodoc nosframe"}, None),
        (["-v"], {"DEB_BUILD_OPTIONS": "parallel=3"}, "add-tree -j 3 "),
        (["-plibframes1", "-v", "--", "--sframe-version", "2"], {}, "2 files given a section"),
        (["-N", "libframes1", "--no-act", "-v"], {}, "add-tree -j 1 "),
    ],
)
def test_dh_sframe_options(
    tree: Path, environment: dict[str, str], options: list[str], variables: dict[str, str], expected: str | None
) -> None:
    printed = run(["dh_sframe", *options], tree, with_debhelper(environment) | variables)
    assert printed == "" if expected is None else expected in printed


@pytest.mark.parametrize(
    ("sframegen", "options", "fails"),
    [
        ("", [], False),
        ("", ["--", "--strict"], True),
        ("#!/bin/sh\nkill -9 $$\n", [], False),
        ("#!/bin/sh\nkill -9 $$\n", ["--", "--min-coverage=5"], True),
        ("#!/bin/sh\nexit 1\n", [], False),
        ("#!/bin/sh\nexit 1\n", ["--", "--strict"], True),
        ("#!/bin/sh\nexit 2\n", [], True),  # a misspelt option must not be overlooked
        ("#!/nowhere\n", [], False),
    ],
)
def test_dh_sframe_fails_if_asked_to(
    tree: Path, environment: dict[str, str], tmp_path: Path, sframegen: str, options: list[str], fails: bool
) -> None:
    broken = with_debhelper(environment)
    tools = place(environment, "--debhelper-dir") + "/bin"
    if sframegen:
        (tmp_path / "sframegen").write_text(sframegen)
        (tmp_path / "sframegen").chmod(0o755)
    elsewhere = [part for part in os.environ["PATH"].split(":") if not Path(part, "sframegen").exists()]
    broken["PATH"] = ":".join([str(tmp_path), tools, *elsewhere])
    printed = run(["dh_sframe", *options], tree, broken, status=int(fails))
    if not fails:
        assert printed.count("is packed as it is") == 2


# -- RPM


def rpm(directory: Path, environment: dict[str, str], *options: str, header: str = "", debug: str = "", status: int = 0) -> Built:
    needs("rpmbuild", "rpm2cpio", "cpio", "gcc", "make", "strip")
    written(directory / "source", FILES)
    spec = directory / "frames.spec"
    spec.write_text(SPEC.format(header=header, debug=debug, source=directory / "source"))
    log = run(
        ["rpmbuild", *options, "--define", f"_topdir {directory}/top", "-bb", str(spec)], directory, environment, status=status
    )
    packages = {}
    for package in sorted((directory / "top/RPMS").rglob("*.rpm")):
        name = package.name.partition("-1.2-3")[0]
        packages[name] = directory / "unpacked" / name
        packages[name].mkdir(parents=True)
        archive = subprocess.run(["rpm2cpio", package], check=True, capture_output=True).stdout
        subprocess.run(["cpio", "-idm", "--quiet"], cwd=packages[name], input=archive, check=True)
    return Built(directory / "top/BUILD", packages, log)


def loaded(environment: dict[str, str]) -> list[str]:
    directory = place(environment, "--rpm-dir")
    return ["--load", f"{directory}/macros.sframe", "--define", f"_sframe_dir {directory}"]


def test_rpm_packages_have_sections(tmp_path: Path, environment: dict[str, str], peers: Peers) -> None:
    """With a package of debug files, which finds them by build-id."""
    needs("find-debuginfo")
    header = "%global _sframe_options --exclude plugin.so"
    built = rpm(tmp_path, environment, *loaded(environment), header=header, debug="%debug_package")
    assert set(built.packages) >= {"frames", "frames-debuginfo"}
    found = {file.name: file for file in elf_files(built.packages["frames"])}
    assert set(found) == {"frames", "frames-too", "libframes.so.1", "plugin.so"}
    assert not has_section(found["plugin.so"])
    for name in ("frames", "libframes.so.1"):
        is_good(found[name], peers)
    assert found["frames"].samefile(found["frames-too"])
    [package] = (tmp_path / "top/RPMS").rglob("frames-1.2*.rpm")
    modes = run(["rpm", "-qp", "--qf", "[%{FILENAMES} %{FILEMODES:octal}\n]", str(package)], tmp_path, environment)
    assert "/usr/bin/frames 104755\n" in modes
    library = found["libframes.so.1"]
    debug = built.packages["frames-debuginfo"]
    needs("gdb")
    assert "starts at address" in gdb_says(library, debug, "frames_step")
    [report] = built.tree.glob("frames-1.2-3.*.sframe.json")
    [tree] = json.loads(report.read_text())["trees"]
    assert [(entry["path"], entry["links"]) for entry in tree["files"]] == [
        ("usr/bin/frames", ["usr/bin/frames-too"]),
        ("usr/lib/libframes.so.1", []),
    ]
    assert "2 files given a section" in built.log


def test_rpm_by_two_lines_of_the_spec_file(tmp_path: Path, environment: dict[str, str]) -> None:
    built = rpm(tmp_path, environment, header=documented("%global _sframe_dir"))
    assert all(map(has_section, elf_files(built.packages["frames"])))


def test_rpm_by_options_of_rpmbuild(environment: dict[str, str]) -> None:
    recipe = documented("dir=$(sframegen integration --rpm-dir)")
    spoken = recipe.replace("rpmbuild", "printf '%s\\n'").replace(" -bb package.spec", "")
    assert run(["sh", "-ec", spoken], Path.cwd(), environment).splitlines() == loaded(environment)


def test_rpm_by_a_distribution(tmp_path: Path, environment: dict[str, str]) -> None:
    """Whose list of steps has ours."""
    step = f"%global __brp_sframe {place(environment, '--rpm-dir')}/brp-sframe"
    header = f"{step}\n%global __os_install_post %{{__os_install_post}} %{{?__brp_sframe}}"
    assert all(map(has_section, elf_files(rpm(tmp_path, environment, header=header).packages["frames"])))


def test_an_rpm_package_can_do_without(tmp_path: Path, environment: dict[str, str]) -> None:
    built = rpm(tmp_path, environment, *loaded(environment), header="%undefine __brp_sframe")
    assert not any(map(has_section, elf_files(built.packages["frames"])))


@pytest.mark.parametrize(("options", "fails"), [("", False), ("--strict", True), ("--min-coverage 5", True)])
def test_rpmbuild_fails_if_asked_to(tmp_path: Path, environment: dict[str, str], options: str, fails: bool) -> None:
    elsewhere = [part for part in os.environ["PATH"].split(":") if not Path(part, "sframegen").exists()]
    without = environment | {"PATH": ":".join(elsewhere)}
    built = rpm(tmp_path, without, *loaded(environment), header=f"%global _sframe_options -v {options}", status=int(fails))
    assert bool(built.packages) is not fails
    assert "no sframegen on PATH" in built.log


def test_brp_sframe_fails_for_wrong_options(environment: dict[str, str], tmp_path: Path) -> None:
    script = [place(environment, "--rpm-dir") + "/brp-sframe", "--min-coverge", "99"]
    assert "--min-coverge" in run(script, tmp_path, environment | {"RPM_BUILD_ROOT": str(tmp_path)}, status=2)


@pytest.mark.parametrize("root", ["", "/", "absent"])
def test_brp_sframe_without_a_build_root(environment: dict[str, str], tmp_path: Path, root: str) -> None:
    script = place(environment, "--rpm-dir") + "/brp-sframe"
    assert run([script, "--strict"], tmp_path, environment | {"RPM_BUILD_ROOT": root}) == ""


def place(environment: dict[str, str], option: str) -> str:
    command = ["sframegen", "integration", option]
    return subprocess.run(command, env=environment, check=True, text=True, capture_output=True).stdout.strip()


def with_debhelper(environment: dict[str, str]) -> dict[str, str]:
    directory = place(environment, "--debhelper-dir")
    return environment | {"PERL5LIB": f"{directory}/lib", "PATH": f"{directory}/bin:{environment['PATH']}"}


def elf_files(directory: Path) -> Iterator[Path]:
    for file in sorted(directory.rglob("*")):
        if file.is_file() and not file.is_symlink() and file.read_bytes()[:4] == b"\x7fELF":
            yield file


def has_section(file: Path) -> bool:
    return find_sframe(open_elf(file)) is not None


def is_good(file: Path, peers: Peers) -> None:
    assert not [found for found in check(file).findings if found.severity is Severity.ERROR]
    shown = subprocess.run([peers.tool("readelf"), "--sframe", file], check=True, text=True, capture_output=True)
    assert "Version: SFRAME_VERSION_3" in shown.stdout
    assert shown.stderr == ""


def debug_file(file: Path, debug: Path) -> Path:
    """By build-id, among the files of a debug package; .gnu_debuglink, if there is one, has the CRC of it."""
    elf = open_elf(file)
    build_id, link = (read_build_id(elf) or b"").hex(), read_debug_link(elf)
    found = debug / f"usr/lib/debug/.build-id/{build_id[:2]}/{build_id[2:]}.debug"
    assert link is None or zlib.crc32(found.read_bytes()) == link[1], file
    return found


def gdb_says(file: Path, debug: Path, function: str) -> str:
    """What gdb knows of a function, with debug files from there alone."""
    options = ["-nx", "-batch", "-iex", f"set debug-file-directory {debug}/usr/lib/debug", "-ex", f"info line {function}"]
    return subprocess.run(["gdb", *options, file], check=False, text=True, capture_output=True).stdout
