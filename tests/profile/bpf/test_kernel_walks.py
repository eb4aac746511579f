"""The kernel program walks running processes as `sframegen stack` does, and what it knows of a process stays true."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections import Counter
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from sframegen.elf.file import open_elf
from sframegen.elf.function_names import resolve_address
from sframegen.profile.bpf import kernel_walker
from sframegen.profile.bpf.kernel_records import LOSS_REASONS, Statistic
from sframegen.profile.bpf.libbpf import library
from sframegen.profile.limits import MAX_DEPTH
from sframegen.profile.packed_frames import GUESSED, unpack_frame
from sframegen.profile.sampling_plan import ProfilePlan
from sframegen.profile.tables.decoded_table import DecodedTable
from sframegen.profile.tables.make_table import make_table
from sframegen.profile.walk.copied_stack import CopyWalker, make_span_columns
from sframegen.stack.live.process import Process, host_abi
from sframegen.stack.tracer import Tracer
from sframegen.stack.walking.frames import End, Frame
from tests.support.kernel_events import needs_bpf
from tests.support.peers import Compiler
from tests.support.processes.kernel_walks import Sampled
from tests.support.processes.live import HOLD, SPIN, Program, spinning

pytestmark = needs_bpf
RECURSION = "KEPT void down(int n) { if (n) down(n - 1); else spin(); after++; } int main(void) { down(DEPTH); }"
QSORT = r"""
static int compare(const void *a, const void *b) { if (after++ == 20) spin(); return *(int *)a - *(int *)b; }
int main(void) { int a[99]; for (int i = 0; i < 99; i++) a[i] = i * 7919 % 99; qsort(a, 99, sizeof *a, compare); }
"""
SIGNAL = r"""
KEPT void handler(int n) { spin(); after += n; }
KEPT void raises(void) { raise(SIGUSR1); after++; }
int main(void) {
    stack_t other = {.ss_sp = malloc(65536), .ss_size = 65536};
    sigaltstack(&other, 0);
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_ONSTACK};
    sigaction(SIGUSR1, &action, 0);
    raises();
}
"""
REALIGNED = r"""
KEPT void sized(int n) { volatile char *room = alloca(n); room[0] = 1; spin(); after += room[0]; }
KEPT void aligned(int n) { _Alignas(64) volatile char room[128]; room[1] = n; sized(n); after += room[1]; }
int main(void) { aligned(1000); }
"""
# The caller's CFA is relative to a register that nobody has saved: only the frame pointer leads on.
UNKNOWN = r"""
__asm__(".text\n.type by_rbx, @function\nby_rbx: .cfi_startproc\n pushq %rbp\n .cfi_def_cfa_offset 16\n .cfi_offset 6, -16\n"
        "movq %rsp, %rbp\n pushq %rbx\n subq $8, %rsp\n leaq 16(%rbp), %rbx\n .cfi_def_cfa 3, 0\n .cfi_offset 3, -24\n"
        "call spin\n nop\n movq -8(%rbp), %rbx\n leave\n .cfi_def_cfa 7, 8\n ret\n .cfi_endproc\n.size by_rbx, .-by_rbx");
void by_rbx(void);
int main(void) { by_rbx(); after++; }
"""
THREAD = r"""
KEPT void *run(void *data) { spin(); after++; return data; }
int main(void) { pthread_t one; pthread_create(&one, 0, run, 0); pthread_join(one, 0); }
"""
# The page of _start is not in memory, as in a process that another one forked: whether a call ends there cannot be read.
DROPPED = r"""
extern char _start[];
KEPT __attribute__((aligned(8192))) void far(void) {
    madvise((void *)((uintptr_t)_start & -4096), 4096, MADV_DONTNEED);
    if (write(1, "here\n", 5) != 5) _exit(9);
    for (;;) after++;
}
int main(void) { far(); after++; }
"""
# After `pop %rbp` the rule still finds the caller's value in memory, below SP; the caller's frame needs it.
RESTORED = r"""
asm(".text; .type popped,@function; popped: .cfi_startproc; push %rbp; .cfi_def_cfa_offset 16; .cfi_offset %rbp,-16;"
    "mov %rsp,%rbp; pop %rbp; .cfi_def_cfa_offset 8; 0: jmp 0b; .cfi_endproc; .size popped,.-popped");
