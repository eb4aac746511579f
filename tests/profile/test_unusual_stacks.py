"""Stacks that no section describes: of assembly that saves the CFA in its frame, and of coroutines."""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING

import pytest

from sframegen.conversion.cfi_sections import find_sources
from sframegen.conversion.convert import convert_sources
from sframegen.elf.file import open_elf
from sframegen.elf.symbols import read_functions
from sframegen.format.abi import abi_of
from sframegen.profile.copied_session import BACKENDS
from sframegen.profile.tables.corrected_rules import add_saved_cfa_rules
from sframegen.profile.tables.make_table import make_table
from sframegen.stack.walking.step import RuleFlag
from tests.support.decoded_tables import find_rule
from tests.support.kernel_events import needs_bpf
from tests.support.processes.kernel_walks import profiled
from tests.support.processes.live import SPIN, command, spinning

if TYPE_CHECKING:
    from tests.support.peers import Compiler

pytestmark = pytest.mark.skipif(os.uname().machine != "x86_64", reason="the assembly is x86-64's")

# A realigned stack with the caller's SP in a word of it, as in OpenSSL's assembly: CFA = *(rsp + 40) + 8.
# DW_CFA_def_cfa_expression: breg7 40, deref, plus_uconst N
REALIGNED = (
    SPIN
    + r"""
void realigned(void);
__asm__(".text\n.globl realigned\n.type realigned, @function\nrealigned: .cfi_startproc\n"
        " mov %rsp, %rax\n .cfi_def_cfa_register rax\n push %rbx\n .cfi_offset rbx, -16\n push %rbp\n .cfi_offset rbp, -24\n"
        " sub $4096, %rsp\n and $-2048, %rsp\n mov %rax, 40(%rsp)\n .cfi_escape 0x0f, 5, 0x77, 40, 0x06, 0x23, MORE\n"
        " xor %ebp, %ebp\n.globl inside\n.type inside, @function\ninside: call spin\n mov 40(%rsp), %rsi\n .cfi_def_cfa rsi, 8\n"
        " mov -16(%rsi), %rbp\n .cfi_restore rbp\n mov -8(%rsi), %rbx\n .cfi_restore rbx\n lea (%rsi), %rsp\n"
        " .cfi_def_cfa_register rsp\n ret\n.cfi_endproc\n.size realigned, .-realigned\n");
KEPT void middle(void) { realigned(); after++; }
int main(void) { middle(); after++; }
"""
)
FLAGS = ("-O1", "-fno-omit-frame-pointer", "-fno-optimize-sibling-calls", "-D_FORTIFY_SOURCE=0")


@pytest.mark.parametrize(("more", "added"), [("8", 8), ("0x80, 0x02", None)])  # of one byte, in the rule; and 256
def test_the_rule(more: str, added: int | None, compile_c: Compiler) -> None:
    size = 5 + (added is None)
    elf = open_elf(compile_c(REALIGNED.replace("0x0f, 5", f"0x0f, {size}").replace("MORE", more), *FLAGS))
    table, at = make_table(elf).table, {symbol.name: symbol.address for symbol in read_functions(elf)}
    assert table
    flags = RuleFlag.CFA_DEREF | RuleFlag.RA_DEREF | RuleFlag.FP | RuleFlag.FP_DEREF
    assert find_rule(table, at["inside"]) == (added and (40, -8, -24, 7, added, 0, flags))
    before = find_rule(table, at["realigned"])
    assert before
    assert before.cfa_register == 7


def test_kinds_are_different_ones(compile_c: Compiler) -> None:
    """What is proven later has its numbers among them: in libcrypto.so.3 nothing was proven."""
    elf = open_elf(compile_c(REALIGNED.replace("MORE", "8"), *FLAGS))
    abi, sources = abi_of(elf), find_sources(elf)
    found = add_saved_cfa_rules(convert_sources(sources, elf.executable_ranges(), abi), sources, abi)
    assert len({*found.kinds}) == len(found.kinds) > max(found.kind)


