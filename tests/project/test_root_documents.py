"""CONTRIBUTING.md, SECURITY.md, CITATION.cff: what they name is there, and what they say to type works. CHANGELOG.md: its form."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from typing import TYPE_CHECKING

import pytest

from tests import ROOT
from tools.bare.__main__ import FOLDERS, ROOTS

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.once

CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
SECURITY = (ROOT / "SECURITY.md").read_text()
TYPED = re.findall(r"^\$ (.*)$", CONTRIBUTING, re.MULTILINE)
TESTS = [line for line in TYPED if "pytest" in line]
MADE = sorted(set(re.findall(r"\bmake ((?:[a-z]+-)*[a-z]+)(?=[`\n])", CONTRIBUTING)))
TARGETS = re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE)


@pytest.mark.parametrize("line", TESTS)
def test_one_thing_is_tested_as_the_page_says(line: str) -> None:
    line = line.replace(".venv/bin/python", shlex.quote(sys.executable))
    done = subprocess.run(["sh", "-c", line], check=False, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout


def test_there_are_commands_for_one_thing() -> None:
    assert len(TESTS) == 2


@pytest.mark.parametrize("target", MADE)
def test_make_has_each_target(target: str) -> None:
    assert target in TARGETS


@pytest.mark.parametrize("path", sorted(set(re.findall(r"`((?:sframegen|cfi|linker|tests|tools)/[\w/.]*)", CONTRIBUTING))))
def test_each_place_is_there(path: str) -> None:
    assert (ROOT / path.removesuffix("COMMAND.py")).exists()


def test_bug_reports_have_what_the_installation_is() -> None:
    for page in (CONTRIBUTING, SECURITY):
        assert "- the output of `sframegen doctor`;" in page


def test_reports_go_to_no_address() -> None:
    """Nobody reads an invented one."""
    for page in (CONTRIBUTING, SECURITY):
        assert re.findall(r"\S+@\S+|https?://\S+", page) == []


def test_each_promise_names_its_tests() -> None:
    promised = SECURITY.partition("## What is promised")[2].partition("\n## ")[0]
    promises = re.split(r"^- ", promised, flags=re.MULTILINE)[1:]
    assert len(promises) == 7
    for promise in promises:
        paths = re.findall(r"`((?:tests|corpus)/[^`]+)`", promise.partition("Tests: ")[2])
        assert paths, promise
        assert [path for path in paths if not (ROOT / path).exists()] == []


def test_only_what_security_md_names_uses_the_network() -> None:
    network = re.compile(r"^ *(?:import|from) (?:urllib\.request|http|fsspec|distributed|ftplib|smtplib|ssl)\b", re.MULTILINE)
    connecting = re.compile(r"\bsocket\.socket\((?!fileno)|create_connection\(")
    sources = [path for package in ("cfi", "linker", "sframegen") for path in (ROOT / package).rglob("*.py")]
    found = {path.relative_to(ROOT).as_posix() for path in sources if network.search(path.read_text())}
    assert found == {
        "sframegen/detached/store_server.py",
        "sframegen/fleet/dask_cluster.py",
        "sframegen/fleet/sources/fetching.py",
        "sframegen/profile/symbols/debuginfod.py",
    }
    assert [path for path in sources if connecting.search(path.read_text())] == []


def test_a_version_has_each_kind_of_change_once() -> None:
    for section in re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)[1:]:
        kinds = re.findall(r"^### (.*)", section, re.MULTILINE)
        assert sorted(set(kinds)) == sorted(kinds), section.partition("\n")[0]


def test_the_citation_says_what_the_package_says() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    text = (ROOT / "CITATION.cff").read_text()
    said = dict(re.findall(r"^([\w-]+): (.*)$", text, re.MULTILINE))
    keywords = re.findall(r"^  - (.*)$", text.partition("\nkeywords:\n")[2], re.MULTILINE)
    assert (said["title"], said["abstract"]) == (project["name"], project["description"])
    assert project["license"].startswith(f"{said['license']} AND ")  # the form takes no expression: the license of the whole
    assert keywords == project["keywords"]
    assert (said["cff-version"], "version" in said) == ("1.2.0", False)  # the version stands in one place


def test_changed_modules_are_copied_in_a_second(tmp_path: Path) -> None:
    """`make quick`, of a checkout and an environment that have one file each."""
    site = tmp_path / "site"
    for folder in (tmp_path, site):
        for package in ("cfi", "linker", "sframegen"):
            (folder / package).mkdir(parents=True)
    (site / "cfi" / "errors.py").write_text("old")
    os.utime(site / "cfi" / "errors.py", (1, 1))
    (tmp_path / "cfi" / "errors.py").write_text("new")
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\necho {site}\n")
    python.chmod(0o755)
    subprocess.run(["make", "--silent", "--file", ROOT / "Makefile", "quick"], check=True, cwd=tmp_path, capture_output=True)
    assert (site / "cfi" / "errors.py").read_text() == "new"


def test_what_readme_writes_into_a_checkout_is_nothing_to_commit() -> None:
    """`make test` after README's first commands looks at the files that git would add."""
    written = re.findall(r"^    sudo \.venv/bin/sframegen profile -o (\S+)", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert written
    assert set(written) <= set((ROOT / ".gitignore").read_text().split())


def test_roots_that_have_nothing_try_folders_that_are_there() -> None:
    """And one of them all of the first ring."""
    assert [folder for folder in FOLDERS if not (ROOT / "tests" / folder).is_dir()] == []
    assert [root.suite for root in ROOTS if not root.tests] == ["sid"]
