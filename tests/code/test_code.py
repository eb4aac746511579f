"""What the instructions say of a frame: each effect, each hostile shape in a few lines of assembly; programs against their CFI."""

from __future__ import annotations

import cProfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corpus.blind.files import File
from corpus.blind.trial import try_blind
from sframegen.code.context.jump_tables import JumpTableFinder
from sframegen.code.decoding import decoded_code
from sframegen.code.decoding.decoded_code import decode
from sframegen.code.function.analysis import Surroundings
from sframegen.code.function.rules_of_states import derive_rules
from sframegen.code.isa.machines import isa_of
from sframegen.code.whole_file.passes import survey
from sframegen.elf.file import open_elf
from sframegen.format.abi import AARCH64, AMD64, Abi
from sframegen.format.model import Rule
from tests.support.analysed import analyse
from tests.support.cross import ARM64
from tests.support.loops import for_each
from tests.support.peers import Compiler

CALLS_RETURN = Surroundings(lambda _target, _slot: True, lambda _piece, _point, _begins: ())
X86_ENTRY = "sp+8 fp"


class Machine(NamedTuple):
    abi: Abi
    prefix: str
    flags: tuple[str, ...] = ()


X86 = Machine(AMD64, "")
A64 = Machine(AARCH64, ARM64.prefix, ("-march=armv8.5-a",))


class Assembled:
    """The text section of a source, at address 0, and the addresses of its labels."""

    def __init__(self, machine: Machine, source: str, compile_: Compiler) -> None:
        syntax = ".intel_syntax noprefix\n" if machine is X86 else ""
        compiler = type(compile_)(compile_.peers, compile_.directory, machine.prefix)
        flags = ("-x", "assembler", "-nostdlib", "-static", "-Wl,-Ttext=0x10000,--no-relax,-e,f", *machine.flags)
        self.path = compiler(f".text\n.globl f\n.type f, %function\n{syntax}f:\n{source}\n.size f, . - f\n", *flags)
        self.elf = open_elf(self.path)
        text = self.elf.section(".text")
        assert text is not None
        self.start = text.header.sh_addr
        self.end = self.start + text.header.sh_size
        self.machine = machine

    def texts(self, around: Surroundings = CALLS_RETURN) -> list[tuple[int, str]]:
        """(offset, rule as a text) where a rule begins; "-" where nothing is known."""
        isa = isa_of(self.machine.abi)
        piece = decode(self.elf.at(self.start, self.end - self.start), self.start, isa)
        found: list[tuple[int, str]] = []
        last = self.start
        for start, end, rule in derive_rules(analyse([piece], {self.start: isa.entry}, isa, around).rows, self.machine.abi):
            if start > last:
                found.append((last - self.start, "-"))
            found.append((start - self.start, text_of(rule, self.machine.abi)))
            last = end
        return [*found, (last - self.start, "-")] if last < self.end else found

    def said(self, around: Surroundings = CALLS_RETURN) -> list[str]:
        return [text for _, text in self.texts(around)]


def text_of(rule: Rule, abi: Abi) -> str:
    """`sp+16 fp@-16`: the CFA, where the caller's FP is, on AArch64 where RA is; `fp`, `ra`: in its register."""
    assert rule.cfa is not None
    base = "sp" if rule.cfa.register == abi.sp else "fp"
    words = [f"{base}+{rule.cfa.offset}", f"fp@{rule.fp.offset}" if rule.fp else "fp"]
    if not abi.fixed_ra_offset:
        words.append(f"ra@{rule.ra.offset}" if rule.ra else "ra")
    return " ".join([*words, *["signed"] * rule.ra_signed])


@pytest.fixture(scope="module")
def assembled(compile_c: Compiler) -> Callable[[Machine, str], Assembled]:
    return lambda machine, source: Assembled(machine, source, compile_c)