@needs_bpf
@pytest.mark.parametrize("backend", BACKENDS)
def test_stacks_through_it(backend: str, compile_c: Compiler) -> None:
    with spinning(compile_c(REALIGNED.replace("MORE", "8"), *FLAGS)) as pid:
        found = {tuple(frame.label for frame in stack.frames)[-5:] for stack in profiled(pid, backend)}
    assert found == {("__libc_start_call_main", "main", "middle", "inside", "spin")}


# -- a frame pointer that leads from a coroutine's stack to another stack is not followed: three walks give one answer

# start switches to a coroutine, which spins. Nothing describes the code that a coroutine returns to; there the frame pointer is
# still that of whoever made the coroutine. through() has a frame pointer and no CFI, and returns as no function does: no rule is
# proven from its instructions.
COROUTINES = r"""
#include <ucontext.h>
enum { SIZE = 65536, PAGE = 4096 };
static ucontext_t caller, coroutine, second;
void through(void (*callee)(void));
__asm__(".pushsection .text\n.type through,@function\nthrough: push %rbp\n mov %rsp,%rbp\n sub $32,%rsp\n call *%rdi\n leave\n"
        " pop %rcx\n jmp *%rcx\n.size through,.-through\n.popsection");
KEPT void work(void) { spin(); after++; }
KEPT void entry(void) { through(work); after++; }
KEPT void resumes(void) { swapcontext(&coroutine, &second); after++; }
KEPT void *mapped(void) {
    char *pages = mmap(0, SIZE + 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int i = 0; i < SIZE + 2 * PAGE; i += 512) pages[i] = 1;
    mprotect(pages, PAGE, PROT_NONE);
    mprotect(pages + PAGE + SIZE, PAGE, PROT_NONE);
    return pages + PAGE;
}
KEPT void *allocated(void) { char *room = malloc(4 * SIZE); for (int i = 0; i < 4 * SIZE; i += 512) room[i] = 1; return room; }
KEPT void make(ucontext_t *made, void *stack, size_t size, void (*function)(void), ucontext_t *next) {
    getcontext(made);
    made->uc_stack.ss_sp = stack;
    made->uc_stack.ss_size = size;
    made->uc_link = next;
    makecontext(made, function, 0);
}
"""
MAPPED = "KEPT void start(void) { make(&coroutine, mapped(), SIZE, entry, &caller); swapcontext(&caller, &coroutine); after++; }"
ALLOCATED = MAPPED.replace("mapped(), SIZE", "allocated(), 4 * SIZE")
# The second coroutine's stack is right below the first one's, with a guard page between them.
NEIGHBOURS = r"""
KEPT void makes_second(void *stack) { make(&second, stack, 4 * PAGE, entry, &coroutine); resumes(); after++; }
KEPT void first_entry(void) { makes_second((char *)coroutine.uc_stack.ss_sp - 5 * PAGE); }
KEPT void start(void) {
    char *pages = mapped();
    mprotect(pages + 4 * PAGE, PAGE, PROT_NONE);
    make(&coroutine, pages + 5 * PAGE, SIZE - 5 * PAGE, first_entry, &caller);
    swapcontext(&caller, &coroutine);
    after++;
}
"""
REST = "KEPT void middle(void) { start(); after++; } int main(void) { middle(); after++; }"


@needs_bpf
@pytest.mark.sampled
@pytest.mark.parametrize("source", [MAPPED, ALLOCATED, NEIGHBOURS], ids=["mapped", "allocated", "neighbours"])
def test_a_guess_stays_on_its_stack(source: str, compile_c: Compiler) -> None:
    with spinning(compile_c(SPIN + COROUTINES + source + REST, *FLAGS)) as pid:
        found = {
            backend: {";".join(frame.label for frame in stack.frames) for stack in profiled(pid, backend)} for backend in BACKENDS
        }
        (thread,) = json.loads(command("--convert", "--json", pid).stdout)["threads"]
    stack = ";".join(frame["function"] + " [guess]" * frame["guessed"] for frame in reversed(thread["frames"]))
    # A function of libc begins the coroutine, which is known from its bytes.
    assert re.fullmatch(r"[^;]+;entry \[guess\];through;work;spin", stack)
    assert found == {backend: {stack} for backend in BACKENDS}