void popped(void);
int main(int argc, char **argv) {
    char *room = alloca(argc * 100);
    room[argc] = **argv;
    if (write(1, "here\n", 5) != 5) return 1;
    popped();
    after += room[argc];
}
"""


def running(compile_c: Compiler, source: str, *flags: str) -> AbstractContextManager[int]:
    return spinning(compile_c(SPIN + source, "-O2", "-fomit-frame-pointer", "-pthread", *flags))


def frames_of(pid: int, source: str) -> list[Frame]:
    with Process(pid) as process:
        threads = Tracer(convert=True).trace_process(process)
    return next(thread.frames for thread in threads if (thread.tid == pid) is (source is not THREAD))


@pytest.mark.parametrize(
    ("source", "depth"),
    [(RECURSION, 45), (QSORT, 6), (SIGNAL, 8), (REALIGNED, 6), (THREAD, 4), (UNKNOWN, 6), (DROPPED, 5)],
    ids=["recursion", "qsort", "signal", "realigned", "thread", "unknown register", "dropped"],
)
@pytest.mark.parametrize("flags", [("-pie", "-fPIE"), ("-no-pie",)], ids=["pie", "fixed"])
def test_stacks_equal_those_of_the_stopped_process(compile_c: Compiler, source: str, depth: int, flags: tuple[str, ...]) -> None:
    with running(compile_c, source, "-DDEPTH=40", *flags) as pid, Sampled({pid}) as sampled:
        sampled.publish(pid)
        sampled.sample(50)
        frames = frames_of(pid, source)
        expected = [frame.lookup_address for frame in frames]
        counts, stacks = sampled.counts(), sampled.stacks()
        assert counts.keys() == stacks.keys()
        assert sum(counts.values()) == sampled.walker.statistics()[Statistic.SAMPLES]
        assert len(expected) >= depth
        spinning = {key: stack for key, stack in stacks.items() if len(stack.frames) == len(expected)}
        assert sum(counts[key] for key in spinning) >= sum(counts.values()) - 3  # the first may be in write()
        for stack in spinning.values():
            found = sampled.addresses(pid, stack.frames)
            assert (stack.end, stack.comm, found[1:]) == (End.OUTERMOST, "a.out", expected[1:])
            assert abs(found[0] - expected[0]) < 100  # both in spin()
            assert [bool(frame & GUESSED) for frame in stack.frames] == [frame.guessed for frame in frames]


def test_a_stack_deeper_than_the_limit_ends_too_deep(compile_c: Compiler) -> None:
    with running(compile_c, RECURSION, f"-DDEPTH={MAX_DEPTH + 100}") as pid, Sampled({pid}) as sampled:
        sampled.publish(pid)
        sampled.sample(10)
        assert {(stack.end, len(stack.frames)) for stack in sampled.stacks().values()} == {(End.TOO_DEEP, MAX_DEPTH)}


def copies_of(sampled: Sampled) -> CopyWalker:
    copies = CopyWalker(host_abi(), lambda _: None)
    for path, number in sampled.numbers.items():
        copies.add_table(number, make_table(open_elf(path)).table)
    return copies


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the code is for x86-64")
@pytest.mark.parametrize("source", [QSORT, REALIGNED, THREAD, RESTORED], ids=["qsort", "realigned", "thread", "restored"])
def test_copies_have_the_stacks_of_the_stopped_process(compile_c: Compiler, source: str) -> None:
    flags = ("-fno-omit-frame-pointer",) if source is RESTORED else ()
    with running(compile_c, source, *flags) as pid, Sampled({pid}) as sampled:
        sampled.sample(3)
        sampled.publish(pid)
        expected = [frame.lookup_address for frame in frames_of(pid, source)]
        copies = copies_of(sampled)
        for record in sampled.unfinished():
            end = copies.walk(make_span_columns(sampled.spans[pid]), record.start, record.stack_start, record.stack)
            assert (end, sampled.addresses(pid, copies.frames())[1:]) == (End.OUTERMOST, expected[1:])
        assert len(expected) > 3


def test_a_copy_goes_on_after_pages_that_were_never_used(compile_c: Compiler) -> None:
    """As the large frames of encoders: a thread's stack is new, so most of these three frames is not in memory."""
    wide = r"""
    KEPT void wide(int n) { volatile char room[32000]; room[0] = n; if (n) wide(n - 1); else spin(); after += room[0]; }
    KEPT void *run(void *data) { wide(2); after++; return data; }
    int main(void) { pthread_t one; pthread_create(&one, 0, run, 0); pthread_join(one, 0); }
    """
    with running(compile_c, wide, "-fno-stack-clash-protection") as pid, Sampled({pid}) as sampled:
        sampled.sample(3)
        sampled.publish(pid)
        copies = copies_of(sampled)
        for record in sampled.unfinished():
            assert record.holes.bit_count() > 15
            spans = make_span_columns(sampled.spans[pid])
            end = copies.walk(spans, record.start, record.stack_start, record.stack, record.holes)
            assert (end, len(copies.frames())) == (End.OUTERMOST, 7)
            before = ((record.holes & -record.holes).bit_length() - 1) * 4096 - record.stack_start % 4096
            assert copies.walk(spans, record.start, record.stack_start, record.stack[:before]) is End.COPY_TOO_SHORT