X86_CASES = {
    "push rax; pop rcx; ret": [X86_ENTRY, "sp+16 fp", X86_ENTRY],
    "push rbp; mov rbp, rsp; sub rsp, 64; leave; ret": [X86_ENTRY, "sp+16 fp@-16", "fp+16 fp@-16", X86_ENTRY],
    "push rbx; push rbp; mov ebp, edi; pop rbp; pop rbx; ret": [X86_ENTRY, "sp+16 fp", "sp+24 fp@-24", "sp+16 fp", X86_ENTRY],
    "sub rsp, 0x28; add rsp, 0x28; ret": [X86_ENTRY, "sp+48 fp", X86_ENTRY],
    "add rsp, -128; sub rsp, -128; ret": [X86_ENTRY, "sp+136 fp", X86_ENTRY],
    "lea rsp, [rsp - 24]; lea rsp, [rsp + 24]; ret": [X86_ENTRY, "sp+32 fp", X86_ENTRY],
    "pushfq; popfq; ret": [X86_ENTRY, "sp+16 fp", X86_ENTRY],
    "push fs; pop fs; ret": [X86_ENTRY, "sp+16 fp", X86_ENTRY],
    "push qword ptr [rdi]; pop qword ptr [rdi]; ret": [X86_ENTRY, "sp+16 fp", X86_ENTRY],
    "push 5; push 0x12345; add rsp, 16; ret": [X86_ENTRY, "sp+16 fp", "sp+24 fp", X86_ENTRY],
    "sub rsp, 24; mov [rsp + 8], rbp; xor ebp, ebp; mov rbp, [rsp + 8]; add rsp, 24; ret": [
        X86_ENTRY, "sp+32 fp", "sp+32 fp@-24", X86_ENTRY,
    ],
    # alloca, and a stack that is realigned: by the frame pointer alone
    "push rbp; mov rbp, rsp; sub rsp, rax; and rsp, -32; leave; ret": [X86_ENTRY, "sp+16 fp@-16", "fp+16 fp@-16", X86_ENTRY],
    "push rbp; mov rbp, rsp; push rbx; sub rsp, rax; lea rsp, [rbp - 8]; pop rbx; pop rbp; ret": [
        X86_ENTRY, "sp+16 fp@-16", "fp+16 fp@-16", X86_ENTRY,
    ],
    "sub rsp, rax; nop; ret": [X86_ENTRY, "-"],
    "mov rsp, rdi; ret": [X86_ENTRY, "-"],
    "xchg rax, rsp; ret": [X86_ENTRY, "-"],
    "enter 16, 0; leave; ret": [X86_ENTRY, "-"],
    "push ax; ret": [X86_ENTRY, "-"],
    # FP's value is lost, and with it the caller's
    "mov bpl, 3; ret": [X86_ENTRY, "-"],
    "cmove rbp, rax; nop; ret": [X86_ENTRY, "-"],
    "xadd rax, rbp; nop; ret": [X86_ENTRY, "-"],
    "cmp rbp, rax; test ebp, ebp; push rbp; pop rax; ret": [X86_ENTRY, "sp+16 fp@-16", X86_ENTRY],
    # what overwrites the saved FP, and what only looks as if
    "push rbp; xor ebp, ebp; mov dword ptr [rsp + 4], 0; nop; pop rbp; ret": [X86_ENTRY, "sp+16 fp@-16", "-"],
    "push rbp; xor ebp, ebp; mov [rsp - 8], rax; cmp [rsp], rax; pop rbp; ret": [X86_ENTRY, "sp+16 fp@-16", X86_ENTRY],
    "mov [rsp], rax; nop; ret": [X86_ENTRY, "-"],
    # control
    "test edi, edi; je 1f; push rbx; call g; pop rbx; 1: ret; g: ret": [X86_ENTRY, "sp+16 fp", X86_ENTRY, "-"],
    "test edi, edi; je 1f; push rbx; nop; 1: nop; ud2": [X86_ENTRY, "sp+16 fp", "-"],
    "push rbx; 1: dec edi; jne 1b; pop rbx; ret": [X86_ENTRY, "sp+16 fp", X86_ENTRY],
    "1: push rbx; dec edi; jne 1b; ud2": ["-"],
    "push rbx; nop; call 1f; 1: pop rax; pop rbx; ret": [X86_ENTRY, "sp+16 fp", "-"],
    "push rbx; ud2; nop; ret": [X86_ENTRY, "sp+16 fp", "-"],
    "push rbx; jmp rax; pop rbx; ret": [X86_ENTRY, "sp+16 fp", "-"],
    # a frame that does not fit: all that was thought of it is wrong
    "push rbx; ret": ["-"],
    "xor ebp, ebp; ret": [X86_ENTRY, "-"],
    # jumps into an instruction: over a prefix, and into a constant that says something else
    "je 1f + 1; 1: lock cmpxchg [rdi], ecx; push rbx; pop rbx; ret": [X86_ENTRY, "sp+16 fp", X86_ENTRY],
    "je 1f + 1; 1: mov eax, 0xc35b53; nop; ret": [X86_ENTRY, "-"],
    "push rbx; .byte 6, 6; pop rbx; ret": [X86_ENTRY, "sp+16 fp", "-"],
}  # fmt: skip

