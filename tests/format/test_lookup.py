from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from sframegen.cli.commands import cli
from sframegen.elf.file import open_elf
from sframegen.elf.function_names import FunctionNames
from sframegen.elf.symbols import last_functions_before, read_functions, sorted_functions
from sframegen.format.abi import AARCH64, AMD64, S390X, Abi
from sframegen.format.encode import Encoder
from sframegen.format.equations import equation, rule_fields
from sframegen.format.model import OUTERMOST, FunctionTable, Kind, Rule, Where
from tests.support.inputs.sframe_files import write_sframe_elf
from tests.support.loops import for_each
from tests.support.peers import Compiler

SOURCE = r"""
#include <stdio.h>
#include <stdlib.h>
int __attribute__((noinline)) add(int a, int b) { return a + b; }
int __attribute__((noinline)) calls(int n) { return printf("%d\n", n) + add(n, 1); }
int main(int argc, char **argv) { return calls(argc) + atoi(argv[0]); }
__asm__(".type outermost,@function\n outermost:\n .cfi_startproc\n .cfi_undefined rip\n nop\n .cfi_endproc\n"
        ".size outermost, 1\n nop\n nop\n");
"""
SP, FP = AMD64.sp, AMD64.fp


def saved(offset: int) -> Where:
    return Where(None, offset, deref=True)


@for_each(
    ("rule", "text", "abi"),
    [
        (Rule(Where(SP, 16), saved(-8), saved(-16)), "(cfa, ra, fp) = (rsp + 16, *(cfa - 8), *(cfa - 16))", AMD64),
        (Rule(Where(FP, 16), saved(-8), None), "(cfa, ra, fp) = (rbp + 16, *(cfa - 8), rbp)", AMD64),
        (Rule(Where(SP, -4), saved(-8), saved(0)), "(cfa, ra, fp) = (rsp - 4, *(cfa - 8), *(cfa))", AMD64),
        (Rule(Where(10, 0), saved(-8), Where(FP, 0, deref=True)), "(cfa, ra, fp) = (r10, *(cfa - 8), *(rbp))", AMD64),
        (Rule(Where(FP, -16, deref=True), Where(1, 0), Where(9, 8)), "(cfa, ra, fp) = (*(rbp - 16), rdx, r9 + 8)", AMD64),
        (Rule(Where(SP, 8), None, None), "(cfa, ra, fp) = (rsp + 8, rip, rbp)", AMD64),
        (Rule(Where(40, 8), saved(-8), None), "(cfa, ra, fp) = (register 40 + 8, *(cfa - 8), rbp)", AMD64),
        (Rule(Where(SP, 8), saved(-8), None, ra_signed=True), "(cfa, ra, fp) = (rsp + 8, *(cfa - 8) signed, rbp)", AMD64),
        (OUTERMOST, "outermost frame: ra undefined", AMD64),
        (Rule(Where(31, 0), None, None, ra_signed=True), "(cfa, ra, fp) = (sp, x30 signed, x29)", AARCH64),
        (Rule(Where(15, 160), None, None), "(cfa, ra, fp) = (r15 + 160, r14, r11)", S390X),
        (Rule(Where(11, 320), Where(17, 0), Where(16, 0)), "(cfa, ra, fp) = (r11 + 320, f2, f0)", S390X),
    ],
)
def test_equation(rule: Rule, text: str, abi: Abi) -> None:
    assert equation(rule, abi) == text
    assert rule_fields(rule, abi)["rule"] == text


def test_rule_fields_are_the_rule_in_parts() -> None:
    assert rule_fields(Rule(Where(SP, 16), saved(-8), None), AMD64) == {
        "rule": "(cfa, ra, fp) = (rsp + 16, *(cfa - 8), rbp)",
        "cfa": {"base": "rsp", "offset": 16, "deref": False},
        "ra": {"base": "cfa", "offset": -8, "deref": True},
        "fp": None,
        "ra_signed": False,
    }