def test_a_file_without_its_table_stops_the_walk_before_its_frame(compile_c: Compiler) -> None:
    with running(compile_c, QSORT) as pid, Sampled({pid}) as sampled:
        sampled.publish(pid)
        libc = next(number for path, number in sampled.numbers.items() if "libc.so" in path)
        sampled.walker.drop_table(libc)
        sampled.sample(20)
        finished = [record for record in sampled.unfinished() if record.start.frames]
        assert finished
        for record in finished:
            assert record.end is End.NO_TABLE
            assert [unpack_frame(frame).file for frame in record.start.frames] == [1, 1]  # compare, spin
            assert not record.start.exact
            span = next(span for span in sampled.spans[pid] if span.start <= record.start.pc < span.end)
            assert span.file == libc


def test_a_damaged_stack_ends_with_a_reason(compile_c: Compiler) -> None:
    damage = r"""
    KEPT void damaged(uintptr_t value) {
        uintptr_t *frame = __builtin_frame_address(0);
        frame[0] = frame[1] = value;
        for (int i = 2; i < 6; i++) frame[i] = value + i;
        spin();
        after++;
    }
    int main(void) { damaged(VALUE); }
    """
    for value, ends in (
        ("0x1234567812345678", {End.NO_MAPPING}),
        ("0", {End.NO_RETURN}),
        ("(uintptr_t)damaged", {End.NO_MAPPING, End.NOT_ASCENDING, End.UNREADABLE, End.UNKNOWN_REGISTER, End.GUESS_FAILED}),
    ):
        with running(compile_c, damage, f"-DVALUE={value}", "-fno-stack-protector") as pid, Sampled({pid}) as sampled:
            sampled.publish(pid)
            sampled.sample(5)
            seen = {stack.end for stack in sampled.stacks().values()} | {record.end for record in sampled.unfinished()}
            assert seen & ends, (value, seen)
            assert End.OUTERMOST not in seen


def test_code_without_rules_is_crossed_by_frame_pointers_and_marked(compile_c: Compiler) -> None:
    flags = ("-fno-omit-frame-pointer", "-fno-asynchronous-unwind-tables", "-DDEPTH=5")
    with running(compile_c, RECURSION, *flags) as pid, Sampled({pid}) as sampled:
        sampled.publish(pid)
        sampled.walker.add_tables({1: None})
        sampled.sample(20)
        stacks = [stack for stack in sampled.stacks().values() if unpack_frame(stack.frames[0]).file == 1]
        assert stacks
        for stack in stacks:
            assert [bool(frame & GUESSED) for frame in stack.frames[:8]] == [False, *[True] * 7]
            assert stack.end is End.GUESS_FAILED  # after _start, whose rule was in the table


