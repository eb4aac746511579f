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


def of_another_user(path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs a second user")
    os.chown(path, NOBODY, NOBODY)


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


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o757])
def test_a_directory_that_all_can_write_to(directory: Path, mode: int) -> None:
    directory.chmod(mode)
    with pytest.raises(PermissionError, match=OPEN):
        OwnDirectory.opened(directory)


def test_a_directory_that_a_group_can_write_to(directory: Path) -> None:
    """Many users have a group of their own, and a umask that lets it write; root is asked."""
    directory.chmod(0o775)
    if os.geteuid() == 0:
        with pytest.raises(PermissionError, match=OPEN):
            OwnDirectory.opened(directory)
    else:
        OwnDirectory.opened(directory).close()


def test_a_directory_of_another_user(directory: Path) -> None:
    of_another_user(directory)
    with pytest.raises(PermissionError, match=THEIRS):
        OwnDirectory.opened(directory)


@pytest.mark.parametrize("make", [False, True])
def test_a_directory_of_another_user_below(directory: Path, make: bool) -> None:
    (directory / "a/b").mkdir(parents=True)
    of_another_user(directory / "a")
    with OwnDirectory.opened(directory) as own, pytest.raises(PermissionError, match=f"its directory a {THEIRS}"):
        own.at("a/b/c", make=make)


@pytest.mark.parametrize("make", [False, True])
def test_no_link_is_followed(directory: Path, make: bool) -> None:
    (directory / "real").mkdir()
    (directory / "link").symlink_to("real")
    with OwnDirectory.opened(directory) as own, pytest.raises(OSError, match="a symbolic link has appeared in its path"):
        own.at("link/file", make=make)


@pytest.mark.parametrize("name", ["../x", "a/../../x", "/etc/x"])
def test_no_name_leads_out(directory: Path, name: str) -> None:
    with OwnDirectory.opened(directory) as own, pytest.raises(OSError, match="leads out"):
        own.at(name, make=True)
    assert not list(directory.iterdir())


def test_it_stays_the_same_directory(directory: Path) -> None:
    (directory / "one").mkdir()
    with OwnDirectory.opened(directory / "one") as own:
        (directory / "one").rename(directory / "other")
        (directory / "one").mkdir()
        with own.at("new/file", make=True) as location:
            assert os.path.samestat(os.fstat(location.directory), (directory / "other/new").stat())
