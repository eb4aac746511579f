"""`sframegen table`: the file that it writes has the rules of its input, and nothing else is changed."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from sframegen.cli.commands import cli
from sframegen.elf.file import open_elf
from sframegen.profile.tables.make_table import make_table
from sframegen.profile.tables.table_file import stored, table_in
from tests.support.decoded_tables import find_rule
from tests.support.programs import SHAPES

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.peers import Compiler

WITHOUT_CFI = """
.globl f, g
.type f, %function
.type g, %function
f: push %rbx
 call g
 pop %rbx
 ret
.size f, . - f
g: ret
.size g, . - g
"""


def run(*words: object) -> tuple[int, str, str]:
    done = CliRunner().invoke(cli, ["table", *map(str, words)])
    assert done.exception is None or isinstance(done.exception, SystemExit)
    return done.exit_code, done.stdout, done.stderr


@pytest.fixture(scope="module")
def program(compile_c: Compiler) -> Path:
    return compile_c(SHAPES, "-O2", "-shared", "-fPIC", "-w")


def test_the_file_has_the_table(program: Path, tmp_path: Path) -> None:
    before = program.read_bytes()
    out = tmp_path / "out.table"
    status, said, errors = run(program, "-o", out)
    made = make_table(open_elf(program)).table
    assert made is not None
    assert (status, errors) == (0, "")
    assert out.read_bytes() == stored(made, 62)
    assert said.startswith(f"{out}: {made.rows:,} rows, {made.rules:,} rules, {out.stat().st_size:,} bytes, ")
    assert said.endswith(" a row, from its call frame information\n")
    assert program.read_bytes() == before


def test_from_a_section_it_is_the_same(program: Path, tmp_path: Path) -> None:
    CliRunner().invoke(cli, ["add-section", "-q", "--optimize", "none", str(program), "-o", str(tmp_path / "with")])
    status, said, _ = run("--json", tmp_path / "with", "-o", tmp_path / "one")
    assert (status, json.loads(said)["source"]) == (0, "its own section")
    assert run("-q", program, "-o", tmp_path / "other") == (0, "", "")
    one, other = (table_in(memoryview((tmp_path / name).read_bytes())) for name in ("one", "other"))
    addresses = range(one.base, one.base + 256 * one.pages)
    assert [find_rule(one, at) for at in addresses] == [find_rule(other, at) for at in addresses]


def test_code_without_cfi(compile_c: Compiler, tmp_path: Path) -> None:
    file = compile_c(WITHOUT_CFI, "-x", "assembler", "-shared", "-nostdlib")
    out = tmp_path / "out"
    status, said, errors = run(file, "-o", out)
    assert (status, said, out.exists()) == (1, "", False)
    assert errors == f"sframegen: {file}: no SFrame section and no call frame information that could be used\n"
    status, said, _ = run("--synthesize", "--json", file, "-o", out)
    assert status == 0
    assert "its instructions" in json.loads(said)["source"]


@pytest.mark.parametrize("name", ["file", "link", "second"])
def test_it_does_not_replace_its_input(name: str, program: Path, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(program.read_bytes())
    os.link(file, tmp_path / "second")
    (tmp_path / "link").symlink_to("file")
    status, _, errors = run(file, "-o", tmp_path / name)
    assert (status, errors.count("\n")) == (1, 1)
    assert "is FILE itself; give another name" in errors
    assert file.read_bytes() == program.read_bytes()


@pytest.mark.parametrize("content", [b"", b"no ELF file", b"\x7fELF" + bytes(60)])
def test_what_is_no_program_is_one_line(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(content)
    status, said, errors = run(tmp_path / "file", "-o", tmp_path / "out")
    assert (status, said, errors.count("\n")) == (1, "", 1)
    assert errors.startswith(f"sframegen: {tmp_path / 'file'}: ")
    assert not (tmp_path / "out").exists()


def test_an_output_that_cannot_be_written(program: Path, tmp_path: Path) -> None:
    status, _, errors = run(program, "-o", tmp_path / "nowhere/out")
    assert (status, errors) == (1, f"sframegen: {tmp_path / 'nowhere/out'}: No such file or directory\n")
    status, said, _ = run("--json", program, "-o", tmp_path)
    assert (status, list(json.loads(said))) == (1, ["file", "error"])
