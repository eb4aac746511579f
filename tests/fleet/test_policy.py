from __future__ import annotations

import csv
import json
import re
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from cfi.errors import FormatError
from sframegen.cli.commands import cli
from sframegen.fleet.coverage_gate import SHOWN, CoverageDemand, Gate
from sframegen.fleet.output_directory import OutputDirectory
from sframegen.fleet.package_work import work_on
from sframegen.fleet.policy import Patterns, Policy, policy_in
from sframegen.fleet.result_rows import FileRow, Outcome, PackageResult, PackageRow
from sframegen.fleet.run_options import RunOptions
from sframegen.fleet.sources.items import Item
from tests import ROOT
from tests.fleet.made_packages import programs, write_tar

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.peers import Compiler

pytestmark = pytest.mark.once


def row(path: str = "p", covered: int = 90, **others: object) -> FileRow:
    values = {"outcome": Outcome.ADDED, "machine": "x86-64", "executable_bytes": 100, "code_bytes": 100, "section_bytes": 1}
    return FileRow(**{"package": "a.deb", "package_sha256": "", "path": path, "covered_bytes": covered, **values, **others})  # type: ignore[arg-type]


def test_the_policy_of_the_documents() -> None:
    text = re.search(r"```toml\n(.*?)```", (ROOT / "docs/fleet.md").read_text(), re.DOTALL)
    assert text is not None
    policy = policy_in(text[1].encode())
    assert not policy.packages.fit("pool/main/x-dbg_1.deb")
    assert policy.packages.fit("pool/main/x_1.deb")
    assert [policy.files.fit(path) for path in ("usr/bin/x", "opt/x", "usr/lib/debug/x")] == [True, False, False]
    assert (policy.minimum, policy.machines) == (99.5, {"s390x": 95.0, "AArch64": 99.0})
    assert policy_in(b"") == Policy()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("x", "not TOML"),
        ("[package]\n", "unknown key package; known are packages, files, coverage"),
        ("[files]\nincludes = []\n", "unknown key files.includes"),
        ("files = 1", "files is not a table"),
        ("[files]\nexclude = 'x'\n", "files.exclude is not a list of patterns"),
        ("[coverage]\nminimum = 101\n", "coverage.minimum is not a number from 0 to 100"),
        ("[coverage]\nminimum = true\n", "coverage.minimum is not"),
        ("[coverage]\nmachines = { i386 = 1 }\n", "unknown key coverage.machines.i386"),
        ("a = " + "[" * 100_000, "not TOML"),
        ("#" * (1 << 20) + "#", "has more than"),
    ],
)
def test_what_is_no_policy(text: str, why: str) -> None:
    with pytest.raises(FormatError, match=re.escape(why)):
        policy_in(text.encode())


def test_a_wrong_policy_is_wrong_usage(tmp_path: Path) -> None:
    (tmp_path / "policy").write_text("[package]\n")
    for path in (tmp_path / "policy", tmp_path / "none"):
        done = CliRunner().invoke(cli, ["fleet", "run", str(tmp_path), "-o", str(tmp_path / "out"), "--policy", str(path)])
        assert done.exit_code == 2
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("demand", "given", "why"),
    [
        (CoverageDemand(minimum=90), row(), ""),
        (CoverageDemand(minimum=90.1), row(), "coverage: 90.0000 % is below 90.1 %"),
        (CoverageDemand(minimum=99, machines={"x86-64": 80}), row(), ""),
        (CoverageDemand(machines={"x86-64": 91}), row(), "coverage: 90.0000 % is below 91 %"),
        (CoverageDemand(machines={"s390x": 91}), row(), ""),
        (CoverageDemand(strict=True), row(), "10 bytes of code were left out"),
        (CoverageDemand(strict=True), row(covered=100), ""),
        (CoverageDemand(strict=True), row(section_bytes=0, reason="x"), "nothing was added: x"),
        (CoverageDemand(minimum=1), row(outcome=Outcome.NOTHING, code_bytes=0, covered=0), "coverage: 0.0000 % is below 1 %"),
        (CoverageDemand(minimum=1), row(outcome=Outcome.NOTHING, code_bytes=0, covered=0, executable_bytes=0), ""),
        (CoverageDemand(minimum=1), row(outcome=Outcome.REFUSED, code_bytes=0, covered=0), "coverage: 0.0000 % is below 1 %"),
        (CoverageDemand(minimum=100, strict=True), row(outcome=Outcome.EXCLUDED), ""),
    ],
)
def test_who_falls_short(demand: CoverageDemand, given: FileRow, why: str) -> None:
    assert demand.failure(given) == why


