"""A target is the old file or the new one, and the new one keeps what is not its content."""

from __future__ import annotations

import errno
import os
import signal
import stat
from typing import TYPE_CHECKING, BinaryIO

import pytest
from linker_inputs import section_of, small_file

from cfi.errors import FormatError
from linker.apply import apply, copy_file
from linker.plan import plan_injection
from linker.replace import take_over, write_atomically
from sframegen.elf import open_elf

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NEW = b"new content"
CAPABILITY = bytes.fromhex("0100000200000000002000000000000000000000")  # cap_net_raw, as setcap writes it


@pytest.fixture
def target(tmp_path: Path) -> Path:
    path = tmp_path / "target"
    path.write_bytes(b"old content")
    path.chmod(0o751)
    os.utime(path, ns=(10**18, 2 * 10**18 + 1))
    return path


def write_new(out: BinaryIO) -> None:
    out.write(NEW)


def only(target: Path) -> bool:
    return [entry.name for entry in target.parent.iterdir()] == [target.name]


def test_in_place(target: Path) -> None:
    assert write_atomically(target, write_new, source=target) == 0
    assert target.read_bytes() == NEW
    assert stat.S_IMODE(target.stat().st_mode) == 0o751
    assert target.stat().st_mtime_ns != 2 * 10**18 + 1
    assert only(target)


def test_timestamps(target: Path) -> None:
    write_atomically(target, write_new, source=target, preserve_timestamps=True)
    assert (target.stat().st_atime_ns, target.stat().st_mtime_ns) == (10**18, 2 * 10**18 + 1)


def test_another_name(target: Path) -> None:
    output = target.with_name("output")
    assert write_atomically(output, write_new, source=target) == 0
    assert output.read_bytes() == NEW
    assert stat.S_IMODE(output.stat().st_mode) == 0o751
    assert target.read_bytes() == b"old content"


def test_another_name_that_exists(target: Path) -> None:
    output = target.with_name("output")
    output.write_bytes(b"something")
    write_atomically(output, write_new, source=target)
    assert output.read_bytes() == NEW
    assert stat.S_IMODE(output.stat().st_mode) == 0o751


@pytest.mark.parametrize("dangling", [False, True])
def test_symbolic_links_are_followed(target: Path, dangling: bool) -> None:
    real = target.with_name("real")
    if not dangling:
        real.write_bytes(b"through the link")
    link = target.with_name("link")
    link.symlink_to("real")
    write_atomically(link, write_new, source=target)
    assert link.is_symlink()
    assert real.read_bytes() == NEW


def test_hard_links_are_counted(target: Path) -> None:
    for name in ("one", "two"):
        target.with_name(name).hardlink_to(target)
    assert write_atomically(target, write_new, source=target) == 2
    assert target.read_bytes() == NEW
    assert target.with_name("one").read_bytes() == b"old content"


def test_extended_attributes(target: Path) -> None:
    try:
        os.setxattr(target, "user.note", b"kept")
    except OSError:
        pytest.skip("this file system has no extended attributes")
    write_atomically(target, write_new, source=target)
    assert os.getxattr(target, "user.note") == b"kept"


def test_owner_capabilities_and_set_user_id(target: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root gives files away")
    os.chown(target, 12345, 23456)
    target.chmod(0o4755)
    os.setxattr(target, "security.capability", CAPABILITY)
    write_atomically(target, write_new, source=target)
    status = target.stat()
    assert (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)) == (12345, 23456, 0o4755)
    assert os.getxattr(target, "security.capability") == CAPABILITY


def test_an_owner_who_cannot_be_kept(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, "not permitted")

    other = os.stat_result([0o104755, *target.stat()[1:4], os.getuid() + 1, *target.stat()[5:]])
    monkeypatch.setattr("linker.replace.os.fchown", refuse)
    descriptor = os.open(target, os.O_RDWR)
    with pytest.raises(PermissionError):
        take_over(target, other, descriptor, strict=True)
    take_over(target, other, descriptor, strict=False)
    assert stat.S_IMODE(os.fstat(descriptor).st_mode) == 0o755
    os.close(descriptor)


def fail_in_write(target: Path, error: BaseException) -> None:
    def write(out: BinaryIO) -> None:
        out.write(b"half")
        raise error

    write_atomically(target, write, source=target)


def fail_in_check(target: Path, error: BaseException) -> None:
    def check(written: Path) -> None:
        assert written.read_bytes() == NEW
        raise error

    write_atomically(target, write_new, check, source=target)


