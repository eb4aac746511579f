"""A target is the old file or the new one; the new one keeps what is not its content, and is never set-ID to somebody else."""

from __future__ import annotations

import errno
import io
import mmap
import os
import resource
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO, NamedTuple
from unittest.mock import Mock

import pytest

from linker.existing.original import restore_original
from linker.files import rename_into_place
from linker.files.copying import copy_file
from linker.files.location import locate
from linker.files.rename_into_place import Replacement, write_atomically
from linker.files.rights import Rights, Source
from sframegen import add_section, convert, merge, remove
from sframegen.base.errors import FormatError
from sframegen.elf.file import ElfFile, map_descriptor, map_file
from sframegen.profile.this_machine import in_user_namespace
from tests.support.inputs.linker_inputs import small_file
from tests.support.peers import Compiler

NEW = b"new content"
NOBODY = 65534
UNSUPPORTED = Mock(side_effect=OSError(errno.EOPNOTSUPP, "not supported"))
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


def put(
    target: Path,
    write: Callable[[BinaryIO], None],
    check: Callable[[Path], None] | None = None,
    *,
    source: Path,
    hard_links: Sequence[Path] = (),
    rights: Rights | None = None,
) -> Replacement:
    """`write_atomically` by paths, in place where `target` is `source`."""
    with ExitStack() as held:
        location, *links = [held.enter_context(locate(path)) for path in (target, *hard_links)]
        opened = held.enter_context(reading(source))
        rights = rights or (Rights.IN_PLACE if location.is_at(opened.status) else Rights.OUTPUT)
        return write_atomically(location, write, check, source=opened, rights=rights, hard_links=links)


@contextmanager
def reading(path: Path) -> Iterator[Source]:
    with path.open("rb") as file:
        yield Source(file.fileno(), os.fstat(file.fileno()))


@contextmanager
def opened_elf(path: Path) -> Iterator[ElfFile]:
    with reading(path) as source:
        yield ElfFile(map_descriptor(source.descriptor, str(path))[0], str(path), source.status, source.descriptor)


def only(target: Path) -> bool:
    return [entry.name for entry in target.parent.iterdir()] == [target.name]


def test_in_place_or_with_another_name(target: Path) -> None:
    """What is checked is not there yet; who may read a file that exists may execute it afterwards."""
    seen: list[tuple[bytes, bytes]] = []
    output = target.with_name("output")
    assert put(output, write_new, source=target) == Replacement(0, [])
    assert (output.read_bytes(), stat.S_IMODE(output.stat().st_mode)) == (NEW, 0o751)
    output.write_bytes(b"something")
    output.chmod(0o640)
    target.chmod(0o755)
    put(output, write_new, source=target)
    assert (output.read_bytes(), stat.S_IMODE(output.stat().st_mode)) == (NEW, 0o750)
    output.unlink()
    target.chmod(0o751)

    def check(path: Path) -> None:
        seen.append((path.read_bytes(), target.read_bytes()))

    assert put(target, write_new, check, source=target) == Replacement(0, [])
    assert seen == [(NEW, b"old content")]
    assert (target.read_bytes(), stat.S_IMODE(target.stat().st_mode)) == (NEW, 0o751)
    assert target.stat().st_mtime_ns != 2 * 10**18 + 1
    assert only(target)


@pytest.mark.parametrize("error", [ValueError("bad"), OSError(28, "No space left"), KeyboardInterrupt(), SystemExit(143)])
@pytest.mark.parametrize("is_checked", [False, True])
def test_failures_leave_nothing(target: Path, is_checked: bool, error: BaseException) -> None:
    def fail(file: BinaryIO | Path) -> None:
        if isinstance(file, Path):
            assert file.read_bytes() == NEW
        else:
            file.write(b"half")
        raise error

    with pytest.raises(type(error)):
        put(target, write_new if is_checked else fail, fail if is_checked else None, source=target)
    assert target.read_bytes() == b"old content"
    assert only(target)


