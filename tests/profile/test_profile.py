"""`sframegen profile` as users run it, on programs whose stacks are known."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from sframegen.cli.profile import sample_until_end
from sframegen.profile.copied_session import BACKENDS
from sframegen.profile.events.names import find_event
from sframegen.profile.sampling_plan import ProfilePlan, follow_descendants
from sframegen.program.signals import Interrupts
from tests.support.kernel_events import needs_bpf
from tests.support.peers import Compiler

pytestmark = needs_bpf

# Each function calls the next; `inner` runs nearly all the time. Without an argument it runs until it is killed.
CHAIN = """
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
volatile unsigned long sum;
__attribute__((noinline)) void inner(long n) { for (long i = 0; n < 0 || i < n; i++) for (int k = 0; k < 1000; k++) sum += k; }
__attribute__((noinline)) int middle(long n) { inner(n); return sum & 1; }
__attribute__((noinline)) int outer(long n) { return middle(n) + 1; }
int main(int count, char **arguments) {
    long n = count > 1 ? atol(arguments[1]) : -1;
    if (count > 2 && fork() == 0) _exit(outer(n) & 0);
    outer(n);
    if (count > 2) wait(0);
    return count > 3 ? atoi(arguments[3]) : 0;
}
"""
CHAIN_FRAMES = ["_start", "main", "outer", "middle", "inner"]
PROC = Path("/proc")
LONG_ENOUGH = "300000"
LONGEST = 60  # seconds


@pytest.fixture
def chain(compile_c: Compiler) -> Path:
    return compile_c(CHAIN, "-O2", "-fno-optimize-sibling-calls", "-fomit-frame-pointer", name="chain")


@pytest.fixture
def running(chain: Path) -> Iterator[int]:
    with subprocess.Popen([chain]) as process:
        yield process.pid
        process.kill()


def sframegen(*arguments: object, status: int = 0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "sframegen", "profile", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stderr
    return done


def as_json(*arguments: object, status: int = 0) -> dict[str, Any]:
    often = () if "--off-cpu" in arguments else ("-F", 999)
    found: dict[str, Any] = json.loads(sframegen("--json", *often, *arguments, status=status).stdout)
    return found


def sampled_for(seconds: float, *arguments: object, enough: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """Longer, if what is sampled got too little of a busy machine's CPUs."""
    while not enough(profile := as_json("--duration", seconds, *arguments)) and seconds < LONGEST:
        seconds *= 4
    return profile


def pids_of(profile: dict[str, Any]) -> set[int]:
    return {stack["pid"] for stack in profile["stacks"]}


def functions(profile: dict[str, Any], stack: dict[str, Any]) -> list[str]:
    return [profile["frames"][number]["function"] for number in stack["frames"]]


def in_program(profile: dict[str, Any]) -> list[list[str]]:
    """The frames of the stacks in `inner` that are of the program itself."""
    frames = [[profile["frames"][number] for number in stack["frames"]] for stack in profile["stacks"]]
    ours = [[frame["function"] for frame in stack if frame["object"] == "chain"] for stack in frames]
    return [names for names in ours if names[-1:] == ["inner"]]


ASSEMBLY = r"""
#include <stdlib.h>
__asm__(".text\n.globl spin\n.type spin, @function\nspin: push %rbx\n push %rbp\n mov %rdi, %rbx\n xor %ebp, %ebp\n call turn\n"
        "pop %rbp\n pop %rbx\n ret\n.size spin, .-spin\n"
        ".type turn, @function\nturn: add $3, %rcx\n dec %rbx\n jnz turn\n ret\n.size turn, .-turn\n");
void spin(long);
__attribute__((noinline)) void outer(long n) { spin(n); __asm__ volatile(""); }
int main(int count, char **arguments) { outer(atol(arguments[1])); return count == 0; }
"""


@pytest.mark.sampled
@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the assembly is x86-64's")
def test_assembly_without_cfi_is_walked_from_the_first_sample_on(compile_c: Compiler) -> None:
    spin = compile_c(ASSEMBLY, "-O2", name="spin")
    profile = as_json("--", spin, 2_000_000_000)
    stacks = [functions(profile, stack) for stack in profile["stacks"]]
    inside = [(names, stack) for names, stack in zip(stacks, profile["stacks"], strict=True) if names[-1] in ("spin", "turn")]
    assert sum(stack["samples"] for _, stack in inside) > 50
    assert {tuple(names[-4:]) for names, _ in inside if names[-1] == "turn"} == {("main", "outer", "spin", "turn")}
    assert all(stack["complete"] for _, stack in inside)
    assert not any(profile["frames"][number]["guessed"] for _, stack in inside for number in stack["frames"])
    assert any(str(spin) in note and "derived from the instructions" in note for note in profile["notes"])


