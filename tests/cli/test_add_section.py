from __future__ import annotations

import ctypes
import json
import shutil
import subprocess
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import sframegen
from sframegen.api.add_summary import Plan, Summary
from sframegen.elf.file import open_elf
from sframegen.elf.function_names import resolve_address
from sframegen.format.locate import find_sframe
from tests.support.commands import run as command
from tests.support.loops import for_each

if TYPE_CHECKING:
    from collections.abc import Callable

    from sframegen.format.layouts import FormatVersion
    from tests.support.peers import Compiler, Peers

run = partial(command, "add-section", "-j1")


def summary(file: str = "app", **fields: Any) -> Summary:
    numbers: dict[str, Any] = {
        "functions": 1234, "functions_covered": 1230, "code_bytes": 345678, "covered_bytes": 345600, "rows": 5678,
        "section_bytes": 40123, "eh_frame_bytes": 40000, "eh_frame_hdr_bytes": 8341, "cfi_sections": (".eh_frame", ".eh_frame_hdr"),
    }  # fmt: skip
    return Summary(file, **(numbers | fields))


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[str], Summary]], None]:
    return lambda answer: monkeypatch.setattr("sframegen.cli.add_section.add", lambda path, _options: answer(path))


def test_one_line_and_warnings_which_quiet_silences(calls: Any) -> None:
    calls(lambda path: summary(path, warnings=["other names of this file keep the old one"]))
    result = run("app")
    assert result.stdout == (
        "app: 1,234 functions, 99.97 % of 345,678 bytes with CFI covered, 5,678 rows; "
        ".sframe 40,123 bytes, 0.83 of .eh_frame + .eh_frame_hdr\n"
    )
    assert result.stderr == "sframegen: app: warning: other names of this file keep the old one\n"
    assert run("-q", "app").output == ""


NO_CFI = {"functions": 0, "code_bytes": 0, "covered_bytes": 0, "synthesized_functions": 3, "synthesized_bytes": 75}


@for_each(
    ("fields", "fates", "piece"),
    [
        ({"covered_bytes": 345677}, {}, " 99.99 % of "),
        ({"covered_bytes": 345678}, {}, " 100.00 % of "),
        (
            {"functions": 1, "rows": 1, "code_bytes": 1, "covered_bytes": 1},
            {},
            "app: 1 function, 100.00 % of 1 byte with CFI covered, 1 row; ",
        ),
        ({"eh_frame_bytes": 0, "eh_frame_hdr_bytes": 0}, {}, " .sframe 40,123 bytes\n"),
        ({"cfi_sections": (".debug_frame",)}, {}, ", 0.83 of .debug_frame\n"),
        ({"note": "no table"}, {}, " of .eh_frame + .eh_frame_hdr; no table\n"),
        (
            {},
            {"covered": {"default": 345600}, "left_out": {"why": 78}, "no_cfi": {"padding": 22, "code": 10_000_000}},
            "app: 1,234 functions, 99.97 % of 345,678 bytes with CFI covered, 3.34 % of 10,345,700 executable bytes, 5,678 rows; ",
        ),
        (
            NO_CFI,
            {"covered": {"default": 0}, "no_cfi": {"code": 25}, "synthesized": {"instructions": 75}},
            "app: no CFI, 75.00 % of 100 executable bytes covered, 5,678 rows; ",
        ),
        ({"synthesized_functions": 3, "synthesized_bytes": 75}, {}, "; 3 functions of 75 bytes synthesized\n"),
    ],
)
def test_one_line_in_other_cases(fields: dict[str, Any], fates: dict[str, dict[str, int]], piece: str) -> None:
    assert piece in summary(fates=fates, **fields).one_line() + "\n"


def test_coverage_that_is_demanded(calls: Any) -> None:
    for least, covered, status in (("99", 345600, 0), ("99.98", 345600, 1), ("100", 345678, 0), ("100", 345677, 1)):
        calls(lambda path, covered=covered: summary(path, covered_bytes=covered))
        result = run("--min-coverage", least, "app")
        assert (result.exit_code, len(result.stderr.splitlines())) == (status, status), least


