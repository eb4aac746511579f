"""Functions that end with a call: the padding after them has the call's rule, at every level, and counts as no code."""

from __future__ import annotations

import json
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import capstone
import pytest
from click.testing import CliRunner

from sframegen import Severity, add_section, check, read
from sframegen.cli.commands import cli
from sframegen.conversion.cfi_sections import find_sources
from sframegen.conversion.convert import convert_sources
from sframegen.conversion.coverage import Coverage
from sframegen.elf.file import open_elf
from sframegen.elf.records import EHDR_SIZE, EM, PF, PHDR_SIZE, PT
from sframegen.elf.symbols import find_functions_named
from sframegen.format.abi import abi_of
from sframegen.format.layouts import V3
from sframegen.tables.levels import LEVELS, LevelName
from tests.support.loops import for_each
from tests.support.peers import Peers

AFTER_CALL = "padding after a final call"

# By the prefix of the peers' tools: what ends a function, as a call and otherwise; a filler; how CFI differs from an entry's.
CALLS = {
    "": (
        "call f", "call . + 5", "notrack call *%rax", "call *%r12", "call *(%rax)", "call *(%rsp)", "call *(%r13)",
        "call *(%rax,%rbx,8)", "call *8(%rbp)", "call *8(%rsp)", "call *8(,%rbx,8)",
        "call *4096(%rax)", "call *4096(%rsp)", "call *f(%rip)", "call *4096",
    ),
    "aarch64-linux-gnu-": ("bl f", "blr x1", "blraa x1, x2", "blraaz x1", "blrab x1, x2", "blrabz x1"),
    "s390x-linux-gnu-": ("brasl %r14, f", "bras %r14, f", "basr %r14, %r1"),
}  # fmt: skip
OTHERS = {
    "": (
        *("ret", "jmp f", "jmp *%rax", "jmp *8(%rsp)", "ud2", "syscall", "lcall *(%rax)", "push (%rax)"),
        *("call . - 0x10000000", "call . + 0x10000000", "call . + 0x800005"),
    ),
    "aarch64-linux-gnu-": ("ret", "b f", "br x1", "braa x1, x2", "brk #1", "svc #0"),
    "s390x-linux-gnu-": ("br %r14", "jg f", "basr %r13, %r1", "svc 1"),
}
PREPARED = {"": "", "aarch64-linux-gnu-": ".arch armv8.3-a", "s390x-linux-gnu-": ""}
FILL = {"": "nop", "aarch64-linux-gnu-": "nop", "s390x-linux-gnu-": "nopr"}


def link(peers: Peers, directory: Path, source: str, prefix: str = "", flags: tuple[str, ...] = (), order: str = "") -> Path:
    text, made, linked = (directory / f"code{suffix}" for suffix in (".s", ".o", ".so"))
    text.write_text(source)
    options = [order] if order else []
    subprocess.run([peers.tool(prefix + "as"), *options, *flags, "-o", made, text], check=True)
    subprocess.run([peers.tool(prefix + "ld"), *options, "-shared", "-z", "separate-code", "-o", linked, made], check=True)
    return linked


def function(name: str, *body: str) -> str:
    """Its last instruction has a CFA of its own."""
    head = (f".globl {name}", f".type {name}, %function", f"{name}:", ".cfi_startproc")
    return "\n".join((*head, *body[:-1], ".cfi_def_cfa_offset 320", body[-1], ".cfi_endproc", ""))


def after(file: Path, name: str) -> int:
    """The address after the function."""
    [found] = find_functions_named(open_elf(file), name.encode())
    pieces = coverage_of(file).fde_ranges
    return pieces.end[list(pieces.start).index(found.address)]


def coverage_of(file: Path) -> Coverage:
    elf = open_elf(file)
    return convert_sources(find_sources(elf, None), elf.executable_ranges(), abi_of(elf), V3).coverage


