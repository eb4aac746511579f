"""What `read` gives people: names, registers, functions, tables; and what `read` and `check` take."""

from __future__ import annotations

import io
import mmap
import os
import re
import struct
from pathlib import Path
from typing import Any

import pytest

import sframegen
from sframegen.elf.file import open_elf
from tests.support.loops import for_each
from tests.support.peers import Compiler

SOURCE = """
int leaf(int x) { return x + 1; }
int caller(int x) { volatile char room[x]; room[0] = leaf(x); return room[0]; }
int main(void) { return caller(3) - 4; }
"""
SHT_SYMTAB, SH_OFFSET = 2, 24


@pytest.fixture
def program(compile_c: Compiler, tmp_path: Path) -> Path:
    file = tmp_path / "program"
    sframegen.add_section(compile_c(SOURCE, "-O1", "-fno-inline"), output=file)
    return file


def test_rules_are_found_by_name_as_by_address(program: Path) -> None:
    section = sframegen.read(program)
    start = section.address_of("caller")
    assert section.rule_at("caller") == section.rule_at(start) is not None
    assert section.rule_at("caller+0x1") == section.rule_at("caller+1") == section.rule_at(start + 1)
    assert section.rule_at("caller+1000000") is None


@pytest.mark.parametrize("name", ["nobody", "", "0x1139", "main+", "main-1", "main\x1b"])
def test_a_name_that_no_function_has_is_refused(program: Path, name: str) -> None:
    with pytest.raises(sframegen.FormatError, match=r"no function is named ") as caught:
        sframegen.read(program).rule_at(name)
    assert caught.value.file == str(program)
    assert "\x1b" not in str(caught.value)


def test_a_name_that_several_functions_have_is_refused(compile_c: Compiler, tmp_path: Path) -> None:
    """Each object may have a static function of that name."""
    other = compile_c("static int f(int x) { return x * 3; } int (*other)(int) = f;", "-c", name="other.o")
    program = compile_c("static int f(int x) { return x; } int (*one)(int) = f; int main(void) { return 0; }", str(other))
    sframegen.add_section(program, output=tmp_path / "with")
    with pytest.raises(sframegen.FormatError, match=r"2 functions are named f: 0x\w+, 0x\w+"):
        sframegen.read(tmp_path / "with").address_of("f")


def test_registers_have_names(program: Path) -> None:
    section = sframegen.read(program)
    rule = section.rule_at("leaf")
    assert rule is not None
    assert rule.cfa is not None
    assert section.base(rule.cfa) == section.abi.register_names[section.abi.sp]
    assert section.base(sframegen.Where(None, 0)) == "cfa"
    assert section.equation(rule).startswith(f"(cfa, ra, fp) = ({section.base(rule.cfa)}")


def test_functions_have_names_and_rows(program: Path) -> None:
    section = sframegen.read(program)
    found = list(section.functions())
    assert [(one.start, one.size) for one in found] == list(zip(section.table.start, section.table.size, strict=True))
    [caller] = [one for one in found if one.start <= section.address_of("caller") < one.start + one.size]
    for row in caller.rows:
        assert section.rule_at(caller.start + row.offset) == row.rule
    assert "leaf" in [one.name for one in found]


def contents(program: Path) -> dict[str, Any]:
    data = program.read_bytes()
    with program.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return {
        "str": str(program),
        "bytes": data,
        "bytearray": bytearray(data),
        "memoryview": memoryview(data),
        "mapped": memoryview(mapped),
        "stream": io.BytesIO(data),
    }


@pytest.mark.parametrize("kind", ["str", "bytes", "bytearray", "memoryview", "mapped", "stream"])
def test_content_is_read_as_a_file_is(program: Path, kind: str) -> None:
    section = sframegen.read(contents(program)[kind])
    assert section.data == sframegen.read(program).data
    assert section.address_of("main") == sframegen.read(program).address_of("main")
    assert sframegen.check(contents(program)[kind]).findings == sframegen.check(program).findings


def test_an_object_in_memory_is_checked(compile_c: Compiler, tmp_path: Path) -> None:
    file = tmp_path / "with.o"
    sframegen.add_section(compile_c("int f(int x) { return x + 1; }", "-c"), output=file)
    assert sframegen.check(file.read_bytes()).findings == sframegen.check(file).findings


@for_each("call", [sframegen.read, sframegen.check])
@for_each(
    ("given", "error", "why"),
    [
        (b"", sframegen.FormatError, "<bytes>: the file is empty"),
        (io.BytesIO(), sframegen.FormatError, "<file>: the file is empty, or was read to its end before"),
        (b"\x7fELF", sframegen.FormatError, "<bytes>: "),
        (io.StringIO("text"), TypeError, "<file> does not return bytes; open it in binary mode ('rb')"),
        (5, TypeError, "path is 5: give a path, bytes, or a file object"),
        (None, TypeError, "path is None: give a path, bytes, or a file object"),
    ],
)
def test_what_is_no_content_is_named(call: Any, given: Any, error: type[Exception], why: str) -> None:
    with pytest.raises(error, match=f"^{re.escape(why)}"):
        call(given)


def test_what_was_read_does_not_change_with_the_file(program: Path) -> None:
    """Neither the section nor the names: a file that becomes shorter while it is mapped would end this process."""
    section = sframegen.read(program)
    expected = sframegen.read(program).address_of("main")
    os.truncate(program, 1)
    assert section.address_of("main") == expected
    assert section.rule_at("main") is not None


def test_a_damaged_symbol_table_does_not_hide_the_section(program: Path) -> None:
    """It is named when a name is asked for."""
    elf = open_elf(program)
    [table] = [one.number for one in elf.sections if one.header.sh_type == SHT_SYMTAB]
    data = bytearray(program.read_bytes())
    struct.pack_into("<Q", data, elf.header.e_shoff + table * elf.header.e_shentsize + SH_OFFSET, 1 << 62)
    section = sframegen.read(data)
    assert section.rule_at(section.table.start[0]) is not None
    with pytest.raises(sframegen.FormatError, match=r"reach past the end of the file"):
        section.rule_at("main")
