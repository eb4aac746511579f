"""A frame pointer that leads from a coroutine's stack to another stack is not followed: three walks give one answer."""

from __future__ import annotations

import json
import platform
import re
from typing import TYPE_CHECKING

import pytest

from sframegen.profile.copied_session import BACKENDS
from tests.support.kernel_events import needs_bpf
from tests.support.processes.kernel_walks import profiled
from tests.support.processes.live import SPIN, command, spinning

if TYPE_CHECKING:
    from tests.support.peers import Compiler

pytestmark = [
    needs_bpf,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="programs for x86-64"),
]

# start switches to a coroutine, which spins. Nothing describes the code that a coroutine returns to; there the frame pointer is
# still that of whoever made the coroutine. through() has a frame pointer and no CFI, and returns as no function does: no rule is
# proven from its instructions.
SOURCE = r"""
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
FLAGS = ("-O1", "-fno-omit-frame-pointer", "-fno-optimize-sibling-calls", "-D_FORTIFY_SOURCE=0")


@pytest.mark.sampled
@pytest.mark.parametrize("source", [MAPPED, ALLOCATED, NEIGHBOURS], ids=["mapped", "allocated", "neighbours"])
def test_a_guess_stays_on_its_stack(source: str, compile_c: Compiler) -> None:
    with spinning(compile_c(SPIN + SOURCE + source + REST, *FLAGS)) as pid:
        found = {
            backend: {";".join(frame.label for frame in stack.frames) for stack in profiled(pid, backend)} for backend in BACKENDS
        }
        (thread,) = json.loads(command("--convert", "--json", pid).stdout)["threads"]
    stack = ";".join(frame["function"] + " [guess]" * frame["guessed"] for frame in reversed(thread["frames"]))
    # A function of libc begins the coroutine, which is known from its bytes.
    assert re.fullmatch(r"[^;]+;entry \[guess\];through;work;spin", stack)
    assert found == {backend: {stack} for backend in BACKENDS}