def test_made_code_that_only_returns_needs_no_rule_and_no_frame_pointer(compile_c: Compiler) -> None:
    """As CPython's trampolines: sub $8, %rsp; call *%rcx; add $8, %rsp; ret."""
    trampoline = r"""
    KEPT void calls(void (*code)(long, long, long, void (*)(void))) { code(1, 2, 3, spin); after++; }
    int main(void) {
        void *code = mmap(0, 4096, 7, 34, -1, 0);
        memcpy(code, "\x48\x83\xec\x08\xff\xd1\x48\x83\xc4\x08\xc3", 11);
        calls(code);
    }
    """
    with running(compile_c, trampoline) as pid, Sampled({pid}) as sampled:
        sampled.publish(pid)
        sampled.sample(20)
        stacks = [stack for stack in sampled.stacks().values() if len(stack.frames) > 4]
        assert stacks
        for stack in stacks:
            assert [unpack_frame(frame).file for frame in stack.frames[:4]] == [1, 0, 1, 1]
            assert stack.end is End.OUTERMOST
            assert not any(frame & GUESSED for frame in stack.frames)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the code is for x86-64")
def test_what_go_s_runtime_calls_on_another_stack_has_its_caller_elsewhere(compile_c: Compiler) -> None:
    """Also from a signal's handler that returns to code which, as in musl, follows a no-op: no byte before that is its."""
    switches = r"""
    __attribute__((section(".go.buildinfo"))) char info[16];
    asm(".text; .type on_other,@function; on_other: .cfi_startproc; push %r12; .cfi_adjust_cfa_offset 8; mov %rsp,%r12;"
        "mov 56(%rsi),%rsp; call *%rdi; mov %r12,%rsp; pop %r12; ret; .cfi_endproc; .size on_other,.-on_other;"
        "nop; .type restorer,@function; restorer: mov $15,%rax; syscall");
    void on_other(void (*)(void), char **);
    void restorer(void);
    KEPT void handler(int number) { spin(); after += number; }
    KEPT void last(void) {
        struct { void *handler; long flags; void *restorer; long mask; } action = {handler, 0x04000000, restorer, 0};
        syscall(SYS_rt_sigaction, SIGUSR1, &action, 0, 8);
        raise(SIGUSR1);
        after++;
    }
    int main(void) {
        static char stack[1 << 16];
        char *goroutine[8] = {[7] = stack + sizeof stack - 64};
        on_other(last, goroutine);
    }
    """
    with running(compile_c, "#include <sys/syscall.h>\n" + switches, "-no-pie") as pid, Sampled({pid}) as sampled:
        sampled.publish(pid)
        sampled.sample(20)
        stacks = [stack for stack in sampled.stacks().values() if len(stack.frames) > 4]
        restorer = resolve_address(open_elf(next(iter(sampled.numbers))), "restorer")
        assert stacks
        for stack in stacks:
            assert stack.end is End.OTHER_STACK
            assert restorer in [unpack_frame(frame).address for frame in stack.frames]


def test_counts_taken_meanwhile_lose_nothing(compile_c: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_walker, "GRACE", 0.0)
    with running(compile_c, RECURSION, "-DDEPTH=4") as pid, Sampled({pid}, ProfilePlan(frequency=4999)) as sampled:
        sampled.publish(pid)
        sampled.walker.attach()
        taken: Counter[tuple[int, int, int]] = Counter()
        for number in range(200, 2001, 200):
            sampled.until(lambda least=number: sampled.walker.statistics()[Statistic.SAMPLES] >= least)  # type: ignore[misc]
            taken += sampled.counts()
        sampled.end()
        taken += sampled.counts()
        statistics = sampled.walker.statistics()
        assert sum(taken.values()) == statistics[Statistic.SAMPLES]
        assert not any(statistics[reason] for reason in LOSS_REASONS)
        assert taken.keys() <= sampled.stacks().keys()


