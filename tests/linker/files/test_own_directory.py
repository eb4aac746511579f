"""Directories that someone else can change are refused; what is below the others is reached without links."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest

from linker.files.location import OwnDirectory
from tests.support.loops import for_each

if TYPE_CHECKING:
    from collections.abc import Iterator

NOBODY = 65534
THEIRS, OPEN = "belongs to another user: run as that user", "can be written to by others: chmod go-w"


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


@for_each("path", ["/proc/none", "/proc/none/below"])
def test_a_directory_that_cannot_be_made_is_named_whole(path: str) -> None:
    with pytest.raises(OSError, match=r"No such file|Permission denied") as caught:
        OwnDirectory.opened(path, make=True)
    assert caught.value.filename in (path, "/proc/none")


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
