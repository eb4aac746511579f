"""A file is opened only if it is the very inode that was mapped."""

from __future__ import annotations

import os
import shutil
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from sframegen.base.errors import FormatError
from sframegen.elf.records import PF, PT, Phdr
from sframegen.profile.following import mapped_file
from sframegen.profile.following.code_spans import MAX_SPAN_LISTS, FileMapping, make_spans, split_into_code_spans
from sframegen.profile.following.files import NOT_ELF, CodeSpan, TracedFile, TracedFiles
from sframegen.profile.following.mapped_file import CLOCK_STEP, FileKey, Opener, ProcessMapping
from sframegen.program import time_limits
from sframegen.program.helper import helpers
from sframegen.program.time_limits import TimeLimits
from sframegen.stack.live.process import parse_mappings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sframegen.elf.file import ElfFile

NOBODY = 4_194_303  # no process has this number here


@pytest.fixture
def files() -> Iterator[TracedFiles]:
    found = TracedFiles()
    yield found
    found.close()


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """A file that is older than the clock's step."""
    path = tmp_path / "library"
    shutil.copy(shutil.which("true") or "", path)
    return path


def key_of(path: Path, *, generation: int = 0) -> FileKey:
    status = path.stat()
    return FileKey(os.major(status.st_dev), os.minor(status.st_dev), status.st_ino, generation)


def later(path: Path) -> int:
    """A time of CLOCK_MONOTONIC after the last change of a file."""
    return path.stat().st_ctime_ns - time.time_ns() + time.monotonic_ns() + 2 * CLOCK_STEP


def place(path: Path, when: int) -> ProcessMapping:
    return ProcessMapping(NOBODY, 0x1000, 0x2000, str(path), when)


def test_a_path_of_a_process_that_ended_is_opened_if_it_is_the_same_inode(library: Path) -> None:
    key, when = key_of(library), later(library)
    descriptor = Opener().open(key, place(library, when))
    assert os.fstat(descriptor).st_ino == key.inode
    os.close(descriptor)
    for other in (key._replace(inode=key.inode + 1), key._replace(minor=key.minor ^ 1)):
        with pytest.raises(FormatError, match="another file has its path"):
            Opener().open(other, place(library, when))


def test_a_file_that_changed_after_it_was_mapped_is_refused(library: Path) -> None:
    with pytest.raises(FormatError, match="changed or replaced"):
        Opener().open(key_of(library), place(library, later(library) - 4 * CLOCK_STEP))


