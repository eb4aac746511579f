"""Two runs on one file at a time: one waits, and then finds what the other has made."""

from __future__ import annotations

import errno
import fcntl
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from linker.lock import locked
from sframegen import add_section

if TYPE_CHECKING:
    from peers import Compiler


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


def test_for_the_time_of_the_block(file: Path) -> None:
    with suppress(KeyError), locked(file):
        assert is_locked(file)
        raise KeyError
    assert not is_locked(file)


def test_the_file_that_a_link_leads_to(file: Path) -> None:
    link = file.with_name("link")
    link.symlink_to(file.name)
    with locked(link):
        assert is_locked(file)


@pytest.mark.parametrize("name", ["absent", ".", "dangling"])
def test_nothing_to_lock(file: Path, name: str) -> None:
    file.with_name("dangling").symlink_to("nowhere")
    with locked(file.parent / name):
        pass


@pytest.mark.parametrize("again", [replace, Path.unlink])
def test_the_file_that_is_there_after_waiting(file: Path, again: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever holds the lock replaces the file before letting go of it."""
    asked = []
    flock = fcntl.flock

    def wait(descriptor: object, operation: int) -> None:
        asked.append(operation)
        if len(asked) == 1:
            assert callable(again)
            again(file)
        flock(descriptor, operation)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr("linker.lock.fcntl.flock", wait)
        lock = locked(file)
        lock.__enter__()
    assert asked == [fcntl.LOCK_EX] * (1 + file.exists())
    assert not file.exists() or is_locked(file)
    lock.__exit__(None, None, None)


def test_file_systems_without_locks(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    number = errno.ENOLCK

    def refuse(*_: object) -> None:
        raise OSError(number, "no locks")

    monkeypatch.setattr("linker.lock.fcntl.flock", refuse)
    with locked(file):
        entered = True
    assert entered
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
    code = "from sframegen.cli import main; main()"
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", code, "add-section", "--no-verify", "--format", version, directory / "program"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for version in "2323"
    ]
    ends = [(*run.communicate(), run.returncode) for run in runs]
    assert 0 in [status for _, _, status in ends]
    assert all(error.count("\n") == (status != 0) for _, error, status in ends)
    assert [path.name for path in directory.iterdir()] == ["program"]
    assert (directory / "program").read_bytes() in possible