def test_an_error_of_the_last_close_is_too_late(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(io.FileIO):
        def close(self) -> None:
            super().close()
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def new_file(directory: int, name: str, mode: int = 0o600) -> BinaryIO:
        return io.BufferedWriter(Failing(name, "wb", opener=lambda path, flags: os.open(path, flags, mode, dir_fd=directory)))

    monkeypatch.setattr(rename_into_place, "create_file", new_file)
    put(target, write_new, source=target)
    assert target.read_bytes() == NEW
    with locate(target) as location:
        rename_into_place.write_new(location, b"newer", 0o600)
    assert target.read_bytes() == b"newer"
    assert only(target)


def test_a_directory_that_keeps_all_files_gets_none(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append_only = (0x20).to_bytes(8, sys.byteorder)  # chattr +a, which not every file system has
    monkeypatch.setattr("linker.files.rename_into_place.fcntl.ioctl", lambda *_: append_only)
    for path in (target, target.with_name("new")):
        with pytest.raises(OSError, match="append-only: run chattr -a"):
            put(path, write_new, source=target)
    assert only(target)


@pytest.mark.parametrize("dangling", [False, True])
def test_symbolic_links_are_followed(target: Path, dangling: bool) -> None:
    real = target.with_name("real")
    if not dangling:
        real.write_bytes(b"through the link")
    link = target.with_name("link")
    link.symlink_to("real")
    put(link, write_new, source=target)
    assert link.is_symlink()
    assert real.read_bytes() == NEW


def test_attributes_owner_capabilities_and_set_user_id(target: Path) -> None:
    try:
        os.setxattr(target, "user.note", b"kept")
    except OSError:
        pytest.skip("this file system has no extended attributes")
    put(target, write_new, source=target)
    assert os.getxattr(target, "user.note") == b"kept"
    if os.geteuid() != 0:
        pytest.skip("only root gives files away")
    os.chown(target, 12345, 23456)
    target.chmod(0o6754)
    os.setxattr(target, "security.capability", CAPABILITY)
    put(target, write_new, source=target)
    status = target.stat()
    assert (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)) == (12345, 23456, 0o6754)
    assert os.getxattr(target, "security.capability") == CAPABILITY


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
    put(target, write_new, source=target)
    assert calls == ["file", "rename", "directory"]
    calls.clear()
    put(target.with_name("output"), write_new, source=target)
    assert calls == ["rename"]


@pytest.fixture
def anyone() -> Iterator[Path]:
    """A directory that everyone can reach, and this process is no longer root."""
    with TemporaryDirectory() as name:
        user = os.geteuid()
        if user == 0:
            os.chown(name, NOBODY, -1)
            os.seteuid(NOBODY)
        try:
            yield Path(name)
        finally:
            os.seteuid(user)


def test_a_read_only_file_in_a_directory_of_ours(anyone: Path) -> None:
    file = anyone / "file"
    file.write_bytes(b"old content")
    file.chmod(0o444)
    put(file, write_new, source=file)
    assert (file.read_bytes(), stat.S_IMODE(file.stat().st_mode)) == (NEW, 0o444)


@pytest.mark.parametrize(
    ("mode", "message"),
    [(0o555, "cannot create a file in its directory: Permission denied"), (0o333, "its directory cannot be read: Perm")],
)
def test_a_directory_that_may_not_be_changed(anyone: Path, mode: int, message: str) -> None:
    file = anyone / "file"
    file.write_bytes(b"old content")
    anyone.chmod(mode)
    with pytest.raises(OSError, match=message) as error:
        put(file, write_new, source=file)
    anyone.chmod(0o755)
    assert error.value.filename == str(file)
    assert file.read_bytes() == b"old content"
    assert only(file)


def test_a_file_of_someone_else() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs a file of another user")
    with TemporaryDirectory() as name:
        Path(name).chmod(0o777)
        file = Path(name, "file")
        file.write_bytes(b"old content")
        os.seteuid(NOBODY)
        try:
            with pytest.raises(OSError, match="owner, mode or attributes cannot be kept: Operation not permitted"):
                put(file, write_new, source=file)
            assert put(Path(name, "copy"), write_new, source=file).other_names == 0
        finally:
            os.seteuid(0)
        assert (file.read_bytes(), Path(name, "copy").read_bytes()) == (b"old content", NEW)


def test_no_room(target: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(NEW) - 1, before[1]))
    try:
        with pytest.raises(OSError, match="cannot be written: File too large") as error:
            put(target, write_new, source=target)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert error.value.filename == str(target)
    assert target.read_bytes() == b"old content"
    assert only(target)