@for_each("level", LEVELS)
@for_each(("prefix", "order"), [("", ""), ("aarch64-linux-gnu-", "-EL"), ("aarch64-linux-gnu-", "-EB"), ("s390x-linux-gnu-", "")])
def test_every_form_of_a_call_is_known(prefix: str, order: str, level: LevelName, peers: Peers, tmp_path: Path) -> None:
    """Padding after all else is not covered, or only because neighbours share an FDE."""
    fill = FILL[prefix]
    bodies = [*CALLS[prefix], *OTHERS[prefix]]
    functions = (f"{function(f'f{number}', fill, body)}{fill}\n{fill}\n.p2align 6\n" for number, body in enumerate(bodies))
    source = "\n".join([PREPARED[prefix], ".text", ".p2align 6", "f:", *functions])
    file = link(peers, tmp_path, source, prefix, order=order)
    out = tmp_path / level
    summary = add_section(file, output=out, optimize=level)
    assert (summary.final_calls, summary.final_calls_without_padding) == (len(CALLS[prefix]), 0)
    section = read(out)
    for number, body in enumerate(bodies):
        address = after(file, f"f{number}")
        rules = {section.rule_at(at) for at in range(address - 1, (address + 63) // 64 * 64)}
        if body in CALLS[prefix]:
            assert len(rules) == 1, body
            assert None not in rules, body
        elif level == "none":
            assert section.rule_at(address) is None, body


# What follows a function that ends with a call, and whether it is padding that gets the call's rule.
FOLLOWING = {
    "a no-op": ("nop", True),
    "forty no-ops": (".skip 40, 0x90", True),
    "traps": ("int3; int3", True),
    "zeros": (".skip 5", True),
    "the section's end": ('nop; nop; .section .other, "ax"; nop', True),
    "nothing": ("", False),
    "code": ("ud2", False),
    "code that may begin with no-ops": ("nop; nop; ud2", False),
    "no-ops that have a name": ("nop; named: nop", False),
    "no-ops that CFI describes": (".cfi_startproc; .cfi_undefined rbp; nop; nop; .cfi_endproc", False),
}


@for_each("level", LEVELS)
@for_each("what", FOLLOWING)
def test_only_padding_is_covered(what: str, level: LevelName, peers: Peers, tmp_path: Path) -> None:
    between, is_padding = FOLLOWING[what]
    source = f"{function('one', 'nop', 'call one')}{between}\n.text\n{function('two', 'ret')}"
    file, out = link(peers, tmp_path, source), tmp_path / level
    summary = add_section(file, output=out, optimize=level)
    assert (summary.final_calls, summary.final_calls_without_padding) == (1, 0 if is_padding else 1)
    address = after(file, "one")
    section = read(out)
    rule, call = section.rule_at(address), section.rule_at(address - 1)
    assert call is not None
    assert (rule == call) is (is_padding or what == "nothing")  # there it is the next function's


# Functions that end with a call before no-ops, and do not count: what comes before and after the call.
UNCOUNTED = {
    "the same FDE goes on with what cannot be said": ("", ".cfi_undefined rbp; nop; nop"),
    "rows that depend on the PC": (".cfi_escape 0x0f, 0x0b, 0x77, 8, 0x80, 0, 0x3f, 0x1a, 0x3b, 0x2a, 0x33, 0x24, 0x22", ""),
    "the call's row cannot be said": (".cfi_undefined rbp", ""),
}


@for_each("what", UNCOUNTED)
def test_functions_that_do_not_count(what: str, peers: Peers, tmp_path: Path) -> None:
    before, behind = UNCOUNTED[what]
    other = function("other", "nop", "ret")
    source = f".text\n{other}.p2align 4\none: .cfi_startproc\n{before}\ncall one\n{behind}\n.cfi_endproc\nnop\nnop"
    file = link(peers, tmp_path, source)
    start = coverage_of(file).fde_ranges.start[1]
    summary = add_section(file)
    assert (summary.final_calls, summary.fates["no_cfi"][AFTER_CALL]) == (0, 0)
    assert read(file).rule_at(start + 5) is None


# Two calls at the end, one of them followed by more padding than functions of one FDE may have between them, and one by a function.
SOURCE = "\n".join(
    (
        ".text",
        function("one", "nop", "call *%rax"),
        ".skip 40, 0x90",
        function("two", "nop", "call *%rax"),
        function("three", "push %rbx", "ret"),
        ".skip 5, 0xcc",
        function("four", "push %rbp", "ret"),
    )
)


@pytest.fixture
def file(peers: Peers, tmp_path: Path) -> Path:
    return link(peers, tmp_path, SOURCE)


@pytest.mark.parametrize("level", LEVELS)
def test_it_is_no_code_that_is_covered(level: LevelName, file: Path) -> None:
    arguments = ["add-section", "--optimize", level, "--min-coverage", "100"]
    done = CliRunner().invoke(cli, [*arguments, "--json", "--dry-run", str(file)])
    assert done.exit_code == 0
    [document] = json.loads(done.stdout)
    assert (document["final_calls"], document["final_calls_without_padding"]) == (2, 1)
    assert document["fates"]["no_cfi"] == {"padding": 5, AFTER_CALL: 40, "code": 0, "not code": 0}
    assert document["covered_bytes"] == document["code_bytes"] == sum(document["fates"]["covered"].values()) == 3 + 3 + 2 + 2
    lines = CliRunner().invoke(cli, [*arguments, "-v", str(file)]).stdout.splitlines()
    assert "  1 of 2 functions ending with a call: no padding after it that could have the call's rule" in lines
    assert [line.split()[0] for line in lines if line.endswith(AFTER_CALL)] == ["40"]


@pytest.mark.parametrize("level", LEVELS)
def test_it_is_good_to_check_and_a_second_time_nothing_happens(level: LevelName, file: Path, peers: Peers) -> None:
    """True if there is the undo record or, after strip, only the section; symbols or not."""
    add_section(file, optimize=level)
    findings = check(file, instructions=True).findings
    assert [finding for finding in findings if finding.severity is not Severity.NOTE or finding.rule.startswith("cfi-")] == []
    for _ in range(2):
        before = file.read_bytes()
        assert add_section(file, optimize=level).note == "has it already"
        assert file.read_bytes() == before
        subprocess.run([peers.tool("strip"), file], check=True)


@for_each("level", LEVELS)
def test_what_gnu_ld_makes_is_the_same_padding_apart(level: LevelName, peers: Peers, tmp_path: Path) -> None:
    file = link(peers, tmp_path, SOURCE, flags=("--gsframe",))
    assert read(file).rule_at(after(file, "one")) is None
    assert add_section(file, optimize=level).note == "has it already"
    assert add_section(file, optimize=level, replace=True).note == ""
    assert read(file).rule_at(after(file, "one")) is not None


@for_each("level", LEVELS)
def test_objects(level: LevelName, peers: Peers, tmp_path: Path) -> None:
    """Calls whose distance is left to a relocation; a section by GNU as differs in padding only, and stays."""
    source, made, other = tmp_path / "code.s", tmp_path / "made.o", tmp_path / "other.o"
    source.write_text(SOURCE.replace("call *%rax", "call elsewhere"))
    subprocess.run([peers.tool("as"), "-o", made, source], check=True)
    subprocess.run([peers.tool("as"), "--gsframe", "-o", other, source], check=True)
    archive = tmp_path / "both.a"
    subprocess.run([peers.tool("ar"), "rc", archive, made, other], check=True)
    before = other.read_bytes()
    assert add_section(other, optimize=level).note == "nothing to add"
    assert other.read_bytes() == before
    summary = add_section(made, optimize=level)
    assert (summary.final_calls, summary.final_calls_without_padding) == (2, 1)
    again = made.read_bytes()
    assert add_section(made).note == "nothing to add"
    assert made.read_bytes() == again
    linked = tmp_path / "linked.so"
    subprocess.run([peers.tool("ld"), "-shared", "-z", "lazy", "-o", linked, made], check=True)
    address = after(linked, "one")
    assert read(linked).rule_at(address) == read(linked).rule_at(address - 1) is not None
    assert add_section(archive, optimize=level).final_calls == 4
    subprocess.run([peers.tool("ar"), "x", archive, "other.o"], check=True, cwd=tmp_path)
    assert other.read_bytes() == before


def x86_64_calls(code: bytes) -> bool:
    decoder = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
    end, last = 0, ""
    for address, size, mnemonic, _ in decoder.disasm_lite(code, 0):
        end, last = address + size, mnemonic
    return end == len(code) and last.rpartition(" ")[2] == "call"


def aarch64_calls(code: bytes) -> bool:
    decoder = capstone.Cs(capstone.CS_ARCH_ARM64, capstone.CS_MODE_ARM)
    return any(mnemonic == "bl" or mnemonic.startswith("blr") for _, _, mnemonic, _ in decoder.disasm_lite(code[-4:], 0))


@pytest.mark.parametrize("name", ["bash", "libstdcxx", "libc", "arm64-bash"])
def test_real_files(name: str, corpus_file: Callable[[str], Path], tmp_path: Path) -> None:
    """Calls are known by decoding whole functions; add-section looks at their last bytes only."""
    path, out = corpus_file(name), tmp_path / "out"
    elf = open_elf(path)
    summary = add_section(path, dry_run=True)
    pieces = coverage_of(path).fde_ranges
    ends_with_call = x86_64_calls if elf.header.e_machine == EM.X86_64 else aarch64_calls
    after = [end for start, end in zip(pieces.start, pieces.end, strict=True) if ends_with_call(bytes(elf.at(start, end - start)))]
    adjoining = len(set(pieces.start).intersection(after))
    few = len(after) // 100  # other instructions that end like a call; no-ops before code that nothing describes
    assert len(after) <= summary.final_calls <= len(after) + few
    assert adjoining <= summary.final_calls_without_padding <= adjoining + few
    for level in LEVELS:
        add_section(path, output=out, optimize=level, verify=False)
        section = read(out)
        rules = [(section.rule_at(address), section.rule_at(address - 1)) for address in after]
        none = sum(rule is None for rule, _ in rules)
        assert sum(rule is not None and rule != call for rule, call in rules) <= adjoining
        assert none <= (0 if "-" not in name else few)
        out.unlink()


# Two executable segments: in memory one follows the other, and in the file something else is between them.
ADJACENT = """
PHDRS { data PT_LOAD FILEHDR PHDRS FLAGS(4); first PT_LOAD FLAGS(5); other PT_LOAD FLAGS(5); eh PT_GNU_EH_FRAME FLAGS(4); spare PT_NULL; }
SECTIONS {
  . = 0x400000 + SIZEOF_HEADERS;
  .eh_frame_hdr : { *(.eh_frame_hdr) } :data :eh
  .eh_frame : { *(.eh_frame) } :data
  . = ALIGN(0x1000);
  .text : { *(.text) } :first
  .other : { *(.other) } :other
  /DISCARD/ : { *(*) }
}
"""  # noqa: E501
NO_OPS, CODE = b"\x90" * 16, b"\x0f\x0b" * 8


@for_each("level", LEVELS)
@for_each("following", [NO_OPS, CODE, b""], ids=["no-ops", "code", "the end of the file"])
@for_each("there", [NO_OPS, CODE], ids=["no-ops there", "code there"])
def test_the_segment_that_follows_in_memory_is_another(
    there: bytes, following: bytes, level: LevelName, peers: Peers, tmp_path: Path
) -> None:
    """`following`: the bytes after the function in the file; `there`: those of the other segment."""
    source, script, made, linked = (tmp_path / name for name in ("code.s", "script", "code.o", "linked"))
    source.write_text(function("_start", "nop", "nop", "call _start") + '.section .other, "ax"\n.skip 16\n')
    script.write_text(ADJACENT)
    subprocess.run([peers.tool("as"), "-o", made, source], check=True)
    subprocess.run([peers.tool("ld"), "--eh-frame-hdr", "-T", script, "-o", linked, made], check=True)
    segments = open_elf(linked).segments
    first, other = (load for load in segments if load.p_type == PT.LOAD and load.p_flags & PF.X)
    end = first.p_vaddr + first.p_filesz
    assert other.p_vaddr == end
    at = first.p_offset + first.p_filesz
    headers = bytearray(linked.read_bytes()[:at])
    moved = at + len(following) if following else first.p_offset - len(there)
    if following:
        headers += following + there
    else:
        headers[moved : moved + len(there)] = there
    struct.pack_into("<Q", headers, EHDR_SIZE + PHDR_SIZE * segments.index(other) + 8, moved)
    struct.pack_into("<Q", headers, 40, 0)  # no section headers
    struct.pack_into("<HHH", headers, 58, 0, 0, 0)
    linked.write_bytes(headers)
    out = tmp_path / "out"
    summary = add_section(linked, output=out, optimize=level, min_kernel="5.18")
    assert (summary.final_calls, summary.final_calls_without_padding) == (1, 1)
    section = read(out)
    assert section.rule_at(end - 1) is not None
    assert section.rule_at(end) is None
    assert check(out, consumer="gnu").worst() is not Severity.ERROR