@pytest.mark.sampled
def test_children_are_sampled_and_the_status_is_passed_on(chain: Path) -> None:
    profile = as_json("--by", "pid", "--", chain, LONG_ENOUGH, "fork", 7, status=7)
    assert len(pids_of(profile)) == 2
    assert {tuple(names[-3:]) for names in in_program(profile)} == {("outer", "middle", "inner")}


@pytest.mark.sampled
def test_only_one_thread(running: int) -> None:
    assert pids_of(sampled_for(0.3, "--tid", running, running, enough=pids_of)) == {running}
    assert as_json("--duration", 0.3, "--tid", running + 1, running)["samples"] == 0
    done = sframegen("--duration", 0.3, "--tid", 4_194_304, running)  # above the largest number that the kernel gives
    assert "--tid 4194304: no such thread" in done.stderr
    assert "thread 4194304: no samples" in done.stdout


@pytest.mark.sampled
@pytest.mark.parametrize("backend", BACKENDS)
def test_children_that_exist_already_are_sampled(chain: Path, backend: str) -> None:
    with subprocess.Popen(["sh", "-c", f"({chain} & {chain}; wait) & wait"], start_new_session=True) as shell:
        try:
            names: list[str] = []
            while names != ["chain", "chain", "sh", "sh"]:
                follow_descendants(known := {shell.pid}, lambda _: None)
                names = sorted((PROC / str(pid) / "comm").read_text().strip() for pid in known)
            profile = sampled_for(0.5, "--backend", backend, shell.pid, enough=lambda profile: len(pids_of(profile)) >= 2)
        finally:
            os.killpg(shell.pid, signal.SIGKILL)
    assert len(pids_of(profile)) == 2
    assert set(profile["groups"]) == {"chain"}
    assert all(names == CHAIN_FRAMES for names in in_program(profile))


@pytest.mark.sampled
@pytest.mark.parametrize("backend", BACKENDS)
def test_every_stack_of_a_command_is_whole_and_none_is_of_what_runs_before(chain: Path, backend: str) -> None:
    profile = as_json("-F", 9999, "--backend", backend, "--", chain, LONG_ENOUGH)
    stacks = in_program(profile)
    assert stacks
    assert all(names == CHAIN_FRAMES for names in stacks)
    inside = [stack["frames"] for stack in profile["stacks"] if functions(profile, stack)[-1:] == ["inner"]]
    assert not any(profile["frames"][number]["guessed"] for frames in inside for number in frames)  # code of the start may be
    assert not any(re.match("(lib)?python", frame["object"]) for frame in profile["frames"])
    assert "execve" not in {frame["function"] for frame in profile["frames"]}


THREADS = """
#include <pthread.h>
#include <stdlib.h>
static void *nothing(void *unused) { return unused; }
int main(int count, char **arguments) {
    pthread_t thread;
    for (long n = atol(arguments[1]); n > 0; n--)
        if (pthread_create(&thread, 0, nothing, 0) == 0) pthread_join(thread, 0);
    return count == 0;
}
"""


@pytest.mark.sampled
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_new_thread_has_no_caller(backend: str, compile_c: Compiler) -> None:
    program = compile_c(THREADS, "-O2", "-pthread", name="threads")
    profile = as_json("-F", 9999, "--backend", backend, "--", program, 20_000)
    new = [stack for stack in profile["stacks"] if "clone" in functions(profile, stack)[-1]]
    assert sum(stack["samples"] for stack in new) > 10
    first = [stack for stack in new if functions(profile, stack)[0] != "[callers unknown]" and len(stack["frames"]) == 1]
    assert first
    assert all(stack["complete"] for stack in first)
    assert not any("clone" in functions(profile, stack)[1:2] for stack in new if not stack["complete"])


MAPPINGS = """
#include <sys/mman.h>
volatile unsigned long sum;
int main(void) {
    char *area = mmap(0, 20000 * 8192l, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (long n = 0; n < 20000; n++) mprotect(area + n * 8192, 4096, PROT_READ | PROT_EXEC);
    for (;;) {
        void *more = mmap(0, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        for (int i = 0; i < 3000000; i++) sum += i;
        munmap(more, 4096);
    }
}
"""


@pytest.mark.sampled
def test_a_process_with_very_many_mappings_that_come_and_go(compile_c: Compiler) -> None:
    with subprocess.Popen([compile_c(MAPPINGS, "-O2", name="maps")]) as process:
        while len((PROC / str(process.pid) / "maps").read_bytes().splitlines()) < 40_000:
            time.sleep(0.1)
        profile = sampled_for(3, "-F", 99, process.pid, enough=lambda profile: profile["complete"] > 10)
        process.kill()
    assert profile["complete"] > 10
    assert sum(profile["lost"].values()) <= profile["samples"] / 10


