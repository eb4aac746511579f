"""Go's table of functions and lines: each layout as a writer here makes it, damage, and real programs."""

from __future__ import annotations

import os
import random
import shutil
import struct
import subprocess
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import create_autospec

import pytest

from sframegen.base.errors import FormatError
from sframegen.elf.file import ElfFile, open_elf
from sframegen.elf.records import RECORDS, SHF, SHT, ByteOrder, Rela
from sframegen.stack.names import gopclntab
from sframegen.stack.names.file_names import FileNames
from sframegen.stack.names.gopclntab import GO_LAYOUTS, GoFrame, GoFunction, GoLayout, GoLine, GoTable, find_go_table
from tests.hostile.test_linear_cost import BODY, NAMES, elf_file, load, section, work
from tests.support.inputs.linker_inputs import without_sections
from tests.support.loops import for_each
from tests.support.peers import Compiler

TEXT = 0x401000
FILES = ("/src/main.go", "/src/inlined.go")


class Written(NamedTuple):
    """A function. `lines`: (bytes of code, number of the file, line); `stack`: (bytes of code, bytes of the stack)."""

    name: str
    size: int
    lines: tuple[tuple[int, int, int], ...]
    stack: tuple[tuple[int, int], ...] = ()


FUNCTIONS = (
    Written("main.main", 0x40, ((0x10, 0, 12), (0x20, 1, 3), (0x10, 0, 14)), ((4, 0), (0x2B, 24), (1, 0))),
    Written("main.(*Tree[...]).Insert", 0x20, ((0x20, 1, 90),)),
    Written("runtime.goexit", 0x10, ((0x10, 0, 1000),)),
)


def varint(value: int) -> bytes:
    out = b""
    while value >= 0x80:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def values(pairs: list[tuple[int, int]]) -> bytes:
    """Encode (bytes of code, value), a pair for each change."""
    out, before = b"", -1
    for size, value in pairs:
        change = value - before
        out += varint(2 * change if change >= 0 else -2 * change - 1) + varint(size)
        before = value
    return out + b"\0"


class Writer:
    def __init__(self) -> None:
        self.data = bytearray(b"\0")

    def add(self, part: bytes) -> int:
        at = len(self.data)
        self.data += part
        return at


def written(layout: GoLayout, order: ByteOrder = "little", text: int = TEXT) -> bytes:
    mark = "<" if order == "little" else ">"
    names, files, numbers = Writer(), Writer(), Writer()
    names_at = [names.add(one.name.encode() + b"\0") for one in FUNCTIONS]
    files_at = [files.add(path.encode() + b"\0") for path in FILES]
    values_at = [
        [
            numbers.add(values([*one.stack])) if one.stack else 0,
            numbers.add(values([(size, file) for size, file, _ in one.lines])),
            numbers.add(values([(size, line) for size, _, line in one.lines])),
        ]
        for one in FUNCTIONS
    ]
    header = struct.pack(f"{mark}IHBB", layout.magic, 0, 1, 8)
    words = 8 * 8
    parts, places = bytearray(), {}
    for name, data in (
        ("names", names.data),
        ("units", struct.pack(f"{mark}2I", *files_at)),
        ("files", files.data),
        ("values", numbers.data),
    ):
        parts += bytes(-len(parts) % 8)
        places[name] = 8 + words + len(parts)
        parts += data
    parts += bytes(-len(parts) % 8)
    table = 8 + words + len(parts)  # of the functions
    records, found, at = bytearray(), [], 0
    size = 4 * (2 * len(FUNCTIONS) + 1)
    for number, one in enumerate(FUNCTIONS):
        found += [at, size + len(records)]
        records += struct.pack(f"{mark}9I", at, names_at[number], 0, 0, *values_at[number], 0, 0)
        at += one.size
    found.append(at)
    fields = [len(FUNCTIONS), len(FILES), text, places["names"], places["units"], places["files"], places["values"], table]
    return header + struct.pack(f"{mark}8Q", *fields) + parts + struct.pack(f"{mark}{len(found)}I", *found) + records


@for_each("order", ["little", "big"])
@for_each("layout", GO_LAYOUTS, ids=[layout.since for layout in GO_LAYOUTS])
def test_each_layout(layout: GoLayout, order: ByteOrder) -> None:
    table = GoTable(memoryview(written(layout, order)), order)
    at, expected = TEXT, []
    for function in FUNCTIONS:
        expected.append(GoFunction(function.name, at, at + function.size))
        for size, file, line in function.lines:
            for address in (at, at + size - 1):
                assert table.line_at(address) == GoLine(FILES[file], line)
                assert table.function_at(address) == expected[-1]
            at += size
    assert [*table.functions()] == expected
    assert [*table.frames()] == [GoFrame("main.main", TEXT, TEXT + 0x30, ((0, 0), (4, 24), (0x2F, 0)), is_outermost=False)]
    for outside in (0, TEXT - 1, at, 1 << 63, (1 << 64) - 1):
        assert table.function_at(outside) is None
        assert table.line_at(outside) is None


