"""Samples of tracepoints and probes: as many as the program knows of, with whole stacks; of them those that a filter asks for."""

from __future__ import annotations

import os
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from sframegen.elf.file import open_elf
from sframegen.profile.bpf.counters import Statistic
from sframegen.profile.bpf.sampling_settings import Only, Sampling
from sframegen.profile.events.attributes import EventError
from sframegen.profile.events.event_list import list_events
from sframegen.profile.events.points import MAX_CONDITIONS
from sframegen.profile.events.probes import find_event, why_no
from sframegen.profile.events.tracefs import Tracefs
from sframegen.profile.packed_frames import unpacked_frame
from sframegen.stack.names.file_names import FileNames
from sframegen.stack.walking.ends import End
from tests.support.kernel_events import needs_bpf
from tests.support.processes.kernel_walks import Sampled

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sframegen.profile.events.names import Event
    from tests.support.peers import Compiler

pytestmark = [needs_bpf, pytest.mark.once]

# A USDT probe as sys/sdt.h makes it, with a semaphore: arguments are a register, memory at the stack pointer, a number.
USDT = r"""
__asm__(".pushsection .probes, \"aw\"\n.globl shop_semaphore\nshop_semaphore: .hword 0\n.popsection\n"
        ".pushsection .stapsdt.base, \"aG\", \"progbits\", .stapsdt.base, comdat\n_.stapsdt.base: .space 1\n.popsection");
extern volatile unsigned short shop_semaphore;
KEPT void sell(int number, long price) {
    long on_stack = price * 2;
    __asm__ volatile("990: nop\n.pushsection .note.stapsdt, \"\", \"note\"\n.balign 4\n.4byte 992f-991f, 994f-993f, 3\n"
                     "991: .asciz \"stapsdt\"\n992: .balign 4\n993: .8byte 990b, _.stapsdt.base, shop_semaphore\n"
                     ".asciz \"shop\"\n.asciz \"sold\"\n.asciz \"-4@%0 8@%1 -4@$-3 8@nonsense(%%rip)\"\n994: .balign 4\n.popsection"
                     :: "r"(number), "m"(on_stack));
    watched += shop_semaphore;
    after++;
}
"""
PROGRAM = (
    r"""
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
#define KEPT __attribute__((noinline, noclone))
volatile long after, watched;
"""
    + USDT
    + r"""
KEPT void large(size_t size) { void *volatile place = malloc(size); free(place); after++; }
KEPT void small(size_t size) { void *volatile place = malloc(size); free(place); after++; }
KEPT void takes(int number, unsigned char bits) { after += number + bits; }
KEPT void forks(void) { for (int i = 0; i < 7; i++) { if (fork() == 0) _exit(0); wait(0); } after++; }
int main(void) {
    char byte;
    puts("here"); fflush(stdout);
    if (read(0, &byte, 1) != 1) return 9;
    for (int i = 0; i < 100; i++) { large((1 << 20) + 1 + i); small((1 << 20) - i); }
    for (int i = -10; i < 10; i++) takes(i, i);
    for (int i = -10; i < 10; i++) sell(i, i * 100);
    forks();
    printf("%ld\n", watched); fflush(stdout);
    pause();
}
"""
)


class Shop(NamedTuple):
    path: Path
    process: subprocess.Popen[bytes]

    def until_done(self) -> int:
        assert self.process.stdin
        assert self.process.stdout
        os.write(self.process.stdin.fileno(), b".")
        return int(self.process.stdout.readline())


@contextmanager
def shop(compile_c: Compiler) -> Iterator[Shop]:
    program = compile_c(PROGRAM, "-O2", "-fomit-frame-pointer")
    pipe = subprocess.PIPE
    with subprocess.Popen([program], stdin=pipe, stdout=pipe, start_new_session=True) as process:
        assert process.stdout
        try:
            assert process.stdout.readline() == b"here\n"
            yield Shop(program, process)
        finally:
            os.killpg(process.pid, 9)


