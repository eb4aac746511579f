"""Rules at the limits of what SFrame can say: in an object, linked by GNU ld, read by GNU readelf and compared with the CFI."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import NamedTuple

import sframegen
from sframegen.format.layouts import FormatVersion
from sframegen.format.model import FdeType, Where
from sframegen.format.words import Reason
from sframegen.tables.levels import LevelName
from tests.support.inputs.cfi_programs import TARGETS
from tests.support.inputs.cfi_writer import sleb, uleb
from tests.support.loops import for_each
from tests.support.peers import Peers

# CFA = rsp + 8 + ((rip & 15) >= 11) * 8
BY_PC = ".cfi_escape 15,11,119,8,128,0,63,26,59,42,51,36,34"


class Linked(NamedTuple):
    """A file whose object has a section, and what was left out of that."""

    file: Path
    left_out: dict[str, int]
    readelf: str


def parts_left_out(summary: sframegen.Summary) -> dict[str, int]:
    return {fate: count for fate, count in summary.fates["left_out"].items() if count}


def linked(peers: Peers, target: str, directory: Path, *sources: str, version: FormatVersion = 3) -> Linked:
    """The library of objects that each have one source, in that order; the last one's object is given a section first."""
    tools = TARGETS[target]
    objects = []
    for number, source in enumerate(sources):
        (directory / str(number)).mkdir()
        objects.append(tools.assemble(peers, source, directory / str(number))[0])
    summary = sframegen.add_section(objects[-1], version=version)
    file = directory / "linked.so"
    command = [peers.tool(tools.prefix + "ld"), *tools.flags, "-shared", "-o", str(file), *map(str, objects)]
    subprocess.run(command, check=True, capture_output=True)
    done = subprocess.run([peers.tool(tools.prefix + "readelf"), "--sframe", str(file)], check=True, capture_output=True, text=True)
    return Linked(file, parts_left_out(summary), done.stdout)


def is_true(file: Path) -> bool:
    """No error by the specification, the consumers, and either reader of the CFI."""
    return sframegen.check(file, second_reader=True).worst() is not sframegen.Severity.ERROR


@for_each("before", [0, 1, 8, 16])
@for_each("align", [0, 1, 3, 4, 5])
@for_each("size", [4, 8, 11, 12, 16, 32, 40])
def test_a_rule_that_repeats_stands_only_where_the_linker_keeps_its_period(
    size: int, align: int, before: int, peers: Peers, tmp_path: Path
) -> None:
    """`align`: the exponent of the section's. GNU ld and readelf end at a row after the function's end."""
    code = f".text\n.p2align {align}\n.globl f\n.type f, @function\nf: .cfi_startproc\n{BY_PC}\n.skip {size}, 0x90\n.cfi_endproc\n"
    # Another function, so that the object has a section in any case.
    code += '.section .text.other, "ax"\n.p2align 4\n.cfi_startproc\nnop\n.cfi_endproc\n'
    done = linked(peers, "amd64", tmp_path, f".text\n.p2align 4\n.skip {before}, 0x90\n", code)
    assert done.left_out == ({} if align >= 4 else {Reason.CFA_EXPRESSION_UNALIGNED.value: size})
    assert is_true(done.file)
    assert done.readelf.count("STARTPC[m]") == (align >= 4)
    section = sframegen.read(done.file)
    for function, kind in enumerate(section.table.kind):
        if section.table.kinds[kind].mask:
            assert [offset for offset, _ in section.table.rows(function)] == [offset for offset in (0, 11) if offset < size]


def test_an_offset_in_an_aligned_section_must_be_aligned_too(peers: Peers, tmp_path: Path) -> None:
    source = f".text\n.p2align 4\n.skip 8, 0x90\n.cfi_startproc\nnop\n{BY_PC}\n.skip 32, 0x90\n.cfi_endproc\n"
    done = linked(peers, "amd64", tmp_path, source)
    assert done.left_out == {Reason.CFA_EXPRESSION_UNALIGNED.value: 32}
    assert is_true(done.file)


FP_AT_CFA = {
    "amd64": ".cfi_def_cfa_offset 24\n.cfi_offset 6, 0\n",
    "arm64": ".cfi_def_cfa_offset 16\n.cfi_offset 30, -8\n.cfi_offset 29, 0\n",
    "s390x": ".cfi_offset 14, -48\n.cfi_offset 11, 0\n",
}


def fp_at_cfa(target: str) -> str:
    nop = "nopr\nnopr" if target == "s390x" else "nop"
    return f".text\n.globl f\nf: .cfi_startproc\n{nop}\n{FP_AT_CFA[target]}{nop}\n.cfi_endproc\n"