def test_text_that_begins_elsewhere() -> None:
    table = GoTable(memoryview(written(GO_LAYOUTS[-1], text=0)), "little", 0x7000)
    assert table.function_at(0x7000) == GoFunction("main.main", 0x7000, 0x7040)


@for_each("layout", GO_LAYOUTS, ids=[layout.since for layout in GO_LAYOUTS])
def test_no_damage_raises_anything_else(layout: GoLayout) -> None:
    """Each byte changed in four ways, and the table cut at each."""
    original = written(layout)
    damaged = [original[:end] for end in range(len(original))]
    for at in range(len(original)):
        damaged += [original[:at] + bytes([value]) + original[at + 1 :] for value in (0, 0x7F, 0x80, 0xFF)]
    for data in damaged:
        try:
            table = GoTable(memoryview(data), "little")
        except FormatError:
            continue
        for address in (TEXT, TEXT + 0x20, TEXT + 0x65):
            table.function_at(address)
            table.line_at(address)
        assert all(frame.start < frame.end for frame in table.frames())
        assert all(start < end for start, end in table.outermost_ranges())


def first_record() -> tuple[bytearray, int, int]:
    """A table, and where in it the functions' part and the record of the first function begin."""
    data = bytearray(written(GO_LAYOUTS[-1]))
    (functions_part,) = struct.unpack_from("<Q", data, 8 + 7 * 8)
    return data, functions_part, functions_part + 4 * (2 * len(FUNCTIONS) + 1)


def test_functions_that_begin_a_stack() -> None:
    """A flag says that nothing called them; with the flag that SP is written they are the outermost, unless they end too early."""
    data, functions_part, record = first_record()
    for flags, expected in ((0, []), (1, []), (2, []), (7, [(TEXT, TEXT + 0x40)])):
        data[record + 4 + 37] = flags
        assert [*GoTable(memoryview(bytes(data) + bytes(64)), "little").outermost_ranges()] == expected
    data[record + 4 + 37] = 3
    struct.pack_into("<I", data, functions_part, 0x1000)
    table = GoTable(memoryview(bytes(data)), "little")
    assert not [*table.outermost_ranges()]
    assert not [*table.frames()]


def test_a_text_that_begins_below_zero() -> None:
    """A relocation may say so."""
    starts = [
        [frame.start for frame in GoTable(memoryview(written(GO_LAYOUTS[-1], text=0)), "little", start).frames()]
        for start in (-1, 1)
    ]
    assert starts[0] != starts[1]


def test_steps_without_sense_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else each of millions of functions could have a million of them."""
    good, bad = (values([(4, 0), (size, 24)])[:-1] for size in (0x2B, 0x41))
    data, _, record = first_record()
    assert good in data
    data, second = data.replace(good, bad), record + 36
    data[second + 16 : second + 20] = data[second + 24 : second + 28]  # the table of lines as that of SP: one step
    table = GoTable(memoryview(bytes(data)), "little")
    assert [frame.name for frame in table.frames()] == [FUNCTIONS[1].name]  # the table of the first goes on after the function
    monkeypatch.setattr(gopclntab, "MAX_ALL_STEPS", 2)
    assert not [*table.frames()]


def calls_of(method: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    counted = create_autospec(getattr(GoTable, method), side_effect=getattr(GoTable, method))
    monkeypatch.setattr(GoTable, method, counted)
    return counted


def test_line_tables_without_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """They never come to an address, and each begins within the one before: no address may cost all their steps again."""
    data, _, record = first_record()
    (values_part,) = struct.unpack_from("<Q", data, 8 + 6 * 8)
    for number in range(len(FUNCTIONS)):
        struct.pack_into("<2I", data, record + 36 * number + 20, *[len(data) - values_part + 2 * number] * 2)
    data += b"\x02\x00" * 1000
    calls = calls_of("_read_varint", monkeypatch)
    table = GoTable(memoryview(bytes(data)), "little")
    assert table.function_at(TEXT) is not None
    assert not any(map(table.line_at, range(TEXT, TEXT + 0x70)))
    assert calls.call_count < 2 * len(data)


def test_a_search_costs_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many headers share functions without names, and segments share all of them."""
    headers, functions = 100, 1000
    body = b"".join(
        struct.pack("<IHBB8Q", GO_LAYOUTS[-1].magic, 0, 1, 8, functions, 0, TEXT, 4, 0, 0, 0, 72 * number)
        for number in range(headers, 0, -1)
    )
    body += struct.pack(f"<{2 * functions}I", *(number for at in range(functions) for number in (16 * at, 8))) + bytes(64)
    file = elf_file(body + NAMES, [section(SHT.STRTAB, BODY + len(body), len(NAMES))], [load(0, BODY + len(body))] * 9)
    calls = calls_of("function_at", monkeypatch)
    assert find_go_table(ElfFile(memoryview(without_sections(file)))) is None
    assert 0 < calls.call_count <= gopclntab.MAX_CANDIDATES**2


