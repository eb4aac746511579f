"""`sframegen stack` and what is below it, on programs that run."""

from __future__ import annotations

import errno
import itertools
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

import sframegen
from sframegen.program import time_limits
from sframegen.program.time_limits import TimeLimits
from sframegen.stack.live import proc, ptrace
from sframegen.stack.live.process import Process
from sframegen.stack.names import file_names
from sframegen.stack.objects.loaded_objects import LoadedObjects
from sframegen.stack.snapshot import StackError
from sframegen.stack.tracer import Tracer
from sframegen.stack.walking.frames import End, RuleSource
from tests.support.peers import Compiler
from tests.support.processes.live import HOLD, Names, Program, between, command, compiled, state_of

pytestmark = [pytest.mark.sampled, pytest.mark.skipif(platform.machine() != "x86_64", reason="programs for x86-64")]

STATIC = ("-O2", "-static", "-fomit-frame-pointer")


SIGNALS = r"""
static void holding(int number) { hold(); after++; }
static void holding_with_info(int number, siginfo_t *info, void *context) { hold(); after++; }
KEPT __attribute__((naked)) void leaf(void) { __asm__("mov $1,%eax\n ud2\n ret"); }
static void skipping(int number, siginfo_t *info, void *context) {
    hold();
    ((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP] += 2;
}
KEPT void calls_leaf(void) { leaf(); after++; }
KEPT void raises(int number) { raise(number); after++; }
int main(int count, char **options) {
    struct sigaction action = {.sa_handler = holding};
    if (strchr(options[1], 'i')) { action.sa_sigaction = holding_with_info; action.sa_flags = SA_SIGINFO; }
    if (strpbrk(options[1], "as")) {
        stack_t stack = {.ss_sp = strchr(options[1], 's') ? alloca(1 << 16) : malloc(1 << 16), .ss_size = 1 << 16};
        sigaltstack(&stack, NULL);
        action.sa_flags |= SA_ONSTACK;
    }
    if (strchr(options[1], 'l')) {
        action.sa_sigaction = skipping;
        action.sa_flags |= SA_SIGINFO;
        sigaction(SIGILL, &action, NULL);
        calls_leaf();
    } else {
        sigaction(SIGUSR1, &action, NULL);
        raises(SIGUSR1);
    }
    puts("done");
    return 0;
}
"""


@pytest.mark.parametrize("options", ["-", "i", "a", "ia", "s", "l", "la"])
def test_out_of_a_signal_handler(options: str, compile_c: Compiler, tmp_path: Path) -> None:
    program = compiled(compile_c, tmp_path, "#include <alloca.h>\n" + SIGNALS, *STATIC)
    with Program(program, options) as running:
        names, thread = Names(running.pid).first()
    assert thread.end is End.OUTERMOST
    assert {frame.how for frame in thread.frames} == {RuleSource.SFRAME}
    found = between(names, "hold")
    assert (found[2], found[-2:]) == ("SIGNAL", ["calls_leaf", "main"] if "l" in options else ["raises", "main"])
    if "l" in options:
        assert found[3:] == ["leaf", "calls_leaf", "main"]
        assert [thread.frames[names.index(name)].exact for name in ("leaf", "calls_leaf")] == [True, False]


REALIGNED = r"""
KEPT int realigned(int n) {
    volatile char block[n + 1], aligned[64] __attribute__((aligned(256)));
    aligned[n] = block[n] = 1;
    hold();
    return aligned[n] + block[n] + ((uintptr_t)aligned & 255);
}
KEPT int calls(int n) { return realigned(n) + 1; }
int main(void) { after += calls(10); puts("done"); return 0; }
"""


RECURSION = r"""
KEPT int down(int n) { if (n == 0) hold(); else down(n - 1); return after++; }
int main(void) { down(10000); puts("done"); return 0; }
"""


@pytest.fixture
def recursing(compile_c: Compiler, tmp_path: Path) -> Iterator[Program]:
    with Program(compiled(compile_c, tmp_path, RECURSION, *STATIC)) as running:
        yield running


def test_ten_thousand_frames_by_a_section_or_converted_or_by_frame_pointers(compile_c: Compiler, tmp_path: Path) -> None:
    """The file with the section is deleted while it runs."""
    program = compiled(compile_c, tmp_path, RECURSION, "-O1", "-static", "-fno-omit-frame-pointer", section=False)
    with Program(program) as running:
        converted, thread = Names(running.pid, convert=True).first()
        assert ({frame.how for frame in thread.frames}, thread.end) == ({RuleSource.CONVERTED}, End.OUTERMOST)
        _, thread = Names(running.pid).first()
        assert {frame.how for frame in thread.frames} == {RuleSource.FRAME_POINTER}
    sframegen.add_section(program, verify=False)
    with Program(program) as running:
        program.unlink()
        names, thread = Names(running.pid).first()
    assert between(names, "hold") == between(converted, "hold") == ["hold", *["down"] * 10001, "main"]
    assert thread.end is End.OUTERMOST


