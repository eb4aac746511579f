"""`sframegen check --instructions`: what CFI and section say wrongly is found where it is; what is right, or may be, is not."""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from click.testing import CliRunner

import sframegen
from sframegen import FormatError, Severity, Where
from sframegen.checks.contradictions import RIGHT, UNDECIDED, judge_rule
from sframegen.checks.tracks import Track, intersect_tracks, make_track, new_track
from sframegen.cli.commands import cli
from sframegen.code.isa.effects import CALLERS, FrameState
from sframegen.elf.file import open_elf
from sframegen.elf.symbols import sorted_functions
from sframegen.format.model import OUTERMOST, Rule
from tests.code.test_code import C_SOURCE, CXX_SOURCE
from tests.support.cross import ARM64, S390X
from tests.support.loops import for_each
from tests.support.peers import Compiler, Peers
from tests.support.programs import SHAPES

X86 = """
f: .cfi_startproc
 push %rbx; .cfi_adjust_cfa_offset 8; .cfi_offset rbx, -16
 push %rbp; .cfi_adjust_cfa_offset 8; .cfi_offset rbp, -24
 sub $24, %rsp; .cfi_adjust_cfa_offset 24
 mov $5, %ebp
 call g
 add $24, %rsp; .cfi_adjust_cfa_offset -24
 pop %rbp; .cfi_adjust_cfa_offset -8; .cfi_restore rbp
 pop %rbx; .cfi_adjust_cfa_offset -8
 ret; .cfi_endproc
 .size f, . - f
g: .cfi_startproc
 push %rbp; .cfi_adjust_cfa_offset 8; .cfi_offset rbp, -16
 mov %rsp, %rbp; .cfi_def_cfa_register rbp
 and $-64, %rsp
 sub $64, %rsp
 call h
 leave; .cfi_def_cfa rsp, 8
 ret; .cfi_endproc
 .size g, . - g
h: .cfi_startproc
 ret; .cfi_endproc
 .size h, . - h
"""
AARCH64 = """
f: .cfi_startproc
 paciasp; .cfi_negate_ra_state
 stp x29, x30, [sp, -32]!; .cfi_def_cfa_offset 32; .cfi_offset x29, -32; .cfi_offset x30, -24
 mov x29, sp
 bl g
 ldp x29, x30, [sp], 32; .cfi_restore x29; .cfi_restore x30; .cfi_def_cfa_offset 0
 autiasp; .cfi_negate_ra_state
 ret; .cfi_endproc
 .size f, . - f
g: .cfi_startproc
 ret; .cfi_endproc
 .size g, . - g
"""
HEAD = "\n.text\n.globl f, g, h\n.type f, %function\n.type g, %function\n.type h, %function\n"


class Fault(NamedTuple):
    """`old` becomes `new` in the assembly. Then `claim` is contradicted by `proof` in [start, end) of the function."""

    old: str
    new: str
    place: str
    size: int
    claim: str
    proof: str