FATES = {
    "covered": {"default": 345_000, "flex": 600, "outermost": 0, "signal": 0},
    "left_out": {"a rare rule": 8, "the usual": 70},
    "no_cfi": {"padding": 1022, "code": 300, "not code": 0},
}
DETAILS = [
    "  1,230 of 1,234 functions covered from start to end",
    "  347,000 executable bytes",
    "  345,000  99.42 %  covered: default",
    "      600   0.17 %  covered: flex",
    "       70   0.02 %  left out: the usual",
    "        8   0.00 %  left out: a rare rule",
    "    1,022   0.29 %  no CFI: padding",
    "      300   0.09 %  no CFI: code",
    "  ignored: 3 FDEs: duplicate",
    "  ignored: 1 FDE: empty",
    "  written: new",
]


def test_details_tell_the_fate_of_every_byte(calls: Any) -> None:
    calls(lambda path: summary(path, fates=FATES, ignored_fdes={"empty": 1, "duplicate": 3}, output="new"))
    assert (run("-v", "app").stdout.splitlines()[1:], len(run("app").stdout.splitlines())) == (DETAILS, 1)


def test_several_files_have_a_total(calls: Any) -> None:
    calls(lambda path: summary(path, fates=FATES if path == "one" else {"no_cfi": {"code": 12}, "left_out": {"a rare rule": 100}}))
    lines = run("-v", "one", "two").stdout.splitlines()
    assert lines[lines.index("all 2 files:") + 1 :] == [
        "  347,112 executable bytes",
        "  345,000  99.39 %  covered: default",
        "      600   0.17 %  covered: flex",
        "      108   0.03 %  left out: a rare rule",
        "       70   0.02 %  left out: the usual",
        "    1,022   0.29 %  no CFI: padding",
        "      312   0.09 %  no CFI: code",
    ]
    assert not [line for line in run("one", "two").stdout.splitlines() if line.startswith("all ")]
    assert run("-v", "-q", "one", "two").stdout == ""


@for_each("flags", ["-no-pie", "-pie", "-static", "-shared"])
@for_each("far", [True, False])
@for_each("version", [3, 2])
def test_a_file_whose_section_kernels_do_not_take(
    flags: str, far: bool, version: FormatVersion, compile_c: Compiler, tmp_path: Path
) -> None:
    """The warning is what check says of the result. Of programs and libraries alike; kernels read no version 2 anyhow."""
    source = '__attribute__((section(".far"))) int far(void) { return 1; } int main(void) { return far() - 1; }'
    file = compile_c(source, "-fPIC", flags, *(["-Wl,--section-start=.far=0x10000000"] if far else []))
    assert len(open_elf(file).executable_loads()) == 1 + far
    out = tmp_path / "out"
    warnings = sframegen.add_section(file, output=out, version=version).warnings
    findings = sframegen.check(out, consumer="kernel").findings
    found = [one for one in findings if one.severity is sframegen.Severity.ERROR and one.rule != "kernel-version"]
    assert tuple(finding.message for finding in found) == warnings
    assert [finding.rule for finding in found] == ["kernel-one-text"] * (far and version == 3)
    if flags == "-shared":
        assert ctypes.CDLL(str(out)).far() == 1
    else:
        subprocess.run([out], check=True)


def test_dry_run_prints_the_plan_and_json_has_everything(calls: Any) -> None:
    plan = ("file grows to 9", "moves: .interp")
    calls(lambda path: summary(path, plan=Plan(plan), fates=FATES))
    assert (run("--dry-run", "app").stdout.splitlines()[1:], len(run("app").stdout.splitlines())) == ([*plan], 1)
    [document] = json.loads(run("--json", "app").stdout)
    assert (document["plan"], document["fates"]) == ([*plan], FATES)
    assert set(document) == set(Summary.__dataclass_fields__)


PLAIN = '#include <stdio.h>\nint main(int argc, char **argv) { printf("%s %d\\n", argv[0], argc); return 0; }'


@pytest.fixture
def plain(compile_c: Compiler, tmp_path: Path) -> Path:
    return Path(shutil.copy2(compile_c(PLAIN, "-O2"), tmp_path / "plain"))


def section_size(file: Path) -> int:
    found = find_sframe(open_elf(file))
    assert found is not None
    return len(found[0])