def test_tables_beyond_the_memory_are_refused(compile_c: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(compile_c, RECURSION, "-DDEPTH=4") as pid, Sampled({pid}) as sampled:
        sampled.publish(pid)
        walker = sampled.walker
        full = walker.memory
        monkeypatch.setattr(kernel_walker, "MAX_TABLE_MEMORY", full)
        walker.add_tables({100: DecodedTable(0, 0, 0, 0, 0, 0, 0, bytes(64), 0)})
        assert (walker.refused, walker.memory) == ({100}, full)
        walker.drop_table(max(sampled.numbers.values()))
        walker.add_tables({100: DecodedTable(0, 0, 0, 0, 0, 0, 0, bytes(64), 0)})
        assert walker.refused == set()


def test_a_table_with_impossible_places_is_damaged_and_nothing_more(compile_c: Compiler) -> None:
    with running(compile_c, RECURSION, "-DDEPTH=4") as pid, Sampled({pid}) as sampled:
        sampled.publish(pid)
        huge = (1 << 32) - 1
        damaged = [
            DecodedTable(0, huge, huge, 0, 0, 0, 0, bytes(64), 0),
            DecodedTable(0, huge, 0, huge, 0, 0, 0, bytes(1 << 16), 0),
            DecodedTable(0, huge, 0, 0, huge, 0, 0, b"\xff" * (1 << 20), 0),
        ]
        sampled.walker.attach()
        for table in damaged:
            seen = sampled.walker.statistics()[End.DAMAGED_TABLE] + sampled.walker.statistics()[End.NO_RULE]
            sampled.walker.add_tables({1: table})
            before = sampled.walker.statistics()[Statistic.SAMPLES]
            sampled.until(lambda least=before: sampled.walker.statistics()[Statistic.SAMPLES] > least + 20)  # type: ignore[misc]
            ends = sampled.walker.statistics()
            assert ends[End.DAMAGED_TABLE] + ends[End.NO_RULE] + ends[End.GUESS_FAILED] > seen
        sampled.end()


FORKS = r"""
int main(void) {
    hold();
    pid_t child = fork();
    if (child == 0) for (;;) after++;
    printf("%d\n", child);
    fflush(stdout);
    hold();
}
"""
EXECS = r"""
int main(int count, char **words) { if (count > 1) for (;;) after++; hold(); execl(words[0], words[0], "again", (char *)0); }
"""
REUSES = r"""
#include <sys/mman.h>
typedef void *(*Code)(volatile long *);
int main(int count, char **words) {
    void *first = dlopen(words[1], RTLD_NOW);
    void *work = dlsym(first, "work");
    hold();
    dlclose(first);
    void *second = dlopen(words[2], RTLD_NOW);
    Code again = (Code)dlsym(second, "work");
    printf("%d\n", (void *)again == work);
    fflush(stdout);
    again(&after);
}
"""
LIBRARY = "void *work(volatile long *count) { for (;;) ++*count; return 0; }"


def two_libraries(compile_c: Compiler) -> list[Path]:
    flags = ("-O2", "-shared", "-fPIC")
    return [compile_c(f"{LIBRARY} int version = {number};", *flags, name=f"lib{number}.so") for number in (1, 2)]


def test_a_child_is_known_before_it_runs(compile_c: Compiler) -> None:
    with Program(compile_c(HOLD + FORKS, "-O2"), ends=False) as process, Sampled({process.pid}) as sampled:
        sampled.publish(process.pid)
        sampled.walker.attach()
        process.go_on()
        child = int(process.line())
        sampled.until(lambda: any(pid == child for _, pid, _ in sampled.stacks()))
        sampled.until(lambda: sampled.walker.statistics()[Statistic.SAMPLES] > 30)
        sampled.end()
        assert not [record for record in sampled.unfinished() if record.pid == child]
        assert {stack.end for stack in sampled.stacks().values() if stack.pid == child} == {End.OUTERMOST}


def test_after_exec_nothing_is_known(compile_c: Compiler) -> None:
    with Program(compile_c(HOLD + EXECS, "-O2"), ends=False) as process, Sampled({process.pid}) as sampled:
        before = sampled.publish(process.pid)
        sampled.walker.attach()
        process.go_on()
        # On a busy machine, samples from before the call of exec come first; they have other ends.
        sampled.until(lambda: [record.end for record in sampled.unfinished()].count(End.NO_PROCESS) > 5)
        assert sampled.walker.publish(process.pid, sampled.spans[process.pid], before)  # late: says nothing
        known = len(sampled.stacks())
        seen = len(sampled.unfinished())
        sampled.until(lambda: len(sampled.unfinished()) > seen + 5)
        assert {record.end for record in sampled.unfinished()[seen:]} == {End.NO_PROCESS}
        assert len(sampled.stacks()) == known
        sampled.publish(process.pid)
        sampled.until(lambda: len(sampled.stacks()) > known)


def test_an_address_range_used_again_gives_no_stale_frame(compile_c: Compiler) -> None:
    libraries = two_libraries(compile_c)
    with Program(compile_c(HOLD + REUSES, "-O2"), *libraries, ends=False) as process, Sampled({process.pid}) as sampled:
        sampled.publish(process.pid)
        stale = sampled.numbers[str(libraries[0])]
        sampled.walker.attach()
        process.go_on()
        assert process.line() == b"1\n"  # both are at the same address
        sampled.until(lambda: len(sampled.unfinished()) > 10)
        assert not [stack for stack in sampled.stacks().values() if unpack_frame(stack.frames[0]).file == stale]
        sampled.publish(process.pid)

        def files() -> set[int]:
            return {unpack_frame(stack.frames[0]).file for stack in sampled.stacks().values() if stack.end is End.OUTERMOST}

        sampled.until(lambda: sampled.numbers[str(libraries[1])] in files())
        sampled.end()
        assert stale not in files()


def test_mappings_that_change_while_they_are_read_are_not_used(compile_c: Compiler) -> None:
    """A library that was loaded and unloaded since the last time: the kernel program never knew it."""
    libraries = two_libraries(compile_c)
    with Program(compile_c(HOLD + REUSES, "-O2"), *libraries, ends=False) as process, Sampled({process.pid}) as sampled:
        published = sampled.publish(process.pid)
        stale = sampled.numbers[str(libraries[0])]
        spans = sampled.spans[process.pid]
        assert sampled.walker.publish(process.pid, [span for span in spans if span.file != stale], published)
        sampled.walker.attach()
        epoch = sampled.walker.begin_epoch(process.pid)
        process.go_on()
        assert process.line() == b"1\n"  # both are at the same address
        assert sampled.walker.publish(process.pid, spans, epoch)
        sampled.until(lambda: len(sampled.unfinished()) > 10)
        sampled.end()
        assert not [stack for stack in sampled.stacks().values() if unpack_frame(stack.frames[0]).file == stale]


def test_processes_that_end_leave_no_entry(compile_c: Compiler) -> None:
    program = compile_c("int main(void) { volatile int i = 1 << 24; while (i) i--; }")
    ended = set()
    with Sampled(None) as sampled:
        sampled.walker.attach()
        for _ in range(20):
            with subprocess.Popen([program]) as process:
                ended.add(process.pid)
        sampled.end()
        known = {int.from_bytes(key, "little") for key, _ in sampled.walker._epochs.items(1 << 16)}
        assert ended & {record.pid for record in sampled.unfinished()}
        assert not known & ended


def is_loaded(number: int) -> bool:
    fd = library().functions.bpf_prog_get_fd_by_id(number)
    if fd >= 0:
        os.close(fd)
    return bool(fd >= 0)


@pytest.mark.sampled
def test_a_killed_profiler_leaves_nothing() -> None:
    code = (
        "from sframegen.profile.bpf.kernel_walker import KernelWalker\n"
        "from sframegen.profile.sampling_plan import ProfilePlan\n"
        "walker = KernelWalker(ProfilePlan(frequency=999)); walker.attach()\n"
        "info = open(f'/proc/self/fdinfo/{walker.program_fd}')\n"
        "print(*[line.split()[1] for line in info if line.startswith('prog_id')], flush=True)\n"
        "while True: walker.poll(10)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout
        number = int(process.stdout.readline())
        assert is_loaded(number)
        process.kill()
    while is_loaded(number):  # the kernel frees programs soon after
        os.sched_yield()
