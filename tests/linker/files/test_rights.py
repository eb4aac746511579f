"""Whose a new file is, who may do what with it, and that it is never set-ID to somebody else."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

import pytest

from linker.files.rights import Rights
from sframegen import add_section, convert, merge, remove
from sframegen.profile.this_machine import in_user_namespace
from tests.linker.files.test_replace import CAPABILITY, NEW, put, write_new

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.peers import Compiler

THEIRS, OTHER = 65534, 12345


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


def write(out: BinaryIO) -> None:
    out.write(b"new")


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
        (File(THEIRS, 0, 0o4755), File(0, 0, 0o755)),
        (File(THEIRS, THEIRS, 0o6777), File(0, 0, 0o755)),  # else they could write to root's file
        (File(THEIRS, THEIRS, 0o400), File(0, 0, 0o400)),
    ],
)
@pytest.mark.parametrize("rights", [Rights.COPY, Rights.OUTPUT])
def test_a_new_name(directory: Path, rights: Rights, source: File, new: File) -> None:
    assert copied(directory, rights, source) == new


@pytest.mark.parametrize(
    ("source", "there", "new"),
    [
        (File(THEIRS, THEIRS, 0o4755), File(0, 0, 0o600), File(0, 0, 0o700)),
        (File(THEIRS, THEIRS, 0o644), File(0, 0, 0o755), File(0, 0, 0o755)),
        (File(0, 0, 0o6755), File(OTHER, OTHER, 0o640), File(OTHER, OTHER, 0o750)),
        (File(0, 0, 0o704), File(OTHER, 0, 0o6644), File(OTHER, 0, 0o744)),
        (File(0, 0, 0o700), File(0, 0, 0o755), File(0, 0, 0o700)),  # a link may have led to it
        (File(THEIRS, THEIRS, 0o700), File(0, 0, 0o755), File(0, 0, 0o700)),
        (File(0, 0, 0o755), File(0, 0, 0o4755), File(0, 0, 0o755)),
    ],
)
def test_a_file_that_is_there(directory: Path, source: File, there: File, new: File) -> None:
    assert copied(directory, Rights.OUTPUT, source, there) == new


@pytest.mark.parametrize(("owner", "mode"), [(THEIRS, 0o755), (0, 0o777), (0, 0o1777)])
@pytest.mark.parametrize("there", [File(THEIRS, THEIRS, 0o666), File(0, 0, 0o644)])
def test_a_file_that_another_user_may_have_put_there(directory: Path, owner: int, mode: int, there: File) -> None:
    """As if it was not there: root's secret stays root's."""
    os.chown(directory, owner, owner)
    directory.chmod(mode)
    assert copied(directory, Rights.OUTPUT, File(0, 0, 0o600), there) == File(0, 0, 0o600)


def test_capabilities(directory: Path) -> None:
    """Those of a file that is there are not for another content; nor those of another user's file for root's."""
    source, new = directory / "source", directory / "new"
    for owner, there in ((0, True), (THEIRS, False)):
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
            os.chown(theirs, THEIRS, THEIRS)
            theirs.chmod(0o6777)
            new = directory / f"new-{number}"
            if there is not None:
                there.write(new)
            change(theirs, output=new)
            assert File.at(new) == (there or File(0, 0, 0o755))


def test_merge_keeps_the_file_that_is_there(directory: Path, compile_c: Compiler) -> None:
    merged = shutil.copy(compile_c("int main(void) { return 0; }", "-c"), directory / "object.o")
    add_section(merged)
    File(0, OTHER, 0o640).write(directory / "new")
    merge([merged], directory / "new")
    assert File.at(directory / "new") == File(0, OTHER, 0o640)
