"""FDEs whose instructions cannot be read cost their own functions, in the file and in what check says of it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import sframegen
from sframegen import Severity, Verdict, add_section, read
from sframegen.elf.file import open_elf
from sframegen.elf.symbols import find_functions_named
from sframegen.format.words import Reason
from tests.support.peers import Compiler

# `damaged` has 65 remembered states; the others are as compilers make them.
SOURCE = """
    __asm__(".text; .globl damaged; .type damaged, @function; damaged: .cfi_startproc; "
            ".rept 65; .cfi_escape 0x0a; .endr; ret; .cfi_endproc; .size damaged, . - damaged");
    void damaged(void);
    int before(int n) { volatile int room[20] = {n}; return room[0]; }
    int main(int n, char **v) { damaged(); return before(n) - 1; }
"""
WHY = "more than 64 remembered states"


@pytest.fixture(scope="module")
def program(compile_c: Compiler) -> Path:
    return compile_c(SOURCE, "-O1", name="faulty")


def address_of(path: Path, name: bytes) -> int:
    return next(find_functions_named(open_elf(path), name)).address


def test_one_bad_fde_costs_its_function(program: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    summary = add_section(program, output=out)
    assert summary.left_out == {Reason.UNREADABLE.value: 1}
    assert (summary.functions - summary.functions_covered, summary.code_bytes - summary.covered_bytes) == (1, 1)
    damaged = address_of(program, b"damaged")
    [warning] = summary.warnings
    assert warning.startswith(f"1 FDE cannot be read, the code is left out: for {damaged:#x}, .eh_frame+0x")
    assert warning.endswith(WHY)
    assert read(out).rule_at(damaged) is None
    assert read(out).rule_at(address_of(program, b"before")) is not None
    assert subprocess.run([out], check=False).returncode == 0


def test_check_says_which_fde_it_is_and_holds_the_rest_against_the_section(program: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    add_section(program, output=out, verify=False)
    report = sframegen.check(out)
    [finding] = [finding for finding in report.findings if finding.rule == "cfi-fde"]
    assert (finding.severity, finding.address) == (Severity.NOTE, address_of(program, b"damaged"))
    assert finding.message.endswith(WHY)
    assert report.worst() is Severity.NOTE
    assert report.code[Verdict.WRONG] == report.code[Verdict.ABSENT] == 0
    assert report.code[Verdict.EQUAL] > 30


def test_a_rule_for_its_code_is_not_called_wrong(program: Path, tmp_path: Path) -> None:
    """The section was made when that FDE was whole: nothing is known now that it could contradict."""
    remembered, nothing = b"\x0a" * 65, bytes(65)
    path = tmp_path / "program"
    path.write_bytes(program.read_bytes().replace(remembered, nothing))
    assert add_section(path, verify=False).coverage == 100
    raw = path.read_bytes()
    at = program.read_bytes().index(remembered)
    path.write_bytes(raw[:at] + remembered + raw[at + 65 :])
    report = sframegen.check(path)
    assert report.worst() is Severity.NOTE
    assert report.code[Verdict.WRONG] == 0
    assert report.code[Verdict.UNDESCRIBED] >= 1
