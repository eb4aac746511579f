"""Tables are kept where only this user can write, and are used only as they were written."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest

from sframegen.base.errors import FormatError
from sframegen.elf.file import open_elf
from sframegen.format.model import FunctionTable, Kind, Rule, Where
from sframegen.profile.kept_files import default_directory
from sframegen.profile.tables.make_table import Origin, make_table
from sframegen.profile.tables.table_builder import TableBuilder
from sframegen.profile.tables.table_cache import TableCache, modules_digest, stored, table_in
from sframegen.profile.tables.table_of import table_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FUNCTIONS = FunctionTable(kinds=[Kind()], rules=[Rule(Where(7, 8), Where(None, -8, deref=True))])
FUNCTIONS.append(0x1000, 0x321, 0, [(0, 0)])
TABLE = table_of(FUNCTIONS)


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[TableCache]:
    cache = TableCache(tmp_path / "kept" / "tables", 3 * len(stored(TABLE, 62)))
    yield cache
    cache.close()


def test_what_is_kept_is_found_again(cache: TableCache) -> None:
    name = cache.name_of(b"\x12\x34", [b"content"])
    assert cache.load(name) is None
    cache.store(name, TABLE, 62)
    assert cache.load(name) == TABLE
    assert name.startswith("1234-")


def test_the_same_build_id_with_another_content_is_another_table(cache: TableCache) -> None:
    names = {cache.name_of(b"id", parts) for parts in ([b"one"], [b"two"], [b"on", b"e"], [b"one", b""])}
    assert len(names) == 4


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


def is_refused(data: bytes) -> bool:
    try:
        table_in(memoryview(data))
    except FormatError:
        return True
    return False


def test_no_damaged_byte_is_used() -> None:
    whole = stored(TABLE, 62)
    assert table_in(memoryview(whole)) == TABLE
    damaged = {at: whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :] for at in range(0, len(whole), 7)}
    assert [at for at, data in damaged.items() if not (is_refused(data) and is_refused(whole[:at]))] == []


def test_a_damaged_file_is_made_again(cache: TableCache, tmp_path: Path) -> None:
    name = cache.name_of(b"id", [b"content"])
    cache.store(name, TABLE, 62)
    file = tmp_path / "kept" / "tables" / name
    file.write_bytes(file.read_bytes()[:-8])
    assert cache.load(name) is None
    cache.store(name, TABLE, 62)
    assert cache.load(name) == TABLE


def test_the_least_recently_used_go_first(cache: TableCache, tmp_path: Path) -> None:
    names = [cache.name_of(b"id", [bytes([number])]) for number in range(5)]
    for age, name in enumerate(names):
        cache.store(name, TABLE, 62)
        os.utime(tmp_path / "kept" / "tables" / name, (age, age))
    assert cache.load(names[0]) == TABLE  # which is a use
    stranger = tmp_path / "kept" / "tables" / "not ours"
    stranger.write_bytes(bytes(10_000))
    cache.trim()
    assert [name for name in names if cache.load(name)] == [names[0], names[3], names[4]]
    assert stranger.exists()


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o1777])
def test_a_directory_that_others_can_write_is_refused(tmp_path: Path, mode: int) -> None:
    directory = tmp_path / "tables"
    directory.mkdir()
    directory.chmod(mode)
    cache = TableCache(directory)
    assert cache.note == f"tables are not kept: {directory}: another user can write there"
    cache.store("name.table", TABLE, 62)
    assert cache.load("name.table") is None
    assert list(directory.iterdir()) == []


def test_files_that_others_can_write_or_that_lead_elsewhere_are_not_used(cache: TableCache, tmp_path: Path) -> None:
    names = [cache.name_of(b"id", [bytes([number])]) for number in range(3)]
    directory = tmp_path / "kept" / "tables"
    for name in names:
        cache.store(name, TABLE, 62)
    (directory / names[0]).chmod(0o666)
    (directory / names[1]).rename(tmp_path / "elsewhere")
    (directory / names[1]).symlink_to(tmp_path / "elsewhere")
    (directory / names[2]).unlink()
    os.mkfifo(directory / names[2])
    assert [cache.load(name) for name in names] == [None] * 3


def test_where_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_directory("tables") == tmp_path / "sframegen" / "tables"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert default_directory("tables") == tmp_path / "home" / ".cache" / "sframegen" / "tables"


def test_an_unchanged_file_need_not_be_read_again(cache: TableCache) -> None:
    """Its table is found with what stat says of it: not if it may have changed since, or is another file."""
    bash = open_elf("/usr/bin/bash")
    assert bash.status is not None
    name = cache.name_of(b"\x12\x34", [b"content"])
    cache.store(name, TABLE, 62)
    changed = os.stat_result([*bash.status][:10], {"st_ctime_ns": time.time_ns(), "st_mtime_ns": 0})
    cache.remember(changed, name)
    assert cache.recall(changed) is None
    assert cache.recall(bash.status) is None
    cache.remember(bash.status, name)
    assert cache.recall(bash.status) == TABLE
    assert cache.recall(open_elf("/usr/bin/env").status) is None
    assert cache.recall(None) is None


def test_a_file_that_was_seen_before_needs_no_process(tmp_path: Path) -> None:
    cache = TableCache(tmp_path / "tables")
    bash = open_elf("/usr/bin/bash")
    made = make_table(bash, cache)
    assert made.table is not None
    with TableBuilder(1, cache) as builder:
        builder.request(7, bash)
        (built,) = builder.ready()
    assert (built.number, built.why, built.origin) == (7, "", Origin.KEPT)
    assert built.table is not None
    assert bytes(built.table.data) == bytes(made.table.data)
