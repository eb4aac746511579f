"""Too little memory, files that become shorter while they are read: one line, whatever was being done."""

from __future__ import annotations

import errno
import json
import mmap
import os
import resource
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner

from sframegen.cli.commands import cli
from sframegen.code.isa.disassembly import make_disassembler
from sframegen.code.isa.machines import isa_of
from sframegen.format.abi import AMD64
from sframegen.program.own_memory import zeros_for_missing_pages
from sframegen.program.workers import run_all
from tests.support.loops import for_each
from tests.support.peers import Compiler

PAGE = mmap.PAGESIZE
MANY = "\n".join(f"int f{n}(int x) {{ volatile char b[{8 * n + 8}]; b[0] = x; return b[0]; }}" for n in range(400))


@pytest.fixture(scope="module")
def library(compile_c: Compiler) -> Path:
    return compile_c(MANY, "-shared", "-fPIC")


def run(*arguments: object, memory: int = resource.RLIM_INFINITY) -> subprocess.CompletedProcess[str]:
    return limited([sys.executable, "-m", "sframegen", *map(str, arguments)], memory)


def limited(command: list[str], memory: int) -> subprocess.CompletedProcess[str]:
    limit = partial(resource.setrlimit, resource.RLIMIT_AS, (memory, memory))
    return subprocess.run(command, capture_output=True, text=True, check=False, preexec_fn=limit, timeout=120)


@for_each("jobs", [1, 2])
@pytest.mark.parametrize("megabytes", range(16, 64, 4))
def test_too_little_memory_is_one_line(megabytes: int, jobs: int, library: Path) -> None:
    """In whatever is done when there is no more: starting, loading a library, reading, forking, a process's own work.

    Where small objects have taken the last byte, CPython 3.11 itself can crash, or handle an exception for ever: it needs memory
    for that. Such sizes are those of a few hundred KiB, below what the work takes.
    """
    if limited([sys.executable, "-c", "import encodings.ascii, runpy"], megabytes << 20).returncode:
        pytest.skip(f"this Python does not start in {megabytes} MiB")
    done = run("check", "--instructions", f"-j{jobs}", library, memory=megabytes << 20)
    assert done.returncode in (0, 1)
    if done.returncode:
        assert done.stderr.startswith("sframegen: ")
        assert len(done.stderr.splitlines()) == 1, done.stderr


def fails(_item: object) -> bytes:
    raise MemoryError


class TooLarge:
    """A result whose bytes there is no room for."""

    def __reduce__(self) -> str:
        raise MemoryError


@for_each("work", [fails, lambda _item: TooLarge()])
@for_each("jobs", [1, 2])
def test_too_little_memory_refuses_an_item(work: object, jobs: int, capfd: pytest.CaptureFixture[str]) -> None:
    found = list(run_all(work, ["one", "two"], jobs))  # type: ignore[arg-type,var-annotated]
    assert [type(outcome) for _, outcome in found] == [MemoryError, MemoryError]
    assert capfd.readouterr() == ("", "")


@for_each("reason", [errno.EAGAIN, errno.EMFILE])
def test_no_process_refuses_each_file(reason: int, library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fork() -> int:
        raise OSError(reason, os.strerror(reason))

    monkeypatch.setattr(os, "fork", fork)
    result = CliRunner().invoke(cli, ["check", "-j2", "--json", str(library), str(library.parent / "other")])
    files = (library, library.parent / "other")
    errors = [f"{path}: cannot start a process: {os.strerror(reason)}" for path in files]
    assert result.stderr.splitlines() == [f"sframegen: {error}" for error in errors]
    refused = [{"file": str(path), "error": error} for path, error in zip(files, errors, strict=True)]
    assert (result.exit_code, json.loads(result.stdout)) == (1, refused)


def test_capstone_s_lack_of_memory_is_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = make_disassembler(*isa_of(AMD64).capstone)
    failure = reader._capstone.CsError(reader._capstone.CS_ERR_MEM)
    monkeypatch.setattr(reader, "_handle", type("Handle", (), {"disasm_lite": lambda *_: (_ for _ in ()).throw(failure)})())
    with pytest.raises(MemoryError):
        list(reader.texts(b"\x90", 0))


# -- files that become shorter when they have just been mapped

CUT = """
import mmap, os
from sframegen.cli.start import main
mapped = mmap.mmap

def cut(descriptor, *arguments, **options):
    found = mapped(descriptor, *arguments, **options)
    os.truncate(os.readlink(f"/proc/self/fd/{descriptor}"), 4096)
    return found

mmap.mmap = cut
main()
"""


@pytest.mark.sampled
@pytest.mark.parametrize(
    "arguments",
    [
        ("add-section", "-j1"), ("add-section", "-j1", "--no-verify", "-o", "OUT"), ("check", "-j1"), ("check", "-j2"), ("dump",),
        ("remove", "-j1"),
    ],
)  # fmt: skip
def test_files_that_become_shorter_are_a_line_each(arguments: tuple[str, ...], library: Path, tmp_path: Path) -> None:
    files, out = [tmp_path / name for name in ("one", "two")[: 1 + ("-j2" in arguments)]], tmp_path / "out"
    for file in files:
        file.write_bytes(library.read_bytes())
    command = [sys.executable, "-c", CUT, *(str(out) if word == "OUT" else word for word in arguments), *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines() == [f"sframegen: {file}: it was truncated while being read" for file in files]
    assert sorted(tmp_path.iterdir()) == files


# -- mapped files that become shorter while zeros are asked for


def test_what_a_file_has_lost_reads_as_zeros(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 4 * PAGE)
    with path.open("r+b") as file, zeros_for_missing_pages():
        data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        file.truncate(PAGE + 3)
        assert bytes(data) == b"x" * (PAGE + 3) + bytes(3 * PAGE - 3)
        file.truncate(0)
        assert bytes(data) == bytes(4 * PAGE)


def test_after_the_block_it_ends_the_program_again(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * PAGE)
    script = f"""
import mmap
from sframegen.program.own_memory import zeros_for_missing_pages
with open({str(tmp_path / "file")!r}, "r+b") as file:
    data = mmap.mmap(file.fileno(), 0)
    with zeros_for_missing_pages():
        pass
    file.truncate(0)
    data[0]
"""
    assert subprocess.run([sys.executable, "-P", "-c", script], check=False).returncode == -signal.SIGBUS
