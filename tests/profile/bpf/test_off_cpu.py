"""Threads off the CPU: their stacks, the reason, and the time, against the clocks of the threads themselves."""

from __future__ import annotations

import os
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sframegen.elf.file import open_elf
from sframegen.profile.bpf import kernel_walker
from sframegen.profile.bpf.kernel_records import CountKey, NewStack, SampleCount, Statistic
from sframegen.profile.counted_stacks import read_stack_while_asleep
from sframegen.profile.packed_frames import PACKED_ADDRESS, OffCpu, is_off_cpu, unpack_frame
from sframegen.profile.sampling_plan import ProfilePlan
from sframegen.stack.names.file_names import FileNames
from sframegen.stack.walking.frames import End
from tests.support.kernel_events import needs_bpf
from tests.support.peers import Compiler
from tests.support.processes.kernel_walks import Sampled
from tests.support.processes.live import Program, until_it_runs

pytestmark = [needs_bpf, pytest.mark.sampled]

SECOND = 1_000_000_000
# Prints `here`, waits for a byte, does what its name says, and prints how long that took and how much of it was CPU time.
PROGRAM = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <sys/resource.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#define KEPT __attribute__((noinline, noclone))
volatile long after;
static long long now(int clock) { struct timespec at; clock_gettime(clock, &at); return at.tv_sec * 1000000000ll + at.tv_nsec; }
static void pause_ms(int ms) { struct timespec time = {0, ms * 1000000l}; nanosleep(&time, 0); }
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static int ends[2];
static void *holds(void *data) {
    for (;;) { pthread_mutex_lock(&mutex); pause_ms(8); pthread_mutex_unlock(&mutex); pause_ms(2); }
    return data;
}
static void *writes(void *data) { for (;;) { pause_ms(5); if (write(ends[1], "", 1) != 1) break; } return data; }
KEPT void naps(void) { for (int i = 0; i < 100; i++) pause_ms(10); after++; }
KEPT void locks(void) { for (int i = 0; i < 80; i++) { pthread_mutex_lock(&mutex); pthread_mutex_unlock(&mutex); pause_ms(1); }
                   after++; }
KEPT void reads(void) { char byte; for (int i = 0; i < 100; i++) if (read(ends[0], &byte, 1) != 1) _exit(9); after++; }
KEPT void syncs(const char *file) {
    int fd = open(file, O_CREAT | O_WRONLY, 0600);
    for (int i = 0; i < 40; i++) if (pwrite(fd, "x", 1, i) != 1 || fsync(fd)) _exit(9);
    after++;
}
KEPT void spins(void) { for (long long until = now(CLOCK_THREAD_CPUTIME_ID) + 400000000; now(CLOCK_THREAD_CPUTIME_ID) < until;)
    for (int i = 0; i < 100000; i++) after++; }
/* Again, if the timer has run out before the thread slept. In memory: registers are to be the same each time. */
static volatile long before;
KEPT long slept(void) { struct rusage usage; getrusage(RUSAGE_THREAD, &usage); return usage.ru_nvcsw; }
KEPT void by_one(void) { for (before = slept(); slept() == before;) pause_ms(1); after++; }
KEPT void by_two(void) { for (before = slept(); slept() == before;) pause_ms(1); after++; }
KEPT void turns(void) { for (int i = 0; i < 90; i++) if (i / 3 % 3) by_one(); else by_two(); after++; }
KEPT void waits_for_child(void) { if (vfork() == 0) { pause_ms(900); _exit(0); } after++; }
int main(int count, char **words) {
    pthread_t other;
    char byte;
    if (pipe(ends)) return 9;
    if (!strcmp(words[1], "locks")) pthread_create(&other, 0, holds, 0);
    if (!strcmp(words[1], "spins")) {
        cpu_set_t one;
        CPU_ZERO(&one); CPU_SET(sched_getcpu(), &one);
        sched_setaffinity(0, sizeof one, &one);
        if (fork() == 0) { alarm(600); for (;;) after++; }
    }
    puts("here"); fflush(stdout);
    if (read(0, &byte, 1) != 1) return 9;
    if (!strcmp(words[1], "reads")) pthread_create(&other, 0, writes, 0); // not before: bytes would be there already
    long long begin = now(CLOCK_MONOTONIC), used = now(CLOCK_THREAD_CPUTIME_ID);
    if (!strcmp(words[1], "naps")) naps();
    if (!strcmp(words[1], "locks")) locks();
    if (!strcmp(words[1], "reads")) reads();
    if (!strcmp(words[1], "syncs")) syncs(words[2]);
    if (!strcmp(words[1], "spins") || !strcmp(words[1], "works")) spins();
    if (!strcmp(words[1], "turns")) turns();
    if (!strcmp(words[1], "vforks")) waits_for_child();
    long long end = now(CLOCK_MONOTONIC), used_then = now(CLOCK_THREAD_CPUTIME_ID);
    printf("%lld %lld\n", end - begin, used_then - used); fflush(stdout);
    pause();
}
"""
MEASURED = {"naps", "locks", "reads", "syncs", "spins", "waits_for_child"}
SLACK = 20_000_000  # nanoseconds: a tick of stolen time on each CPU, and what happens between the program's own clocks
USED = 50_000_000  # nanoseconds of CPU time, of the 400 ms that it spins
OFF_CPU = ProfilePlan(off_cpu=True, by="tid")


class Clock:
    """Compares times. While a virtual machine's CPU is taken from it, time passes that no thread uses or waits."""

    def __init__(self) -> None:
        self._begin = self._stolen()
        self._monotonic = time.monotonic_ns()

    def _stolen(self) -> int:
        ticks = [int(line.split()[8]) for line in Path("/proc/stat").read_text().splitlines() if line.startswith("cpu ")]
        return sum(ticks) * SECOND // os.sysconf("SC_CLK_TCK")

    def stolen(self) -> int:
        return self._stolen() - self._begin

    def check(self, accounted: int, passed: int) -> None:
        """The time that passed."""
        assert accounted - passed <= SLACK + passed / 100
        self.check_more(accounted, passed)

    def check_more(self, accounted: int, passed: int) -> None:
        """Also of the time before and after it, for which we may have waited for a CPU."""
        assert passed - accounted <= SLACK + passed / 100 + self.stolen()
        assert accounted <= time.monotonic_ns() - self._monotonic