PUT_THERE = """
#include <signal.h>
#include <stdlib.h>
#include <ucontext.h>
#include <unistd.h>
volatile unsigned long sum;
static ucontext_t outside, inside;
static char stack[65536];
__attribute__((noinline)) void spin(long n) { for (long i = 0; i < n; i++) sum += i; }
static void handler(int number) { spin(300000000 + number); }
static void other(void) { spin(300000000); }
int main(void) {
    signal(SIGUSR1, handler);
    kill(getpid(), SIGUSR1);
    getcontext(&inside);
    inside.uc_stack.ss_sp = stack, inside.uc_stack.ss_size = sizeof(stack), inside.uc_link = &outside;
    makecontext(&inside, other, 0);
    swapcontext(&outside, &inside);
    return 0;
}
"""


@pytest.mark.sampled
@pytest.mark.parametrize("backend", BACKENDS)
def test_code_that_nothing_calls_has_its_own_name(backend: str, compile_c: Compiler) -> None:
    """The kernel and makecontext put its address where a return address is: the byte before it is another function's."""
    program = compile_c(PUT_THERE, "-O2", "-static", "-fno-optimize-sibling-calls", name="put")
    profile = as_json("--backend", backend, "--", program)
    stacks = {tuple(functions(profile, stack)) for stack in profile["stacks"]}
    handled = [names for names in stacks if "handler" in names and names[-1] == "spin"]
    assert handled
    assert {names[names.index("handler") - 1] for names in handled} == {"__restore_rt"}
    assert {names[-3] for names in stacks if names[-2:] == ("other", "spin")} == {"__start_context"}


@pytest.mark.sampled
def test_the_whole_machine(running: int) -> None:
    group = f"chain (pid {running})"
    profile = sampled_for(3, "--system", "--by", "pid", enough=lambda profile: group in profile["groups"])
    assert group in profile["groups"]


@pytest.mark.sampled
def test_kernel_frames_are_innermost() -> None:
    profile = as_json("--kernel", "--", "dd", "if=/dev/zero", "of=/dev/null", "bs=1", "count=500000", "status=none")
    kinds = [[profile["frames"][number]["kind"] for number in stack["frames"]] for stack in profile["stacks"]]
    complete = [row for row, stack in zip(kinds, profile["stacks"], strict=True) if stack["complete"]]
    assert any((row[0], row[-1]) == ("user", "kernel") for row in complete)
    assert all("user" not in row[row.index("kernel") :] for row in kinds if "kernel" in row)


@pytest.mark.sampled
def test_a_file_for_each_output_and_nothing_on_standard_output(chain: Path, tmp_path: Path) -> None:
    names = ["a.folded", "a.pb.gz", "a.html"]
    done = sframegen("-F", 999, *(f"--output={tmp_path / name}" for name in names), "--", chain, LONG_ENOUGH)
    assert done.stdout == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)
    assert ";".join(CHAIN_FRAMES[1:]) in (tmp_path / "a.folded").read_text()


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("script", "status"),
    [
        ("{chain} {long}; kill -TERM $PPID; exec {chain}", 128 + signal.SIGTERM),  # it is passed on
        ("trap '' INT; {chain} {long}; kill -INT 0; exit 5", 5),  # a terminal sends Ctrl-C to both
    ],
)
def test_signals_end_the_sampling_and_nothing_is_lost(chain: Path, script: str, status: int) -> None:
    """The program that is profiled sends the signal, after there are samples."""
    shell = script.format(chain=chain, long=LONG_ENOUGH)
    command = [sys.executable, "-P", "-m", "sframegen", "profile", "--json", "-F", "999", "--", "sh", "-c", shell]
    done = subprocess.run(command, capture_output=True, text=True, check=False, start_new_session=True)
    assert json.loads(done.stdout)["samples"] > 0
    assert done.returncode == status


