"""A program that makes code, gives it up and makes other code at the same addresses, all the time: no stack is a wrong one."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

import sframegen
from sframegen.profile.events.names import event_named
from sframegen.profile.kernel_session import KernelSession
from sframegen.profile.packed_frames import unpacked_frame
from sframegen.profile.report.naming import name_stacks
from sframegen.profile.report.runtime_frames import MADE
from sframegen.profile.sampling_plan import ProfilePlan
from sframegen.stack.walking.ends import End
from tests.support.kernel_events import needs_bpf

if TYPE_CHECKING:
    from sframegen.profile.collected import Collected, Stack
    from tests.support.peers import Compiler

pytestmark = [needs_bpf, pytest.mark.once]

INCLUDE = Path(sframegen.__file__).parent / "integration/include"
SAMPLES = 1500
# Chains of three functions at the same addresses, whose frames have other sizes each time. Their frames are full of addresses that
# a wrong rule would take for the caller's. A second chain is appended while the first is registered.
SOURCE = r"""
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "sframegen_jit.h"
#define KEPT __attribute__((noinline, noclone))
enum { DEPTH = 3, CHAINS = 2, LAYOUTS = 3, ROOM = 256, BYTES = 4096, TABLE = 4096 };
volatile long after;
static unsigned char *text;
static char tables[TABLE] __attribute__((aligned(8)));
static struct sframegen_jit_region region;
KEPT void wrong(void (*call)(void)) { call(); after++; }
KEPT void run(int chain) { ((void (*)(void))(text + chain * DEPTH * ROOM))(); after++; }

static unsigned char *put(unsigned char *at, unsigned long value, int size) {
    memcpy(at, &value, size);
    return at + size;
}

static void say(struct sframegen_jit_table *table, unsigned char *from, unsigned char *to, int cfa) {
    struct sframegen_jit_fre entry = {.size = to - from, .ip_off = from - text, .cfa_off = cfa, .ra_off = -8,
                                      .info = SFRAMEGEN_JIT_CFA_SP | SFRAMEGEN_JIT_RA_SAVED};
    if (table && sframegen_jit_append(table, entry)) _exit(8);
}

/* Without a table it only prints where the function is, and what its call returns to. */
static void make(struct sframegen_jit_table *table, int layout, int chain, int place) {
    unsigned char *const start = text + (chain * DEPTH + place) * ROOM, *at = start;
    int words = 1 + 2 * ((layout + place + chain) % 3 + 1);
    for (int i = 0; i < 3 * layout; i++) at = put(at, 0x90, 1);        /* nop */
    at = put(put(at, 0xec8148, 3), 8 * words, 4);                      /* sub $8 * words, %rsp */
    say(table, start, at, 8);
    unsigned char *const body = at;
    at = put(put(at, 0xb848, 2), (unsigned long)wrong + 16, 8);        /* mov $wrong + 16, %rax */
    for (int i = 0; i < words; i++) at = put(put(at, 0x24448948, 4), 8 * i, 1); /* mov %rax, 8 * i(%rsp) */
    if (place < DEPTH - 1) at = put(put(at, 0xe8, 1), start + ROOM - at - 5, 4); /* call the next */
    unsigned char *const returns = at;
    if (place == DEPTH - 1) at = put(put(put(at, 0xb9, 1), 1000000, 4), 0xfc75c9ff, 4); /* mov $1000000, %ecx; dec %ecx; jnz */
    at = put(put(at, 0xc48148, 3), 8 * words, 4);                      /* add */
    say(table, body, at, 8 + 8 * words);
    say(table, at, at + 1, 8);
    at = put(at, 0xc3, 1);
    if (!table) printf("%d %d %d %p %p %p\n", layout, chain, place, (void *)start, (void *)at, (void *)returns);
}

static void make_chain(struct sframegen_jit_table *table, int layout, int chain) {
    for (int place = 0; place < DEPTH; place++) make(table, layout, chain, place);
}