@for_each("target", FP_AT_CFA)
def test_fp_at_the_cfa_itself(target: str, peers: Peers, tmp_path: Path) -> None:
    """The word 0 of a default FDE, which the kernel takes for an FP that is unchanged. Version 2 has no other words."""
    done = linked(peers, target, tmp_path, fp_at_cfa(target))
    assert done.left_out == {}
    table = sframegen.read(done.file).table
    at_cfa = [
        table.kinds[table.kind[function]].fde_type
        for function in range(len(table))
        if any(rule.fp == Where(None, 0, deref=True) for _, rule in table.rows(function))
    ]
    assert at_cfa == [FdeType.FLEX]
    assert re.search(r"\bc\+0\b", done.readelf)
    assert is_true(done.file)

    (tmp_path / "2").mkdir()
    file = TARGETS[target].link(peers, fp_at_cfa(target), tmp_path / "2")
    summary = sframegen.add_section(file, version=2)
    assert parts_left_out(summary) == {Reason.FLEX.value: summary.code_bytes // 2}
    assert is_true(file)


@for_each("target", ["amd64", "arm64"])
def test_check_knows_that_the_kernel_misreads_it(target: str, peers: Peers, tmp_path: Path) -> None:
    """GNU as writes the word 0; a section in place of its own has a flexible FDE."""
    file = TARGETS[target].link(peers, fp_at_cfa(target), tmp_path, "--gsframe")
    wrong = [one for one in sframegen.check(file).findings if one.severity is sframegen.Severity.ERROR]
    assert [one.rule for one in wrong] == ["kernel-fp-at-cfa"]
    assert sframegen.check(file, consumer="gnu").worst() is not sframegen.Severity.ERROR
    if target == "amd64":
        sframegen.add_section(file, replace=True)
        assert is_true(file)


OFFSETS = [1 << 31, 1 << 33, (1 << 33) + 160, (1 << 34) - 8, 1 << 35, 1 << 62, -(1 << 31) - 8, -(1 << 33), -(1 << 34), -(1 << 35)]
# DW_OP_breg of SP; the last offsets that 32 bits hold are in LAST.
LAST = [(1 << 31) - 8, -(1 << 31)]


@for_each("offset", [*OFFSETS, *LAST])
@for_each("form", ["breg", "bregx", "plus"])
@for_each("target", ["amd64", "arm64", "s390x"])
def test_offsets_beyond_32_bits_are_left_out(target: str, form: str, offset: int, peers: Peers, tmp_path: Path) -> None:
    tools = TARGETS[target]
    code = {
        "breg": [0x70 + tools.sp, *sleb(offset)],
        "bregx": [0x92, tools.sp, *sleb(offset)],
        "plus": [0x70 + tools.sp, 0, 0x10, *uleb(offset % (1 << 64)), 0x22],
    }[form]
    escape = ", ".join(map(str, [0x0F, len(code), *code]))
    size, nop = 4, ".long 0x07000700" if target == "s390x" else ".skip 4, 0x90"
    source = f".text\n.globl f\nf: .cfi_startproc\n{nop}\n.cfi_escape {escape}\n{nop}\n.cfi_endproc\n"
    done = linked(peers, target, tmp_path, source)
    assert done.left_out == ({} if offset in LAST else {Reason.OFFSET_RANGE.value: size})
    said = re.findall(r"\bsp\+(-?\d+)", done.readelf)
    assert said[1:] == ([str(offset)] if offset in LAST else [])
    assert is_true(done.file)


@for_each("register", [100, (1 << 31) - 1, (1 << 32) + 6, (1 << 64) - 1])
def test_a_register_that_is_none_is_no_other_one(register: int, peers: Peers, tmp_path: Path) -> None:
    """DW_OP_bregx in FP's rule; -1 stands for the CFA in sframegen."""
    code = [0x92, *uleb(register), *sleb(-16)]
    escape = ", ".join(map(str, [0x10, 6, len(code), *code]))
    source = f".text\n.globl f\nf: .cfi_startproc\nnop\n.cfi_escape {escape}\nnop\n.cfi_endproc\n"
    done = linked(peers, "amd64", tmp_path, source)
    assert done.left_out == {Reason.REGISTER.value: 1}
    assert is_true(done.file)


@for_each("level", ["none", "fast"])
def test_a_merge_says_it_in_words_that_the_kernel_reads(level: LevelName, peers: Peers, tmp_path: Path) -> None:
    made = TARGETS["amd64"].assemble(peers, fp_at_cfa("amd64"), tmp_path, "--gsframe")[0]
    bare, linker_map, merged = tmp_path / "bare.so", tmp_path / "map", tmp_path / "merged.so"
    subprocess.run([peers.tool("ld.lld"), "-shared", "--eh-frame-hdr", f"-Map={linker_map}", "-o", bare, made], check=True)
    subprocess.run([peers.tool("objcopy"), "--remove-section", ".sframe", bare], check=True)
    sframegen.merge([made], merged, executable=bare, map_file=linker_map, optimize=level)
    assert is_true(merged)