ENTRY = "sp+0 fp ra"
A64_CASES = {
    "stp x29, x30, [sp, #-32]!; mov x29, sp; bl g; ldp x29, x30, [sp], #32; ret; g: ret": [
        ENTRY, "sp+32 fp@-32 ra@-24", "fp+32 fp@-32 ra@-24", ENTRY, "-",
    ],
    "sub sp, sp, #48; stp x29, x30, [sp, #32]; add x29, sp, #32; ldp x29, x30, [sp, #32]; add sp, sp, #48; ret": [
        ENTRY, "sp+48 fp ra", "sp+48 fp@-16 ra@-8", "fp+16 fp@-16 ra@-8", "sp+48 fp@-16 ra@-8", ENTRY,
    ],
    "str x30, [sp, #-16]!; bl g; ldr x30, [sp], #16; ret; g: ret": [ENTRY, "sp+16 fp ra@-16", ENTRY, "-"],
    "str x19, [sp, #-16]!; mov x19, x0; ldr x19, [sp], #16; ret": [ENTRY, "sp+16 fp ra", ENTRY],
    "paciasp; stp x29, x30, [sp, #-16]!; ldp x29, x30, [sp], #16; autiasp; ret": [
        ENTRY, f"{ENTRY} signed", "sp+16 fp@-16 ra@-8 signed", f"{ENTRY} signed", ENTRY,
    ],
    "paciasp; sub sp, sp, #16; add sp, sp, #16; retaa": [ENTRY, f"{ENTRY} signed", "sp+16 fp ra signed", f"{ENTRY} signed"],
    "pacibsp; nop; retab": [ENTRY, f"{ENTRY} signed"],
    "paciasp; nop; autibsp; ret": [ENTRY, f"{ENTRY} signed", "-"],
    "mov x12, #0x1010; movk x12, #1, lsl #16; sub sp, sp, x12; add sp, sp, #16, lsl #12; nop; ud: udf #0": [
        ENTRY, "sp+69648 fp ra", "sp+4112 fp ra",
    ],
    "stp x29, x30, [sp, #-16]!; mov x29, sp; sub sp, sp, x0; mov sp, x29; ldp x29, x30, [sp], #16; ret": [
        ENTRY, "sp+16 fp@-16 ra@-8", "fp+16 fp@-16 ra@-8", ENTRY,
    ],
    "sub sp, sp, x0; nop; ret": [ENTRY, "-"],
    "bl g; nop; ret; g: ret": [ENTRY, "-"],
    "mov x30, x1; nop; ret": [ENTRY, "-"],
    "ldr x29, [x0]; nop; ret": [ENTRY, "-"],
    "ldr w1, [x29], #8; nop; ret": [ENTRY, "-"],
    "swp x1, x29, [x0]; nop; ret": [ENTRY, "-"],
    "stxr w29, x1, [x0]; nop; ret": [ENTRY, "-"],
    "fmov x29, d0; nop; ret": [ENTRY, "-"],
    "fmov d0, x29; nop; ret": [ENTRY],
    "ldxp x1, x29, [x0]; nop; ret": [ENTRY, "-"],
    "cmp x29, x30; str x29, [x0]; cbz x30, 1f; 1: ret": [ENTRY],
    "str q8, [sp, #-16]!; ldr q8, [sp], #16; ret": [ENTRY, "sp+16 fp ra", ENTRY],
    "stp x29, x30, [sp, #-16]!; str w0, [sp, #4]; mov x29, x0; nop; udf #0": [ENTRY, "sp+16 fp@-16 ra@-8", "sp+16 fp ra@-8", "-"],
    "cbz x0, 1f; sub sp, sp, #16; nop; 1: nop; udf #0": [ENTRY, "sp+16 fp ra", "-"],
    "cbz x0, 1f; sub sp, sp, #16; add sp, sp, #16; nop; 1: ret": [ENTRY, "sp+16 fp ra", ENTRY],
    "sub sp, sp, #16; ret": ["-"],
    "sub sp, sp, #16; br x1; nop; ret": [ENTRY, "sp+16 fp ra", "-"],
}  # fmt: skip