@pytest.mark.sampled
@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes PID namespaces")
def test_in_a_pid_namespace_stacks_are_walked_from_copies(chain: Path) -> None:
    """There, the kernel's numbers of processes are not those that the profiler knows."""
    inside = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-Pm", "sframegen", "profile", "--json", "-F", "999"]
    done = subprocess.run([*inside, "--", chain, LONG_ENOUGH], capture_output=True, text=True, check=True)
    stacks = in_program(json.loads(done.stdout))
    assert stacks
    assert all(names == CHAIN_FRAMES for names in stacks)
    assert "PID namespace" in done.stderr
    done = subprocess.run([*inside, "--duration", "0.1", "--system"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(r"sframegen: .* PID namespace: run on the host, .*\n", done.stderr)


@pytest.mark.usefixtures("empty_folder")
def test_what_is_wrong_is_one_line() -> None:
    cases: list[tuple[list[str], int, str]] = [
        (["999999999"], 1, "process 999999999: no such process"),
        (["9" * 5000], 2, "9: not a process id"),
        ([], 2, "give one of these"),
        (["--system", "1"], 2, "give one of these"),
        (["--output", "a.unknown", "--", "true"], 2, "a.unknown: unknown output format (known: "),
        (["--", "./none"], 2, "neither a process id nor a program"),
        (["1", "true"], 2, "true: not a process id, and 1 is one"),
        (["--", ""], 2, "the command name is empty"),
        (["--output", "none/a.html", "--", "true"], 1, "none/a.html: No such file or directory"),
        (["--off-cpu", "--wall", "--system"], 2, "--off-cpu"),
        (["--wall", "-e", "page-faults", "--system"], 2, "--wall needs a clock event"),
    ]
    wrong = {}
    for arguments, status, message in cases:
        last = sframegen(*arguments, status=status).stderr.splitlines()[-1]
        if message not in last:
            wrong[message] = last
    assert wrong == {}


def test_a_signal_waits_until_what_was_received_is_used() -> None:
    plan = ProfilePlan(None, find_event("cpu-clock"), 99)
    session = Mock(plan=plan, advance=Mock(side_effect=lambda: signal.raise_signal(signal.SIGINT)))
    with Interrupts() as interrupts:
        sample_until_end(session, interrupts, None, None)
    assert session.advance.call_count == 1


def microseconds(profile: dict[str, Any], function: str) -> int:
    return sum(row["total"] for row in profile["functions"] if row["function"] == function)


@pytest.mark.sampled
def test_a_command_that_sleeps() -> None:
    profile = as_json("--off-cpu", "--", "sleep", "0.5")
    assert profile["unit"] == "microseconds"
    assert microseconds(profile, "[off CPU: sleeping]") >= 480_000
    assert profile["frequency"] == 0
    assert {frame["kind"] for frame in profile["frames"] if frame["function"].startswith("[off CPU")} == {"off the CPU"}


@pytest.mark.sampled
def test_a_process_that_sleeps_already() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        try:
            profile = as_json("--off-cpu", "--duration", "0.7", process.pid)
        finally:
            process.kill()
    assert microseconds(profile, "[off CPU: sleeping]") >= 600_000
    assert profile["complete"] >= 600_000


def test_each_page_fault_of_threads_with_the_name_is_a_sample() -> None:
    for comm, are_sampled in (("true", True), ("tru", False)):
        samples = as_json("-e", "page-faults", "-F", 1, "--comm", comm, "--", "true")["samples"]
        assert samples > 10 if are_sampled else samples == 0, comm


@pytest.mark.sampled
def test_copies_cannot_do_it() -> None:
    for arguments in (["--off-cpu"], ["--comm", "x"]):
        refused = sframegen("--backend", "copies", *arguments, os.getpid(), status=1)
        assert "not possible with copies of stacks" in refused.stderr
    assert "no such process" in sframegen("--backend", "copies", 999_999_999, status=1).stderr


# -- source lines and inlined functions, where debug information is at hand

INLINES = """
volatile unsigned long sum;
static inline __attribute__((always_inline)) void inlined(long n) {
    for (long i = 0; i < n; i++) for (int k = 0; k < 1000; k++) sum += k;
}
__attribute__((noinline)) int work(long n) {
    inlined(n);
    return sum & 1;
}
int main(void) { return work(300000) & 0; }
"""
INLINED, WORK = 4, 7  # lines


def hottest(*arguments: object) -> list[dict[str, Any]]:
    """Return the frames of the stack with most samples, from `main` on."""
    document = as_json(*arguments)
    stack = max(document["stacks"], key=lambda one: one["samples"])
    frames = [document["frames"][number] for number in stack["frames"]]
    names = [frame["function"] for frame in frames]
    return frames[names.index("main") + 1 :]


@pytest.mark.sampled
def test_lines_of_a_command(compile_c: Compiler) -> None:
    pytest.importorskip("symbolic")
    inlines = compile_c(INLINES, "-O2", "-g")
    found = hottest("--", inlines)
    assert [(frame["function"], frame["line"], frame["inlined"]) for frame in found] == [
        ("work", WORK, False),
        ("inlined", INLINED, True),
    ]
    assert all(frame["source"].endswith("/source.c") for frame in found)
    found = hottest("--no-inlined", "--", inlines)
    assert [(frame["function"], frame["line"]) for frame in found] == [("work", WORK)]
    lines = sframegen("--lines", "-F", 999, "--", inlines).stdout
    assert f"inlined [inlined]:{INLINED} < work:{WORK} < main" in lines
    assert "HOTTEST LINES" in lines