def test_an_inode_number_that_is_used_again_is_another_file(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = key_of(library, generation=5)
    monkeypatch.setattr("fcntl.ioctl", lambda *_: (6).to_bytes(8, "little"))
    with pytest.raises(FormatError, match="changed or replaced"):
        Opener().open(key, place(library, later(library)))
    os.close(Opener().open(key._replace(generation=6), place(library, later(library))))


def test_what_is_no_regular_file_is_not_opened(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    for path in (fifo, tmp_path):
        with pytest.raises(FormatError, match="not a regular file"):
            Opener().open(key_of(path), place(path, later(path)))
    with pytest.raises(OSError, match="No such file"):
        Opener().open(FileKey(0, 0, 1), place(tmp_path / "none", 1))
    with pytest.raises((OSError, FormatError)):
        Opener().open(FileKey(0, 0, 1), ProcessMapping(NOBODY, 0, 1, "//anon", 1))


def own_row() -> tuple[FileKey, ProcessMapping]:
    with open("/proc/self/maps", "rb") as file:  # noqa: PTH123 - a file that has no size
        rows = parse_mappings(file.read())
    row = next(row for row in rows if row.executable and row.inode)
    return mapped_file.parse_file_key(row.device, row.inode), ProcessMapping(os.getpid(), row.start, row.end, row.path, 1)


@pytest.mark.sampled
def test_what_a_process_has_mapped_is_opened_even_if_stat_numbers_its_device_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on btrfs: then /proc/PID/maps must say that the mapping is that file."""
    key, where = own_row()
    try:
        os.close(os.open(f"/proc/self/map_files/{where.start:x}-{where.end:x}", os.O_RDONLY))
    except OSError as error:
        pytest.skip(f"no perf events: {error}")
    opener = Opener()
    os.close(opener.open(key, where))
    with pytest.raises(FormatError):
        Opener().open(key._replace(major=key.major + 1), where)
    major = os.major
    monkeypatch.setattr("os.major", lambda device: major(device) + 7)
    os.close(opener.open(key, where))
    moved = where._replace(pid=NOBODY, time=time.monotonic_ns())
    os.close(opener.open(key, moved))  # the device is known now
    with pytest.raises(FormatError, match="another file"):
        Opener().open(key, moved)
    # A device that is unmounted leaves its number to another one.
    monkeypatch.setattr(time_limits, "current", TimeLimits(device_numbers=-1))
    with pytest.raises(FormatError, match="another file"):
        opener.open(key, moved)


@pytest.mark.sampled
def test_another_file_that_was_mapped_there_for_a_moment_is_not_taken(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process may map one plugin after the other at the same addresses, many times a second."""
    key, where = own_row()
    where = where._replace(time=time.monotonic_ns())
    opened = os.open
    monkeypatch.setattr("os.open", lambda path, flags: opened(library if "/map_files/" in path else path, flags))
    descriptor = Opener().open(key, where)
    assert os.fstat(descriptor).st_ino == key.inode
    os.close(descriptor)


def found(files: TracedFiles, path: Path, *, generation: int = 0) -> TracedFile:
    file = files.find_or_open(key_of(path, generation=generation), place(path, later(path)))
    assert file is not None
    return file


def test_files_have_one_number_for_an_inode(files: TracedFiles, library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = found(files, library)
    assert first.elf is not None
    monkeypatch.setattr("fcntl.ioctl", lambda *_: (3).to_bytes(8, "little"))
    helpers().close()  # the next one has this ioctl
    assert found(files, library, generation=3) is first
    assert (files.take_new(), files.take_new()) == ([first], [])
    assert files.by_number == {1: first}
    helpers().close()  # and the next one has not


def test_a_file_that_could_not_be_opened_is_tried_again(files: TracedFiles, library: Path) -> None:
    key = key_of(library)
    moved = library.rename(library.with_name("moved"))
    failed = files.find_or_open(key, place(library, later(moved)))
    assert failed is not None
    assert (failed.elf, failed.why, failed.ready) == (None, "No such file or directory", True)
    moved.rename(library)
    opened = found(files, library)
    assert opened.number != failed.number, "stacks may have addresses in it, and nobody knew its bias"
    assert (opened.elf is not None, opened.why, opened.ready, files.take_new()) == (True, "", False, [opened])


@pytest.mark.parametrize(
    ("data", "number", "why"), [(b"text", None, NOT_ELF), (b"\x7fELF\1\1\1" + bytes(60), 1, "32-bit"), (b"", 1, "empty")]
)
def test_files_that_are_no_elf_files_of_64_bits(
    files: TracedFiles, tmp_path: Path, data: bytes, number: int | None, why: str
) -> None:
    path = tmp_path / "file"
    path.write_bytes(data)
    traced = files.find_or_open(key_of(path), place(path, later(path)))
    assert (traced.number if traced else None) == number
    assert why in files.by_number[1].why
    assert files.take_new() == []
    assert files.find_or_open(key_of(path), place(path, later(path))) is traced
    assert len(files.by_number) == 1


def test_files_that_nobody_uses_are_closed_and_their_numbers_used_again(files: TracedFiles, library: Path) -> None:
    first = found(files, library)
    descriptor = first.elf and first.elf.descriptor
    assert descriptor
    assert files.release_unused(set()) == []  # its table is being made
    first.ready = True
    assert files.release_unused({first.number}) == []
    assert files.release_unused(set()) == [first.number]
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
    other = library.with_name("other")
    other.write_bytes(library.read_bytes())
    second = found(files, other)
    assert (second.number, second.path) == (first.number, str(other))
    assert found(files, library).number != second.number


def test_numbers_are_limited_and_only_for_elf_files(files: TracedFiles, library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit holds for images of the kernel, too."""
    monkeypatch.setattr("sframegen.profile.following.files.MAX_FILES", 0)
    assert files.find_or_open(key_of(library), place(library, later(library))) is None
    assert files.add_image(b"\x7fELF") is None
    assert files.refused == 2
    monkeypatch.undo()
    assert (files.add_image(b""), files.add_image(b"no ELF")) == (None, None)


def test_a_number_that_is_used_again_gets_no_table_of_its_first_file(files: TracedFiles, library: Path) -> None:
    library.rename(library.with_name("moved"))
    assert files.find_or_open(key_of(library.with_name("moved")), place(library, 0)) is not None
    assert (files.take_without_table(), files.release_unused(set())) == ([1], [1])
    library.with_name("moved").rename(library)
    opened = found(files, library)
    assert (opened.number, files.take_without_table(), files.take_new()) == (1, [], [opened])


# -- mappings of ELF files -> spans with biases; the first case is what loaders do

PAGE = 0x1000


def load(offset: int, vaddr: int, size: int, flags: int = PF.X) -> Phdr:
    return Phdr(PT.LOAD, flags, offset, vaddr, vaddr, size, size, PAGE)


def elf(*loads: Phdr) -> ElfFile:
    made = SimpleNamespace(segments=list(loads), executable_loads=lambda: [one for one in loads if one.p_flags & PF.X])
    return cast("ElfFile", made)


TEXT, DATA = load(0x1100, 0x401100, 0x1F00), load(0x3000, 0x405000, 0x500, 0)
SECOND = load(0x3800, 0x806800, 0x1000)


def test_spans() -> None:
    cases: list[tuple[tuple[Phdr, ...], FileMapping, list[CodeSpan]]] = [
        ((TEXT, DATA), FileMapping(0x10000, 0x12000, PAGE), [CodeSpan(0x10000, 0x12000, 0x10000 - 0x401000, 1)]),
        ((TEXT, DATA), FileMapping(0x11000, 0x12000, 2 * PAGE), [CodeSpan(0x11000, 0x12000, 0x11000 - 0x402000, 1)]),
        ((TEXT, DATA), FileMapping(0x10000, 0x11000, 3 * PAGE), [CodeSpan(0x10000, 0x11000, 0x10000 - 0x405000, 1)]),
        ((TEXT, DATA), FileMapping(0x10000, 0x11000, 9 * PAGE), [CodeSpan(0x10000, 0x11000, 0, 0)]),
        (
            (TEXT, SECOND),
            FileMapping(0x10000, 0x15000, 0),
            [CodeSpan(0x11100, 0x13000, 0x10000 - 0x400000, 1), CodeSpan(0x13800, 0x14800, 0x10000 - 0x803000, 1)],
        ),
        ((TEXT, SECOND), FileMapping(0x20000, 0x22000, 3 * PAGE), [CodeSpan(0x20000, 0x22000, 0x20000 - 0x806000, 1)]),
        # two segments in one page: each mapping has the segment that it was made for
        (
            (load(0, 0x400000, 0x1800), load(0x1800, 0x602800, 0x800)),
            FileMapping(0x10000, 0x12000, 0),
            [CodeSpan(0x10000, 0x12000, -0x3F0000, 1)],
        ),
        ((), FileMapping(0x10000, 0x11000, 0), [CodeSpan(0x10000, 0x11000, 0, 0)]),
    ]
    wrong = []
    for loads, mapped, spans in cases:
        expected = [span._replace(bias=span.bias & (1 << 64) - 1) for span in spans]
        file = TracedFile(1, "/library", elf(*loads))
        found = [split_into_code_spans(elf(*loads), 1, mapped), *(make_spans(file, mapped) for _ in range(2))]
        if found != [expected] * 3:
            wrong.append((loads, mapped, found))
    assert wrong == []


def test_a_file_at_other_addresses_and_from_other_places() -> None:
    """What is known of a file's mappings is known by offset and size."""
    file = TracedFile(1, "/library", elf(TEXT, SECOND))
    for mapped in (
        FileMapping(0x10000, 0x12000, PAGE),
        FileMapping(0x7F0000010000, 0x7F0000012000, PAGE),
        FileMapping(0x10000, 0x11000, PAGE),
        FileMapping(0x10000, 0x12000, 3 * PAGE),
        *(FileMapping(0x10000, 0x10000 + size * PAGE, 0) for size in range(1, 2 * MAX_SPAN_LISTS)),
        FileMapping(0x20000, 0x22000, PAGE),
    ):
        assert make_spans(file, mapped) == split_into_code_spans(elf(TEXT, SECOND), 1, mapped)