def sampled_functions(running: Shop, event: Event, period: int = 1, only: Only | None = None) -> tuple[dict[str, int], int]:
    """Return the samples by the program's innermost function, and what the program printed."""
    sampling = Sampling((event.type, event.config), 0, period, points=event.points, name=event.name, only=only or Only())
    with Sampled({running.process.pid}, sampling) as sampled:
        sampled.publish(running.process.pid)
        sampled.walker.attach()
        printed = running.until_done()
        sampled.end()
        stacks, found = sampled.stacks(), dict[str, int]()
        names, number = FileNames(open_elf(running.path)), sampled.numbers[str(running.path)]
        for key, counted in sampled.walker.take_counts().items():
            assert stacks[key].end is End.OUTERMOST
            frames = [frame for frame in map(unpacked_frame, stacks[key].frames) if frame.file == number]
            name = names.at(frames[0].address).name or "?"
            found[name] = found.get(name, 0) + counted.samples
        assert not sampled.unfinished()
        assert sum(found.values()) == sampled.walker.statistics()[Statistic.SAMPLES]
    return found, printed


def test_every_large_malloc(compile_c: Compiler) -> None:
    with shop(compile_c) as running:
        event = find_event("uprobe:libc.so.6:malloc", "arg1 > 1048576", [running.process.pid])
        assert sampled_functions(running, event)[0] == {"large": 100}


def test_one_in_ten(compile_c: Compiler) -> None:
    with shop(compile_c) as running:
        found, _ = sampled_functions(running, find_event("uprobe:libc.so.6:malloc", "arg1 >= 1048477"), 10)
    assert sum(found.values()) == 20


@pytest.mark.parametrize(
    ("condition", "times"),
    [
        ("(int)arg1 < 0", 10),
        ("(int)arg1 >= -3 && (int)arg1 <= 3", 7),
        ("(int)arg1 == -10", 1),
        ("(unsigned char)arg2 & 0x80", 10),
        ("(int)arg1 != 0", 19),
        ("(unsigned)arg1 > 9", 10),
    ],
)
def test_conditions_on_arguments(compile_c: Compiler, condition: str, times: int) -> None:
    with shop(compile_c) as running:
        found, _ = sampled_functions(running, find_event(f"uprobe:{running.path}:takes", condition))
    assert found == {"takes": times}


def test_an_offset_in_a_function_and_an_address(compile_c: Compiler) -> None:
    with shop(compile_c) as running:
        by_name = find_event(f"uprobe:{running.path}:takes+0")
        (point,) = by_name.points
        load = next(load for load in open_elf(running.path).executable_loads())
        address = point.offset - load.p_offset + load.p_vaddr
        assert find_event(f"uprobe:{running.path}:{address:#x}").points == by_name.points
        assert sampled_functions(running, by_name)[0] == {"takes": 20}


@pytest.mark.parametrize(
    ("condition", "times"),
    [
        (None, 20),
        ("arg1 < -5", 5),
        ("arg2 > 0", 19),
        ("(long)arg2 > 0", 9),
        ("arg2 == 1000 && arg1 == 5", 1),
        ("arg3 == -3", 20),
        ("arg3 == 3", 0),
    ],
)
def test_a_usdt_probe_with_its_semaphore(compile_c: Compiler, condition: str | None, times: int) -> None:
    with shop(compile_c) as running:
        event = find_event(f"usdt:{running.path}:shop:sold", condition)
        found, watched = sampled_functions(running, event)
    assert found == ({"sell": times} if times else {})
    assert watched == 20  # the semaphore is 1 while somebody looks


def test_usdt_arguments_that_cannot_be_read_are_refused(compile_c: Compiler) -> None:
    program = compile_c(PROGRAM, "-O2", "-fomit-frame-pointer")
    with pytest.raises(EventError, match="has no arg4 that a filter can use; it has arg1, arg2, arg3"):
        find_event(f"usdt:{program}:shop:sold", "arg4 == 1")
    with pytest.raises(EventError, match="has no USDT probe shop:bought; it has shop:sold"):
        find_event(f"usdt:{program}:shop:bought")
    with pytest.raises(EventError, match="has no USDT probe shop:sold: it has none"):
        find_event("usdt:libc.so.6:shop:sold")


def test_a_tracepoint(compile_c: Compiler) -> None:
    with shop(compile_c) as running:
        assert sampled_functions(running, find_event("sched:sched_process_fork"))[0] == {"forks": 7}