LIBRARY = r"""
void hold(void);
extern volatile long after;
__attribute__((noinline)) void NAME(void) { volatile char frame[SIZE]; frame[1] = 2; hold(); after += frame[1]; }
void entry(void) { NAME(); after++; }
"""
OPENING = r"""
int main(int count, char **arguments) {
    for (int i = 0; i < 2; i++) {
        void *library = dlopen(arguments[1], RTLD_NOW);
        if (!library) { puts(dlerror()); return 1; }
        void (*entry)(void);
        *(void **)&entry = dlsym(library, "entry");
        entry();
        dlclose(library);
        hold();
    }
    puts("done");
    return 0;
}
"""


def test_a_library_in_the_place_of_another(compile_c: Compiler, tmp_path: Path) -> None:
    """Two libraries of one name, opened one after the other, most likely at the same addresses."""
    library = tmp_path / "library.so"
    made = []
    for name, size in (("first", 100), ("second", 1000)):
        made.append(tmp_path / name)
        file = compile_c(LIBRARY, "-O2", "-shared", "-fPIC", f"-DNAME={name}", f"-DSIZE={size}", "-Wl,--build-id=none")
        made[-1].write_bytes(file.read_bytes())
        sframegen.add_section(made[-1], verify=False)
    program = compiled(compile_c, tmp_path, OPENING, "-O2", "-rdynamic")
    made[0].rename(library)
    with Program(program, library) as running:
        by = Names(running.pid, convert=True)
        for name in ("first", "second"):
            names, thread = by.first()
            assert between(names, "hold") == ["hold", name, "entry", "main"]
            assert thread.end is End.OUTERMOST
            running.go_on()
            running.wait()  # closed
            names, _ = by.first()
            assert between(names, "hold") == ["hold", "main"]
            if name == "first":
                made[1].rename(library)
                running.go_on()
                running.wait()


def test_another_program_in_the_same_process(compile_c: Compiler, tmp_path: Path) -> None:
    other = compiled(compile_c, tmp_path, RECURSION, *STATIC)
    first = tmp_path / "first"
    first.write_bytes(compile_c(HOLD + "int main(int n, char **a) { hold(); execv(a[1], a + 1); return 1; }", *STATIC).read_bytes())
    first.chmod(0o755)
    with Program(first, other) as running:
        by = Names(running.pid, convert=True)
        assert between(by.first()[0], "hold") == ["hold", "main"]
        running.go_on()
        running.wait()
        names, thread = by.first()
        assert (between(names, "hold", "down"), thread.end) == (["hold", "down"], End.OUTERMOST)
        assert by.process.executable == str(other)


def test_a_section_that_is_not_loaded(compile_c: Compiler, tmp_path: Path) -> None:
    """Frames are those that the loaded section gives. A file that took the name while the program ran is not the program's."""
    program = compiled(compile_c, tmp_path, RECURSION, *STATIC)
    with Program(program) as running:
        expected, _ = Names(running.pid).first()
    bare = tmp_path / "bare"
    sframegen.remove(program, output=bare, verify=False)
    sframegen.add_section(program, unloaded=True, replace=True, verify=False)
    with Program(program) as running:
        names, thread = Names(running.pid).first()
    assert {frame.how for frame in thread.frames if frame.how} == {RuleSource.SFRAME}
    assert names == expected
    assert thread.end is End.OUTERMOST
    program.write_bytes(bare.read_bytes())
    with Program(program) as running:
        sframegen.add_section(program, unloaded=True, replace=True, verify=False)
        assert RuleSource.SFRAME not in {frame.how for frame in Names(running.pid).first()[1].frames}


def test_a_process_that_ends_while_it_is_traced(compile_c: Compiler, tmp_path: Path) -> None:
    source = r"""
    static void *shortly(void *unused) { return NULL; }
    int main(void) {
        for (int i = 0; i < 300; i++) { pthread_t t; pthread_create(&t, NULL, shortly, NULL); pthread_join(t, NULL); }
        return 7;
    }"""
    program = compiled(compile_c, tmp_path, source, *STATIC, "-pthread")
    for _ in range(5):
        child = subprocess.Popen([program])
        with pytest.raises(StackError, match=r"it has ended|no such process"):  # noqa: PT012 - at some point or other
            by = Names(child.pid)
            while True:
                by.threads()
        assert child.wait(60) == 7


