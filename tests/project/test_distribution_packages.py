"""debian/ and packaging/ agree with pyproject.toml, and name what exists. `make deb` and `make rpm` build them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest

import sframegen
from sframegen.backtrace.library_files import PRELOAD, SHARED, SONAME
from tests import ROOT
from tests.backtrace.test_library_files import TAG

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
REQUIREMENT = re.compile(r"([\w.]+)([^;]*)")
LATER = {"backports.zstd", "lief"}  # part of Python from 3.14 on; read back with pyelftools where there is none
CONTROL = (ROOT / "debian/control").read_text()
SPEC = (ROOT / "packaging/sframegen.spec").read_text()


def bounds(requirements: list[str]) -> dict[str, list[tuple[str, str]]]:
    """By project: each sign with its version."""
    found = (REQUIREMENT.match(requirement) for requirement in requirements)
    return {match[1].lower(): re.findall(r"(>=|<)([\d.]+)", match[2]) for match in found if match}


CYTHON = "3.1"  # debian/rules runs tests with what Debian has, which is older than what pyproject.toml asks for
RUNNING = bounds(PROJECT["project"]["dependencies"])
BUILDING = bounds(PROJECT["build-system"]["requires"])


def test_the_version_is_that_of_the_package() -> None:
    changelog = (ROOT / "debian/changelog").read_text()
    first = re.match(r"sframegen \((.+)-\d+\) ", changelog)
    in_spec = re.findall(r"^Version: +(\S+)$|^\* .* - (\S+)-\d+$", SPEC, re.MULTILINE)
    assert first
    assert [first[1], *("".join(one) for one in in_spec[:2])] == [sframegen.__version__] * 3


def test_debian_builds_with_at_least_what_pyproject_asks_for() -> None:
    """What it runs with, dh_python3 reads from the wheel. Debian has no LIEF."""
    lowest = {name: dict(limits)[">="] for name, limits in (RUNNING | BUILDING).items() if name not in LATER} | {"cython": CYTHON}
    packages = {{"cython": "cython3"}.get(name, f"python3-{name}"): version for name, version in lowest.items()}
    assert packages.items() <= set(re.findall(r"^ +([\w-]+) \(>= ([\d.]+)\)", CONTROL, re.MULTILINE))
    assert (ROOT / "debian/py3dist-overrides").read_text() == "lief\n"
    assert "lief" not in CONTROL
    # dh_python3 would call libraries libsframe-backtrace-preload.cpython-314-x86_64-linux-gnu.so: `sframegen preload` found none.
    assert "\noverride_dh_python3:\n\tdh_python3 --no-ext-rename\n" in (ROOT / "debian/rules").read_text()


def test_no_line_of_a_description_is_too_long_for_lintian() -> None:
    assert [line for line in CONTROL.splitlines() if line.startswith(" ") and len(line) > 80] == []


def test_the_spec_names_what_pyproject_does() -> None:
    for project in RUNNING.keys() - LATER:
        required = re.findall(rf"^Requires: +python3dist\({project}\) (>=|<) ([\d.]+)$", SPEC, re.MULTILINE)
        assert sorted(required) == sorted(RUNNING[project]), project
    [(_, lief)], [(_, zstd)] = RUNNING["lief"], RUNNING["backports.zstd"]
    assert f"\nRecommends:     python3dist(lief) >= {lief}\n" in SPEC
    assert f"\nRequires:       (python3dist(backports.zstd) >= {zstd} or python3 >= 3.14)\n" in SPEC
    for project, limits in BUILDING.items():
        assert f"\nBuildRequires:  python3dist({project}) >= {dict(limits)['>=']}\n" in SPEC
    assert SPEC.count(f" {PROJECT['project']['requires-python'].replace('>=', '>= ')}\n") == 2
    packages = {pattern.removesuffix("*") for pattern in PROJECT["tool"]["setuptools"]["packages"]["find"]["include"]}
    assert set(re.findall(r"^%\{python3_sitearch\}/(\w+)$", SPEC, re.MULTILINE)) == packages
    # The source is the sdist that has its name.
    assert "\nSource0:        %{name}-%{version}.tar.gz\n" in SPEC
    assert 'tools.release --sdist --dist "$out/SOURCES"' in (ROOT / "packaging/build-rpm").read_text()


def test_each_file_that_is_named_exists_and_each_script_can_be_run() -> None:
    installed = [line.split()[0] for line in (ROOT / "debian/dh-sframe.install").read_text().splitlines()]
    installed += re.findall(r"sframegen/integration/[\w/-]+(?:\.\w+)?", SPEC + (ROOT / "debian/rules").read_text())
    assert len(installed) >= 5
    assert [path for path in installed if not (ROOT / path).exists()] == []
    tests = re.findall(r"^Tests: (.+)$", (ROOT / "debian/tests/control").read_text(), re.MULTILINE)
    recipes = re.findall(r"packager,([\w-]+)\)", (ROOT / "Makefile").read_text())
    scripts = [f"packaging/{name}" for name in ("add-libraries", "add-shared", *recipes)]
    scripts += ["debian/rules", "tools/in-chroot"]
    scripts += [f"debian/tests/{name}" for name in tests]
    assert len(scripts) == 10
    assert [script for script in scripts if not os.access(ROOT / script, os.X_OK)] == []


def test_the_debian_library_asks_for_a_glibc_that_has_its_functions() -> None:
    """dpkg-shlibdeps finds no versions in it. What it needs, tests/backtrace/test_library_files.py sees."""
    package = CONTROL.partition("\nPackage: libsframe-backtrace0\n")[2]
    assert re.findall(r"^Depends: libc6 \(>= ([\d.]+)\),", package, re.MULTILINE)[0] == ".".join(map(str, TAG))


def test_programs_get_the_library_from_its_own_rpm() -> None:
    """Not from `sframegen`, whose copies the dynamic loader does not find; names of the Python project stay provided."""
    [pattern] = re.findall(r"^%global __provides_exclude_from (.+)$", SPEC, re.MULTILINE)
    site = "/usr/lib64/python3.14/site-packages"
    hidden = re.compile(pattern.replace("%{python3_sitearch}", site))
    assert all(hidden.search(f"{site}/sframegen/backtrace/{name}") for name in (SHARED, PRELOAD))
    assert not hidden.search(f"{site}/sframegen-{sframegen.__version__}.dist-info/METADATA")
    assert not hidden.search(f"/usr/lib64/{SONAME}")


@pytest.mark.parametrize(("link", "status"), [("", 0), (" <>", 1), (" < >", 1)])
def test_a_man_page_with_an_empty_link_is_an_error(link: str, status: int, tmp_path: Path) -> None:
    """Which docutils writes, depends on the distribution: the packages are made with theirs."""
    python = tmp_path / "bin/python3"
    python.parent.mkdir()
    python.write_text(f"#!/bin/sh\nmkdir -p build/man && echo 'sframegen(1){link}' >build/man/sframegen.1\n")
    python.chmod(0o755)
    environment = {"PATH": f"{python.parent}:{os.environ['PATH']}"}
    command: tuple[str | Path, ...] = (ROOT / "packaging/add-shared", tmp_path / "root", tmp_path, "usr/share/zsh")
    done = subprocess.run(command, check=False, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, bool(done.stderr)) == (status, bool(status)), done.stderr


def test_completion_goes_where_shells_look(tmp_path: Path) -> None:
    program = tmp_path / "usr/bin/sframegen"
    program.parent.mkdir(parents=True)
    program.write_text("from sframegen.cli.start import main\nmain()\n")
    environment = os.environ | {"PATH": f"{sys.exec_prefix}/bin:{os.environ['PATH']}"}
    site, zsh = sysconfig.get_path("platlib"), "usr/share/zsh/site-functions"
    command: tuple[str | Path, ...] = (ROOT / "packaging/add-shared", tmp_path, site, zsh, "--no-man")
    subprocess.run(command, check=True, env=environment)
    places = {
        "bash": "usr/share/bash-completion/completions/sframegen",
        "zsh": f"{zsh}/_sframegen",
        "fish": "usr/share/fish/vendor_completions.d/sframegen.fish",
    }
    for shell, place in places.items():
        assert f"{shell}_complete" in (tmp_path / place).read_text().lower()
