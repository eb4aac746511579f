"""Stacks that no section describes: while an exception is thrown, of assembly that saves the CFA in its frame, of coroutines."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
from pathlib import Path

import pytest

from sframegen.code.function.hazards import Installation
from sframegen.conversion.cfi_sections import find_sources
from sframegen.conversion.convert import convert_sources
from sframegen.elf.file import open_elf
from sframegen.elf.symbols import read_functions
from sframegen.format.abi import AMD64, abi_of
from sframegen.profile.copied_session import BACKENDS
from sframegen.profile.following.files import CodeSpan
from sframegen.profile.packed_frames import GUESSED, unpack_frame
from sframegen.profile.tables import corrected_rules
from sframegen.profile.tables.corrected_rules import add_saved_cfa_rules
from sframegen.profile.tables.make_table import make_table
from sframegen.profile.walk.copied_stack import CopyWalker, Start, make_span_columns
from sframegen.stack.live.process import Process
from sframegen.stack.tracer import Tracer
from sframegen.stack.walking.frames import End, Thread
from sframegen.stack.walking.step import RuleFlag
from tests.support.decoded_tables import find_rule
from tests.support.kernel_events import needs_bpf
from tests.support.peers import Compiler
from tests.support.processes.kernel_walks import profiled
from tests.support.processes.live import SPIN, command, spinning
from tests.support.processes.single_step import Step, Traced

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="programs for x86-64")
FUNCTIONS = ["main", "f1", "f2", "f3", "f4"]
SOURCE = r"""
#define KEPT extern "C" __attribute__((noinline, noclone))
volatile long after;
struct Cleans { int n; ~Cleans() { after += n; } };
KEPT void f4(int n) { Cleans c{n}; if (n) throw n; after++; }
KEPT void f3(int n) { Cleans c{n}; f4(n); after++; }
KEPT void f2(int n) { Cleans c{n}; f3(n); after++; }
KEPT void f1(int n) { try { f2(n); } catch (int m) { after += m; } after++; }
int main() { f1(3); }
"""


@pytest.fixture(scope="module", params=["-fno-omit-frame-pointer", "-fomit-frame-pointer"])
def program(request: pytest.FixtureRequest, compile_c: Compiler) -> Path:
    """It throws once. With frame pointers each frame needs the FP of the one before; without, any SP will do."""
    return compile_c(SOURCE, "-x", "c++", "-O1", request.param, "-static", "-no-pie", "-lstdc++")


@pytest.fixture(scope="module")
def installations(program: Path) -> list[Installation]:
    elf = open_elf(program)
    table = convert_sources(find_sources(elf), elf.executable_ranges(), AMD64).table
    chosen = [corrected_rules._find_installations(table, number, elf, AMD64) for number in range(len(table))]
    found = [one for group in chosen for one in group]
    assert len(found) >= 3  # _Unwind_RaiseException, _Unwind_Resume, ...
    return found


def places(program: Path, functions: list[str]) -> list[tuple[int, int, str]]:
    """(start, end, name) of functions, and those of the parts that gcc moved away from them."""
    lines = subprocess.run(["nm", "-S", program], capture_output=True, text=True, check=True).stdout.splitlines()
    rows = [line.split() for line in lines if len(line.split()) == 4]
    return [
        (int(at, 16), int(at, 16) + int(size, 16), name.partition(".")[0])
        for at, size, _, name in rows
        if name.partition(".")[0] in functions
    ]


def resume_of(program: Path) -> tuple[int, int]:
    """Where _Unwind_Resume is; of its parts the longest: another one only calls abort()."""
    start, end, _ = max(places(program, ["_Unwind_Resume"]), key=lambda place: place[1] - place[0])
    return start, end


def is_possible(names: list[str]) -> bool:
    """The outermost first: each is called by the one before."""
    own = [name for name in names if name in FUNCTIONS]
    return own == FUNCTIONS[: len(own)]


def test_each_instruction_from_the_first_cleanup_on(program: Path, installations: list[Installation]) -> None:
    """Every stack in that code is marked, and of all that are complete and not guessed all frames are there."""
    elf = open_elf(program)
    known = places(program, FUNCTIONS)
    walker = CopyWalker(AMD64, lambda _: elf)
    walker.add_table(1, make_table(elf).table)
    spans = make_span_columns([CodeSpan(start, end, 0, 1) for start, end in elf.executable_ranges()])
    ends: dict[bool, set[End]] = {True: set(), False: set()}
    wrong: list[tuple[str, list[str]]] = []
    traced = Traced(program, resume_of(program)[0])

    def look(step: Step) -> None:
        sp = step.registers[7]
        stack = os.pread(traced.memory, 1 << 16, (sp & ~7) - 128)
        values = [*step.registers[:16], *[0] * 16]
        end = walker.walk(spans, Start(values, (1 << 16) - 1, step.pc), (sp & ~7) - 128, stack)
        frames = walker.frames()
        installs = any(one.copied <= unpack_frame(frame).address < one.end for frame in frames for one in installations)
        ends[installs].add(end)
        names = [name for frame in frames for start, last, name in known if start <= unpack_frame(frame).address < last]
        unmarked = end in (End.OUTERMOST, End.NO_RETURN) and not any(frame & GUESSED for frame in frames)
        if unmarked and (installs or not is_possible(names[::-1])):
            wrong.append((hex(step.pc), names))

    try:
        traced.run(look)
    finally:
        traced.end()
    assert not wrong
    assert ends[True]
    assert End.OUTERMOST in ends[False]


def stack_at(program: Path, address: int) -> Thread:
    traced = Traced(program, address)
    traced.let_go()
    try:
        with Process(traced.pid) as process:
            [thread] = Tracer(convert=True).trace_process(process)
    finally:
        traced.end()
    return thread


def test_the_tracer_marks_such_a_stack(program: Path, installations: list[Installation]) -> None:
    start, end = resume_of(program)
    [one] = [one for one in installations if start <= one.copied < end]
    before, copied = stack_at(program, start), stack_at(program, one.copied + 5)
    assert before.end is End.OUTERMOST
    assert not any(frame.guessed for frame in before.frames)
    assert copied.frames[1].guessed


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