int main(int count, char **words) {
    text = mmap(0, BYTES, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int layout = 0; layout < LAYOUTS; layout++)
        for (int chain = 0; chain < CHAINS; chain++) make_chain(0, layout, chain);
    fflush(stdout);
    while (getchar() != '\n');
    if (count > 1 && fork()) pause();
    for (int layout = 0;; layout = (layout + 1) % LAYOUTS) {
        memset(text, 0xcc, BYTES);
        struct sframegen_jit_table *table = sframegen_jit_init(tables, TABLE);
        make_chain(table, layout, 0);
        sframegen_jit_register(&region, text, text + BYTES, table);
        for (int chain = 0; chain < CHAINS; chain++) {
            if (chain) make_chain(table, layout, chain);
            for (int i = 0; i < 300; i++) run(chain);
        }
        sframegen_jit_unregister(&region);
        if (count > 1 && fork()) _exit(0); /* the child goes on, with the same serial */
    }
    wrong(0);
}
"""


class Place(NamedTuple):
    """A function: its addresses, and what its call returns to."""

    start: int
    end: int
    returns_to: int


Chains = dict[tuple[int, int], list[Place]]


def is_possible(made: list[int], chains: Chains) -> bool:
    """`made`: addresses, the outermost first; of callers those of their calls."""
    return any(
        len(made) <= len(chain)
        and all(at == place.returns_to - 1 for at, place in zip(made[:-1], chain, strict=False))
        and chain[len(made) - 1].start <= made[-1] < chain[len(made) - 1].end
        for chain in chains.values()
    )


def is_appended(made: list[int], chains: Chains) -> bool:
    """Code whose table grows while it is registered: what is known of the table may lack the last entries."""
    return len(made) == 1 and any(
        one.start <= made[0] < one.end for (_, chain), places in chains.items() if chain for one in places
    )


def check(collected: Collected, chains: Chains) -> tuple[int, int]:
    """Return how many samples were in made code, and how many of them have no whole stack."""
    number = incomplete = 0
    for stack in collected.stacks:
        made = made_frames(collected, stack)
        if not made:
            continue
        number += stack.samples
        if stack.end is not End.OUTERMOST:
            assert stack.end is End.NO_TABLE or (stack.end is End.NO_RULE and is_appended(made, chains)), stack
            incomplete += stack.samples
            continue
        assert is_possible(made[::-1], chains), (list(map(hex, made)), chains)
        assert not any(unpacked_frame(frame).guessed for frame in stack.frames)
    for shown in name_stacks(collected).stacks:
        functions = [frame.function for frame in shown.frames if frame.object != MADE]
        assert "wrong" not in [frame.function for frame in shown.frames]
        if shown.end is End.OUTERMOST and len(functions) < len(shown.frames):
            assert functions[-2:] == ["main", "run"]
            assert functions[0] == "_start"
    return number, incomplete


def made_frames(collected: Collected, stack: Stack) -> list[int]:
    """The addresses of made code, the innermost first."""
    frames = [unpacked_frame(frame) for frame in stack.frames]
    return [frame.address for frame in frames if frame.file == 0 or collected.files[frame.file].made]


def sampled(program: Path, *arguments: str) -> tuple[Collected, Chains]:
    chains: Chains = {}
    pipe = subprocess.PIPE
    command: list[str | Path] = [
        "nice",
        "-n",
        "5",
        program,
        *arguments,
    ]  # what it makes is to be read in time on a busy machine, too
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, start_new_session=True) as process:
        assert process.stdin
        assert process.stdout
        try:
            for line in (process.stdout.readline() for _ in range(3 * 2 * 3)):
                layout, chain, _place, *addresses = line.split()
                chains.setdefault((int(layout), int(chain)), []).append(Place(*(int(at, 16) for at in addresses)))
            with KernelSession(ProfilePlan(frozenset([process.pid]), event_named("cpu-clock"), 999)) as session:
                session.begin()
                process.stdin.write("\n")
                process.stdin.flush()
                while session.samples < SAMPLES:
                    session.turn()
                return session.finish(), chains
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def test_code_at_the_same_addresses_again_and_again(compile_c: Compiler) -> None:
    program = compile_c(SOURCE, "-O1", "-fno-optimize-sibling-calls", f"-I{INCLUDE}")
    collected, chains = sampled(program)
    number, incomplete = check(collected, chains)
    assert number > 0.8 * SAMPLES
    assert incomplete < 0.1 * number
    assert not collected.lost
    seen = {made[0] for stack in collected.stacks if (made := made_frames(collected, stack))}
    in_last = {key for key, chain in chains.items() if any(chain[-1].start <= at < chain[-1].end for at in seen)}
    assert len(in_last) == len(chains), "all layouts"


def test_children_have_tables_of_their_own(compile_c: Compiler) -> None:
    """Each child makes other code than its parent, at the same addresses and with the same serial."""
    program = compile_c(SOURCE, "-O1", "-fno-optimize-sibling-calls", f"-I{INCLUDE}")
    collected, chains = sampled(program, "children")
    number, incomplete = check(collected, chains)
    assert number > 0.8 * SAMPLES
    assert incomplete < 0.2 * number
    assert len({stack.pid for stack in collected.stacks}) > 3