@pytest.mark.parametrize("error", [ValueError("bad"), OSError(28, "No space left"), KeyboardInterrupt(), SystemExit(143)])
@pytest.mark.parametrize("fail", [fail_in_write, fail_in_check])
def test_failures_leave_nothing(target: Path, fail: Callable[[Path, BaseException], None], error: BaseException) -> None:
    with pytest.raises(type(error)):
        fail(target, error)
    assert target.read_bytes() == b"old content"
    assert only(target)


def test_a_signal_leaves_nothing(target: Path) -> None:
    def interrupt(*_: object) -> None:
        raise SystemExit(143)

    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        with pytest.raises(SystemExit):
            write_atomically(target, lambda _: os.kill(os.getpid(), signal.SIGTERM), source=target)
    finally:
        signal.signal(signal.SIGTERM, previous)
    assert target.read_bytes() == b"old content"
    assert only(target)


def test_the_check_comes_before_the_rename(target: Path) -> None:
    seen = []
    write_atomically(target, write_new, lambda path: seen.append((path.read_bytes(), target.read_bytes())), source=target)
    assert seen == [(NEW, b"old content")]


def test_replacing_is_synced_and_new_files_are_not(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    replace = os.replace

    def sync(descriptor: int) -> None:
        calls.append("directory" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")

    def rename(name: str, new: str, *, src_dir_fd: int, dst_dir_fd: int) -> None:
        calls.append("rename")
        replace(name, new, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "replace", rename)
    write_atomically(target, write_new, source=target)
    assert calls == ["file", "rename", "directory"]
    calls.clear()
    write_atomically(target.with_name("output"), write_new, source=target)
    assert calls == ["rename"]


def test_only_regular_files(target: Path) -> None:
    with pytest.raises(OSError, match="not a regular file"):
        write_atomically(target.parent, write_new, source=target)


# -- how the original gets into the new file


@pytest.fixture
def original(tmp_path: Path) -> Path:
    path = tmp_path / "original"
    path.write_bytes(small_file() + bytes(range(256)) * 40_000)
    return path


def unsupported(*_: object) -> int:
    raise OSError(errno.EOPNOTSUPP, "not supported")


@pytest.mark.parametrize("without", [[], ["fcntl.ioctl"], ["fcntl.ioctl", "os.copy_file_range"]])
def test_every_way_to_copy(original: Path, without: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in without:
        monkeypatch.setattr(f"linker.apply.{name}", unsupported)
    with original.with_name("copy").open("wb") as out:
        copy_file(open_elf(original), out)
    assert original.with_name("copy").read_bytes() == original.read_bytes()


def test_a_full_disk_is_not_tried_again(original: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("linker.apply.fcntl.ioctl", unsupported)
    monkeypatch.setattr("linker.apply.os.copy_file_range", full)
    with original.with_name("copy").open("wb") as out, pytest.raises(OSError, match="No space left"):
        copy_file(open_elf(original), out)


def remove(file: Path) -> None:
    file.unlink()


def replace(file: Path) -> None:
    file.with_name("other").write_bytes(file.read_bytes())
    file.with_name("other").replace(file)


def append(file: Path) -> None:
    with file.open("ab") as out:
        out.write(b"x")


def touch(file: Path) -> None:
    os.utime(file, ns=(0, 0))


@pytest.mark.parametrize("change", [remove, replace, append, touch])
def test_what_changed_since_it_was_read_is_not_copied(original: Path, change: Callable[[Path], None]) -> None:
    elf = open_elf(original)
    change(original)
    with original.with_name("copy").open("wb") as out, pytest.raises(FormatError, match=r"(remov|chang)ed while it was read"):
        copy_file(elf, out)


@pytest.mark.parametrize("change", [replace, append, touch])
def test_what_changed_since_then_is_not_replaced(target: Path, change: Callable[[Path], None]) -> None:
    with pytest.raises(OSError, match="cannot be replaced: someone else changed it meanwhile") as error:
        write_atomically(target, write_new, lambda _: change(target), source=target)
    assert error.value.filename == str(target)
    assert target.read_bytes() in (b"old content", b"old contentx")
    assert only(target)


def test_a_section_of_another_size(original: Path) -> None:
    original.write_bytes(small_file())
    elf = open_elf(original)
    with original.with_name("copy").open("wb") as out, pytest.raises(ValueError, match="plan is for 28 bytes"):
        apply(plan_injection(elf, 28), elf, section_of(29)[:29], out)
