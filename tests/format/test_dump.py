from __future__ import annotations

import json
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from sframegen.cli.commands import cli
from sframegen.cli.shared.section_text import dump_text
from sframegen.elf.file import open_elf
from sframegen.elf.records import PT
from sframegen.format.abi import ABIS, AMD64, Abi
from sframegen.format.decode import decode
from sframegen.format.encode import Encoder
from sframegen.format.layouts import WRITABLE, Layout
from sframegen.format.model import OUTERMOST, FdeType, FunctionTable, Kind, Rule, Where
from sframegen.format.words import encode_rule
from tests.support.inputs.sframe_files import write_sframe_elf
from tests.support.loops import for_each
from tests.support.peers import Compiler, Peers

PROGRAM = r"""
#include <alloca.h>
#include <stdio.h>
#include <stdlib.h>
int with_frame_pointer(int n) { char *p = alloca(n); sprintf(p, "%d", n); puts(p); return p[0]; }
int __attribute__((noinline)) big_frame(int n) { volatile char b[100000]; b[n] = n; return b[n / 2] + with_frame_pointer(n); }
int main(int argc, char **argv) { if (argc > 3) exit(2); return big_frame(argc) + printf("%d\n", atoi(argv[0])); }
"""

# Functions whose rows say what compilers rarely say: signal frame, undefined RA, offsets of all widths, negative offsets.
RARE = r"""
__asm__(
  ".macro begin name\n .globl \\name\n .type \\name,@function\n \\name:\n .cfi_startproc\n .endm\n"
  ".macro end name\n .cfi_endproc\n .size \\name, . - \\name\n .endm\n"
  "begin signal_frame\n .cfi_signal_frame\n nop\n .cfi_def_cfa_offset 128\n nop\n .cfi_undefined rip\n nop\n end signal_frame\n"
  "begin outermost\n .cfi_undefined rip\n nop\n end outermost\n"
  "begin drap\n nop\n .cfi_def_cfa r10, 0\n nop\n .cfi_escape 0x10,6,2,0x76,0\n nop\n .cfi_escape 0xf,3,0x76,0x78,6\n nop\n"
  " .cfi_def_cfa rsp, 8\n nop\n end drap\n"
  "begin moved\n nop\n .cfi_register rip, rdx\n nop\n .cfi_register rbp, r9\n nop\n end moved\n"
  "begin wide\n nop\n .cfi_def_cfa_offset 2147483647\n nop\n .cfi_def_cfa_offset -4\n nop\n .cfi_def_cfa_offset 70000\n"
  " .cfi_offset rbp, -40000\n nop\n .fill 70000, 1, 0x90\n .cfi_def_cfa rbp, 16\n nop\n end wide\n"
  "begin one_byte\n ret\n end one_byte\n");
"""

BUILDS = {
    "pie": (PROGRAM, ("-O2", "-fPIE", "-pie")),
    "no-pie": (PROGRAM, ("-O2", "-fno-pie", "-no-pie")),
    "static": (PROGRAM, ("-O2", "-static")),
    "shared": (PROGRAM, ("-O2", "-fPIC", "-shared")),
    "unoptimised": (PROGRAM, ("-O0", "-fno-omit-frame-pointer")),
    "no-cet": (PROGRAM, ("-O2", "-fcf-protection=none", "-Wl,-z,lazy")),
    "cet-plt": (PROGRAM, ("-O2", "-fcf-protection=full", "-Wl,-z,ibtplt", "-Wl,-z,lazy")),
    "stripped": (PROGRAM, ("-O2", "-s")),
    "rare": (PROGRAM + RARE, ("-O2",)),
}
SFRAME = ("-Wa,--gsframe",)


def built(compile_c: Compiler, build: str) -> Path:
    source, flags = BUILDS[build]
    return compile_c(source, *flags, *SFRAME, peer_binutils=True)


@pytest.fixture(scope="module")
def rare(compile_c: Compiler) -> Path:
    return built(compile_c, "rare")


@pytest.fixture(scope="module")
def readelf(peers: Peers) -> Callable[..., str]:
    def run(*files: Path) -> str:
        return subprocess.run([peers.tool("readelf"), "--sframe", *files], check=False, capture_output=True, text=True).stdout

    return run


def dump(*arguments: Any, status: int = 0) -> str:
    result = CliRunner().invoke(cli, ["dump", *map(str, arguments)])
    assert result.exit_code == status, result.output
    return result.stdout