def test_a_program_gets_its_section_in_place(plain: Path, peers: Peers) -> None:
    before = subprocess.run([plain], check=True, capture_output=True).stdout
    result = run("--min-coverage", "100", plain)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith(f"{plain}: ")
    assert subprocess.run([plain], check=True, capture_output=True).stdout == before
    theirs = subprocess.run([peers.tool("readelf"), "--sframe", plain], check=True, capture_output=True, text=True).stdout
    assert command("dump", plain).stdout == theirs
    assert "<main>: (cfa, ra, fp) = (rsp + 8, *(cfa - 8), rbp)" in command("lookup", plain, "main").stdout
    again = run(plain)
    assert (again.exit_code, again.stdout, again.stderr) == (0, result.stdout[:-1] + "; has it already\n", "")


def test_output_leaves_the_file_alone(plain: Path, tmp_path: Path) -> None:
    before = plain.read_bytes()
    assert run("--dry-run", plain).exit_code == 0
    assert [file.name for file in tmp_path.iterdir()] == ["plain"]
    [document] = json.loads(run("--json", "-o", tmp_path / "new", plain).stdout)
    assert (document["output"], document["section_bytes"]) == (str(tmp_path / "new"), section_size(tmp_path / "new"))
    assert run("-q", "--no-verify", "-o", tmp_path / "other", plain).output == ""
    assert (tmp_path / "other").read_bytes() == (tmp_path / "new").read_bytes()
    assert plain.read_bytes() == before


def test_without_call_frame_information_the_output_is_a_copy(compile_c: Compiler, tmp_path: Path) -> None:
    source = '__asm__(".globl _start\\n_start: mov $60, %eax\\n xor %edi, %edi\\n syscall\\n");'
    bare = compile_c(source, "-nostdlib", "-static", "-fno-asynchronous-unwind-tables", "-Wl,--build-id=none")
    result = run("-o", tmp_path / "new", bare)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == f"{bare}: nothing to add: no call frame information\n"
    assert (tmp_path / "new").read_bytes() == bare.read_bytes()
    for least, status in ("100", 1), ("0.1", 1), ("0", 0):
        result = run("--min-coverage", least, "-q", bare)
        assert (result.exit_code, result.output) == (status, f"sframegen: {bare}: --min-coverage: nothing was added\n" * status)


def test_a_debug_file_has_the_call_frame_information_of_a_stripped_file(compile_c: Compiler, tmp_path: Path) -> None:
    whole = compile_c(PLAIN, "-O2", "-g", "-fno-asynchronous-unwind-tables", "-Wl,--build-id")
    stripped, debug = tmp_path / "stripped", tmp_path / "debug"
    subprocess.run(["strip", "-o", stripped, whole], check=True)
    subprocess.run(["objcopy", "--only-keep-debug", whole, debug], check=True)
    main = resolve_address(open_elf(whole), "main")
    for options, described in ((), False), (("--debug-file", debug), True):
        assert run("--replace", *options, stripped).exit_code == 0
        assert (sframegen.read(stripped).rule_at(main) is not None) is described


def test_a_tree(plain: Path, tmp_path: Path) -> None:
    """Below a directory, as with add-tree: a refused file is a warning, which --min-coverage makes a failure."""
    refused, tree = tmp_path / "tree/refused", tmp_path / "tree"
    tree.mkdir()
    refused.write_bytes(plain.read_bytes()[:70])
    plain.rename(tree / "plain")
    result = run("--recursive", tree)
    assert result.exit_code == 0
    assert "1 file given a section" in result.stdout
    assert result.stderr.startswith(f"sframegen: warning: {refused}: ")
    assert section_size(tree / "plain")
    assert run("-q", "-r", "--min-coverage", "1", tree).stderr.startswith(f"sframegen: {refused}: ")
    refused.unlink()
    assert run("-q", "-r", "--min-coverage", "1", tree).exit_code == 0
    result = command("remove", "-r", tree)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith("1 file restored")
    for name in ("add-section", "remove"):
        result = command(name, "-r", tree / "plain")
        assert (result.exit_code, result.stdout) == (2, "")