@for_each(
    ("machine", "source", "expected"),
    [
        *(pytest.param(X86, source, expected, id=source) for source, expected in X86_CASES.items()),
        *(pytest.param(A64, source, expected, id=source) for source, expected in A64_CASES.items()),
    ],
)
def test_frame(assembled: Callable[[Machine, str], Assembled], machine: Machine, source: str, expected: list[str]) -> None:
    assert assembled(machine, source).said() == expected


# -- whole files

C_SOURCE = """
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
int other(int), many(int, int, int, int, int, int, int, int, int);
volatile int sink;
__attribute__((noreturn, noinline, cold)) static void die(int x) { printf("%d", x); abort(); }
__attribute__((noinline)) static void check(int x) { if (x < 0) die(x); }
int table(int x, int y) {
    check(y);
    switch (x) {
    case 0: return other(y); case 1: return other(y + 1) + 5; case 2: return y * 3; case 3: sink = y; return 1;
    case 4: return other(y) - other(x); case 5: puts("5"); break; case 6: return many(1, 2, 3, 4, 5, 6, 7, x, y); case 7: die(7);
    case 8: return other(3); case 9: return y / 7;
    }
    return sink;
}
int dynamic(int n) { char *room = __builtin_alloca(n); memset(room, n, n); return other(room[n / 2]); }
int array(int n) { for (int i = 0; i < n; i++) { char room[i + 1]; memset(room, i, i + 1); sink += other(room[i]); } return sink; }
int aligned(int n) { char room[64] __attribute__((aligned(64))); memset(room, n, 64); return other(room[n & 63]); }
int large(int n) { char room[100000]; memset(room, n, sizeof room); return other(room[n]) + many(1, 2, 3, 4, 5, 6, 7, n, n); }
int tail(int n) { return n ? other(n + 1) : table(n, n); }
int leaf(int n) { return n * 2; }
int shrink(int n) { if (n < 10) return n; if (n == 11) die(n); return other(n) + other(n + 1) * other(n + 2); }
jmp_buf buffer;
int jumps(int n) { if (setjmp(buffer)) return other(1); if (n > 3) longjmp(buffer, n); return other(n) + sink; }
int loops(int n) { int all = 0; for (int i = 0; i < n; i++) { if (other(i) == 3) continue; all += other(all); } return all; }
"""
CXX_SOURCE = """
int other(int);
void *operator new(unsigned long);
struct Guard { int *count; ~Guard() { *count += other(1); } };
int throwing(int n) {
    int count = 0;
    Guard guard{&count};
    try { if (other(n) == 5) throw n; Guard second{&count}; return other(n + 1); }
    catch (int caught) { return caught + count; }
    catch (...) { if (n > 4) throw; return 2; }
}
struct Base { virtual int run(int x) = 0; virtual ~Base() {} };
struct Derived : Base { int kept; int run(int x) override { return throwing(x) + kept; } ~Derived() override { other(kept); } };
int made(int n) { Base *base = new Derived; int got = base->run(n); delete base; return got; }
"""
RECOVERED_ALONE = {"c": 0.5, "c++": 0.2}
RECOVERED = {"c": 0.85, "c++": 0.65}  # nothing but the CFI leads to landing pads, which are much of so small a program
BUILDS = [
    *(f"{level} {pointer}" for level in ("-O0", "-O2") for pointer in ("-fomit-frame-pointer", "-fno-omit-frame-pointer")),
    "-O1 -fno-plt", "-O3", "-O2 -fcf-protection -fstack-protector-all", "-O2 -fstack-clash-protection",
]  # fmt: skip