def with_patch(file: Path, to: Path, offset: int, code: str, value: int) -> Path:
    """A copy with another number at this offset of its SFrame section."""
    data = bytearray(file.read_bytes())
    segment = next(s for s in open_elf(file).segments if s.p_type == PT.GNU_SFRAME)
    struct.pack_into("<" + code, data, segment.p_offset + offset, value)
    to.write_bytes(data)
    return to


@for_each("build", BUILDS)
def test_text_is_readelf_s(build: str, compile_c: Compiler, readelf: Callable[..., str]) -> None:
    program = built(compile_c, build)
    ours = dump(program)
    assert "func idx [0]" in ours
    assert ours.splitlines() == readelf(program).splitlines()


@for_each(
    "patch",
    [(3, "B", 0), (3, "B", 1), (8, "I", 0), (8, "I", 2), (12, "I", 3), (28, "q", -0x10000000)],
    ids=["no flags", "not pcrel", "no functions", "fewer functions", "row count", "below zero"],
)
def test_header_lines_follow_the_header(
    rare: Path, readelf: Callable[..., str], tmp_path: Path, patch: tuple[int, str, int]
) -> None:
    file = with_patch(rare, tmp_path / "patched", *patch)
    ours, theirs = (text.partition("func idx [0]") for text in (dump(file), readelf(file)))
    assert ours[0] == theirs[0]
    assert ours[2].partition("\n")[0] == theirs[2].partition("\n")[0]


def test_file_without_a_section(compile_c: Compiler, readelf: Callable[..., str]) -> None:
    plain = compile_c(PROGRAM, "-O2", "-Wl,-s")
    result = CliRunner().invoke(cli, ["dump", str(plain)])
    assert (result.exit_code, result.stdout) == (1, readelf(plain))
    assert result.stderr == f"sframegen: {plain}: no SFrame section\n"