@pytest.fixture(scope="module")
def program(compile_c: Compiler) -> Path:
    return compile_c(SOURCE, "-O2", "-Wa,--gsframe", peer_binutils=True)


def lookup(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["lookup", *map(str, arguments)])


def address_of(program: Path, name: str) -> int:
    return next(symbol.address for symbol in read_functions(open_elf(program)) if symbol.name == name)


def test_every_spelling_of_an_address(program: Path) -> None:
    calls = address_of(program, "calls")
    spellings = ["calls", f"{calls:x}", f"{calls:#x}", f"0X{calls:X}", f"{calls:016x}", "calls+0", "calls+0x0"]
    result = lookup(program, *spellings)
    assert result.exit_code == 0
    assert set(result.stdout.splitlines()) == {f"{calls:#x} <calls>: (cfa, ra, fp) = (rsp + 8, *(cfa - 8), rbp)"}
    assert len(result.stdout.splitlines()) == len(spellings)


def test_offsets_are_decimal_or_marked_hexadecimal(program: Path) -> None:
    main = address_of(program, "main")
    lines = lookup(program, "main+10", "main+0x10").stdout.splitlines()
    assert [line.split(":")[0] for line in lines] == [f"{main + 10:#x} <main+0xa>", f"{main + 16:#x} <main+0x10>"]


def test_a_name_that_is_also_a_number_is_the_name(program: Path) -> None:
    add = address_of(program, "add")
    assert lookup(program, "add").stdout.startswith(f"{add:#x} <add>: ")
    assert lookup(program, "0xadd").stdout.startswith("0xadd: ")
    assert lookup(program, "abba").stdout.startswith("0xabba: ")


def test_address_without_a_rule_is_a_finding(program: Path) -> None:
    result = lookup(program, "main", "0x1", "calls")
    assert result.exit_code == 1
    assert [line.partition(": ")[2][:5] for line in result.stdout.splitlines()] == ["(cfa,", "not c", "(cfa,"]
    assert result.stdout.splitlines()[1] == "0x1: not covered by the SFrame section"


@for_each("text", ["nosuch", "main+", "main+zz", "+5", "", "0x", "-5", "12345678901234567", "main+99999999999999999999"])
def test_what_is_no_address_is_a_finding(program: Path, text: str) -> None:
    result = lookup(program, "--", text, "main")
    assert result.exit_code == 1
    assert len(result.stdout.splitlines() + result.stderr.splitlines()) == 2
    assert " <main>: " in result.stdout.splitlines()[-1]


def test_functions_that_do_not_ascend_are_refused_once(tmp_path: Path) -> None:
    table = FunctionTable(kinds=[Kind()], rules=[Rule(Where(SP, 8), saved(-8))])
    for start in (0x1040, 0x1000):
        table.append(start, 16, 0, [(0, 0)])
    file = write_sframe_elf(tmp_path / "file", bytes(Encoder(table, AMD64).encode(0x2000)), AMD64, 0x2000)
    result = lookup(file, "1000", "1040")
    assert (result.exit_code, result.stdout) == (1, "")
    message = "functions are not in ascending order of address: unwinders cannot search this section"
    assert result.stderr == f"sframegen: {file}: .sframe: {message}\n"


def test_names_of_a_few_addresses_are_those_of_all(program: Path) -> None:
    elf = open_elf(program)
    symbols = sorted_functions(elf)
    names = FunctionNames(symbols)
    places = sorted({symbol.address + near for symbol in symbols for near in (-1, 0, 1, symbol.size, 1 << 40)})
    assert {names.at(place) for place in places} > {"main", "main+0x1", "add", None}
    for wanted in (places, places[::-7], *([place] for place in places)):
        few = FunctionNames(last_functions_before(elf, wanted))
        assert [few.at(place) for place in wanted] == [names.at(place) for place in wanted]
    assert last_functions_before(elf, []) == last_functions_before(elf, [0]) == []