@for_each("flags", BUILDS)
@for_each("language", ["c", "c++"])
@for_each("prefix", ["", ARM64.prefix])
def test_what_is_found_is_what_the_cfi_says(compile_c: Compiler, prefix: str, language: str, flags: str, tmp_path: Path) -> None:
    if prefix:
        flags = flags.replace("-fcf-protection", "-mbranch-protection=standard")
    compiler = ARM64.compiler(compile_c.peers, tmp_path) if prefix else compile_c
    source = C_SOURCE if language == "c" else CXX_SOURCE
    trial = try_blind(File(flags, compiler(source, "-x", language, "-shared", "-fPIC", "-w", *flags.split())), 1)
    assert trial.names == []
    assert trial.ranges_known.emitted > RECOVERED[language] * trial.ranges_known.code_bytes
    assert trial.nothing_known.emitted > RECOVERED_ALONE[language] * trial.nothing_known.code_bytes


def test_a_piece_that_others_jump_into_has_their_frame(assembled: Callable[[Machine, str], Assembled]) -> None:
    code = assembled(X86, "push rbx; test edi, edi; je g; pop rbx; ret; g: nop; nop; pop rbx; ret; h: nop; ret")
    cold, alone = code.start + 7, code.start + 11
    found = survey(code.elf, [(code.start, cold), (cold, alone), (alone, code.end)], {code.start})
    states = {start: found.states[number].sp for start, number in zip(found.start, found.state, strict=True)}
    assert states[cold] == -16
    assert max(found.end) == alone, "nobody enters what is behind"


# -- hostile code

HOSTILE: dict[str, Callable[[int], bytes]] = {
    "branches to the next": lambda n: b"\x74\x00" * n,
    "branches into the next": lambda n: b"\x74\x01" * n,
    "branches to the first": lambda n: b"".join(
        b"\x53\x0f\x84" + (-7 * i - 7).to_bytes(4, "little", signed=True) for i in range(n)
    ),
    "calls of the next": lambda n: b"\xe8\0\0\0\0" * n,
    "no instructions": lambda n: b"\x06" * n,
    "prefixes": lambda n: b"\x66" * n,
    "tables": lambda n: b"\x48\x8d\x05\0\0\0\0\x48\x63\x0c\x90\x48\x01\xc1\xff\xe1" * n,
    "pushes": lambda n: b"\x55" * n,
    "jumps away": lambda n: b"\xe9\0\0\0\x7f" * n,
}


@for_each("name", HOSTILE)
def test_the_cost_is_linear(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def calls(count: int) -> int:
        code = HOSTILE[name](count)
        monkeypatch.setattr(
            decoded_code, "_thread_frames", decoded_code._ThreadFrames()
        )  # what is known from other code costs nothing
        with cProfile.Profile() as profile:
            piece = decode(code, 0x1000, isa_of(AMD64))
            tables = JumpTableFinder(piece, lambda _address, size: bytes(size))
            around = Surroundings(
                lambda _target, _slot: True, lambda _piece, point, begins: tables.find_targets(point, begins, lambda _target: False)
            )
            analyse([piece], {0x1000: isa_of(AMD64).entry}, isa_of(AMD64), around)
        return sum(function.callcount for function in profile.getstats())

    calls(1)  # what is only done once
    assert calls(1200) < 6 * calls(300)


@settings(max_examples=30, deadline=None)
@given(code=st.binary(min_size=1, max_size=200))
@pytest.mark.parametrize("abi", [AMD64, AARCH64])
def test_any_bytes_are_code(abi: Abi, code: bytes) -> None:
    isa = isa_of(abi)
    piece = decode(code, 0x1000, isa)
    tables = JumpTableFinder(piece, lambda address, size: code[address - 0x1000 :][:size] or None)
    around = Surroundings(
        lambda _target, _slot: True, lambda _piece, point, begins: tables.find_targets(point, begins, lambda _target: False)
    )
    rows = analyse([piece], {0x1000: isa.entry}, isa, around).rows
    assert all(0x1000 <= row.start < row.end <= 0x1000 + len(code) for row in rows)
    found = list(derive_rules(rows, abi))
    assert all(one[1] <= other[0] for one, other in pairwise(found))