def test_refused_files_do_not_stop_the_others(rare: Path, readelf: Callable[..., str], tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("not a program")
    damaged = with_patch(rare, tmp_path / "damaged", 0, "B", 1)
    result = CliRunner().invoke(cli, ["dump", str(text), str(tmp_path / "absent"), str(damaged), str(rare)])
    assert result.exit_code == 1
    assert result.stdout.endswith(readelf(rare))
    assert [line.split(": ")[1] for line in result.stderr.splitlines()] == [str(text), str(tmp_path / "absent"), str(damaged)]


def test_names_are_added_to_function_lines(rare: Path) -> None:
    plain, named = dump(rare).splitlines(), dump("--names", rare).splitlines()
    changed = [(before, after) for before, after in zip(plain, named, strict=True) if before != after]
    assert all(after.startswith(before + " <") and "func idx" in before for before, after in changed)
    names = [after.rpartition(" ")[2] for _, after in changed]
    assert {"<main>", "<big_frame>", "<with_frame_pointer>", "<signal_frame>", "<outermost>"} <= set(names)


def test_json_of_the_rare(rare: Path) -> None:
    functions = {function["name"]: function for function in json.loads(dump("--json", rare))[0]["functions"]}
    assert functions["signal_frame"]["signal"] is True
    assert functions["main"]["signal"] is False
    assert functions["outermost"]["rows"][0]["rule"] == "outermost frame: ra undefined"
    assert functions["outermost"]["rows"][0]["ra"] is None
    last = functions["wide"]["rows"][-1]
    assert last["rule"] == "(cfa, ra, fp) = (rbp + 16, *(cfa - 8), *(cfa - 40000))"
    assert last["cfa"] == {"base": "rbp", "offset": 16, "deref": False}
    assert last["fp"] == {"base": "cfa", "offset": -40000, "deref": True}
    assert [functions[name]["fde_type"] for name in ("drap", "moved", "main")] == ["FLEX", "FLEX", "DEFAULT"]
    assert [row["rule"] for row in functions["drap"]["rows"]] == [
        "(cfa, ra, fp) = (rsp + 8, *(cfa - 8), rbp)",
        "(cfa, ra, fp) = (r10, *(cfa - 8), rbp)",
        "(cfa, ra, fp) = (r10, *(cfa - 8), *(rbp))",
        "(cfa, ra, fp) = (*(rbp - 8), *(cfa - 8), *(rbp))",
        "(cfa, ra, fp) = (rsp + 8, *(cfa - 8), *(rbp))",
    ]
    assert functions["moved"]["rows"][-1]["ra"] == {"base": "rdx", "offset": 0, "deref": False}
    assert [row["address"] - functions["moved"]["start"] for row in functions["moved"]["rows"]] == [0, 1, 2]


def test_json_of_rows_that_repeat_has_no_addresses(compile_c: Compiler) -> None:
    functions = json.loads(dump("--json", built(compile_c, "no-cet")))[0]["functions"]
    assert {(row["address"] is None, function["pc_type"]) for function in functions for row in function["rows"]} == {
        (False, "INC"),
        (True, "MASK"),
    }


def test_json_is_a_list_with_the_refused_files(rare: Path, tmp_path: Path) -> None:
    absent = tmp_path / "absent"
    assert [document["file"] for document in json.loads(dump("--json", rare, rare))] == [str(rare), str(rare)]
    refused = {"file": str(absent), "error": f"{absent}: No such file or directory"}
    first, second = json.loads(dump("--json", absent, rare, status=1))
    assert (first, second["file"]) == (refused, str(rare))
    assert json.loads(dump("--json", absent, status=1)) == [refused]


def shapes(abi: Abi, layout: Layout, fde_type: FdeType) -> FunctionTable:
    """Functions of every kind, among them some without rows, with every kind of rule that an FDE of that type can say."""
    fixed = [Where(None, offset, deref=True) if offset else None for offset in (abi.fixed_ra_offset, abi.fixed_fp_offset)]
    registers, offsets = (abi.sp, abi.fp, 10, 20), (0, 8, -8, 4000, 1 << 20)
    cfas = [Where(register, abi.cfa_adjustment + n, deref) for register in registers for n in offsets for deref in (False, True)]
    places = [
        *(Where(None, n, deref=True) for n in (-16, 0, 300)),
        *(Where(register, n, deref) for register in registers for n in (0, -8) for deref in (False, True)),
        None,
    ]
    rules = [
        Rule(cfa, ra, fp, signed)
        for cfa in cfas
        for ra in {fixed[0], *places}
        for fp in {fixed[1], *places[:: 1 + (ra != fixed[0])]}
        for signed in ((False, True) if abi.ra_is_signed else (False,))
    ]
    rules = [OUTERMOST, *(rule for rule in rules if encode_rule(rule, fde_type, abi, layout) is not None)]
    kinds = [
        Kind(fde_type, rep_size, rep_size > 0, signal, key_b)
        for rep_size in (0, 16)
        for signal in ((False, True) if layout.signal else (False,))
        for key_b in (False, True)
    ]
    table = FunctionTable(rules=rules, kinds=kinds)
    for number, first in enumerate(range(0, len(rules), 9)):
        span = range(first, min(first + 9, len(rules))) if number % 5 else range(0)
        table.append(0x1000 + 64 * number, 60, number % len(kinds), [(rule - first, rule) for rule in span])
    return table


FORMS = [
    (abi, layout, fde_type)
    for abi in ABIS
    for layout in WRITABLE.values()
    for fde_type in (FdeType if layout.flex else (FdeType(0),))
]


@for_each(("abi", "layout", "fde_type"), FORMS, ids=lambda value: getattr(value, "name", getattr(value, "version", "")))
def test_every_shape_of_every_abi_and_version(
    abi: Abi, layout: Layout, fde_type: FdeType, readelf: Callable[..., str], tmp_path: Path
) -> None:
    section = bytes(Encoder(shapes(abi, layout, fde_type), abi, layout).encode(0x200000))
    file = write_sframe_elf(tmp_path / "file", section, abi, 0x200000)
    ours = dump(file)
    assert ours.splitlines() == readelf(file).splitlines()
    assert ('attr = "F"' in ours) == (fde_type is FdeType.FLEX)
    assert ('attr = "S' in ours) == layout.signal
    assert ("[s]" in ours, "pauth = B key" in ours) == (abi.ra_is_signed, abi.ra_is_signed)


def test_section_without_functions_is_a_header() -> None:
    header = struct.pack("<HBBBbbBIIIII", 0xDEE2, 3, 5, AMD64.sframe_id, 0, -8, 0, 0, 0, 0, 0, 0)
    assert "".join(dump_text(decode(header, 0x1000))).splitlines()[-3:] == ["    Num FREs: 0", "", "  Function Index :"]