def test_no_nameless_files(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file has its temporary name from the start; `check` reads it whatever that name leads to."""
    opened = os.open

    def refuse(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, "not supported")
        return opened(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", refuse)
    names = []
    put(target, write_new, lambda new: names.append(new.resolve()), source=target)
    assert [(name.parent, name.name[:11]) for name in names] == [(target.parent, ".sframegen.")]
    assert target.read_bytes() == NEW
    assert only(target)


def test_other_names_follow(target: Path) -> None:
    links = [target.with_name("one"), target.with_name("two")]
    for name in (*links, target.with_name("three")):
        name.hardlink_to(target)
    assert put(links[0], write_new, source=target).other_names == 3
    assert target.read_bytes() == b"old content"
    links[0].unlink()
    links[0].hardlink_to(target)
    assert put(target, write_new, source=target, hard_links=links).other_names == 1
    assert [name.read_bytes() for name in links] == [NEW, NEW]
    assert target.samefile(links[0])
    assert target.with_name("three").read_bytes() == b"old content"
    other = target.with_name("other")
    other.write_bytes(b"something else")
    with pytest.raises(OSError, match="it still has the old file: it is no longer a name of that file") as error:
        put(target, write_new, source=target, hard_links=[other])
    assert error.value.filename == str(other)
    assert other.read_bytes() == b"something else"
    assert len(list(target.parent.iterdir())) == 5
    with pytest.raises(OSError, match="not a regular file"):
        put(target.parent, write_new, source=target)


@pytest.fixture
def original(tmp_path: Path) -> Path:
    path = tmp_path / "original"
    path.write_bytes(small_file() + bytes(range(256)) * 40_000)
    return path


@pytest.mark.parametrize("without", [[], ["fcntl.ioctl"], ["fcntl.ioctl", "os.copy_file_range"]])
def test_every_way_to_copy(original: Path, without: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in without:
        monkeypatch.setattr(f"linker.files.copying.{name}", UNSUPPORTED)
    with original.with_name("copy").open("wb") as out, opened_elf(original) as elf:
        copy_file(elf, out)
    assert original.with_name("copy").read_bytes() == original.read_bytes()


def test_to_another_file_system(original: Path) -> None:
    shared = Path("/dev/shm")
    if not shared.is_dir() or shared.stat().st_dev == original.stat().st_dev:
        pytest.skip("/dev/shm is no other file system")
    with TemporaryDirectory(dir=shared) as directory:
        output = Path(directory, "output")
        for source in (original, output):
            with opened_elf(source) as elf:
                put(output, partial(copy_file, elf), source=source)
        assert output.read_bytes() == original.read_bytes()
        assert only(output)


def test_a_full_disk_is_not_tried_again(original: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("linker.files.copying.fcntl.ioctl", UNSUPPORTED)
    monkeypatch.setattr("linker.files.copying.os.copy_file_range", Mock(side_effect=OSError(28, "No space left")))
    with original.with_name("copy").open("wb") as out, opened_elf(original) as elf, pytest.raises(OSError, match="No space left"):
        copy_file(elf, out)


def replace(file: Path) -> None:
    file.with_name("other").write_bytes(file.read_bytes())
    file.with_name("other").replace(file)


def append(file: Path) -> None:
    with file.open("ab") as out:
        out.write(b"x")


def touch(file: Path) -> None:
    os.utime(file, ns=(0, 0))


def hidden(file: Path) -> None:
    """Other content at the same times: only the time of change differs, which nobody can set."""
    times = file.stat()
    file.write_bytes(file.read_bytes()[::-1])
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))


@pytest.mark.parametrize("change", [append, touch, hidden])
def test_what_changed_since_it_was_read_is_not_copied(original: Path, change: Callable[[Path], None]) -> None:
    with opened_elf(original) as elf:
        change(original)
        with original.with_name("copy").open("wb") as out, pytest.raises(FormatError, match="changed while being read"):
            copy_file(elf, out)


@pytest.mark.parametrize("change", [replace, append, touch])
def test_what_changed_since_then_is_not_replaced(target: Path, change: Callable[[Path], None]) -> None:
    with pytest.raises(OSError, match="cannot be replaced: someone else has changed it in the meantime") as error:
        put(target, write_new, lambda _: change(target), source=target)
    assert error.value.filename == str(target)
    assert target.read_bytes() in (b"old content", b"old contentx")
    assert only(target)


def test_a_file_that_is_emptied_before_it_is_mapped(original: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def mapped(*arguments: Any, **options: Any) -> mmap.mmap:
        os.truncate(original, 0)
        return whole(*arguments, **options)

    whole = mmap.mmap
    monkeypatch.setattr("sframegen.elf.file.mmap.mmap", mapped)
    with pytest.raises(FormatError, match="the file is empty"):
        map_file(original)


def test_the_original_is_that_of_the_open_file(compile_c: Compiler, tmp_path: Path) -> None:
    """Its name may lead elsewhere by now, to a FIFO that would keep us waiting."""
    program, file = compile_c("int main(void) { return 0; }", "-O2", name="named"), tmp_path / "file"
    add_section(program, output=file, verify=False)
    with opened_elf(file) as elf:
        file.unlink()
        os.mkfifo(file)
        original = restore_original(elf)
    assert original is not None
    assert original.elf.data == program.read_bytes()


OTHER = 12345


class File(NamedTuple):
    owner: int
    group: int
    mode: int

    @classmethod
    def at(cls, path: Path) -> File:
        status = path.stat()
        return cls(status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode))

    def write(self, path: Path) -> None:
        path.write_bytes(b"content")
        os.chown(path, self.owner, self.group)
        path.chmod(self.mode)


@pytest.fixture
def directory() -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("only root gives files away")
    before = os.umask(0o022)
    try:
        with TemporaryDirectory() as name:
            yield Path(name)
    finally:
        os.umask(before)


WITHOUT_CODECS = """
import encodings
from linker.files.rights import read_umask
from sframegen.profile.this_machine import in_user_namespace
encodings.__path__.clear()
print(oct(read_umask()), in_user_namespace())
"""


def test_proc_is_read_where_no_codec_can_be_imported() -> None:
    """A process that has become another user may not be able to read the folder of Python's modules."""
    command = [sys.executable, "-P", "-c", WITHOUT_CODECS]
    assert subprocess.check_output(command, text=True, umask=0o027) == f"0o27 {in_user_namespace()}\n"


def copied(directory: Path, rights: Rights, source: File, there: File | None = None) -> File:
    source.write(directory / "source")
    if there is not None:
        there.write(directory / "new")
    put(directory / "new", write_new, source=directory / "source", rights=rights)
    assert (directory / "new").read_bytes() == NEW
    return File.at(directory / "new")


@pytest.mark.parametrize(
    ("source", "new"),
    [
        (File(0, 0, 0o4755), File(0, 0, 0o4755)),
        (File(0, 0, 0o6755), File(0, 0, 0o6755)),
        (File(0, 5, 0o2755), File(0, 5, 0o755)),  # another group's rights
        (File(0, 5, 0o600), File(0, 5, 0o600)),
        (File(NOBODY, 0, 0o4755), File(0, 0, 0o755)),
        (File(NOBODY, NOBODY, 0o6777), File(0, 0, 0o755)),  # else they could write to root's file
        (File(NOBODY, NOBODY, 0o400), File(0, 0, 0o400)),
    ],
)
@pytest.mark.parametrize("rights", [Rights.COPY, Rights.OUTPUT])
def test_a_new_name(directory: Path, rights: Rights, source: File, new: File) -> None:
    assert copied(directory, rights, source) == new


@pytest.mark.parametrize(
    ("source", "there", "new"),
    [
        (File(NOBODY, NOBODY, 0o4755), File(0, 0, 0o600), File(0, 0, 0o700)),
        (File(NOBODY, NOBODY, 0o644), File(0, 0, 0o755), File(0, 0, 0o755)),
        (File(0, 0, 0o6755), File(OTHER, OTHER, 0o640), File(OTHER, OTHER, 0o750)),
        (File(0, 0, 0o704), File(OTHER, 0, 0o6644), File(OTHER, 0, 0o744)),
        (File(0, 0, 0o700), File(0, 0, 0o755), File(0, 0, 0o700)),  # a link may have led to it
        (File(NOBODY, NOBODY, 0o700), File(0, 0, 0o755), File(0, 0, 0o700)),
        (File(0, 0, 0o755), File(0, 0, 0o4755), File(0, 0, 0o755)),
    ],
)
def test_a_file_that_is_there(directory: Path, source: File, there: File, new: File) -> None:
    assert copied(directory, Rights.OUTPUT, source, there) == new


@pytest.mark.parametrize(("owner", "mode"), [(NOBODY, 0o755), (0, 0o777), (0, 0o1777)])
@pytest.mark.parametrize("there", [File(NOBODY, NOBODY, 0o666), File(0, 0, 0o644)])
def test_a_file_that_another_user_may_have_put_there(directory: Path, owner: int, mode: int, there: File) -> None:
    os.chown(directory, owner, owner)
    directory.chmod(mode)
    assert copied(directory, Rights.OUTPUT, File(0, 0, 0o600), there) == File(0, 0, 0o600)


def test_capabilities(directory: Path) -> None:
    """Those of a file that is there are not for another content; nor those of another user's file for root's."""
    source, new = directory / "source", directory / "new"
    for owner, there in ((0, True), (NOBODY, False)):
        File(owner, 0, 0o755).write(source)
        new.unlink(missing_ok=True)
        if there:
            File(0, 0, 0o755).write(new)
        try:
            os.setxattr(new if there else source, "security.capability", CAPABILITY)
        except OSError:
            pytest.skip("this file system has no capabilities")
        assert "security.capability" in put(new, write_new, source=source).lost
        assert "security.capability" not in os.listxattr(new)


def test_no_command_writes_a_file_that_is_set_id_to_another_user(directory: Path, compile_c: Compiler) -> None:
    theirs = directory / "theirs"
    theirs.write_bytes(compile_c("int main(void) { return 0; }").read_bytes())
    add_section(theirs)
    changes: list[Callable[..., object]] = [partial(add_section, replace=True), partial(convert, version=2), remove]
    for there in (None, File(0, 0, 0o700)):
        for number, change in enumerate(changes):
            os.chown(theirs, NOBODY, NOBODY)
            theirs.chmod(0o6777)
            new = directory / f"new-{number}"
            if there is not None:
                there.write(new)
            change(theirs, output=new)
            assert File.at(new) == (there or File(0, 0, 0o755))
    merged = shutil.copy(compile_c("int main(void) { return 0; }", "-c"), directory / "object.o")
    add_section(merged)
    File(0, OTHER, 0o640).write(directory / "new")
    merge([merged], directory / "new")
    assert File.at(directory / "new") == File(0, OTHER, 0o640)
