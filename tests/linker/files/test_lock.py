"""Two runs on one file at a time: one waits, and then finds what the other has made."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from linker.files.location import locate
from linker.files.lock import open_locked
from sframegen import add_section
from sframegen.base.errors import FormatError
from sframegen.program import time_limits
from sframegen.program.time_limits import TimeLimits
from tests.support.peers import Compiler


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    return path


def is_locked(path: Path) -> bool:
    with path.open("rb") as other:
        try:
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def replace(path: Path) -> None:
    path.with_name("new").write_bytes(b"new")
    path.with_name("new").replace(path)


@contextmanager
def locked(path: Path) -> Iterator[int]:
    with locate(path) as location:
        descriptor = open_locked(location)
        try:
            yield descriptor
        finally:
            os.close(descriptor)


def test_for_the_time_of_the_block(file: Path) -> None:
    link = file.with_name("link")
    link.symlink_to(file.name)
    for path in (file, link):
        with suppress(KeyError), locked(path):
            assert is_locked(file)
            raise KeyError
        assert not is_locked(file)


def test_the_file_that_is_there_after_waiting(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flock = fcntl.flock
    asked = []

    def lock(descriptor: int, operation: int) -> None:
        asked.append(operation)
        if len(asked) == 1:
            replace(file)
        flock(descriptor, operation)

    with monkeypatch.context() as patch:
        patch.setattr("linker.files.lock.fcntl.flock", lock)
        with locked(file) as descriptor:
            assert os.read(descriptor, 8) == b"new"
    assert asked == [fcntl.LOCK_EX | fcntl.LOCK_NB] * 2


def test_who_keeps_it_locked(file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(time_limits, "current", TimeLimits(lock=0, lock_notice=-1))
    who = rf"process {os.getpid()} \(.+\)"
    with file.open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with (
            pytest.raises(TimeoutError, match=rf"{who} keeps it locked; end that process, or change a copy") as error,
            locked(file),
        ):
            pass
        assert error.value.filename == str(file)
        monkeypatch.setattr(time_limits, "current", TimeLimits(lock=600, lock_notice=-1))
        monkeypatch.setattr("linker.files.lock.time.sleep", lambda _: fcntl.flock(other, fcntl.LOCK_UN))
        with locked(file):
            assert is_locked(file)
        fcntl.flock(other, fcntl.LOCK_EX)
        name = Path("/proc/self/comm")
        before = name.read_text()
        name.write_text("\x1b[2Ja\nb")  # for terminals
        try:
            with locked(file):
                pass
        finally:
            name.write_text(before)
    messages = [record.getMessage() for record in caplog.records]
    assert re.fullmatch(rf"sframegen: {re.escape(str(file))}: waiting for {who}, which has locked it", messages[0])
    assert r"(\x1b[2Ja\nb), which has locked it" in messages[1]
    assert messages[1].isprintable()


def test_a_file_that_is_always_another(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_limits, "current", TimeLimits(lock=0))
    monkeypatch.setattr("linker.files.lock.fcntl.flock", lambda *_: replace(file))
    with pytest.raises(TimeoutError, match="it keeps being replaced"), locked(file):
        pass


def test_a_dry_run_takes_no_lock(compile_c: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "program"
    shutil.copy(compile_c("int main(void) { return 0; }", "-O2", name="dry"), program)
    monkeypatch.setattr(time_limits, "current", TimeLimits(lock=0))
    with program.open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert add_section(program, dry_run=True).plan is not None
        with pytest.raises(TimeoutError):
            add_section(program, verify=False)


def test_file_systems_without_locks(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    number = errno.ENOLCK

    def refuse(*_: object) -> None:
        raise OSError(number, "no locks")

    monkeypatch.setattr("linker.files.lock.fcntl.flock", refuse)
    with locked(file) as descriptor:
        assert os.read(descriptor, 8) == b"old"
    number = errno.EIO
    with pytest.raises(OSError, match="no locks"), locked(file):
        pass


def test_runs_at_the_same_time(compile_c: Compiler, tmp_path: Path) -> None:
    """Each writes its section into the whole, unchanged file, or finds another's there."""
    program = compile_c("int main(void) { return 0; }", "-O2", name="several")
    directory = tmp_path / "directory"
    directory.mkdir()
    shutil.copy(program, directory / "program")
    possible = []
    for version in (2, 3):
        add_section(program, output=tmp_path / str(version), version=version, verify=False)
        possible.append((tmp_path / str(version)).read_bytes())
    command = [sys.executable, "-m", "sframegen", "add-section", "--no-verify", f"{directory}/program", "--sframe-version"]
    runs = [subprocess.Popen([*command, version], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for version in "2323"]
    ends = [(*run.communicate(), run.returncode) for run in runs]
    assert 0 in [status for _, _, status in ends]
    assert all(error.count("\n") == (status != 0) for _, error, status in ends)
    assert [path.name for path in directory.iterdir()] == ["program"]
    assert (directory / "program").read_bytes() in possible


def test_the_lock_ends_with_the_change(compile_c: Compiler, tmp_path: Path) -> None:
    """Even if somebody keeps the error, and with it what was mapped."""
    program = tmp_path / "program"
    program.write_bytes(compile_c("int main(void) { return 0; }", "-O2", name="kept").read_bytes()[:2000])
    with pytest.raises(FormatError) as error:
        add_section(program, verify=False)
    assert error.value.__traceback__ is not None
    assert not is_locked(program)
