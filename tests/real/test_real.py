"""add-section on real binaries: the section is true, nothing else that is loaded changed, and they still work.

All of that is tried in the compiled build. The interpreted one has to write the same bytes.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from sframegen import Summary, add_section
from tests.real.real_files import FILES, RealFile, Trial, program, soname
from tests.support.loaded import Image, check_displaced_metadata, check_headers, check_loaded_bytes
from tests.support.oracles.compare import Verdict, compare
from tests.support.peers import Compiler, Peers

pytestmark = pytest.mark.full


class Made(NamedTuple):
    file: RealFile
    trial: Trial
    summary: Summary


@pytest.fixture(scope="module", params=FILES, ids=lambda file: file.name)
def made(
    request: pytest.FixtureRequest, peers: Peers, compile_c: Compiler, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Made]:
    file: RealFile = request.param
    original = file.find(peers)
    directory = tmp_path_factory.mktemp("real")
    for name in ("new", "scratch"):
        (directory / name).mkdir()
    result = directory / "new" / (soname(original) or original.name)
    summary = add_section(original, output=result)
    if file.machine:
        compile_c = file.machine.compiler(peers, directory)
    yield Made(file, Trial(original, result, directory / "scratch", peers, compile_c, file.newest, file.machine), summary)
    shutil.rmtree(directory)


def test_every_rule_is_what_the_cfi_says(made: Made, peers: Peers) -> None:
    report = compare(made.trial.original, made.trial.result, peers)
    assert report.ok, str(report)
    assert report.coverage >= made.file.least_coverage
    assert report.bytes[Verdict.EQUAL] == made.summary.covered_bytes


@pytest.fixture
def images(made: Made) -> Iterator[tuple[Image, Image]]:
    with ExitStack() as closing:
        yield Image(made.trial.original, closing), Image(made.trial.result, closing)


def test_every_loaded_byte_is_where_it_was(images: tuple[Image, Image]) -> None:
    check_loaded_bytes(*images)


def test_displaced_metadata_is_the_same_elsewhere_and_named_there(images: tuple[Image, Image]) -> None:
    check_displaced_metadata(*images)


def test_headers_are_where_kernels_and_profilers_look(images: tuple[Image, Image]) -> None:
    check_headers(*images)


def lint(file: Path, peers: Peers) -> Counter[str]:
    """What eu-elflint says, without the numbers of program headers: new ones stand between the old."""
    done = subprocess.run([peers.tool("eu-elflint"), "--gnu-ld", file], capture_output=True, text=True, check=False)
    numbers = r"^(phdr\[|program header entry |section \[) *\d+"
    lines = (re.sub(numbers, r"\1N", line) for line in (done.stdout + done.stderr).splitlines())
    return Counter(line for line in lines if line != "No errors")


def test_eu_elflint_finds_nothing_new(made: Made, peers: Peers) -> None:
    new = lint(made.trial.result, peers) - lint(made.trial.original, peers)
    assert {re.sub(r"section \[ *\d+\]", "section [N]", line): count for line, count in new.items()} == {
        "program header entry N: unknown program header entry type 0x6474e554": 1,
        "section [N] '.sframe' has unsupported type 1879048180": 1,
    }


def test_it_still_works(made: Made) -> None:
    made.file.use(made.trial)


COMPARED = {"true": program("true"), "ls": program("ls")} | {file.name: file.find for file in FILES if not file.compiled_only}


@pytest.mark.parametrize("find", COMPARED.values(), ids=COMPARED)
def test_both_builds_write_the_same_bytes(find: Callable[[Peers], Path], peers: Peers, tmp_path: Path) -> None:
    pure_python = os.environ.get("SFRAMEGEN_PURE_PYTHON")
    if pure_python is None:
        pytest.skip("SFRAMEGEN_PURE_PYTHON does not name the interpreted build's python: use make test-all")
    written = {}
    for build, python in {"compiled": sys.executable, "interpreted": pure_python}.items():
        command = [python, "-P", "-m", "sframegen"]
        told = subprocess.run([*command, "--version"], check=True, capture_output=True, text=True).stdout
        assert told.endswith(f" ({build})\n")
        out = tmp_path / build
        options = "--no-verify", "--synthesize", "-j1", "-o", out
        subprocess.run([*command, "add-section", find(peers), *options], check=True, stdout=subprocess.DEVNULL)
        written[build] = out.read_bytes()
    assert written["compiled"] == written["interpreted"]