class Waits(Program):
    def until_done(self) -> tuple[int, int]:
        """Return the nanoseconds that passed, and those of CPU time."""
        self.go_on()
        passed, used = map(int, self.line().split())
        return passed, used


def waits(compile_c: Compiler, *words: str | Path) -> Waits:
    return Waits(compile_c(PROGRAM, "-O2", "-fomit-frame-pointer", "-pthread", "-Wno-unused-result"), *words, ends=False)


@contextmanager
def measured(compile_c: Compiler, *words: str | Path, plan: ProfilePlan = OFF_CPU) -> Iterator[tuple[Waits, Sampled]]:
    with waits(compile_c, *words) as program, Sampled({program.pid}, plan) as sampled:
        sampled.publish(program.pid)
        sampled.walker.attach()
        yield program, sampled


def counted_stacks(sampled: Sampled) -> Iterator[tuple[CountKey, SampleCount, NewStack]]:
    """Yield what was counted, with its stack; not what waited when sampling began, whose stacks only their processes have."""
    stacks = sampled.stacks()
    asleep = {hashed for record in sampled.unfinished() if record.asleep for hashed in (record.hash, record.waiting_hash)}
    for key, counted in sampled.walker.take_counts().items():
        if key[0] not in asleep:
            yield key, counted, stacks[key]


def times(sampled: Sampled, program: Waits) -> Counter[OffCpu | None]:
    """Return the nanoseconds of each reason, None for the CPU, of the main thread in the measured part."""
    names = FileNames(open_elf(program.path))
    number = sampled.numbers[str(program.path)]
    found: Counter[OffCpu | None] = Counter()
    for key, counted, stack in counted_stacks(sampled):
        frames = stack.frames
        inside = {names.at(frame.address).name for frame in map(unpack_frame, frames) if frame.file == number}
        if key[2] == program.pid and MEASURED & inside:
            assert stack.end is End.OUTERMOST
            found[OffCpu(frames[0] & PACKED_ADDRESS) if is_off_cpu(frames) else None] += counted.nanoseconds
    return found


REASONS = {"locks": OffCpu.LOCK, "syncs": OffCpu.IO, "spins": OffCpu.PREEMPTED}


@pytest.mark.parametrize("name", ["naps", "locks", "reads", "syncs", "spins", "vforks"])
def test_time_off_and_on_the_cpu_is_the_time_that_passed(compile_c: Compiler, tmp_path: Path, name: str) -> None:
    reason = REASONS.get(name, OffCpu.SLEEPING)
    with measured(compile_c, name, tmp_path / "file") as (program, sampled):
        clock = Clock()
        passed, used = program.until_done()
        sampled.end()
        off = times(sampled, program)
    if name == "syncs" and reason not in off:
        pytest.skip("no test of waits for the disk: files in this folder need none")
    others = {OffCpu.WAITING, OffCpu.PREEMPTED} - {reason}  # as long as the machine is busy
    assert max(off, key=lambda one: 0 if one in others else off[one]) is reason
    # Its last wait goes on after the measured part: that is a matter of microseconds.
    clock.check(sum(off.values()) + used, passed)


def test_a_thread_that_never_comes_back_is_counted_at_the_end(compile_c: Compiler) -> None:
    with measured(compile_c, "naps") as (program, sampled):
        program.until_done()
        subprocess.run(["sleep", "0.3"], check=True)
        sampled.end()
        passed = sum(counted.nanoseconds for key, counted, _ in counted_stacks(sampled) if key[2] == program.pid)
    # Between what it printed and its last wait it is on the CPU.
    assert passed >= 100 * 10_000_000 + 300_000_000 - SLACK


def test_counts_survive_being_taken_while_a_thread_waits(compile_c: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_walker, "COUNT_INTERVAL", kernel_walker.GRACE)
    with measured(compile_c, "naps") as (program, sampled):
        total = 0
        program.go_on()
        for _ in range(15):
            sampled.records += sampled.walker.poll(20)
            subprocess.run(["sleep", "0.11"], check=True)
            total += sum(counted.nanoseconds for key, counted, _ in counted_stacks(sampled) if key[2] == program.pid)
    assert total >= 100 * 10_000_000