def test_fields_of_a_tracepoint(compile_c: Compiler) -> None:
    with shop(compile_c) as running:
        pid = running.process.pid
        assert sampled_functions(running, find_event("sched:sched_process_fork", f"parent_pid != {pid}"))[0] == {}
    with shop(compile_c) as running:
        pid = running.process.pid
        condition = f"parent_pid == {pid} && child_pid > 1"
        assert sampled_functions(running, find_event("sched:sched_process_fork", condition))[0] == {"forks": 7}
    with pytest.raises(EventError, match="has no bytes that a filter can use; it has parent_pid, child_pid"):
        find_event("sched:sched_process_fork", "bytes > 1")


def test_filters_of_tasks(compile_c: Compiler) -> None:
    for only, times in [(Only(comm="a.out"), 20), (Only(comm="a.ou"), 0), (Only(user=0), 20), (Only(user=54321), 0)]:
        with shop(compile_c) as running:
            found, _ = sampled_functions(running, find_event(f"uprobe:{running.path}:takes"), only=only)
        assert sum(found.values()) == times * (only.user != 0 or os.geteuid() == 0)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("sched:nothing", "this kernel has no such tracepoint"),
        ("sched:../../x", "this kernel has no such tracepoint"),
        (":x", "this kernel has no such tracepoint"),
        ("sched:", "a tracepoint is CATEGORY:NAME"),
        ("uprobe:libc.so.6", "a probe in a file is uprobe:FILE:FUNCTION"),
        ("uprobe:libc.so.6:no such", "neither a function's name nor a hexadecimal address"),
        ("uprobe:/no such file:main", "No such file"),
        ("uprobe:no such library:main", "neither a library nor a program of this machine; give its path"),
        ("uprobe:libc.so.6:0x10", "is not in its code"),
        ("usdt:x:y", "a USDT probe is usdt:FILE:PROVIDER:NAME"),
        ("kprobe:a b", "a probe in the kernel is kprobe:FUNCTION"),
    ],
)
def test_names_of_no_event(name: str, message: str) -> None:
    with pytest.raises(EventError, match=message):
        find_event(name)


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ("", "not a condition, such as: arg1 > 1048576"),
        ("arg1", "not a condition"),
        ("arg1 > x", "not a condition"),
        ("arg1 > 1 || arg2 > 1", "not a condition"),
        ("(float)arg1 > 1", "float: unknown type; one of char, "),
        ("arg1 > 99999999999999999999", "more than 64 bits"),
        ("arg9 > 1", "has no arg9 that a filter can use"),
        (" && ".join(["arg1 > 1"] * (MAX_CONDITIONS + 1)), "at most 8 conditions"),
    ],
)
def test_filters_that_are_none(condition: str, message: str) -> None:
    with pytest.raises(EventError, match=message):
        find_event("uprobe:libc.so.6:malloc", condition)


def test_a_filter_needs_arguments() -> None:
    with pytest.raises(EventError, match="cpu-clock has no arguments"):
        find_event("cpu-clock", "arg1 > 1")


def test_a_kernel_function_or_why_not(compile_c: Compiler) -> None:
    if why := why_no("kprobe"):
        with pytest.raises(EventError, match=why):
            find_event("kprobe:wake_up_new_task")
        assert list_events().missing["kprobe"] == why
    else:
        with shop(compile_c) as running:
            assert sampled_functions(running, find_event("kprobe:wake_up_new_task"))[0] == {"forks": 7}


def test_the_list_of_events() -> None:
    listing = list_events()
    assert "sched:sched_switch" in listing.tracepoints
    assert "cpu-clock" in listing.lines()
    assert "uprobe:FILE:FUNCTION  (uprobe)" in listing.lines()
    assert listing.fields()["events"][0] == {"name": "cpu-clock", "aliases": [], "by_frequency": True}


def test_tracefs_is_not_left_mounted() -> None:
    before = Path("/proc/self/mounts").read_text()
    with Tracefs() as tracefs:
        assert "sched:sched_switch" in tracefs.names()
    assert Path("/proc/self/mounts").read_text() == before
