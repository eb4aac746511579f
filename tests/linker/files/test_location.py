"""Which links are followed on the way to a file, and which directories are ours; what is found stays what it is."""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from linker.files.location import OwnDirectory, locate, locate_below, make_directory
from tests.support.commands import start
from tests.support.loops import for_each

NOBODY = 65534
CONTROLLED = "a symbolic link that another user controls"
THEIRS, OPEN = "belongs to another user: run as that user", "can be written to by others: chmod go-w"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/b/file").write_bytes(b"content")
    return tmp_path


def content(path: str | Path) -> bytes:
    with locate(path) as location, os.fdopen(location.open(), "rb") as file:
        return file.read()


@pytest.mark.parametrize("path", ["a/b/file", "a//b/./file", "a/b/../b/file", "a/link/file", "link", "absolute", "chain"])
def test_the_kernel_finds_the_same(tree: Path, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (tree / "a/link").symlink_to("b")
    (tree / "link").symlink_to("a/link/../b/file")
    (tree / "absolute").symlink_to(tree / "a/b/file")
    (tree / "chain").symlink_to("link")
    monkeypatch.chdir(tree)
    for name in (path, str(tree / path), f"/proc/self/cwd/{path}", f"/proc/self/root{tree}/{path}"):
        assert content(name) == b"content"


@pytest.mark.parametrize(
    ("path", "number"),
    [
        ("", errno.ENOENT),
        ("absent/file", errno.ENOENT),
        ("a/b/file/x", errno.ENOTDIR),
        ("loop", errno.ELOOP),
        ("loop/x", errno.ELOOP),
    ],
)
def test_the_kernels_errors(tree: Path, path: str, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    (tree / "loop").symlink_to("loop")
    monkeypatch.chdir(tree)
    with pytest.raises(OSError, match=re.escape(os.strerror(number))) as error:
        locate(path)
    assert (error.value.errno, error.value.filename) == (number, path)


@pytest.mark.parametrize("path", [".", "/", "a/..", "a/"])
def test_a_directory_is_no_file(tree: Path, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tree)
    with locate(path) as location, pytest.raises(IsADirectoryError):
        location.open()


def test_a_name_that_is_not_there_yet(tree: Path) -> None:
    (tree / "dangling").symlink_to("a/new")
    with locate(tree / "dangling") as location:
        assert location.status() is None
        (tree / "a").rename(tree / "moved")
        (tree / "moved/new").write_bytes(b"new")
        status = location.status()
        assert status is not None
        assert location.is_at((tree / "moved/new").stat())


def test_what_is_exchanged_afterwards_is_not_followed(tree: Path) -> None:
    with locate(tree / "a/b/file") as location:
        (tree / "a/b/file").rename(tree / "a/b/other")
        (tree / "a/b/file").symlink_to("other")
        with pytest.raises(OSError, match="a symbolic link has appeared in its path"):
            location.open()
    root = os.open(tree, os.O_PATH)
    (tree / "a").rename(tree / "real")
    (tree / "a").symlink_to("real")
    with pytest.raises(OSError, match="a symbolic link has appeared in its path") as error:
        locate_below(root, "a/b/other", "shown")
    assert error.value.filename == "shown"
    with locate_below(root, "real/b/other", "shown") as location:
        assert location.is_at((tree / "real/b/other").stat())
    os.close(root)


@contextmanager
def of_another_user(mode: int, owner: int) -> Iterator[Path]:
    """A directory with such a mode and owner; in it a file of the user who runs the tests."""
    if os.geteuid() != 0:
        pytest.skip("needs a second user")
    with TemporaryDirectory() as name:
        directory = Path(name, "theirs")
        directory.mkdir()
        (directory / "file").write_bytes(b"content")
        os.chown(directory, owner, 0 if owner == 0 else -1)
        directory.chmod(mode)
        yield directory


@for_each(
    ("mode", "owner", "link_owner", "is_followed"),
    [
        (0o755, 0, 0, True),
        (0o755, 0, NOBODY, False),
        (0o755, NOBODY, 0, False),  # its owner can have moved the link there
        (0o777, 0, 0, False),
        (0o1777, 0, 0, False),  # /tmp: others can have made a hard link of it, or moved it from a directory of theirs
        (0o1777, 0, NOBODY, False),
    ],
)
@for_each("is_last", [False, True])
def test_whose_links_are_followed(mode: int, owner: int, link_owner: int, is_followed: bool, is_last: bool) -> None:
    with of_another_user(mode, owner) as directory:
        link = directory / "link"
        link.symlink_to("file" if is_last else directory)
        os.chown(link, link_owner, -1, follow_symlinks=False)
        path = link if is_last else link / "file"
        if is_followed:
            assert content(path) == b"content"
        else:
            with pytest.raises(OSError, match=CONTROLLED) as error:
                locate(path)
            assert error.value.filename == str(path)


def test_a_directory_of_a_group() -> None:
    with of_another_user(0o775, 0) as directory:
        os.chown(directory, 0, NOBODY)
        (directory / "link").symlink_to("file")
        with pytest.raises(OSError, match=CONTROLLED):
            locate(directory / "link")
        # Of a list of access rights, the mode's group bits are the most that any user of it may do.
        rights = ((1, 7, -1), (2, 7, NOBODY), (4, 5, -1), (16, 7, -1), (32, 5, -1))  # tag, what is allowed, whom
        attribute = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", tag, allowed, who % 2**32) for tag, allowed, who in rights)
        os.chown(directory, 0, 0)
        os.setxattr(directory, "system.posix_acl_access", attribute)
        with pytest.raises(OSError, match=CONTROLLED):
            locate(directory / "link")
        os.removexattr(directory, "system.posix_acl_access")
        directory.chmod(0o775)
        directory.parent.chmod(0o755)
        os.chown(directory, NOBODY, NOBODY)
        os.chown(directory / "link", NOBODY, NOBODY, follow_symlinks=False)
        os.seteuid(NOBODY)
        try:
            assert content(directory / "link") == b"content"
        finally:
            os.seteuid(0)


def test_directories_are_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "file").touch()
    monkeypatch.chdir(tmp_path)
    for path in ("a/b//c/", "a/b/c", ".", str(tmp_path / "absolute/d"), "link/e"):
        make_directory(path)
        assert Path(path).is_dir()
    with pytest.raises(NotADirectoryError) as error:
        make_directory("file/f/g")
    assert error.value.filename == "file/f/g"


def test_no_directory_is_made_where_a_link_of_others_leads() -> None:
    with of_another_user(0o755, NOBODY) as directory:
        victim = directory.with_name("victim")
        victim.mkdir()
        (directory / "link").symlink_to(victim)
        with pytest.raises(OSError, match=CONTROLLED):
            make_directory(directory / "link/new/newer")
        assert not list(victim.iterdir())
        assert start("link", "--install", directory / "link/new").returncode == 1
        assert not list(victim.iterdir())


add = partial(start, "add-section", "--no-verify")


def test_no_link_of_proc_is_a_target(tmp_path: Path) -> None:
    """In place, or as output: what it leads to may be another file by now, or one that nobody named. Reading it is allowed."""
    program, output = tmp_path / "program", tmp_path / "output"
    shutil.copy("/bin/cat", program)
    data = program.read_bytes()
    with subprocess.Popen([program], stdin=subprocess.PIPE) as waiting, program.open("rb") as file:
        link = f"/proc/{waiting.pid}/exe"
        for name in (link, f"/proc/self/fd/{file.fileno()}", f"/dev/fd/{file.fileno()}"):
            with pytest.raises(OSError, match="a link of /proc in place of a file's name"):
                locate(name)
        for arguments in ((link,), ("-o", link, "/bin/true")):
            run = add(*arguments)
            message = f"sframegen: {link}: a link of /proc in place of a file's name; name the file, or write to another one\n"
            assert (run.returncode, run.stderr) == (1, message)
        assert program.read_bytes() == data
        program.unlink()
        assert add("-o", output, link).returncode == 0
        waiting.kill()
    assert output.stat().st_mode & stat.S_IXUSR


def test_a_dash_is_standard_output(tmp_path: Path) -> None:
    """A pipe, or a file, into which the shell has opened it."""
    output, redirected = tmp_path / "output", tmp_path / "redirected"
    assert add("-o", output, "/bin/true").returncode == 0
    command = [sys.executable, "-m", "sframegen", "add-section", "-o", "-", "/bin/true"]
    assert subprocess.check_output(command, cwd=tmp_path) == output.read_bytes()
    with redirected.open("wb") as file:
        subprocess.run(command, stdout=file, cwd=tmp_path, check=True)
    assert redirected.read_bytes() == output.read_bytes()
    assert set(tmp_path.iterdir()) == {output, redirected}


@pytest.fixture
def directory() -> Iterator[Path]:
    with TemporaryDirectory() as name:
        yield Path(name)


def test_a_directory_is_made(directory: Path) -> None:
    with OwnDirectory.opened(directory / "a/b", make=True) as own, own.at("c/d/file", make=True) as location:
        assert (own.path, location.path) == (str(directory / "a/b"), str(directory / "a/b/c/d/file"))
        assert location.status() is None
    assert (directory / "a/b/c/d").is_dir()
    with pytest.raises(FileNotFoundError):
        OwnDirectory.opened(directory / "none")


@for_each("mode", [0o777, 0o1777, 0o757, 0o775])
def test_a_directory_that_others_can_write_to(directory: Path, mode: int) -> None:
    """Many users have a group of their own, and a umask that lets it write; root is asked."""
    directory.chmod(mode)
    if mode == 0o775 and os.geteuid() != 0:
        OwnDirectory.opened(directory).close()
        return
    with pytest.raises(PermissionError, match=OPEN):
        OwnDirectory.opened(directory)


@for_each("make", [False, True])
def test_no_link_is_followed_and_no_name_leads_out(directory: Path, make: bool) -> None:
    (directory / "link").unlink(missing_ok=True)
    (directory / "link").symlink_to(".")
    with OwnDirectory.opened(directory) as own:
        with pytest.raises(OSError, match="a symbolic link has appeared in its path"):
            own.at("link/file", make=make)
        for name in ("../x", "a/../../x", "/etc/x"):
            with pytest.raises(OSError, match="leads out"):
                own.at(name, make=make)
    assert [path.name for path in directory.iterdir()] == ["link"]


def test_a_directory_of_another_user(directory: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs a second user")
    (directory / "a/b").mkdir(parents=True)
    os.chown(directory / "a", NOBODY, NOBODY)
    for make in (False, True):
        with OwnDirectory.opened(directory) as own, pytest.raises(PermissionError, match=f"its directory a {THEIRS}"):
            own.at("a/b/c", make=make)
    with pytest.raises(PermissionError, match=THEIRS):
        OwnDirectory.opened(directory / "a")


def test_it_stays_the_same_directory(directory: Path) -> None:
    (directory / "one").mkdir()
    with OwnDirectory.opened(directory / "one") as own:
        (directory / "one").rename(directory / "other")
        (directory / "one").mkdir()
        with own.at("new/file", make=True) as location:
            assert os.path.samestat(os.fstat(location.directory), (directory / "other/new").stat())