def test_a_thread_that_waits_already(compile_c: Compiler) -> None:
    with waits(compile_c, "naps") as program, Sampled({program.pid}, OFF_CPU) as sampled:
        sampled.publish(program.pid)
        begin = time.monotonic_ns()
        sampled.walker.attach()
        time.sleep(0.2)
        sampled.until(lambda: bool(sampled.unfinished()))
        (record,) = sampled.unfinished()
        assert record.asleep
        assert (record.pid, record.tid, record.comm) == (program.pid, program.pid, "a.out")
        assert OffCpu(record.start.frames[0] & PACKED_ADDRESS) is OffCpu.SLEEPING
        walked = read_stack_while_asleep(record, sampled.walker)
        assert walked
        assert len(walked.stack) > 128
        program.until_done()
        assert read_stack_while_asleep(record, sampled.walker) is None
        sampled.end()
        taken = sampled.walker.take_counts()
    assert 200_000_000 <= taken[record.hash, record.pid, record.tid].nanoseconds < time.monotonic_ns() - begin


def test_a_thread_that_comes_back_unseen(compile_c: Compiler) -> None:
    """Under load, kernels leave out some switches. Until it leaves again, it was off the CPU when it did not run."""
    for _ in range(5):  # again, if something took its CPU when the program was attached again: then that return is seen
        with waits(compile_c, "works") as program, Sampled({program.pid}, OFF_CPU) as sampled:
            walker = sampled.walker
            sampled.publish(program.pid)
            began = time.monotonic_ns()
            walker.attach()
            sampled.until(lambda: bool(sampled.unfinished()))
            (record,) = sampled.unfinished()
            time.sleep(0.2)
            while walker._global_links:
                walker._program.detach(walker._global_links.pop())
            os.sched_setscheduler(program.pid, os.SCHED_FIFO, os.sched_param(1))  # whatever else runs, it keeps its CPU
            program.go_on()
            asleep = time.monotonic_ns() - began
            until_it_runs(program.pid, USED)
            walker.attach()
            program.until_done()
            sampled.end()
            waited = walker.take_counts()[record.hash, program.pid, program.pid].nanoseconds
        assert waited >= 200_000_000
        if waited <= asleep + SLACK:
            return
    pytest.fail("the time that it ran counts, too")


def test_unknown_code_is_finished_later_and_its_time_counts(compile_c: Compiler) -> None:
    """Without its mappings, each stack goes to user space, with the number that its time is counted with."""
    with waits(compile_c, "naps") as program, Sampled({program.pid}, OFF_CPU) as sampled:
        clock = Clock()
        sampled.walker.attach()
        passed, used = program.until_done()
        sampled.end()
        every = {(record.hash, record.pid, record.tid): record for record in sampled.unfinished()}
        unfinished = {key: record for key, record in every.items() if not record.asleep}
        asleep = {hashed for record in every.values() if record.asleep for hashed in (record.hash, record.waiting_hash)}
        taken = {key: counted for key, counted in sampled.walker.take_counts().items() if key[0] not in asleep}
        assert all(is_off_cpu(record.start.frames) for record in unfinished.values())
        known = sum(counted.nanoseconds for key, counted in taken.items() if key in unfinished)
        waiting = {record.waiting_hash for record in unfinished.values()}
        late = sum(counted.nanoseconds for key, counted in taken.items() if key[0] in waiting)
        assert known + late == sum(counted.nanoseconds for counted in taken.values())
        clock.check_more(known + late + used, passed)


def test_time_on_and_off_the_cpu_in_one_picture(compile_c: Compiler) -> None:
    both = ProfilePlan(frequency=999, wall=True, by="tid")
    with measured(compile_c, "spins", plan=both) as (program, sampled):
        clock = Clock()
        passed, used = program.until_done()
        sampled.end()
        found = times(sampled, program)
    on = found.pop(None)
    clock.check(found.total() + used, passed)
    assert used * 0.75 - clock.stolen() <= on <= used * 1.25  # samples: 400 or so


def test_a_stack_is_remembered_only_while_it_is_the_same(compile_c: Compiler) -> None:
    """Two functions wait in turns, with the same registers: only words on the stack tell who called."""
    with measured(compile_c, "turns") as (program, sampled):
        program.until_done()
        sampled.end()
        assert sampled.walker.statistics()[Statistic.REMEMBERED] >= 30
        names, number = FileNames(open_elf(program.path)), sampled.numbers[str(program.path)]
        found = Counter[str | None]()
        for _, counted, stack in counted_stacks(sampled):
            frames = [frame.address for frame in map(unpack_frame, stack.frames) if frame.file == number]
            inside = [names.at(address).name for address in frames]
            if "turns" in inside and stack.frames[0] == OffCpu.SLEEPING.frame:
                found[inside[inside.index("turns") - 1]] += counted.samples
    assert found == {"by_one": 60, "by_two": 30}