def test_sections_that_share_relocations() -> None:
    """Which may say where text begins, in a table that does not: each is read once."""
    table = written(GO_LAYOUTS[-1], text=0)
    names = b"\0.gopclntab\0"
    rows = RECORDS[Rela, "little"].pack(8, 8, 5) * 1000
    at = BODY + len(table)
    sections = [section(SHT.PROGBITS, BODY, len(table), SHF.ALLOC, sh_name=1), *[section(SHT.RELA, at, len(rows))] * 1000]
    strings = section(SHT.STRTAB, at + len(rows), len(names))
    elf = ElfFile(memoryview(elf_file(table + rows + names, [strings, *sections])))

    def find(_: bytes) -> None:
        assert find_go_table(elf) is not None

    assert work(find, b"")[0] < len(elf.data)


@pytest.mark.dear
@pytest.mark.full
@pytest.mark.parametrize("flags", [(), ("-buildmode=pie",), ("-ldflags=-linkmode=external",)], ids=["", "pie", "external"])
def test_real_programs(flags: tuple[str, ...], go_cache: Path, tmp_path: Path) -> None:
    """Stripped programs have the names and lines that go's own tools find in the others."""
    go = shutil.which("go")
    if go is None:
        pytest.skip("no go on this machine")
    linked = "-linkmode=external " if "external" in "".join(flags) else ""
    others = [flag for flag in flags if "ldflags" not in flag]
    environment = dict(os.environ, GOFLAGS="-mod=mod", GOCACHE=str(go_cache))
    for name, strip in (("whole", ""), ("stripped", "-s -w")):
        command = [go, "build", *others, f"-ldflags={linked}{strip}", "-o", str(tmp_path / name), "cmd/gofmt"]
        if subprocess.run(command, check=False, env=environment, stderr=subprocess.DEVNULL).returncode:
            pytest.skip("go cannot build its own programs here")
    table = find_go_table(open_elf(tmp_path / "stripped"))
    assert table is not None
    functions = [*table.functions()]
    symbols = FileNames(open_elf(tmp_path / "whole"), demangled=False)
    for function in functions:
        name = (symbols.at(function.start).name or "").removesuffix(".abi0").removesuffix(".abiinternal")
        assert function.name == name or "[" in function.name or "eq." in function.name
    assert len(functions) > 2000
    if "-buildmode=pie" in flags:  # which go's addr2line does not read
        return
    draw = random.Random(1)
    addresses = [draw.randrange(function.start, function.end) for function in functions]
    asked = "".join(f"{address:#x}\n" for address in addresses)
    done = subprocess.run([go, "tool", "addr2line", tmp_path / "whole"], input=asked, text=True, check=True, capture_output=True)
    lines = done.stdout.splitlines()
    for address, name, place in zip(addresses, lines[::2], lines[1::2], strict=True):
        line = table.line_at(address)
        function_at = table.function_at(address)
        assert function_at is not None
        assert function_at.name == name
        assert place == f"{line.source}:{line.line}" if line else place.startswith(":-")


def test_other_programs_have_none(compile_c: Compiler) -> None:
    assert find_go_table(open_elf(compile_c("int main(void) { return 0; }"))) is None


def with_section(program: Path, data: bytes, name: str, tmp_path: Path) -> Path:
    (tmp_path / "table").write_bytes(data)
    out = tmp_path / "program"
    add = ["objcopy", "--add-section", f"{name}={tmp_path / 'table'}", "--set-section-flags", f"{name}=alloc,readonly"]
    subprocess.run([*add, "--strip-all", program, out], check=True, stderr=subprocess.DEVNULL)
    return out


@for_each("section", [".gopclntab", ".data.rel.ro.gopclntab"])
def test_names_of_a_stripped_file_come_from_it(section: str, compile_c: Compiler, tmp_path: Path) -> None:
    program = with_section(compile_c("int main(void) { return 0; }"), written(GO_LAYOUTS[-1]), section, tmp_path)
    assert FileNames(open_elf(program)).at(TEXT + 0x45)[:] == ("main.(*Tree[...]).Insert", TEXT + 0x40)
    damaged = with_section(compile_c("int main(void) { return 0; }"), b"\xf1\xff\xff\xff" + bytes(100), section, tmp_path)
    assert FileNames(open_elf(damaged)).at(TEXT).name is None
