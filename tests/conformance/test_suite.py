"""The conformance suite: who passes it, and that it would notice who does not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import pytest
import reference_reader
import run

from conformance.__main__ import write_tarball
from conformance.case import Case
from conformance.known_readers import known
from conformance.suite import COMBINATIONS, all_cases
from sframegen.checks.finding import Severity
from sframegen.checks.specification.wellformed import examine_section
from tests import ROOT
from tests.conformance.sframegen_reader import DECODES, SEARCHES
from tests.support.loops import for_each


@cache
def shown() -> list[dict[str, Any]]:
    return [case.as_json([]) for case in all_cases()]


class MistakenSection(NamedTuple):
    opened: Any
    changes: dict[str, Any]

    def find(self, pc: int) -> dict[str, Any]:
        answer: dict[str, Any] = self.opened.find(pc)
        return answer | self.changes if answer["kind"] == "rule" else answer


class Mistaken(NamedTuple):
    """A reader with one mistake."""

    changes: dict[str, Any]
    NAME: str = "mistaken"
    VERSIONS: tuple[int, ...] = SEARCHES.VERSIONS
    ABIS: tuple[int, ...] = SEARCHES.ABIS
    REPORTS: tuple[str, ...] = SEARCHES.REPORTS

    def open_section(self, data: bytes, address: int) -> MistakenSection:
        return MistakenSection(SEARCHES.open_section(data, address), self.changes)


class Crashing:
    NAME, VERSIONS, ABIS, REPORTS = "crashing", (1, 2, 3), (1, 2, 3, 4), ()

    def open_section(self, data: bytes, address: int) -> NoReturn:
        raise IndexError(f"{len(data)} {address}")


def failures(reader: run.Reader, about: str = "") -> list[str]:
    """`about`: a part of the cases' names."""
    lines = [run.line(number, case, reader) for number, case in enumerate(shown(), 1) if about in case["name"]]
    return [text for is_ok, text in lines if not is_ok]


@for_each("reader", [reference_reader, SEARCHES, DECODES], ids=lambda reader: str(reader.NAME))
def test_our_readers_pass(reader: run.Reader) -> None:
    assert failures(reader) == []


@for_each(
    ("mistake", "about"),
    [
        ({"cfa": None}, "-usual"),
        ({"fp": None}, "-default-cfa-fp"),
        ({"ra": None}, "v3-amd64-usual"),
        ({"signal": False}, "-signal-frame"),
        ({"key_b": False}, "-signed-key-b"),
        ({"ra_signed": False}, "-signed-key-a"),
    ],
)
def test_mistakes_are_noticed(mistake: dict[str, Any], about: str) -> None:
    assert failures(Mistaken(mistake), about)
    assert failures(SEARCHES, about) == []


def test_crashes_are_noticed() -> None:
    found = failures(Crashing(), "-usual")
    assert len(found) == len(COMBINATIONS)
    assert all("IndexError" in text and "(test_suite.py:" in text and "only a ValueError refuses" in text for text in found)


class Credulous:
    """It looks at neither magic number nor version."""

    NAME, VERSIONS, ABIS, REPORTS = "credulous", (1, 2, 3), (1, 2, 3, 4), ()

    def open_section(self, data: bytes, address: int) -> Any:
        magic = b"\xe2\xde" if data[4] == 3 else b"\xde\xe2"
        return reference_reader.open_section(magic + b"\3" + data[3:], address)


@for_each("damage", ["magic", "version-0", "version-255"])
def test_sections_of_nobody_are_not_read(damage: str) -> None:
    assert len(failures(Credulous(), f"v3-amd64-damaged-{damage}")) >= 1
    assert failures(reference_reader, f"-damaged-{damage}") == []


@for_each(
    ("arguments", "said"),
    [
        (["v3-amd64-unusual"], "no such case: v3-amd64-unusual"),
        (["--reader", "no_reader.py"], "give its name without .py"),
        (["--reader", "reference_reader.py"], "give its name without .py"),
    ],
)
def test_mistyped_names_are_said(arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        run.main(["--cases", str(tmp_path), *arguments])
    assert said in capsys.readouterr().err


def test_what_is_skipped_is_not_counted_as_ok(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for case in shown():
        if case["name"] in {"v3-amd64-usual", "v3-s390x-usual"}:
            (tmp_path / f"{case['name']}.json").write_text(json.dumps(case))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reference_reader, "ABIS", (3,))
        assert run.main(["--cases", str(tmp_path)]) == 0
    assert capsys.readouterr().out.endswith("# 1 ok, 0 not ok, 1 skipped: reference\n")


def test_another_version_has_to_be_refused() -> None:
    reads_2 = SEARCHES._replace(VERSIONS=(2,))
    assert {text.split()[4].partition("-")[0] for text in failures(reads_2, "-usual")} == {"v1", "v3"}


def breaches(case: Case) -> set[Severity]:
    facts = examine_section(case.section, case.address, executable=[case.code], byte_order=case.machine.byte_order)
    return {finding.severity for finding in facts.findings}


@for_each("combination", COMBINATIONS, ids=lambda combination: str(combination.name))
def test_check_agrees(combination: Any) -> None:
    """It finds no error in a valid section, and something in an invalid one."""
    cases = [case for case in all_cases() if (case.version, case.machine) == combination]
    assert [case.name for case in cases if case.verdict == "valid" and Severity.ERROR in breaches(case)] == []
    assert [case.name for case in cases if case.verdict == "invalid" and not breaches(case)] == []


def test_cases_fit_their_schema() -> None:
    jsonschema = pytest.importorskip("jsonschema")

    schema = json.loads((ROOT / "conformance/schema.json").read_text())
    validator = jsonschema.Draft202012Validator(schema)
    for case in all_cases():
        validator.validate(case.as_json(known(case)))


def test_tarballs_of_one_folder_are_the_same(tmp_path: Path) -> None:
    folder = tmp_path / "suite"
    (folder / "cases").mkdir(parents=True)
    (folder / "cases/one.json").write_text("{}")
    (folder / "LICENSE").write_text("free")
    write_tarball(folder, tmp_path / "first")
    os.utime(folder / "LICENSE", (1, 1))
    (folder / "LICENSE").chmod(0o600)
    write_tarball(folder, tmp_path / "second")
    assert (tmp_path / "first").read_bytes() == (tmp_path / "second").read_bytes()
    # Not of Unix: gzip.compress() says so with Python 3.11 only.
    assert (tmp_path / "first").read_bytes()[:10] == bytes.fromhex("1f8b08000000000002ff")


@pytest.mark.full
def test_the_suite_is_made_the_same_twice(tmp_path: Path) -> None:
    made = []
    for seed in ("1", "2"):
        command = [sys.executable, "-P", "-c", "from conformance.__main__ import main; main()", str(tmp_path / seed)]
        subprocess.run(
            command, check=True, env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}, capture_output=True
        )
        made.append((tmp_path / f"{seed}.tar.gz").read_bytes())
    assert made[0] == made[1]
    done = subprocess.run([sys.executable, "run.py"], cwd=tmp_path / "1", capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == f"# {len(shown())} ok, 0 not ok, 0 skipped: reference"