ENTRY, PUSHED = "(rsp + 8, *(cfa - 8), rbp)", "(rsp + 16, *(cfa - 8), rbp)"
FAULTS = {
    "adjustment missing": Fault(
        "push %rbx; .cfi_adjust_cfa_offset 8; ", "push %rbx; ", "f+0x1", 22, ENTRY, PUSHED
    ),
    "adjustment late": Fault(
        ".cfi_adjust_cfa_offset 24\n mov $5, %ebp\n", "mov $5, %ebp\n .cfi_adjust_cfa_offset 24\n", "f+0x6", 5,
        "(rsp + 24, *(cfa - 8), *(cfa - 24))", "(rsp + 48, *(cfa - 8), *(cfa - 24))",
    ),
    "adjustment early": Fault(
        " pop %rbx; .cfi_adjust_cfa_offset -8\n", " .cfi_adjust_cfa_offset -8\n pop %rbx\n", "f+0x15", 1,
        "(rsp + 8, *(cfa - 8), rbp)", "(rsp + 16, *(cfa - 8), rbp)",
    ),
    "wrong amount": Fault(
        ".cfi_adjust_cfa_offset 24\n", ".cfi_adjust_cfa_offset 32\n", "f+0x6", 17,
        "(rsp + 56, *(cfa - 8), *(cfa - 24))", "(rsp + 48, *(cfa - 8), *(cfa - 24))",
    ),
    "wrong register": Fault(
        " .cfi_def_cfa_register rbp\n and $-64, %rsp\n", " and $-64, %rsp\n", "g+0x8", 13,
        "(rsp + 16, *(cfa - 8), *(cfa - 16))", "?",
    ),
    "register too early": Fault(
        " mov %rsp, %rbp; .cfi_def_cfa_register rbp\n", " .cfi_def_cfa_register rbp\n mov %rsp, %rbp\n", "g+0x1", 3,
        "(rbp + 16, *(cfa - 8), *(cfa - 16))", "(rsp + 16, *(cfa - 8), *(cfa - 16))",
    ),
    "fp not saved": Fault(
        " .cfi_offset rbp, -24\n", "", "f+0xb", 10, "(rsp + 48, *(cfa - 8), rbp)", "(rsp + 48, *(cfa - 8), *(cfa - 24))",
    ),
    "fp saved elsewhere": Fault(
        ".cfi_offset rbp, -16\n", ".cfi_offset rbp, -24\n", "g+0x1", 18,
        "(rsp + 16, *(cfa - 8), *(cfa - 24))", "(rsp + 16, *(cfa - 8), *(cfa - 16))",
    ),
}  # fmt: skip
UNDECIDABLE = {"wrong register"}  # realigned, the distance from rsp is unknown
AARCH64_FAULTS = {
    "adjustment missing": Fault(
        " .cfi_def_cfa_offset 32;", "", "f+0x8", 12,
        "(sp, *(cfa - 24) signed, *(cfa - 32))", "(sp + 32, *(cfa - 24) signed, *(cfa - 32))",
    ),
    "signature missing": Fault(
        " paciasp; .cfi_negate_ra_state\n", " paciasp\n", "f+0x4", 24, "(sp, x30, x29)", "(sp, x30 signed, x29)",
    ),
    "ra restored early": Fault(
        " mov x29, sp\n", " .cfi_restore x30\n mov x29, sp\n",
        "f+0x10", 4, "(sp + 32, x30 signed, *(cfa - 32))", "(sp + 32, *(cfa - 24) signed, *(cfa - 32))",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def library(compile_c: Compiler, peers: Peers, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    arm64 = ARM64.compiler(peers, tmp_path_factory.mktemp("arm64"))

    def build(source: str, *flags: str) -> Path:
        compiler = arm64 if "x30" in source else compile_c
        return compiler(HEAD + source, "-x", "assembler", "-shared", "-nostdlib", *flags)

    return build


def check(file: Path, *options: str) -> tuple[int, str]:
    done = CliRunner().invoke(cli, ["check", "--instructions", *options, str(file)])
    assert done.exception is None or isinstance(done.exception, SystemExit)
    return done.exit_code, done.output


def found(file: Path, who: str) -> list[tuple[str, int]]:
    """(rule, address) of what is contradicted."""
    report = sframegen.check(file, instructions=True)
    contradicted = sum(one["contradicted"] for one in report.instructions.values())
    findings = [(one.rule, one.address or 0) for one in report.findings if one.rule.startswith("instructions")]
    assert bool(contradicted) == bool(findings), who
    return findings


def with_section(file: Path, directory: Path) -> Path:
    sframegen.add_section(file, output=directory / "with", verify=False)
    return directory / "with"


@for_each("source", [X86, AARCH64], ids=["x86", "aarch64"])
def test_right_cfi(source: str, library: Callable[..., Path], tmp_path: Path) -> None:
    file = library(source)
    report = sframegen.check(file, instructions=True)
    assert report.instructions["cfi"]["contradicted"] == 0
    assert report.instructions["cfi"]["right"] > 25
    assert set(report.instructions["section"].values()) == {0}
    assert [(one.rule, one.severity) for one in report.findings] == [("no-sframe", Severity.NOTE)]
    both = sframegen.check(with_section(file, tmp_path), instructions=True)
    assert both.worst() is Severity.NOTE
    assert both.instructions["section"] == both.instructions["cfi"] == report.instructions["cfi"]
    right, _, undecided = report.instructions["cfi"].values()
    says = f"{right} right" + f", {undecided} undecided" * (undecided > 0)
    assert check(file) == (0, f"{file}: OK; CFI by the instructions: {says}\n")


CASES = [
    *((X86, name, fault) for name, fault in FAULTS.items()),
    *((AARCH64, name, fault) for name, fault in AARCH64_FAULTS.items()),
]


@for_each(("source", "name", "fault"), CASES, ids=[f"{'x86' if s == X86 else 'aarch64'} {n}" for s, n, _ in CASES])
def test_wrong_cfi(source: str, name: str, fault: Fault, library: Callable[..., Path], tmp_path: Path) -> None:
    assert source.count(fault.old) == 1
    file = library(source.replace(fault.old, fault.new))
    status, text = check(file)
    if name in UNDECIDABLE:
        assert (status, "contradicted" in text) == (0, False)
        return
    assert status == 1
    assert "contradicted" in text.splitlines()[0]
    says, proof = (f"(cfa, ra, fp) = {equation}" for equation in (fault.claim, fault.proof))
    line = next(line for line in text.splitlines() if f"{fault.place}, " in line)
    function, _, offset = fault.place.partition("+")
    address = next(one.address for one in sorted_functions(open_elf(file)) if one.name == function) + int(offset, 16)
    size = f"{fault.size} byte" + "s" * (fault.size != 1)
    assert (
        line
        == f"  error: instructions-cfi ({address:#x}): {fault.place}, {size}: the CFI says {says}; the instructions say {proof}"
    )
    listing = text.splitlines()[text.splitlines().index(line) + 1 :]
    assert any(one.startswith(f"    > {address:#x}  ") for one in listing[:4])

    _, text = check(file, "--json")
    [report] = json.loads(text)
    assert report["instructions"]["section"] == dict.fromkeys(("right", "contradicted", "undecided"), 0)
    assert report["instructions"]["cfi"]["contradicted"] >= fault.size
    finding = next(one for one in report["findings"] if one["address"] == address)
    assert (finding["rule"], finding["severity"]) == ("instructions-cfi", "error")
    (here,) = (one for one in finding["instructions"] if one["here"])
    assert here["address"] == address
    assert 1 < len(finding["instructions"]) <= 7

    assert ("instructions-both", address) in found(with_section(file, tmp_path), "both")


def test_section_wrong_and_cfi_right(library: Callable[..., Path], tmp_path: Path) -> None:
    """The section is made from CFI that is wrong; then the right one is put there."""
    fault = FAULTS["wrong amount"]
    right, wrong = library(X86), library(X86.replace(fault.old, fault.new))
    file = with_section(wrong, tmp_path)
    elf, other = open_elf(file), open_elf(right)
    place, good = elf.section(".eh_frame"), other.section(".eh_frame")
    assert place is not None
    assert good is not None
    assert place.header.sh_size == good.header.sh_size
    data = bytearray(file.read_bytes())
    data[place.header.sh_offset : place.header.sh_offset + place.header.sh_size] = other.contents(good)
    file.unlink()
    file.write_bytes(data)
    assert [rule for rule, _ in found(file, "section")] == ["instructions-section"]
    _, text = check(file)
    assert "the section says (cfa, ra, fp) = (rsp + 56, *(cfa - 8), *(cfa - 24)); the instructions say" in text
    assert "cfi-rule" in text


def test_functions_without_symbols(library: Callable[..., Path]) -> None:
    fault = FAULTS["adjustment late"]
    file = library(X86.replace(fault.old, fault.new).replace("f:", "inner:").replace(".size f, . - f", ""), "-s")
    findings = found(file, "stripped")
    assert len(findings) == 1
    _, text = check(file)
    assert ".text+0x6, 5 bytes" in text


FRAGMENT = """
f: .cfi_startproc
 sub $24, %rsp; .cfi_adjust_cfa_offset 24
 test %edi, %edi
 jne fragment
.Lback: add $24, %rsp; .cfi_adjust_cfa_offset -24
 ret
 .cfi_endproc
 .size f, . - f
.type fragment, %function
fragment: .cfi_startproc
 call h
 jmp .Lback
 .cfi_endproc
 .size fragment, . - fragment
g: .cfi_startproc
 call f
 ret
 .cfi_endproc
 .size g, . - g
h: .cfi_startproc
 ret
 .cfi_endproc
 .size h, . - h
"""
AARCH64_FRAGMENT = """
f: .cfi_startproc
 str x30, [sp, -16]!; .cfi_def_cfa_offset 16; .cfi_offset x30, -16
 cbnz x0, fragment
.Lback: ldr x30, [sp], 16; .cfi_restore x30; .cfi_def_cfa_offset 0
 ret; .cfi_endproc
.type fragment, %function
fragment: .cfi_startproc
 mov x0, 1
 b .Lback; .cfi_endproc
 .size fragment, . - fragment
g: .cfi_startproc
 str x30, [sp, -16]!; .cfi_def_cfa_offset 16; .cfi_offset x30, -16
 bl f
 ldr x30, [sp], 16; .cfi_restore x30; .cfi_def_cfa_offset 0
 ret; .cfi_endproc
"""


@for_each(
    ("source", "size", "claim", "proof"),
    [
        (FRAGMENT, 7, ENTRY, "(rsp + 32, *(cfa - 8), rbp)"),
        (FRAGMENT.replace(" jmp .Lback\n", " add $24, %rsp\n ret\n"), 9, ENTRY, "(rsp + 32, *(cfa - 8), rbp)"),
        (AARCH64_FRAGMENT, 8, "(sp, x30, x29)", "(sp + 16, *(cfa - 16), x29)"),
    ],
    ids=["jumps back", "returns", "aarch64"],
)
def test_fragment_described_as_a_function(source: str, size: int, claim: str, proof: str, library: Callable[..., Path]) -> None:
    """Compare LLVM issue 211392: BOLT gives the warm part of a function the rule of an entry."""
    status, text = check(library(source))
    assert (status, text.count("error:")) == (1, 1)
    says = f"the CFI says (cfa, ra, fp) = {claim}; the instructions say (cfa, ra, fp) = {proof}"
    assert f": fragment, {size} bytes: {says}\n" in text


FUNCTIONS_AFTER_ALL = {
    "it returns as functions do": (" jmp .Lback\n", " ret\n"),
    "it never returns": (" call h\n jmp .Lback\n", " call abort@plt\n"),
    "it is called": (" call f\n", " call f\n call fragment\n"),
    "its address is taken": (" call f\n", " call f\n lea fragment(%rip), %rax\n"),
    "data has its address": ("g: .cfi_startproc", ".data\n.quad fragment\n.text\ng: .cfi_startproc"),
    "it is jumped to as a function, too": (" call f\n ret\n", " call f\n jmp fragment\n"),
    "it jumps to where the frame is its own": (
        ".Lback: add $24, %rsp; .cfi_adjust_cfa_offset -24\n", " add $24, %rsp\n .cfi_adjust_cfa_offset -24\n.Lback: nop\n"
    ),
    "nothing shows that the code that jumps to it is a function": (" call f\n", " call h\n"),
}  # fmt: skip


@for_each("name", FUNCTIONS_AFTER_ALL)
def test_function_that_branches_lead_to(name: str, library: Callable[..., Path]) -> None:
    """A branch that is never taken may lead to any function."""
    old, new = FUNCTIONS_AFTER_ALL[name]
    assert FRAGMENT.count(old) == 1
    source = FRAGMENT.replace(old, new)
    if name.startswith("nothing"):
        source = source.replace(" ret\n .cfi_endproc\n .size f", " ud2\n .cfi_endproc\n .size f")
    assert found(library(source), name) == []


QUIET = {
    "a part of a function that others jump into, whose frame its first row tells": """
f: .cfi_startproc
 push %rbx; .cfi_adjust_cfa_offset 8
 test %edi, %edi
 jne .Lcold
 pop %rbx; .cfi_adjust_cfa_offset -8
 ret; .cfi_endproc
g: .cfi_startproc; .cfi_def_cfa_offset 16
.Lcold: pop %rbx; .cfi_adjust_cfa_offset -8
 ret; .cfi_endproc
""",
    "a landing pad behind a call that does not come back": """
f: .cfi_startproc
 push %rbx; .cfi_adjust_cfa_offset 8
 sub $16, %rsp; .cfi_adjust_cfa_offset 16
 call elsewhere@plt; .cfi_adjust_cfa_offset -16
 pop %rbx; .cfi_adjust_cfa_offset -8
 ret; .cfi_endproc
""",
    "the same, with padding between": """
f: .cfi_startproc
 push %rbx; .cfi_adjust_cfa_offset 8
 sub $16, %rsp; .cfi_adjust_cfa_offset 16
 call elsewhere@plt
 nopw 0(%rax,%rax); .cfi_adjust_cfa_offset -16
 pop %rbx; .cfi_adjust_cfa_offset -8
 ret; .cfi_endproc
""",
    "a landing pad at the begin of a part, behind a no-op": """
f: .cfi_startproc
 nop; .cfi_def_cfa_offset 16
 pop %rbx; .cfi_def_cfa_offset 8
 ret; .cfi_endproc
""",
    "what runs first in a process": """
f: .cfi_startproc; .cfi_undefined rip
 xor %ebp, %ebp
 push %rax
 call elsewhere@plt
 hlt; .cfi_endproc
""",
    "a CFA that another register keeps": """
f: .cfi_startproc
 mov %rsp, %r10; .cfi_def_cfa r10, 8
 and $-64, %rsp
 sub $64, %rsp
 mov %r10, %rsp; .cfi_def_cfa rsp, 8
 ret; .cfi_endproc
""",
    "fp in two places, in a part of the function": """
f: .cfi_startproc
 push %rbp; .cfi_adjust_cfa_offset 8; .cfi_offset rbp, -16
 push %rbp; .cfi_adjust_cfa_offset 8
 mov $1, %ebp
 test %edi, %edi
 jne .Lcold
 add $8, %rsp; .cfi_adjust_cfa_offset -8
 pop %rbp; .cfi_adjust_cfa_offset -8
 ret; .cfi_endproc
g: .cfi_startproc; .cfi_def_cfa_offset 24; .cfi_offset rbp, -16
.Lcold: xor %eax, %eax
 add $8, %rsp; .cfi_adjust_cfa_offset -8
 pop %rbp; .cfi_adjust_cfa_offset -8
 ret; .cfi_endproc
""",
    "padding that nothing reaches": """
f: .cfi_startproc
 push %rbx; .cfi_adjust_cfa_offset 8
 jmp 1f; .cfi_adjust_cfa_offset 8
 nop
 nop; .cfi_adjust_cfa_offset -8
1: pop %rbx; .cfi_adjust_cfa_offset -8
 ret; .cfi_endproc
""",
    "fp that comes back by another register": """
f: .cfi_startproc
 push %rbp; .cfi_adjust_cfa_offset 8; .cfi_offset rbp, -16
 lea (%rsp), %rsi
 mov $1, %ebp
 mov (%rsi), %rbp; .cfi_restore rbp
 mov %edi, %edi
 add $8, %rsp; .cfi_adjust_cfa_offset -8
 ret; .cfi_endproc
g: .cfi_startproc
 call f
 ret; .cfi_endproc
""",
    "a function that others enter in their own way, and that does not return": """
f: .cfi_startproc
 sub $8, %rsp; .cfi_def_cfa_offset 64
 call elsewhere@plt; .cfi_endproc
""",
    "a branch to what happens to stand next, in the midst": """
f: .cfi_startproc
 push %rbx; .cfi_adjust_cfa_offset 8
 cmp $3, %edi
 ja 2f
 lea table(%rip), %rdx
 movslq (%rdx,%rdi,4), %rax
 add %rdx, %rax
 notrack jmp *%rax
1: pop %rbx; .cfi_adjust_cfa_offset -8
 ret
2: .cfi_adjust_cfa_offset 48
 call elsewhere@plt; .cfi_endproc
 .section .rodata
table: .long 1b - table, 1b - table, 1b - table, 1b - table
 .text
""",
    "a branch to what happens to stand next, another function's part": """
f: .cfi_startproc
 push %rbx; .cfi_adjust_cfa_offset 8
 cmp $3, %edi
 ja g
 pop %rbx; .cfi_adjust_cfa_offset -8
 ret; .cfi_endproc
g: .cfi_startproc; .cfi_def_cfa_offset 48
 call elsewhere@plt; .cfi_endproc
""",
    "a stack that a system call exchanges": """
f: .cfi_startproc
 sub $8, %rsp; .cfi_adjust_cfa_offset 8
 mov $56, %eax
 syscall
 test %rax, %rax
 jne 1f
 pop %rax
 pop %rdi
 call *%rax
1: add $8, %rsp; .cfi_adjust_cfa_offset -8
 ret; .cfi_endproc
""",
    "the same on AArch64": """
f: .cfi_startproc
 str x30, [sp, -16]!; .cfi_def_cfa_offset 16; .cfi_offset x30, -16
 mov x8, 220
 svc 0
 cbnz x0, 1f
 ldp x1, x0, [sp], 16
 blr x1
1: ldr x30, [sp], 16; .cfi_restore x30; .cfi_def_cfa_offset 0
 ret; .cfi_endproc
""",
    "a function that does not return to where it came from": """
f: .cfi_startproc
 push %rbx; .cfi_adjust_cfa_offset 16
 ret; .cfi_endproc
""",
}


@for_each("name", QUIET)
def test_what_is_not_proven_is_no_contradiction(name: str, library: Callable[..., Path], tmp_path: Path) -> None:
    file = library(QUIET[name])
    assert found(file, name) == []
    assert found(with_section(file, tmp_path), name) == []


def test_no_ops_at_the_begin_of_a_function_do_not_hide_it(library: Callable[..., Path]) -> None:
    """As -fpatchable-function-entry puts them, for ftrace. What follows is proven, and wrong."""
    source = """
f: .cfi_startproc
 nop
 nop
 str x30, [sp, -16]!; .cfi_def_cfa_offset 32; .cfi_offset x30, -32
 bl elsewhere
 ldr x30, [sp], 16; .cfi_restore x30; .cfi_def_cfa_offset 0
 ret; .cfi_endproc
"""
    assert len(found(library(source), "f on AArch64")) == 1


BUILDS = ["-O0", "-O2 -fomit-frame-pointer", "-O3 -fno-omit-frame-pointer -fcf-protection -fstack-protector-all", "-Os"]
DECIDED = {"c": 0.8, "c++": 0.4}  # of small programs; landing pads are reached from nowhere


@for_each("flags", BUILDS)
@pytest.mark.parametrize("prefix", ["", ARM64.prefix])
@for_each(("language", "source"), [("c", C_SOURCE), ("c", SHAPES), ("c++", CXX_SOURCE)], ids=["c", "shapes", "c++"])
def test_compilers_are_right(
    language: str, source: str, prefix: str, flags: str, compile_c: Compiler, peers: Peers, tmp_path: Path
) -> None:
    if prefix:
        flags = flags.replace("-fcf-protection", "-mbranch-protection=standard")
    compiler = ARM64.compiler(peers, tmp_path) if prefix else compile_c
    file = compiler(source, "-x", language, "-shared", "-fPIC", "-w", *flags.split())
    report = sframegen.check(with_section(file, tmp_path), instructions=True)
    assert report.worst() in (None, Severity.NOTE)
    assert [one["contradicted"] for one in report.instructions.values()] == [0, 0]
    assert report.instructions["cfi"]["right"] > DECIDED[language] * sum(report.instructions["cfi"].values())


def test_synthesized_rows_are_held_too(compile_c: Compiler, tmp_path: Path) -> None:
    source = "f: push %rbx\n sub $16, %rsp\n call g\n add $16, %rsp\n pop %rbx\n ret\n.size f, . - f\n g: ret\n.size g, . - g\n"
    file = compile_c(HEAD + source, "-x", "assembler", "-shared", "-nostdlib", "-Wl,-Bsymbolic")
    out = tmp_path / "out"
    summary = sframegen.add_section(file, output=out, synthesize=True, verify=False)
    report = sframegen.check(out, instructions=True)
    assert summary.to_json()["synthesized_bytes"] == report.instructions["section"]["right"] > 10
    assert sum(report.instructions["cfi"].values()) == 0


def test_refused(peers: Peers, tmp_path: Path) -> None:
    file = S390X.compiler(peers, tmp_path)("int f(void) { return 1; }", "-shared", "-fPIC", "-nostdlib")
    status, text = check(file)
    assert status == 1
    assert "instructions of s390x are not read" in text
    assert len(text.splitlines()) == 1
    assert sframegen.check(file).instructions == {}
    with pytest.raises(FormatError, match="instructions of s390x"):
        sframegen.check(file, instructions=True)


def test_options(library: Callable[..., Path]) -> None:
    fault = FAULTS["adjustment late"]
    many = "".join(
        X86.replace(fault.old, fault.new).replace("f:", f"f{n}:").replace("g:", f"g{n}:").replace("h:", f"h{n}:")
        .replace("call g", f"call g{n}").replace("call h", f"call h{n}").replace(".size", "#")
        for n in range(12)
    )  # fmt: skip
    file = library(X86.replace(fault.old, fault.new) + many)
    status, text = check(file)
    assert status == 1
    shown = len(found(file, "options"))
    assert shown > 10
    assert text.count("error: instructions-cfi") == 10
    assert f"error: {shown - 10:,} more of instructions-cfi" in text
    assert check(file, "-v")[1].count("error: instructions-cfi") == shown
    assert "no-sframe" in check(file, "-v")[1]
    assert check(file, "-q", "--strict", "--consumer", "kernel")[0] == 1
    assert check(file, "-j", "2")[1] == text
    good = library(X86)
    assert check(good, "-q") == (0, "")
    assert check(good, str(file), "-j", "2") == (1, text + check(good)[1])


# -- parts

SP, FP = 7, 6
RA = Where(None, -8, deref=True)
FRAME = FrameState(sp=-16, ra=None, ra_at=-8)


@for_each(
    ("rule", "state", "expected"),
    [
        (Rule(Where(SP, 16), RA), FRAME, RIGHT),
        (Rule(Where(SP, 8), RA), FRAME, "CFA"),
        (Rule(Where(SP, 16), RA), FRAME._replace(sp=None), UNDECIDED),
        (Rule(Where(FP, 16), RA), FRAME, "CFA"),
        (Rule(Where(FP, 16), RA), FRAME._replace(fp=-16, fp_at=-16), "FP"),
        (Rule(Where(FP, 16), RA, Where(None, -16, deref=True)), FRAME._replace(fp=-16, fp_at=-16), RIGHT),
        (Rule(Where(FP, 16), RA), FRAME._replace(fp=None), UNDECIDED),
        (Rule(Where(SP, 16), RA, Where(None, -16, deref=True)), FRAME, UNDECIDED),
        (Rule(Where(SP, 16), RA, Where(None, -24, deref=True)), FRAME, "FP?"),
        (Rule(Where(SP, 16), RA, Where(None, -24, deref=True)), FRAME._replace(fp=None), UNDECIDED),
        (Rule(Where(SP, 16), RA, Where(None, -24, deref=True)), FRAME._replace(fp_at=-16), "FP?"),
        (Rule(Where(SP, 16), RA, Where(None, -24, deref=True)), FRAME._replace(fp_at=-24), RIGHT),
        (Rule(Where(SP, 16), RA, Where(3, 0)), FRAME, UNDECIDED),
        (Rule(Where(SP, 16), RA), FRAME._replace(fp=None, fp_at=-16), "FP?"),
        (Rule(Where(SP, 16), RA), FRAME._replace(fp=None), UNDECIDED),
        (Rule(Where(SP, 16, deref=True), RA), FRAME, UNDECIDED),
        (Rule(Where(10, 0), RA), FRAME, UNDECIDED),
        (OUTERMOST, FRAME, UNDECIDED),
    ],
)
def test_verdicts(rule: Rule, state: FrameState, expected: str) -> None:
    assert state.fp in (CALLERS, None, -16)
    assert judge_rule(rule, False, state, SP, FP) == expected


@for_each(
    ("signed", "rule_key", "state", "expected"),
    [
        (True, False, (True, False), RIGHT),
        (False, False, (True, False), "signature"),
        (True, False, (False, False), "signature"),
        (True, True, (True, False), "signature"),
        (True, True, (True, None), UNDECIDED),
        (True, False, (None, None), UNDECIDED),
        (False, True, (False, False), RIGHT),
    ],
)
def test_signatures(signed: bool, rule_key: bool, state: tuple[bool | None, bool | None], expected: str) -> None:
    rule = Rule(Where(31, 0), ra_signed=signed)
    assert judge_rule(rule, rule_key, FrameState(sp=0, signed=state[0], key_b=state[1]), 31, 29) == expected


def made_of(*spans: tuple[int, int, int]) -> Track:
    made = new_track()
    for span in spans:
        made.add(*span)
    return made


def test_tracks_meet() -> None:
    one, two = made_of((0, 4, 1), (6, 8, 2)), made_of((2, 7, 5), (20, 21, 6))
    assert list(intersect_tracks(one, two)) == [
        (0, 2, [1, -1]), (2, 4, [1, 5]), (4, 6, [-1, 5]), (6, 7, [2, 5]), (7, 8, [2, -1]), (20, 21, [-1, 6]),
    ]  # fmt: skip
    assert [two.claim_at(address) for address in (1, 2, 6, 7, 20, 21)] == [-1, 5, 5, -1, 6, -1]
    overlapping = (0, 4, 1), (2, 3, 2)
    cut = made_of((0, 2, 1), (2, 3, 2))
    assert made_of(*overlapping) == make_track(*(array("Q", column) for column in zip(*overlapping, strict=True))) == cut
