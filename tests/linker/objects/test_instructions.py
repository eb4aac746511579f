"""check --instructions on objects: faults of hand-written CFI with their lines, and no fault where compilers wrote it."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from linker.objects import resolved_code
from sframegen import Severity, add_section, check
from tests.hostile.test_linear_cost import GROWTH, SLACK, work
from tests.support.cross import ARM64
from tests.support.peers import Compiler, Peers, needs_compiler


class Fault(NamedTuple):
    prefix: str  # of the cross compiler
    code: str  # lines of a function, between semicolons; the first instruction whose rule is wrong is marked
    says: str


FAULTS = {
    "a pop that nothing describes": Fault(
        "",
        """
            .cfi_startproc; push %rbx; .cfi_def_cfa_offset 16; call g; pop %rbx; ret # here; .cfi_endproc
        """,
        "the CFI says (cfa, ra, fp) = (rsp + 16, *(cfa - 8), rbp); the instructions say (cfa, ra, fp) = (rsp + 8, *(cfa - 8), rbp)",
    ),
    "a frame that is larger": Fault(
        ARM64.prefix,
        """
            .cfi_startproc; stp x29, x30, [sp, #-16]!; .cfi_def_cfa_offset 16; .cfi_offset 29, -16;
            .cfi_offset 30, -8; sub sp, sp, #32; .cfi_def_cfa_offset 32; bl g // here; add sp, sp, #32;
            .cfi_def_cfa_offset 16; ldp x29, x30, [sp], #16; .cfi_restore 29; .cfi_restore 30;
            .cfi_def_cfa_offset 0; ret; .cfi_endproc
        """,
        "the CFI says (cfa, ra, fp) = (sp + 32, *(cfa - 8), *(cfa - 16)); the instructions say (cfa, ra, fp) = (sp + 48",
    ),
}


def assembled(directory: Path, fault: Fault) -> tuple[Path, int]:
    needs_compiler(f"{fault.prefix}gcc")
    mark = "%" if fault.prefix else "@"
    lines = [
        "\t.text",
        "\t.globl f",
        f"\t.type f, {mark}function",
        "f:",
        *(f"\t{line.strip()}" for line in fault.code.split(";")),
        "\t.size f, .-f",
    ]
    source, made = directory / "file.s", directory / "file.o"
    source.write_text("\n".join(lines) + "\n")
    subprocess.run([f"{fault.prefix}gcc", "-g", "-c", "-o", made, source], check=True)
    return made, next(number for number, line in enumerate(lines, 1) if line.endswith("here"))


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("with_section", [False, True], ids=["CFI alone", "with a section"])
def test_a_fault_is_found_with_its_line(name: str, with_section: bool, tmp_path: Path) -> None:
    path, line = assembled(tmp_path, FAULTS[name])
    if with_section:
        add_section(path)
    errors = [one for one in check(path, instructions=True).findings if one.severity is Severity.ERROR]
    assert errors
    assert errors[0].message.startswith(f"file.s:{line}: f+0x")
    says = FAULTS[name].says
    assert (says.replace("the CFI says", "section and CFI say") if with_section else says) in errors[0].message
    assert any(one.text in ("call g", "bl #g") for one in errors[0].instructions)


COMPILED = """
    int g(int);
    void abort(void) __attribute__((noreturn));
    void fails(const char *, int) __attribute__((noreturn, cold));
    static int h(int n) { if (n > 3) abort(); return g(n) + 1; }
    int f(int n) {
        switch (n) {
            case 1: return g(1); case 2: return g(5) * h(n); case 3: return h(7); case 4: return g(9) + g(4); case 5: return 2;
        }
        if (n == 77) fails("seventy-seven", n);
        return h(n) + h(n + 1);
    }
    int (*pointed(void))(int) { return f; }
"""
BUILDS = ("-O0", "-O1", "-O2", "-Os", "-O2 -fno-plt", "-O2 -fPIC", "-O2 -ffunction-sections -freorder-blocks-and-partition")


@pytest.mark.parametrize("prefix", ["", ARM64.prefix], ids=["x86-64", "arm64"])
def test_nothing_is_found_in_what_a_compiler_wrote(prefix: str, peers: Peers, tmp_path: Path) -> None:
    compiler = Compiler(peers, tmp_path, prefix)
    for flags in BUILDS:
        report = check(compiler(COMPILED, *flags.split(), "-c", name="one.o"), instructions=True)
        counts = report.instructions["cfi"]
        assert not [one for one in report.findings if one.severity is Severity.ERROR], flags
        assert counts["contradicted"] == 0
        assert counts["right"] > 0.9 * sum(counts.values()), flags


def test_a_call_that_does_not_reach_is_not_judged(monkeypatch: pytest.MonkeyPatch, compile_c: Compiler) -> None:
    """A branch that keeps its zeros would lead to the next instruction: functions with one are left out."""
    one = compile_c(COMPILED, "-O2", "-c", name="one.o")
    before = check(one, instructions=True).instructions["cfi"]
    monkeypatch.setattr(resolved_code, "SECTION_GAP", 1 << 40)  # stubs are farther than a call reaches
    after = check(one, instructions=True).instructions["cfi"]
    assert 0 < after["right"] < before["right"]
    assert (after["contradicted"], sum(after.values())) == (0, sum(before.values()))


def test_objects_of_an_archive(compile_c: Compiler, tmp_path: Path) -> None:
    bad, line = assembled(tmp_path, FAULTS["a pop that nothing describes"])
    archive = tmp_path / "both.a"
    subprocess.run(["ar", "rc", archive, bad, compile_c(COMPILED, "-O2", "-c", name="good.o")], check=True)
    errors = [one.message for one in check(archive, instructions=True).findings if one.severity is Severity.ERROR]
    assert [message.startswith(f"file.o: file.s:{line}: f+0x") for message in errors] == [True]


# A unit of .debug_line, Version 5, up to the formats of its names: one instruction byte, a line range of 1, opcodes from 10 on.
LINES = "1: .long 9f-2f; 2: .short 5; .byte 8, 0; .long 8f-3f; 3: .byte 1, 1, 1, 0, 1, 10, 0, 1, 1, 1, 1, 0, 0, 0, 1;"
UNIT = """
    .section .debug_abbrev; .byte 1, 0x11, 0, 0x10, 0x17, 0, 0, 0;
    .section .debug_info; .long 6f-5f; 5: .short 4; .long 0; .byte 8, 1; .long 0; 6:
"""
HOSTILE_LINES = {
    "empty directories without end": LINES + ".byte 0; .uleb128 1 << 50; 8: .byte 0; 9:",
    "names of data without end": LINES + ".byte 0, 0, 1, 5, 11; .uleb128 1 << 50; 8: .byte 0; 9:",
    "a block that is longer than all": LINES + ".byte 0, 0, 1, 1, 9, 1; .uleb128 1 << 50; 8: .byte 0; 9:",
    "a range of zero lines": LINES.replace("1, 1, 1, 0, 1, 10", "1, 1, 1, 0, 0, 10") + ".byte 0, 0, 0, 0; 8: .byte 11; 9:",
    "a number without end": LINES + ".byte 0, 0, 0, 0; 8: .byte 2; .fill 100000, 1, 0x80; .byte 1; 9:",
    "a file that is none": LINES + ".byte 0, 0, 0, 0; 8: .byte 0, 9, 2; .quad f; .byte 4, 99, 1, 2, 40, 1; 9:",
    "a text without end": LINES + ".byte 0, 0, 1, 1, 8, 1; 8: .fill 1000, 1, 65; 9:",
    "nothing but a length": ".long 0xffffffff; .quad 0xffffffffffffffff",
}


@pytest.mark.parametrize("name", HOSTILE_LINES)
def test_hostile_lines_name_nothing(name: str, tmp_path: Path) -> None:
    source, made = tmp_path / "file.s", tmp_path / "file.o"
    code = FAULTS["a pop that nothing describes"].code.replace("# here", "")
    source.write_text(
        f".type f, @function; f: {code.strip()}; .size f, . - f; {UNIT} .section .debug_line; {HOSTILE_LINES[name]}\n"
    )
    subprocess.run(["gcc", "-c", "-o", made, source], check=True)
    errors = [one for one in check(made, instructions=True).findings if one.severity is Severity.ERROR]
    assert [one.message.startswith("f+0x") for one in errors] == [True]


def test_many_sections_cost_what_they_are(tmp_path: Path) -> None:
    body = ".cfi_startproc; push %rbx; .cfi_def_cfa_offset 16; call g; pop %rbx; .cfi_def_cfa_offset 8; ret; .cfi_endproc"

    def lines(count: int) -> int:
        text = "".join(
            f'.section .text.{n},"ax"; .type f{n}, @function; f{n}: {body}; .size f{n}, . - f{n}\n' for n in range(count)
        )
        subprocess.run(["gcc", "-c", "-o", made, "-x", "assembler", "-"], input=text, text=True, check=True)
        return work(run, b"")[0]

    def run(_: bytes) -> None:
        check(made, instructions=True)

    made = tmp_path / "many.o"
    before = lines(200)
    assert lines(200 * GROWTH) < SLACK * GROWTH * before
