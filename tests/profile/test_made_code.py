"""A program that makes code, gives it up and makes other code at the same addresses, all the time: no stack is a wrong one."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

import sframegen
from sframegen.profile.bpf.counters import LOST, Statistic
from sframegen.profile.events.names import event_named
from sframegen.profile.kernel_session import KernelSession
from sframegen.profile.packed_frames import unpacked_frame
from sframegen.profile.report.naming import name_stacks
from sframegen.profile.report.runtime_frames import MADE
from sframegen.profile.sampling_plan import ProfilePlan
from sframegen.stack.walking.ends import End
from tests.support.kernel_events import needs_bpf

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sframegen.profile.collected import Collected, Stack
    from tests.support.peers import Compiler

pytestmark = [needs_bpf, pytest.mark.once, pytest.mark.sampled]

INCLUDE = Path(sframegen.__file__).parent / "integration/include"
SAMPLES = 1000
ROUNDS, EACH = 2, 80  # of all chains; samples of each
# Chains of three functions at the same addresses, whose frames have other sizes each time. Their frames are full of addresses that
# a wrong rule would take for the caller's. A second chain is appended while the first is registered.
SOURCE = r"""
#define _GNU_SOURCE
#include <poll.h>
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

/* For a while, or until there is a byte. */
static void run_long(int chain, int until_told) {
    struct pollfd told = {0, POLLIN, 0};
    char byte;
    for (int i = 0; until_told ? poll(&told, 1, 0) == 0 : i < 300; i++) run(chain);
    if (until_told && read(0, &byte, 1) != 1) _exit(7);
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
    char byte;
    if (read(0, &byte, 1) != 1) _exit(7);
    int until_told = count > 1, children = count > 2;
    if (children && fork()) pause();
    for (int layout = 0;; layout = (layout + 1) % LAYOUTS) {
        memset(text, 0xcc, BYTES);
        struct sframegen_jit_table *table = sframegen_jit_init(tables, TABLE);
        make_chain(table, layout, 0);
        sframegen_jit_register(&region, text, text + BYTES, table);
        for (int chain = 0; chain < CHAINS; chain++) {
            if (chain) make_chain(table, layout, chain);
            run_long(chain, until_told);
        }
        sframegen_jit_unregister(&region);
        if (children && fork()) _exit(0); /* the child goes on, with the same serial */
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


class Maker:
    """The program, which runs; with the session that samples it, once that has begun."""

    def __init__(self, process: subprocess.Popen[str], session: KernelSession, chains: Chains) -> None:
        self._process, self.session, self.chains = process, session, chains

    def go_on(self) -> None:
        assert self._process.stdin
        self._process.stdin.write(".")
        self._process.stdin.flush()

    def whole(self, key: tuple[int, int]) -> int:
        """Return how many samples in the last function of this chain have whole stacks."""
        place, collected = self.chains[key][-1], self.session.collected
        made = ((stack, made_frames(collected, stack)) for stack in collected.stacks if stack.end is End.OUTERMOST)
        return sum(stack.samples for stack, frames in made if frames and place.start <= frames[0] < place.end)

    def each_in_time(self) -> Collected:
        """Keep each chain until the profiler has read its table, however long it waits for a CPU, and for EACH samples at least."""
        for number in range(ROUNDS * len(self.chains)):
            key = (number // 2 % 3, number % 2)
            known, taken = self.whole(key), self._taken()
            self.go_on()  # with the first chain, or from the one before
            while self.whole(key) == known or self._taken() < taken + EACH:
                self.session.turn()
        return self.session.finish()

    def _taken(self) -> int:
        return self.session._walker.statistics()[Statistic.SAMPLES]


@contextmanager
def making(compile_c: Compiler, *arguments: str) -> Iterator[Maker]:
    """Without arguments it goes on by itself."""
    program = compile_c(SOURCE, "-O1", "-fno-optimize-sibling-calls", f"-I{INCLUDE}")
    chains: Chains = {}
    pipe = subprocess.PIPE
    with subprocess.Popen([program, *arguments], stdin=pipe, stdout=pipe, text=True, start_new_session=True) as process:
        assert process.stdout
        try:
            for line in (process.stdout.readline() for _ in range(3 * 2 * 3)):
                layout, chain, _place, *addresses = line.split()
                chains.setdefault((int(layout), int(chain)), []).append(Place(*(int(at, 16) for at in addresses)))
            with KernelSession(ProfilePlan(frozenset([process.pid]), event_named("cpu-clock"), 999)) as session:
                session.begin()
                yield Maker(process, session, chains)
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def test_code_at_the_same_addresses_again_and_again(compile_c: Compiler) -> None:
    """Whether a table is read before it is given up is the machine's business; no stack is a wrong one."""
    with making(compile_c) as maker:
        maker.go_on()
        while maker.session.samples < SAMPLES:
            maker.session.turn()
        number, _ = check(maker.session.finish(), maker.chains)
    assert number > 0.8 * SAMPLES


def test_code_that_stays_until_its_table_is_read(compile_c: Compiler) -> None:
    with making(compile_c, "until told") as maker:
        collected = maker.each_in_time()
        number, incomplete = check(collected, maker.chains)
    assert number > 0.8 * ROUNDS * len(maker.chains) * EACH
    assert incomplete < 0.1 * number
    assert set(collected.lost) <= {LOST[Statistic.RING_FULL]}  # if the profiler waits long for a CPU


def test_children_have_tables_of_their_own(compile_c: Compiler) -> None:
    """Each child makes other code than its parent, at the same addresses and with the same serial."""
    with making(compile_c, "until told", "children") as maker:
        collected = maker.each_in_time()
        number, incomplete = check(collected, maker.chains)
    assert number > 0.8 * ROUNDS * len(maker.chains) * EACH
    assert incomplete < 0.2 * number
    assert len({stack.pid for stack in collected.stacks}) > 3
