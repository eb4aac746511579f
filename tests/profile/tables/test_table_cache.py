"""Tables are kept where only this user can write, and are used only as they were written."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest

from sframegen.base.errors import FormatError
from sframegen.elf.file import open_elf
from sframegen.format.model import FunctionTable, Kind, Rule, Where
from sframegen.profile.file_cache import default_directory
from sframegen.profile.tables.decoded_table import make_decoded_table
from sframegen.profile.tables.table_cache import TableCache, decode_table, encode_table, modules_digest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FUNCTIONS = FunctionTable(kinds=[Kind()], rules=[Rule(Where(7, 8), Where(None, -8, deref=True))])
FUNCTIONS.append(0x1000, 0x321, 0, [(0, 0)])
TABLE = make_decoded_table(FUNCTIONS)
BASH = open_elf("/usr/bin/bash")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "kept" / "tables"


@pytest.fixture
def cache(folder: Path) -> Iterator[TableCache]:
    cache = TableCache(folder, 3 * len(encode_table(TABLE, 62)))
    yield cache
    cache.close()


def test_what_is_kept_is_found_again(cache: TableCache) -> None:
    """With what stat says of a file: not if it may have changed since, or is another file, or made of something else."""
    assert cache.load(BASH.status) is None
    assert BASH.status is not None
    changed = os.stat_result([*BASH.status][:10], {"st_ctime_ns": time.time_ns(), "st_mtime_ns": 0})
    for status in (changed, BASH.status, None):
        cache.store(status, TABLE, 62)
    assert cache.load(BASH.status) == TABLE
    assert cache.load(BASH.status, "another state") is None
    assert cache.load(changed) is None
    assert cache.load(open_elf("/usr/bin/env").status) is None
    assert cache.load(None) is None


def test_the_name_of_a_table_changes_with_each_module_and_not_with_its_times(tmp_path: Path) -> None:
    modules = [tmp_path / name for name in ("cfi/scan.py", "linker/a/b.py", "sframegen/__init__.py", "sframegen/a/walk.abi3.so")]
    for module in modules:
        module.parent.mkdir(parents=True, exist_ok=True)
        module.write_bytes(b"one")
    before = modules_digest(str(tmp_path))
    os.utime(modules[0], (1, 1))
    (tmp_path / "sframegen" / "walker.bpf.o").write_bytes(b"one")
    assert modules_digest(str(tmp_path)) == before
    digests = {before}
    for module in modules:
        module.write_bytes(b"two")
        digests.add(modules_digest(str(tmp_path)))
    modules[0].rename(modules[0].with_name("other.py"))
    assert len(digests | {modules_digest(str(tmp_path))}) == 6


def test_no_damaged_byte_is_used() -> None:
    whole = encode_table(TABLE, 62)
    assert decode_table(memoryview(whole)) == TABLE
    for at in range(0, len(whole), 7):
        for damaged in (whole[:at], whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :]):
            with pytest.raises(FormatError):
                decode_table(memoryview(damaged))


def test_a_damaged_file_is_made_again(cache: TableCache, folder: Path) -> None:
    cache.store(BASH.status, TABLE, 62)
    [file] = folder.iterdir()
    file.write_bytes(file.read_bytes()[:-8])
    assert cache.load(BASH.status) is None
    cache.store(BASH.status, TABLE, 62)
    assert cache.load(BASH.status) == TABLE


def kept_in(cache: TableCache, folder: Path, count: int) -> list[Path]:
    files: list[Path] = []
    for number in range(count):
        cache.store(BASH.status, TABLE, 62, str(number))
        files += {*folder.iterdir()} - {*files}
    return files


def loads(cache: TableCache, count: int) -> list[int]:
    return [number for number in range(count) if cache.load(BASH.status, str(number))]


def test_the_least_recently_used_go_first(cache: TableCache, folder: Path) -> None:
    for age, file in enumerate(kept_in(cache, folder, 5)):
        os.utime(file, (age, age))
    assert cache.load(BASH.status, "0") == TABLE  # which is a use
    stranger = folder / "not ours"
    stranger.write_bytes(bytes(10_000))
    cache.trim()
    assert loads(cache, 5) == [0, 3, 4]
    assert stranger.exists()


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o1777])
def test_a_directory_that_others_can_write_is_refused(tmp_path: Path, mode: int) -> None:
    directory = tmp_path / "tables"
    directory.mkdir()
    directory.chmod(mode)
    cache = TableCache(directory)
    assert cache.note == f"tables are not kept: {directory}: another user can write there"
    cache.store(BASH.status, TABLE, 62)
    assert cache.load(BASH.status) is None
    assert list(directory.iterdir()) == []


def test_files_that_others_can_write_or_that_lead_elsewhere_are_not_used(cache: TableCache, folder: Path, tmp_path: Path) -> None:
    first, second, third = kept_in(cache, folder, 3)
    first.chmod(0o666)
    second.rename(tmp_path / "elsewhere")
    second.symlink_to(tmp_path / "elsewhere")
    third.unlink()
    os.mkfifo(third)
    assert loads(cache, 3) == []


def test_where_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_directory("tables") == tmp_path / "sframegen" / "tables"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert default_directory("tables") == tmp_path / "home" / ".cache" / "sframegen" / "tables"
