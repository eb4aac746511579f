"""At every instruction of a program without call frame information, its section says what the caller's frame is.

The judge is the stack itself: what the calls and returns so far imply. Walks of whole stacks are tried in tests/backtrace.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

import sframegen
from sframegen.elf.file import open_elf
from sframegen.elf.symbols import find_functions_named
from sframegen.format.model import FdeType, Rule
from tests.support.loops import for_each
from tests.support.peers import Compiler
from tests.support.processes.single_step import Step, Traced

pytestmark = [pytest.mark.full, pytest.mark.skipif(os.uname().machine != "x86_64", reason="the assembly is x86-64's")]

# Functions that realign the stack, much of the C library, and rules that compilers seldom make, or never.
SOURCE = r"""
#include <alloca.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#define APART __attribute__((noipa))
static volatile int sink;
void odd_rules(void);
__asm__(".text\n.type odd_callee, @function\nodd_callee: .cfi_startproc\n push $0; .cfi_adjust_cfa_offset 8\n"
    " pop %rcx; .cfi_adjust_cfa_offset -8\n ret\n .cfi_endproc\n.size odd_callee, .-odd_callee\n"
    ".globl odd_rules\n.type odd_rules, @function\nodd_rules: .cfi_startproc\n"
    " mov %rbp, %r11; .cfi_register %rbp, %r11\n xor %ebp, %ebp\n mov (%rsp), %rax; .cfi_register %rip, %rax\n"
    " mov %rbp, (%rsp)\n nop\n mov %rax, (%rsp); .cfi_offset %rip, -8\n xor %eax, %eax\n"
    " lea -16(%r11), %rbp; .cfi_escape 0x16, 6, 2, 0x76, 16\n" // rbp = rbp + 16
    " xor %r11d, %r11d\n add $16, %rbp; .cfi_same_value %rbp\n lea 8(%rsp), %r10; .cfi_def_cfa %r10, 0\n sub $40, %rsp\n"
    " mov %r10, 16(%rsp); .cfi_escape 0x0f, 3, 0x77, 16, 6\n xor %r10d, %r10d\n" // CFA = *(rsp + 16)
    " mov %rbp, 24(%rsp); .cfi_escape 0x10, 6, 2, 0x77, 24\n xor %ebp, %ebp\n" // rbp at rsp + 24
    " mov 40(%rsp), %rax\n mov %rax, 8(%rsp); .cfi_escape 0x10, 16, 2, 0x77, 8\n" // rip at rsp + 8
    " mov %rbp, 40(%rsp)\n call odd_callee\n mov 8(%rsp), %rax\n mov %rax, 40(%rsp); .cfi_offset %rip, -8\n"
    " mov 24(%rsp), %rbp; .cfi_same_value %rbp\n add $40, %rsp; .cfi_def_cfa %rsp, 8\n ret\n .cfi_endproc\n"
    ".size odd_rules, .-odd_rules\n");
APART static int realigned(int n, int b, int c, int d, int e, int f, int on_stack) {
    _Alignas(64) char local[64];
    char *more = alloca((size_t)n);
    memset(local, n, 64);
    memset(more, n, (size_t)n);
    return local[n % 64] + more[n - 1] + b + c + d + e + f + on_stack;
}
APART __attribute__((force_align_arg_pointer)) static int realigned_argument_pointer(int n) {
    _Alignas(32) char local[32];
    memset(local, n, 32);
    return realigned(n, 1, 2, 3, 4, 5, local[n % 32]) + 1;
}
static int backwards(const void *a, const void *b) { return strcmp(*(char *const *)b, *(char *const *)a); }
static void library(void) {
    char *texts[12], line[128];
    time_t then = 1700000000;
    struct tm parts;
    for (int i = 0; i < 12; i++) {
        snprintf(line, sizeof line, "%*d %.*g %s", i, i * i, i, 1e5 / (i + 1), i % 2 ? "odd" : "even");
        texts[i] = strdup(line);
    }
    qsort(texts, 12, sizeof *texts, backwards);
    strftime(line, sizeof line, "%A %d %B %Y %T", gmtime_r(&then, &parts));
    sink = (int)strtol(strstr(line, "20"), NULL, 10) + (int)strtod("1.25e3", NULL);
    free(realloc(malloc(100), 300000));
}
int main(void) { odd_rules(); sink = realigned_argument_pointer(30); library(); return 0; }
"""
FP, POPPED = 6, (b"\x49\x8d\x62\xf8", b"\xc3")  # lea, ret: gcc's own CFI still says *(rbp) where rbp has been popped


@for_each(
    "flags",
    [
        "-O2 -fomit-frame-pointer -static",
        "-O2 -fomit-frame-pointer -Wl,-z,lazy",
        "-O1 -fno-omit-frame-pointer -fcf-protection -Wl,-z,ibtplt,-z,lazy",
        "-O0 -Wl,-z,lazy",
    ],
)
def test_the_rule_is_right_at_every_instruction(flags: str, compile_c: Compiler, tmp_path: Path) -> None:
    file = compile_c(SOURCE, "-no-pie", *flags.split())
    with_section, without_cfi = tmp_path / "with-section", tmp_path / "without-cfi"
    sframegen.add_section(file, output=with_section, verify=False)
    removed = [f"--remove-section={name}" for name in (".eh_frame", ".eh_frame_hdr")]
    subprocess.run(["objcopy", *removed, with_section, without_cfi], check=True)
    elf, section = open_elf(without_cfi), sframegen.read(without_cfi)
    assert not {one.name for one in elf.sections} & {".eh_frame", ".eh_frame_hdr"}
    [main] = find_functions_named(elf, b"main")
    code = {at: section.rule_at(at) for start, end in elf.executable_ranges() for at in range(start, end)}
    traced = Traced(without_cfi, main.address)
    wrong: list[tuple[Step, Rule]] = []
    seen: set[int] = set()

    def look(step: Step) -> None:
        rule = code.get(step.pc)
        if rule is None or step.caller is None:
            return
        seen.add(step.pc)
        if rule.fp and rule.fp.register == FP and bytes(elf.at(step.pc, 4)).startswith(POPPED):
            rule = rule._replace(fp=None)
        if traced.frame(rule, step) != step.caller:
            wrong.append((step, rule))

    try:
        traced.run(look)
    finally:
        traced.end()
    assert wrong == []
    table = section.table
    places = zip(table.start, table.size, table.kind, strict=True)
    kinds = {table.kinds[kind] for start, size, kind in places if not seen.isdisjoint(range(start, start + size))}
    assert {kind.fde_type for kind in kinds} == set(FdeType)
    assert any(kind.mask for kind in kinds) or "-static" in flags
    assert len(seen) > (5000 if "-static" in flags else 200)