def test_a_copy_keeps_the_names_of_threads_that_have_ended() -> None:
    with subprocess.Popen(["sleep", "60"]) as child, Process(child.pid) as process:
        with process.stopped() as stopped:
            copy = stopped.copy_stacks(0)
        child.kill()
        child.wait()
        assert [thread.name for thread in copy.threads] == ["sleep"]


def test_a_stopped_process_stays_stopped(compile_c: Compiler, tmp_path: Path) -> None:
    source = 'int main(void) { raise(SIGSTOP); puts("done"); return 0; }'
    child = subprocess.Popen([compiled(compile_c, tmp_path, source, *STATIC)], stdout=subprocess.PIPE)
    os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
    names, thread = Names(child.pid).first()
    assert (names[-1], thread.end) == ("_start", End.OUTERMOST)
    assert state_of(child.pid) == "T"
    child.send_signal(signal.SIGCONT)
    assert (child.communicate(timeout=60)[0], child.returncode) == (b"done\n", 0)


@pytest.mark.parametrize("death", [None, signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
def test_one_tracer_at_a_time_and_one_that_is_killed_lets_go(death: signal.Signals | None, recursing: Program) -> None:
    code = "import sys; from sframegen.stack.live import ptrace\nwith ptrace.stopped(int(sys.argv[1])): print(flush=True); input()"
    tracer, pipe = [sys.executable, "-c", code, str(recursing.pid)], subprocess.PIPE
    other = subprocess.Popen(tracer, stdin=pipe, stdout=pipe, stderr=pipe)
    assert other.stdout
    assert other.stdout.readline() == b"\n"
    if death:
        other.send_signal(death)
    else:
        refused = command(recursing.pid)
        assert (refused.returncode, refused.stdout) == (1, "")
        assert refused.stderr == f"sframegen: process {recursing.pid}: process {other.pid} already traces it\n"
    other.communicate(b"\n", timeout=60)
    assert other.returncode in ((-death, 1, 130) if death else (0,))
    assert command(recursing.pid).returncode == 0


def test_signals_that_come_meanwhile_are_delivered(compile_c: Compiler, tmp_path: Path) -> None:
    """All of them, though it is stopped all the time: real-time signals queue, and it counts them."""
    source = r"""
    static volatile int count;
    static void counting(int number) { count++; }
    int main(void) {
        signal(SIGRTMIN, counting);
        hold();
        while (count < 400) after++;
        hold();
        puts("done");
        return 0;
    }"""
    with Program(compiled(compile_c, tmp_path, source, *STATIC)) as running:
        by = Names(running.pid)
        running.go_on()
        for _ in range(40):
            for _ in range(10):
                os.kill(running.pid, signal.SIGRTMIN)
            names, _ = by.first()
            assert names[-1] == "_start"
        running.wait()


def test_a_process_whose_first_thread_has_ended(compile_c: Compiler, tmp_path: Path) -> None:
    source = r"""
    static void *start(void *first) { pthread_join((pthread_t)first, NULL); hold(); puts("done"); return NULL; }
    int main(void) {
        pthread_t thread;
        pthread_create(&thread, NULL, start, (void *)pthread_self());
        pthread_exit(NULL);
    }"""
    with Program(compiled(compile_c, tmp_path, source, *STATIC, "-pthread")) as running:
        by = Names(running.pid)
        (thread,) = by.threads()
        assert between(by.of(thread), "hold", "start") == ["hold", "start"]
        assert (thread.end, by.tracer.problems) == (End.OUTERMOST, {})


def test_a_thread_that_does_not_stop(compile_c: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that waits for the child of its vfork, which does."""
    monkeypatch.setattr(time_limits, "current", TimeLimits(thread_stop=0.05))
    source = r"""int main(void) { if (vfork() == 0) { hold(); _exit(0); } puts("done"); fflush(stdout); _exit(0); }"""
    with (
        Program(compiled(compile_c, tmp_path, source, *STATIC)) as running,
        pytest.raises(StackError, match="it is in an uninterruptible sleep"),
    ):
        Names(running.pid).threads()


def test_without_room_for_a_thread_nothing_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with a low `ulimit -u`: it was a fault of sframegen."""
    monkeypatch.setattr(threading.Thread, "start", Mock(side_effect=RuntimeError("can't start new thread")))
    with pytest.raises(OSError, match=os.strerror(errno.EAGAIN)), ptrace.stopped(os.getppid()):
        pytest.fail("it was stopped")


def test_what_would_end_or_stop_the_tracer_waits(recursing: Program) -> None:
    """Stopped by Ctrl-Z, it would leave the process stopped as long."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with ptrace.stopped(recursing.pid):
        within = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before
    waiting = {f"SIG{name}" for name in ("INT", "TERM", "HUP", "QUIT", "TSTP", "TTIN", "TTOU")}
    assert {signal.Signals(number).name for number in within - before} == waiting


def test_threads_that_execute_the_program_again(compile_c: Compiler, tmp_path: Path) -> None:
    """The kernel ends all other threads first, and lets nobody seize one until they are buried: which is for who seized them."""
    source = r"""
    static char **arguments;
    static void *executing(void *unused) { arguments[1][0]++; execv(arguments[0], arguments); _exit(3); }
    static void *waiting(void *unused) { for (;;) pause(); }
    int main(int count, char **given) {
        arguments = given;
        if (given[1][0] == '!') hold();
        if (given[1][0] == '~') { puts("done"); return 0; }
        pthread_t thread;
        for (int i = 0; i < 6; i++) pthread_create(&thread, NULL, i == 5 ? executing : waiting, NULL);
        for (;;) pause();
    }"""
    program, stops = compiled(compile_c, tmp_path, source, *STATIC, "-pthread"), 0
    while not stops:  # again, if it has come to its end before we had a CPU
        with Program(program, "!") as running:
            process = Process(running.pid)
            running.go_on()
            with pytest.raises(StackError, match=r"it has ended|no such process|no memory of its own"):  # noqa: PT012
                while True:
                    with process.stopped() as stopped:
                        stops += bool(stopped.threads)
            assert running.process.wait(60) == 0
            assert running.process.stdout
            assert running.process.stdout.read() == b"done\n"


def test_what_nobody_may_open_for_a_moment_is_not_refused_for_lack_of_rights(monkeypatch: pytest.MonkeyPatch) -> None:
    """New memory of an execve(), which an ordinary user may not open until its owner is known."""
    opened = os.open
    refusals = [PermissionError(errno.EACCES, "Permission denied")] * 2

    def open_later(path: str, flags: int) -> int:
        if path.endswith("/mem") and refusals:
            raise refusals.pop()
        return opened(path, flags)

    with subprocess.Popen(["sleep", "60"]) as process:
        monkeypatch.setattr(os, "open", open_later)
        monkeypatch.setattr(proc, "RETRY_INTERVAL", 0)
        assert proc.explain_refusal(process.pid) == proc.EXECUTES
        monkeypatch.undo()
        # The kernel also refuses a thread that another one replaces at that moment, to execute a program.
        assert proc.explain_refusal(process.pid) == proc.EXECUTES
        process.kill()


FORBIDS = """
import ctypes, struct, sys
code = struct.pack("<" + "HBBI" * 4, 0x20, 0, 0, 0, 0x15, 0, 1, 101, 6, 0, 0, 0x50001, 6, 0, 0, 0x7FFF0000)  # ptrace: EPERM
filter = ctypes.create_string_buffer(code)
libc = ctypes.CDLL(None)
libc.prctl(38, 1, 0, 0, 0)
assert libc.prctl(22, 2, ctypes.byref(ctypes.create_string_buffer(struct.pack("<HxxxxxxQ", 4, ctypes.addressof(filter))))) == 0
from sframegen.cli.start import main
main()
"""


def test_a_refusal_of_ptrace_itself_is_not_called_an_execution() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        arguments = [sys.executable, "-P", "-c", FORBIDS, "stack", str(process.pid)]
        done = subprocess.run(arguments, capture_output=True, text=True, check=False)
        process.kill()
    assert (done.returncode, done.stderr) == (1, f"sframegen: process {process.pid}: {ptrace.FORBIDDEN}\n")


def test_a_thread_of_the_kernel_and_a_process_that_is_about_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose memory is gone before it is a zombie."""
    with monkeypatch.context() as gone:
        fields = proc.status_fields_of(os.getpid()).items()
        gone.setattr(proc, "status_fields_of", lambda _: {name: value for name, value in fields if not name.startswith("Vm")})
        assert proc.explain_refusal(os.getpid()) == proc.GONE
    processes = [int(file.name) for file in Path("/proc").glob("[0-9]*")]
    threads = [pid for pid in processes if proc.status_fields_of(pid).get("Kthread") == "1"]  # others end meanwhile
    if not threads:
        pytest.skip("no threads of the kernel are visible, or the kernel does not mark them")
    assert {proc.explain_refusal(tid) for tid in threads} <= {"it is a thread of the kernel", proc.GONE}


def test_threads_without_end(recursing: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whenever it is asked for its threads, there is another one, which has ended before it can be stopped."""
    gone = itertools.count(1 << 23)  # no kernel has such ids
    by = Names(recursing.pid)
    monkeypatch.setattr(time_limits, "current", TimeLimits(thread_stop=0.05))
    monkeypatch.setattr(ptrace, "threads_of", lambda pid: [pid, next(gone)])
    (thread,) = by.threads()
    assert by.of(thread)[-1] == "_start"
    (problem,) = by.tracer.problems.values()
    assert problem.endswith(": the process starts threads faster than they can be stopped")


def test_names_of_a_file_that_is_opened_anew(recursing: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that executes the same program again and again: its symbols are read once."""
    read = Mock(wraps=file_names._read_symbol_tables)
    monkeypatch.setattr(file_names, "_read_symbol_tables", read)
    by = Names(recursing.pid)
    for _ in range(3):
        by.tracer.objects = by.symbols.objects = LoadedObjects()
        assert by.first()[0][-1] == "_start"
    assert read.call_count == 1


def test_without_the_right_to() -> None:
    """As root without capabilities, or as somebody else than root: process 1 has more rights."""
    if os.geteuid() == 0 and shutil.which("setpriv") is None:
        pytest.skip("no setpriv on this machine")
    less = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"] if os.geteuid() == 0 else []
    line = [*less, sys.executable, "-P", "-m", "sframegen", "stack", "1"]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("sframegen: process 1: not permitted: ")
    assert "root" in done.stderr


@pytest.mark.parametrize("level", ["-O0", "-O2"])
def test_json_tells_all_of_a_function_that_realigns_its_stack(level: str, compile_c: Compiler, tmp_path: Path) -> None:
    with Program(compiled(compile_c, tmp_path, REALIGNED, "-static", level)) as running:
        done = command("--json", running.pid)
    found = json.loads(done.stdout)
    assert (done.returncode, done.stderr, found["pid"], found["problems"]) == (0, "", running.pid, [])
    assert found["stopped_ms"] > 0
    (thread,) = found["threads"]
    assert (thread["tid"], thread["name"], thread["complete"]) == (running.pid, "program", True)
    assert between([frame["function"] for frame in thread["frames"]], "hold") == ["hold", "realigned", "calls", "main"]
    frames = {frame["function"]: frame for frame in thread["frames"]}
    assert (frames["main"]["how"], frames["calls"]["cfa"]) == ("sframe", frames["main"]["sp"])
    assert frames["main"]["object"] == found["executable"]


SPINNING = r"""
static pthread_barrier_t both;
static volatile int over;
static void *spin(void *unused) { pthread_barrier_wait(&both); while (!over) after++; return NULL; }
int main(void) {
    pthread_t thread;
    pthread_barrier_init(&both, NULL, 2);
    pthread_create(&thread, NULL, spin, NULL);
    pthread_barrier_wait(&both);
    hold();
    over = 1;
    pthread_join(thread, NULL);
    puts("done");
    return 0;
}
"""


def test_threads_that_wait_can_be_left_out(compile_c: Compiler, tmp_path: Path) -> None:
    with Program(compiled(compile_c, tmp_path, SPINNING, "-O2", "-static", "-pthread")) as running:
        everybody, busy = (command("--json", *option, running.pid) for option in ((), ("--no-idle",)))
    threads = {thread["tid"]: thread for thread in json.loads(everybody.stdout)["threads"]}
    assert [thread["idle"] for thread in threads.values()] == [True, False]
    assert threads[running.pid]["idle"]
    (thread,) = json.loads(busy.stdout)["threads"]
    assert (thread["tid"] in threads, thread["tid"] == running.pid, thread["idle"]) == (True, False, False)
    assert "spin" in {frame["function"] for frame in thread["frames"]}


def test_refusals_are_one_line() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    done = command(gone.pid)
    assert (done.returncode, done.stderr) == (1, f"sframegen: process {gone.pid}: no such process\n")
    for arguments in ((), ("none",), (0,), (gone.pid, gone.pid), ("--json", "--raw", gone.pid)):
        assert command(*arguments).returncode == 2
    with pytest.raises(StackError, match="a process cannot trace itself"):
        Names(os.getpid()).threads()
    with Process(os.getpid()) as process, pytest.raises(StackError, match="it has no thread 1"):
        Tracer().trace_process(process, 1)