def test_the_gate_writes_a_table(tmp_path: Path) -> None:
    findings: list[str] = []
    result = PackageResult(PackageRow("a.deb", "a.deb"), [row(f"p{number}") for number in range(SHOWN + 5)] + [row(covered=100)])
    with OutputDirectory.opened(str(tmp_path / "out"), make=True) as output:
        with Gate(CoverageDemand(minimum=95), output, findings.append) as gate:
            gate.add(result)
        table = list(csv.DictReader((tmp_path / "out/short.csv").read_text().splitlines()))
        assert [one["path"] for one in table] == [f"p{number}" for number in range(SHOWN + 5)]
        assert (table[0]["coverage"], table[0]["machine"]) == ("90.0", "x86-64")
        assert findings[0] == "a.deb: p0: coverage: 90.0000 % is below 95 %"
        assert findings[SHOWN:] == [f"5 more files fall short: {tmp_path}/out/short.csv"]
        with Gate(CoverageDemand(), output, findings.append) as gate:
            gate.add(result)
        assert not (tmp_path / "out/short.csv").exists()
    assert len(findings) == SHOWN + 1


def test_excluded_files_are_rows_and_stay(tmp_path: Path, compile_c: Compiler) -> None:
    write_tar(tmp_path / "p.tar", dict(zip(("bin/a", "lib/b"), programs(compile_c, 2), strict=True)))
    options = RunOptions(files=Patterns(exclude=("lib/*",)))
    assert RunOptions.from_json(json.loads(json.dumps(options.to_json()))) == options
    assert options.key_of("x") != RunOptions().key_of("x")
    with OutputDirectory.opened(str(tmp_path / "out"), make=True) as output:
        result = output.read_result(work_on(Item("p.tar", str(tmp_path / "p.tar")), options, output).key)
    assert [(one.path, one.outcome) for one in result.files] == [("bin/a", "added"), ("lib/b", "excluded")]


@pytest.mark.full
def test_options_of_the_command(tmp_path: Path, compile_c: Compiler) -> None:
    pytest.importorskip("distributed")
    pytest.importorskip("pyarrow")
    without_cfi = ("-fno-asynchronous-unwind-tables", "-fno-unwind-tables", "-nostdlib", "-static", "-Wl,-e,main")
    program = compile_c("int f(void) { return 1; } int main(void) { return f(); }", *without_cfi).read_bytes()
    for name in ("a", "b-dbg"):
        write_tar(tmp_path / f"pool/{name}.tar", {"bin/p": program})
    command = ["fleet", "run", str(tmp_path / "pool"), "-o", str(tmp_path / "out"), "-j", "1", "--exclude", "*-dbg*"]
    assert CliRunner().invoke(cli, [*command, "--format", "2"]).exit_code == 0
    run = json.loads((tmp_path / "out/run.json").read_text())
    assert (run["packages"], run["packages_excluded"], run["options"]["version"]) == (1, 1, 2)
    done = CliRunner().invoke(cli, [*command, "--strict", "--optimize", "none"])
    assert done.exit_code == 1
    assert "a.tar: bin/p: nothing was added" in done.output
    assert CliRunner().invoke(cli, [*command, "--strict", "--synthesize"]).exit_code == 0
