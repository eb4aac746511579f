"""Real processes: their spans are those of /proc/PID/maps, and their files the very files that they have mapped."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import Mock

import pytest

from sframegen.profile.events import cpu_rings
from sframegen.profile.events.attributes import EventAttributes, EventError, open_event
from sframegen.profile.events.event_records import MmapRecord
from sframegen.profile.following import follower
from sframegen.profile.following.files import REWRITTEN, TracedFiles
from sframegen.profile.following.follower import Follower, GeneratedCode, MappingResolver, read_memory
from sframegen.stack import snapshot as memory
from sframegen.stack.live.process import parse_mappings
from sframegen.stack.mappings import VDSO
from sframegen.stack.snapshot import MAX_CODE_SIZE
from tests.support.processes.live import HOLD, MOVES_CODE, Program, compiled

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sframegen.profile.following.files import TracedFile
    from sframegen.profile.following.processes import ProcessSpans
    from tests.support.peers import Compiler

LIBRARY = "int function(int n) { return n * 7 + 1; }"
HOLDING = 'int main(void) { hold(); puts("done"); }'


@pytest.fixture
def following() -> Iterator[Follower]:
    with all_followed() as found:
        yield found


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Mock:
    recorded = Mock(wraps=read_memory)
    monkeypatch.setattr(follower, "read_memory", recorded)
    return recorded


def test_the_vdso_is_read_once(asked: Mock) -> None:
    """All processes of our kind have the same: none of them can give the others another one."""
    resolver = MappingResolver(TracedFiles())
    [(start, end)] = [(row.start, row.end) for row in parse_mappings(Path("/proc/self/maps").read_bytes()).rows if row.path == VDSO]
    records = [MmapRecord(pid, pid, base, base + end - start, 0, True, VDSO) for pid, base in ((1, 1 << 40), (2, 1 << 41))]
    first, second = (resolver.find_spans(record, 0) for record in records)
    assert [span.file for span in first] == [span.file for span in second] != [0]
    assert [span.start for span in second] == [1 << 41]
    assert [call.args[0] for call in asked.call_args_list] == [os.getpid()]


def test_code_that_a_process_makes_is_read_by_pages_and_again_after_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = {0: bytes(4096), 1: bytes(4096), 3: bytes(4096)}
    asked: list[int] = []

    def read(_pid: int, address: int, size: int) -> bytes:
        asked.append(address)
        assert size == 4096
        return memory.get(address // size, b"")

    clock = [10.0]
    monkeypatch.setattr(follower, "read_memory", read)
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    code = GeneratedCode(1)
    assert (code.read(4094, 5), code.read(8190, 5), asked) == (bytes(5), bytes(2), [0, 4096, 8192])
    assert code.read(3 * 4096 - 2, 5) == b""  # reading stops at the unreadable page, so bytes after it do not count
    memory[0] = b"\xcc" * 4096
    assert code.read(4094, 2) == bytes(2)
    clock[0] += 1.1
    assert code.read(4094, 3) == b"\xcc\xcc\0"


@contextmanager
def all_followed() -> Iterator[Follower]:
    try:
        found = Follower()
    except EventError as error:
        pytest.skip(f"no perf events: {error}")
    yield found
    found.close()
    found.files.close()


def check(following: Follower, pid: int) -> dict[str, TracedFile]:
    """The spans of a running process are its executable mappings, with the right files and biases; files by path."""
    following.drain()
    rows = [row for row in parse_mappings(Path(f"/proc/{pid}/maps").read_bytes()) if row.executable and row.path != "[vsyscall]"]
    spans = following.processes.spans(pid)
    assert spans is not None
    assert [(span.start, span.end) for span in spans] == [(row.start, row.end) for row in rows]
    files = {}
    memory = os.open(f"/proc/{pid}/mem", os.O_RDONLY)
    for span, row in zip(spans, rows, strict=True):
        if span.file:
            file = following.files.by_number[span.file]
            files[file.path] = file
            assert file.elf is not None
            loads = [one for one in file.elf.executable_loads() if one.p_vaddr < span.end - span.bias]
            load = next(one for one in loads if span.start - span.bias < one.p_vaddr + one.p_filesz)
            start = max(span.start, load.p_vaddr + span.bias)
            size = min(span.end, load.p_vaddr + load.p_filesz + span.bias) - start
            assert size > 100
            assert os.pread(memory, size, start) == bytes(file.elf.at(start - span.bias, size))
        else:
            assert not row.path.startswith("/") or not row.inode
    os.close(memory)
    return files


def test_a_program_that_starts_while_it_is_followed(following: Follower, compile_c: Compiler, tmp_path: Path) -> None:
    with Program(compiled(compile_c, tmp_path, HOLDING, section=False)) as program:
        files = check(following, program.pid)
        assert {Path(path).name for path in files} >= {"program", "libc.so.6", "[vdso]"}
        assert following.processes.name_of(program.pid) == "program"
        before = following.processes.spans(program.pid)
        assert following.scan(program.pid)
        assert following.processes.spans(program.pid) == before
        assert len({file.number for file in following.files.take_new()}) >= len(files)
        assert all(file.build_id for path, file in files.items() if path != "[vdso]" or file.build_id)


def test_what_is_no_process_has_no_mappings(following: Follower) -> None:
    assert not following.scan(2)  # a thread of the kernel
    child = subprocess.Popen(["true"])
    child.wait()
    assert not following.scan(child.pid)


def test_children_and_programs_that_they_execute(following: Follower, compile_c: Compiler, tmp_path: Path) -> None:
    source = """int main(int count, char **names) {
        if (count > 1) { hold(); puts("done"); return 0; }
        if (fork() == 0) { hold(); execl(names[0], names[0], "again", NULL); }
        wait(0);
    }"""
    program = compiled(compile_c, tmp_path, "#include <sys/wait.h>\n" + source, section=False)
    with Program(program) as running:
        following.drain()
        parent = check(following, running.pid)
        child = int(Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text())
        assert following.processes.spans(child) == following.processes.spans(running.pid)
        running.go_on()
        running.wait()
        assert check(following, child).keys() == parent.keys()
        assert following.processes.spans(child) != following.processes.spans(running.pid)


def test_libraries_that_come_and_go(following: Follower, compile_c: Compiler, tmp_path: Path) -> None:
    names = [tmp_path / f"{name}.so" for name in "ab"]
    for name in names:
        shutil.copy(compile_c(LIBRARY, "-shared", "-fPIC"), name)
    source = """int main(int count, char **names) {
        void *first = dlopen(names[1], RTLD_NOW); hold();
        dlclose(first); void *second = dlopen(names[2], RTLD_NOW); hold();
        puts(second ? "done" : "failed"); }"""
    with Program(compiled(compile_c, tmp_path, source, section=False), *names) as program:
        assert "a.so" in {Path(path).name for path in check(following, program.pid)}
        first = following.processes.spans(program.pid)
        at = following.drain()
        following.processes.changed.clear()
        program.go_on()
        program.wait()
        following.drain()
        assert program.pid in following.processes.changed
        assert {"b.so"} <= {Path(path).name for path in check(following, program.pid)}
        assert following.processes.spans(program.pid, at) == first
        assert following.scan(program.pid)
        assert "a.so" not in {Path(path).name for path in check(following, program.pid)}


MAKES_CODE = """#include <sys/mman.h>
int main(void) {
    char *code = mmap(0, 12288, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mprotect(code + 4096, 4096, PROT_READ | PROT_EXEC);
    hold();
    puts("done");
}"""


def test_code_that_is_made_at_run_time_has_no_file(following: Follower, compile_c: Compiler, tmp_path: Path) -> None:
    with Program(compiled(compile_c, tmp_path, MAKES_CODE, section=False)) as program:
        check(following, program.pid)
        assert [span.end - span.start for span in following.processes.spans(program.pid) or () if not span.file] == [4096]


def test_code_that_a_program_has_moved_to_anonymous_memory_is_that_of_its_file(
    monkeypatch: pytest.MonkeyPatch, asked: Mock, compile_c: Compiler, tmp_path: Path
) -> None:
    """If it is the same, which is found out once: programs move their code to huge pages. Code above the limit is not read."""
    path = compiled(compile_c, tmp_path, MOVES_CODE, section=False)
    for arguments, most in (((), MAX_CODE_SIZE), (("changed",), MAX_CODE_SIZE), (("too much",), 64)):
        monkeypatch.setattr(memory, "MAX_CODE_SIZE", most)
        with Program(path, *arguments) as program, all_followed() as following:
            for _ in range(2):
                assert following.scan(program.pid)
                files = check(following, program.pid)
                assert (str(path) in files) == (not arguments)
            assert [call.args[0] for call in asked.call_args_list].count(program.pid) == (most == MAX_CODE_SIZE)


def test_a_file_that_is_deleted_or_replaced_is_still_the_one(following: Follower, compile_c: Compiler, tmp_path: Path) -> None:
    path = compiled(compile_c, tmp_path, HOLDING, section=False)
    other = compile_c(HOLD + HOLDING.replace("done", "gone"))
    with Program(path) as first:
        path.unlink()
        file = check(following, first.pid)[str(path)]
        shutil.copy(other, path.with_name("new"))
        path.with_name("new").rename(path)
        with all_followed() as later:  # it finds another file at the path
            assert later.scan(first.pid)
            assert check(later, first.pid)[f"{path} (deleted)"].build_id == file.build_id


def with_library(compile_c: Compiler, tmp_path: Path) -> tuple[Path, Path]:
    library = Path(shutil.copy(compile_c(LIBRARY, "-shared", "-fPIC"), tmp_path / "a.so"))
    source = 'int main(int count, char **names) { dlopen(names[1], RTLD_NOW); hold(); puts("done"); }'
    return compiled(compile_c, tmp_path, source, section=False), library


def test_a_file_that_is_rewritten_in_place_loses_its_number(following: Follower, compile_c: Compiler, tmp_path: Path) -> None:
    path, library = with_library(compile_c, tmp_path)
    with Program(path, library) as program:
        file = check(following, program.pid)[str(library)]
        with library.open("ab") as end:
            end.write(b"more")
        following.check_files()
        assert (file.elf, file.why, file.ready) == (None, REWRITTEN, True)
        assert file.number not in {span.file for span in following.processes.spans(program.pid) or ()}
        assert following.scan(program.pid)
        assert check(following, program.pid)[str(library)].number != file.number


def test_who_maps_a_file_after_it_was_rewritten_has_another_one(following: Follower, compile_c: Compiler, tmp_path: Path) -> None:
    """Nobody looks at the file meanwhile. Who maps it again unchanged has the same one."""
    program, library = with_library(compile_c, tmp_path)
    numbers = []
    for rewritten in (False, False, True):
        if rewritten:
            with library.open("ab") as end:
                end.write(b"more")
        with Program(program, library) as running:
            following.drain()
            numbers.append(check(following, running.pid)[str(library)].number)
    first, same, other = numbers
    assert first == same != other


@pytest.mark.parametrize("options", ["-t tmpfs none", "-t overlay -o lowerdir=lower,upperdir=upper,workdir=work none"])
def test_a_process_in_other_namespaces(following: Follower, compile_c: Compiler, tmp_path: Path, options: str) -> None:
    """As in a container: its files are nowhere in our namespace, and on a file system of layers."""
    inside = tmp_path / "mount"
    for name in ("mount", "lower", "upper", "work"):
        (tmp_path / name).mkdir()
    program = compiled(compile_c, tmp_path, HOLDING, section=False)
    script = f"cd {tmp_path} && mount {options} {inside} && cp {program} {inside}/hidden && exec {inside}/hidden"
    command = ["unshare", "--mount", "--pid", "--fork", "sh", "-c", script]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout
    if process.stdout.readline() != b"here\n":
        process.communicate()
        pytest.skip("no perf events: namespaces are not allowed")
    following.drain()
    pid = int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text())
    assert (check(following, pid)[f"{inside}/hidden"].why, following.processes.name_of(pid)) == ("", "hidden")
    assert not (inside / "hidden").exists()
    assert process.communicate(b".")[0] == b"done\n"


def test_threads_have_names(following: Follower, compile_c: Compiler, tmp_path: Path) -> None:
    source = """static void *work(void *name) { pthread_setname_np(pthread_self(), name); hold(); return NULL; }
    int main(void) { pthread_t one; pthread_create(&one, NULL, work, "worker"); pthread_join(one, NULL); puts("done"); }"""
    with Program(compiled(compile_c, tmp_path, source, "-pthread", section=False)) as program:
        following.drain()
        threads = [int(folder.name) for folder in Path(f"/proc/{program.pid}/task").iterdir()]
        assert {following.processes.thread_name(program.pid, tid) for tid in threads} == {"program", "worker"}
        with all_followed() as later:
            later.scan(program.pid)
            assert {later.processes.thread_name(program.pid, tid) for tid in threads} == {"program", "worker"}


def test_processors_that_come_and_go(following: Follower, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    online = tmp_path / "online"
    online.write_text(cpu_rings.ONLINE.read_text())
    monkeypatch.setattr(cpu_rings, "ONLINE", online)
    monkeypatch.setattr(follower, "CPUS_INTERVAL", 0)
    following.scan(os.getpid())
    count = len(following.filenos)
    online.write_text("0\n")
    following.drain()
    assert len(following.filenos) == 1
    assert following.processes.spans(os.getpid()) is not None

    def opened(attributes: EventAttributes, pid: int, cpu: int) -> int:
        if cpu == count:  # it is offline again
            raise EventError("no", errno.ENODEV)
        return open_event(attributes, pid, cpu)

    monkeypatch.setattr(follower, "open_event", opened)
    online.write_text(f"0-{count}\n")
    following.drain()
    assert len(following.filenos) == count
    assert following.processes.spans(os.getpid()) is None  # what was done there meanwhile is not known
    assert cpu_rings.parse_cpu_list("0-3,8\n") == {0, 1, 2, 3, 8}


def known_spans(following: Follower) -> ProcessSpans:
    """Those of this process. Others on the machine may fill the small buffers once more, just after they were read."""
    for _ in range(1000):
        if (spans := following.processes.spans(os.getpid())) is not None:
            return spans
        assert following.scan(os.getpid())
    raise AssertionError("records are lost again and again")


def test_records_that_are_lost_make_mappings_unknown_until_they_are_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower, "RING_PAGES", 8)
    cpus = os.sched_getaffinity(0)
    with all_followed() as following:
        os.sched_setaffinity(0, {min(cpus)})  # its ring is full then, and is written to again
        known = known_spans(following)
        for _ in range(100):
            os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0)
        following.drain()
        os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0)  # there is room again, to say how many were lost
        following.drain()
        os.sched_setaffinity(0, cpus)
        assert following.lost > 0
        assert following.processes.spans(os.getpid()) is None
        assert known_spans(following) == known
