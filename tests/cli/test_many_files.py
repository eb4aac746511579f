"""Several files in one run, whatever they are: several at a time are as one after the other. Signals at every moment of a run."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from sframegen import add_section
from sframegen.cli.shared import many_files
from sframegen.cli.shared.output import Run
from sframegen.elf.file import open_elf
from sframegen.format.locate import find_sframe
from tests.support.commands import run
from tests.support.inputs.linker_inputs import small_file
from tests.support.loops import for_each
from tests.support.peers import Compiler
from tests.support.processes.answering import Answering

HANGS_AFTER_SECONDS = 300
# add-section with something else in the place of what it does to a file; TOLD and GATE are pipes to and from the test.
STAND_IN = """
import os, signal, sys
from sframegen.api import adding
from sframegen.cli.start import main
from sframegen.cli.shared import many_files
from sframegen.api.add_summary import Summary

TOLD, GATE = map(int, os.environ.get("PIPES", "-1 -1").split())

def add(path, options):
    {body}
    return Summary(path, note="done")

adding.add = add
main()
"""


def start(code: str, *arguments: object, **options: Any) -> subprocess.Popen[str]:
    """Standard output and error are pipes, which end when all processes of the run have ended."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(
        command, text=True, **({"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "start_new_session": True} | options)
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    try:
        out, err = process.communicate(timeout=HANGS_AFTER_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise
    return process.returncode, out, err


def stand_in(body: str, *arguments: object, **options: Any) -> subprocess.Popen[str]:
    return start(STAND_IN.format(body=body), "add-section", *arguments, **options)


def command(*arguments: object, **options: Any) -> tuple[int, str, str]:
    return finish(start("from sframegen.cli.start import main; main()", *arguments, **options))


@pytest.fixture(scope="module")
def program(compile_c: Compiler) -> Path:
    return compile_c("int main(void) { return 0; }", "-O2", name="several")


def test_outcomes_do_not_wait_for_later_ones() -> None:
    def arriving() -> Any:
        yield from ((1, "b"), (0, "a"))
        pytest.fail("asked for more before it gave what it had")

    ordered = many_files.restore_order(arriving())
    assert [next(ordered), next(ordered)] == ["a", "b"]


def test_large_files_first_the_others_in_their_order(tmp_path: Path) -> None:
    sizes = {"a": 10, "b": 300, "c": 1, "absent": None, "d": 20, "e": 400, "f": 5}
    for name, size in sizes.items():
        if size is not None:
            (tmp_path / name).write_bytes(bytes(size))
    order = many_files.order_by_size([str(tmp_path / name) for name in sizes], 2)
    assert [list(sizes)[number] for number in order] == ["e", "b", "a", "c", "absent", "d", "f"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@for_each(
    ("stderr", "lines", "seconds", "shown"),
    [(Terminal, False, 0.8, True), (Terminal, False, 0.1, False), (Terminal, True, 0.8, False), (io.StringIO, False, 0.8, False)],
)
def test_the_bar_is_for_long_runs_on_terminals(
    monkeypatch: pytest.MonkeyPatch, stderr: type[io.StringIO], lines: bool, seconds: float, shown: bool
) -> None:
    screen = stderr()
    now = iter(n * seconds for n in range(100))
    monkeypatch.setattr(many_files, "monotonic", lambda: next(now))
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(sys, "stdout", Terminal())
    done = many_files.process_files(Run(), "abcd", str.upper, 1, verify=False, prints=lines)
    assert list(done) == [("a", "A"), ("b", "B"), ("c", "C"), ("d", "D")]
    assert bool(screen.getvalue()) is shown
    assert ("100%" in screen.getvalue()) is shown


@pytest.mark.sampled
def test_two_files_at_a_time_in_their_order() -> None:
    """The first file ends only when the second has."""
    gate, opener = os.pipe()
    body = """
    if path == "first":
        os.read(GATE, 1)
    os.write(2, f"{path}\\n".encode())
    os.write(TOLD, b"x")
    """
    process = stand_in(body, "-j2", "first", "second", pass_fds=(gate, opener), env=os.environ | {"PIPES": f"{opener} {gate}"})
    os.close(gate)
    os.close(opener)
    assert finish(process) == (0, "first: done\nsecond: done\n", "second\nfirst\n")


@pytest.mark.sampled
@pytest.mark.parametrize("arguments", [("-j1", "a", "b", "c"), ("-j8", "a"), ("-j8", "-o", "out", "a")])
def test_one_at_a_time_needs_no_other_process(arguments: tuple[str, ...]) -> None:
    status, out, err = finish(stand_in("print(os.getppid())", *arguments))
    assert (status, err) == (0, "")
    assert {line for line in out.splitlines() if ":" not in line} == {str(os.getpid())}
    assert "done" in out


@pytest.mark.sampled
@pytest.mark.parametrize("options", [("--json",), ("--dry-run", "--json"), ("-v", "--no-verify", "--min-coverage", "100")])
def test_all_that_users_see_is_as_with_one(program: Path, tmp_path: Path, options: tuple[str, ...]) -> None:
    directory = tmp_path / "directory"
    files = [directory / name for name in ("one", "absent", "text", "two\udcff", "with section", "large")]
    seen = []
    for jobs in ("-j1", "-j3"):
        directory.mkdir()
        (directory / "text").write_text("no ELF file\n")
        for name in ("one", "two\udcff", "large"):
            shutil.copy(program, directory / name)
        with (directory / "large").open("ab") as large:
            large.write(bytes(1 << 20))
        add_section(program, output=directory / "with section", verify=False, version=2)
        ended = command("add-section", jobs, *options, *files, errors="surrogateescape")
        seen.append((ended, {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}))
        shutil.rmtree(directory)
    assert seen[0] == seen[1]
    (status, out, err), _ = seen[0]
    assert status == 1
    refused = [line for line in err.splitlines() if "--min-coverage" not in line]
    assert [line.split(": ")[1] for line in refused] == [str(files[n]) for n in (1, 2, 4)]
    if "--json" in options:
        documents = json.loads(out)
        assert [document["file"] for document in documents] == [*map(str, files)]
        assert [number for number, document in enumerate(documents) if "error" in document] == [1, 2, 4]


@pytest.mark.sampled
def test_names_of_one_file_are_one_job(program: Path, tmp_path: Path) -> None:
    names = [tmp_path / name for name in ("one", "two", "other", "symbolic")]
    shutil.copy(program, names[0])
    shutil.copy(program, names[2])
    names[1].hardlink_to(names[0])
    names[3].symlink_to(names[2])
    status, out, err = command("add-section", "-j2", *names, names[0])
    assert (status, err) == (0, "")
    assert [line.partition(":")[0] for line in out.splitlines()] == [str(names[0]), str(names[2])]
    assert names[0].samefile(names[1])
    assert all(find_sframe(open_elf(name)) for name in names)
    assert sorted(tmp_path.iterdir()) == sorted(names)


@pytest.mark.sampled
def test_a_name_by_a_link_of_others_is_refused_by_itself(program: Path, tmp_path: Path) -> None:
    """It is not followed because the file has another name in the run."""
    if os.geteuid() != 0:
        pytest.skip("needs a second user")
    mine, theirs = tmp_path / "mine", tmp_path / "theirs"
    for directory in (mine, theirs):
        directory.mkdir()
    shutil.copy(program, mine / "program")
    (theirs / "program").hardlink_to(mine / "program")
    (theirs / "link").symlink_to(mine / "program")
    os.chown(theirs, 65534, 65534)
    before = (mine / "program").read_bytes()
    status, _, err = command("add-section", "-q", theirs / "program", theirs / "link")
    assert (status, err.count("\n")) == (1, 1)
    assert f"{theirs / 'link'}: its path contains a symbolic link that another user controls" in err
    assert (mine / "program").read_bytes() == before
    assert find_sframe(open_elf(theirs / "program"))


@pytest.mark.sampled
def test_a_process_that_dies_costs_its_file_only() -> None:
    body = """
    if path == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if path == "left":
        os._exit(3)
    if path == "broken":
        raise RuntimeError("a defect")
    """
    files = ("one", "killed", "two", "left", "broken", "three", "four")
    status, out, err = finish(stand_in(body, "-j2", *files))
    assert status == 1
    assert out == "".join(f"{name}: done\n" for name in ("one", "two", "three", "four"))
    said = re.sub(r"\([\w.]+:\d+\)", "(PLACE)", err)
    may_be_changed = ", before or after it was changed: sframegen check says which"
    assert [line for line in said.splitlines() if line.startswith("sframegen: ")] == [
        "sframegen: killed: the worker process was killed by signal 9 (Killed)" + may_be_changed,
        "sframegen: left: the worker process ended with status 3" + may_be_changed,
        "sframegen: broken: sframegen fault, please report it: RuntimeError: a defect (PLACE); SFRAMEGEN_TRACEBACK=1 prints more",
    ]
    assert "Traceback" not in err


@pytest.mark.sampled
def test_fewer_processes_than_asked_for() -> None:
    body = """
    return Summary(path, note="done")

forks = [os.fork]
def fork():
    if not forks:
        raise BlockingIOError(11, "Resource temporarily unavailable")
    return forks.pop()()
os.fork = fork

def unused():
    """
    assert finish(stand_in(body, "-j3", "a", "b", "c", "d")) == (0, "a: done\nb: done\nc: done\nd: done\n", "")


# Half of each new file is written, and then nothing happens any more but a signal. One that comes before read() would be handled
# after it: the descriptor to wake is what lets read() return in that case, too.
STUCK = """
import os, signal
from sframegen.api import adding
from sframegen.cli.start import main

def write_all(elf, change, out, record, copy):
    out.write(b"half")
    out.flush()
    came, coming = os.pipe()
    os.set_blocking(coming, False)
    signal.set_wakeup_fd(coming)
    os.write(TOLD, b"x")
    os.read(came, 1)

TOLD = int(os.environ["TOLD"])
adding.write_changed_file = write_all
main()
"""


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("jobs", "number", "send"),
    [(1, signal.SIGINT, os.kill), *product([2], [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], [os.kill, os.killpg])],
)
def test_signals_leave_nothing(
    program: Path, tmp_path: Path, jobs: int, number: signal.Signals, send: Callable[[int, int], None]
) -> None:
    files = [tmp_path / name for name in ("one", "two", "three")]
    for file in files:
        shutil.copy(program, file)
    told, telling = os.pipe()
    process = start(
        STUCK, "add-section", f"-j{jobs}", "--no-verify", *files, pass_fds=[telling], env=os.environ | {"TOLD": str(telling)}
    )
    os.close(telling)
    for _ in range(jobs):
        assert os.read(told, 1) == b"x"
    send(process.pid, number)
    assert finish(process) == (128 + number, "", "")
    os.close(told)
    assert sorted(tmp_path.iterdir()) == sorted(files)
    assert {file.read_bytes() for file in files} == {program.read_bytes()}


@pytest.mark.sampled
def test_nobody_survives_the_process_that_was_started() -> None:
    told, telling = os.pipe()
    gate, opener = os.pipe()
    body = 'os.write(TOLD, b"x"); os.read(GATE, 1)'
    process = stand_in(body, "-j3", *"abcdefg", pass_fds=(telling, gate), env=os.environ | {"PIPES": f"{telling} {gate}"})
    for _ in range(3):
        assert os.read(told, 1) == b"x"
    os.killpg(process.pid, signal.SIGSTOP)
    process.kill()
    for end in (opener, gate, telling, told):
        os.close(end)
    assert finish(process) == (-signal.SIGKILL, "", "")


NOBODY = 65534
CAPABILITY = bytes.fromhex("0100000200000000002000000000000000000000")  # cap_net_raw, as setcap writes it


def patched(data: bytes, at: int, new: bytes) -> bytes:
    return data[:at] + new + data[at + len(new) :]


@pytest.fixture
def copy_of_program(compile_c: Compiler, tmp_path: Path) -> Path:
    return Path(shutil.copy(compile_c("int main(void) { return 0; }"), tmp_path / "program"))


ELF = small_file()
CONTENTS = {
    "empty": (b"", "the file is empty"),
    "text": (b"hello\n", "not an ELF file"),
    "self-extracting": (b"#!/bin/sh\nexec tail -n +3 $0\nPK\3\4", "not an ELF file"),
    "program.exe": (b"MZ\0\0", "not an ELF file"),
    "four bytes": (b"\x7fELF", "ELF header+0x0: expected 64 bytes, have 4"),
    "half": (ELF[: len(ELF) // 2], "section header table: 768 bytes at file offset 0x510 reach past the end of the file (0x408)"),
    "32 bit": (patched(ELF, 4, b"\1"), "a 32-bit ELF file: SFrame is for 64-bit ABIs"),
    "core": (patched(ELF, 16, b"\4\0"), "a core file"),
    "type": (patched(ELF, 16, b"\0\xfe"), "ELF type 65024 is neither a program nor a library"),
    "machine": (
        patched(ELF, 18, b"\xf3\0"),
        "e_machine 243 (little-endian) is not supported, only AMD64, AArch64, AArch64 big-endian, s390x",
    ),
}


@pytest.mark.parametrize("jobs", ["-j1", "-j2"])
def test_what_is_no_program_costs_one_line(jobs: str, copy_of_program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(copy_of_program.parent)
    last = Path("last")
    last.write_bytes(copy_of_program.read_bytes())
    for name, (content, _) in CONTENTS.items():
        Path(name).write_bytes(content)
    Path("dangling").symlink_to("nowhere")
    Path("directory").mkdir()
    os.mkfifo("fifo")
    others = {
        "dangling": "No such file or directory",
        "missing": "No such file or directory",
        "directory": "is a directory; check, add-section -r and remove -r take directories",
        "fifo": "not a regular file",
        "/dev/null": "not a regular file",
    }
    expected = {name: line for name, (_, line) in CONTENTS.items()} | others
    result = run("add-section", jobs, "program", *expected, "last")
    assert result.exit_code == 1
    assert result.stderr.splitlines() == [f"sframegen: {name}: {line}" for name, line in expected.items()]
    assert [line.split(":")[0] for line in result.stdout.splitlines()] == ["program", "last"]
    assert find_sframe(open_elf(last)) == find_sframe(open_elf(copy_of_program)) is not None
    assert {name: Path(name).read_bytes() for name in CONTENTS} == {name: content for name, (content, _) in CONTENTS.items()}


@pytest.mark.parametrize("other", ["/dev/null", "fifo"])
@pytest.mark.parametrize(
    ("command", "status", "line"),
    [
        ("merge -o out.o OTHER program", 1, "sframegen: OTHER: not a regular file"),
        ("add-tree --json OTHER", 2, "Error: Invalid value for 'ROOT...': OTHER: not a directory"),
        ("add-tree --debug-file OTHER .", 2, "Error: Invalid value for '--debug-file': OTHER: not a directory"),
        ("remove-tree . OTHER", 2, "Error: Invalid value for 'ROOT...': OTHER: not a directory"),
        ("check --sections OTHER program", 2, "Error: Invalid value for '--sections': OTHER: not a directory"),
    ],
)
def test_nothing_waits_for_a_fifo_or_reads_a_device(
    command: str, status: int, line: str, other: str, copy_of_program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(copy_of_program.parent)
    os.mkfifo("fifo")
    result = run(*command.replace("OTHER", other).split())
    assert (result.exit_code, result.stderr.splitlines()[-1], result.stdout) == (status, line.replace("OTHER", other), "")


OF_SEVERAL = ("add-section -j1", "remove -j1", "convert -j1 --sframe-version 2", "check -j1", "dump")


@pytest.mark.parametrize(
    "command", [*(f"{one} secret missing" for one in OF_SEVERAL), "lookup secret main", "merge -o out.o secret"]
)
def test_a_file_that_may_not_be_read_is_refused_and_the_others_are_done(
    command: str, copy_of_program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy_of_program.parent.chmod(0o755)
    monkeypatch.chdir(copy_of_program.parent)
    copy_of_program.rename("secret").chmod(0)
    is_root = os.geteuid() == 0
    if is_root:
        run(*command.replace("secret", "missing").split())  # imports what nobody may not be able to read
        os.setresuid(NOBODY, NOBODY, 0)
    try:
        result = run(*command.split())
    finally:
        if is_root:
            os.setresuid(0, 0, 0)
    lines = ["sframegen: secret: Permission denied"]
    if "missing" in command:
        lines.append("sframegen: missing: No such file or directory")
    assert (result.exit_code, result.stderr.splitlines(), result.stdout) == (1, lines, "")


def test_rights_that_a_copy_cannot_have(copy_of_program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root gives files away")
    os.chown(copy_of_program, 12345, 12345)
    copy_of_program.chmod(0o6755)
    os.setxattr(copy_of_program, "security.capability", CAPABILITY)
    before = copy_of_program.read_bytes()
    refuse = Mock(side_effect=PermissionError(errno.EPERM, os.strerror(errno.EPERM)))
    monkeypatch.setattr("os.fchown", refuse)
    monkeypatch.setattr("os.setxattr", refuse)
    copy = copy_of_program.with_name("copy")
    result = run("add-section", "-o", copy, copy_of_program)
    assert result.exit_code == 0
    assert result.stderr == (
        f"sframegen: {copy_of_program}: warning: {copy} could not be given set-user-ID bit, set-group-ID bit, security.capability\n"
    )
    assert stat.S_IMODE(copy.stat().st_mode) == 0o755
    subprocess.run([copy], check=True, capture_output=True)
    result = run("add-section", copy_of_program)  # in place all is kept or nothing done
    assert (result.exit_code, len(result.stderr.splitlines())) == (1, 1)
    assert "Operation not permitted" in result.stderr
    assert copy_of_program.read_bytes() == before


ENDS = {signal.SIGINT: {-signal.SIGINT, 130}, signal.SIGTERM: {-signal.SIGTERM, 143}, signal.SIGHUP: {-signal.SIGHUP, 129}}
# Each run in a process forked before anything of ours is imported. A line of stdin is (arguments, event, signal, moment); one of
# stdout is (status, stderr, events): how many there are for moment 0, else 1 if the signal was sent. Moments count from the line on
# that takes care of Ctrl-C: what is before is the interpreter's.
DRIVER = """
import json, os, signal, sys, tempfile

def run(arguments, event, number, moment):
    read, write = os.pipe()
    with tempfile.TemporaryFile() as stderr:
        child = os.fork()
        if not child:
            os.dup2(stderr.fileno(), 2)
            sys.argv[1:] = arguments
            main = os.getpid()
            seen = 0
            def count(*_):
                nonlocal seen
                if signal.getsignal(signal.SIGINT) is signal.default_int_handler or os.getpid() != main:
                    return
                seen += 1
                if seen == moment:
                    os.write(write, b"1")
                    os.kill(main, number)
            def imports_lief():
                return getattr(getattr(sys.modules.get("lief"), "__spec__", None), "_initializing", False)
            if event == "import":
                sys.addaudithook(lambda name, _: count() if name == "import" else None)
            else:
                sys.setprofile(lambda _, name, __: count() if name == "call" and (event == "call" or imports_lief()) else None)
            if moment == 0:
                import atexit
                atexit.register(lambda: os.write(write, str(seen).encode()))
            if event == "lief":
                from linker.files import read_back
                read_back.MIN_FILES_FOR_LIEF = 1  # LIEF reads many files back
            from sframegen.cli.start import main as program
            program()
        os.close(write)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        events = os.read(read, 100).decode()
        os.close(read)
        stderr.seek(0)
        return status, stderr.read().decode(), int(events or 0)

for line in sys.stdin:
    print(json.dumps(run(*json.loads(line))), flush=True)
"""


@pytest.fixture(scope="module")
def driver() -> Iterator[Answering]:
    with Answering([sys.executable, "-c", DRIVER]) as process:
        yield process


@pytest.mark.dear
@pytest.mark.full
@pytest.mark.parametrize(
    ("event", "number", "moments"),
    [
        ("import", signal.SIGINT, 16),
        ("import", signal.SIGTERM, 6),
        ("call", signal.SIGINT, 10),
        ("call", signal.SIGHUP, 4),
        ("lief", signal.SIGINT, 10),
        ("lief", signal.SIGTERM, 6),
    ],
)
def test_a_signal_at_any_moment(
    driver: Answering, compile_c: Compiler, tmp_path: Path, event: str, number: signal.Signals, moments: int
) -> None:
    program = compile_c("int f(int x) { return x + 1; }\nint main(void) { return f(1); }", "-O1")
    before = program.read_bytes()
    arguments = ["add-section", "-q", "-j1", "-o", str(tmp_path / "out"), str(program)]
    status, stderr, events = driver.ask([arguments, event, number, 0])
    assert (status, stderr) == (0, "")
    assert events
    (tmp_path / "out").unlink()
    for moment in range(1, events + 1, max(1, events // moments)):
        status, stderr, sent = driver.ask([arguments, event, number, moment])
        assert stderr == "", f"moment {moment} of {events}"
        assert status in (ENDS[number] if sent else {0}), f"moment {moment} of {events}"
        assert sent or moment > events * 0.9, f"moment {moment} of {events}"  # no two runs have quite the same events
        assert [path.name for path in tmp_path.iterdir()] in ([], ["out"]), f"moment {moment} of {events}"
        (tmp_path / "out").unlink(missing_ok=True)
    assert program.read_bytes() == before
