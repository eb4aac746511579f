"""Tables are made by other processes, which may fail; are proven later; and are kept where only this user can write."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path

import pytest

from sframegen.base.errors import FormatError
from sframegen.code.whole_file import proven_code
from sframegen.code.whole_file.proven_code import PROVEN
from sframegen.detached.stores import Stores
from sframegen.elf.file import ElfFile, open_elf
from sframegen.elf.symbols import read_functions
from sframegen.format.model import FunctionTable, Kind, Rule, Where
from sframegen.profile.file_cache import default_directory
from sframegen.profile.tables import table_builder
from sframegen.profile.tables.decoded_table import make_decoded_table
from sframegen.profile.tables.make_table import Origin, TableResult, load_cached_table, make_proven_table, make_table
from sframegen.profile.tables.table_builder import NO_WAITING_STACKS, BuiltTable, TableBuilder
from sframegen.profile.tables.table_cache import TableCache, decode_table, encode_table, modules_digest
from sframegen.program import time_limits
from sframegen.program.time_limits import TimeLimits
from tests.support.decoded_tables import find_rule
from tests.support.peers import Compiler

PYTHON = open_elf(os.path.realpath(sys.executable))
WAIT = 60_000  # milliseconds, against an endless test


def children() -> set[str]:
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


@pytest.fixture(autouse=True)
def _no_process_is_left() -> Iterator[None]:
    before = children()
    yield
    assert children() <= before


def results(builder: TableBuilder, waiting_stacks: Mapping[int, int] = NO_WAITING_STACKS) -> dict[int, BuiltTable]:
    found: list[BuiltTable] = []
    end = select.poll()
    end.register(builder.fileno(), select.POLLIN)
    while builder.pending:
        assert end.poll(WAIT), "nothing came"
        found += builder.take_ready(waiting_stacks)
    assert len({one.number for one in found}) == len(found)
    return {one.number: one for one in found}


def fail() -> None:
    raise MemoryError


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("how", "why"),
    [
        (fail, "MemoryError"),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "the worker process was killed by signal 9 (Killed)"),
        (lambda: os.kill(os.getpid(), signal.SIGBUS), "it was truncated while being read"),
        (lambda: os._exit(3), "the worker process ended with status 3"),
        (signal.pause, "it took longer than 2 seconds"),
    ],
    ids=["error", "killed", "shorter", "ended", "endless"],
)
@pytest.mark.parametrize("workers", [1, 3])
def test_a_process_that_fails_or_dies_costs_its_file(
    monkeypatch: pytest.MonkeyPatch, how: Callable[[], object], why: str, workers: int
) -> None:
    def make(elf: ElfFile, cache: TableCache | None, stores: Stores) -> TableResult:
        if elf.name == "1":
            how()
        return make_table(elf, cache, stores)

    monkeypatch.setattr(table_builder, "make_table", make)
    files = [ElfFile(PYTHON.data, str(number)) for number in range(4)]
    if how is signal.pause:
        monkeypatch.setattr(time_limits, "current", TimeLimits(table=2))
    with closing(TableBuilder(workers, None)) as builder:
        for number, file in enumerate(files):
            builder.request(number, file)
        made = results(builder)
    assert made[1] == BuiltTable(1, None, why, Origin.NOTHING)
    assert [made[number].origin for number in (0, 2, 3)] == [Origin.CONVERTED] * 3


def test_closing_ends_what_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_builder, "make_table", lambda _elf, _cache, _stores: signal.pause())
    before = time.monotonic()
    with closing(TableBuilder(2, None)) as builder:
        for number in range(4):
            builder.request(number, PYTHON)
        assert (builder.take_ready(), builder.pending) == ([], 4)
    assert time.monotonic() - before < time_limits.current.table


@pytest.mark.sampled
def test_what_most_want_for_its_size_is_next(monkeypatch: pytest.MonkeyPatch) -> None:
    large = ElfFile(memoryview(bytes(PYTHON.data) + bytes(9 * len(PYTHON.data))), "large")
    monkeypatch.setattr(table_builder, "make_table", lambda elf, _cache, _stores: TableResult(None, Origin.NOTHING, elf.name))
    with closing(TableBuilder(1, None)) as builder:
        for number, elf in enumerate((PYTHON, PYTHON, large, PYTHON, PYTHON)):
            builder.request(number, elf)
        order = [*results(builder, {2: 4, 3: 3, 4: 1})]
    assert order == [0, 3, 4, 2, 1]  # the first one was begun at once


@pytest.mark.sampled
def test_the_cache_is_filled_there_and_used(tmp_path: Path) -> None:
    """What is in it needs no process, and is there at once."""
    cache = TableCache(tmp_path / "tables")
    with closing(TableBuilder(1, cache)) as builder:
        builder.request(1, PYTHON)
        [first] = results(builder).values()
    [kept] = (tmp_path / "tables").iterdir()
    with closing(TableBuilder(1, TableCache(tmp_path / "tables"))) as builder:  # its end closed the other
        builder.request(1, PYTHON)
        [second] = builder.take_ready()
    assert (second.number, second.why, second.origin) == (1, "", Origin.CACHED)
    assert second.table is not None
    assert first.table is not None
    assert bytes(second.table.data) == bytes(first.table.data)
    assert [*(tmp_path / "tables").iterdir()] == [kept]
    TableBuilder(1, TableCache(tmp_path / "tables", 0)).close()
    assert not list((tmp_path / "tables").iterdir())


def test_it_imports_no_library_that_rewrites_files() -> None:
    code = "import sys, sframegen.profile.tables.table_builder; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert set(loaded) & {"lief", "capstone", "click", "elftools"} == set()


SOURCE = r"""
__asm__(".text\n.globl silent\n.type silent, @function\nsilent: push %rbx\n call *%rdi\n pop %rbx\n ret\n.size silent, .-silent\n");
void silent(void (*)(void)); static void nothing(void) {} int main(void) { silent(nothing); return 0; }
"""


@pytest.fixture
def program(compile_c: Compiler) -> ElfFile:
    file = compile_c(SOURCE, "-O1", "-Wl,--build-id=sha1")
    old = time.time() - 100
    os.utime(file, (old, old))
    return open_elf(file)


def place_of(elf: ElfFile, name: str) -> int:
    return next(symbol.address for symbol in read_functions(elf) if symbol.name == name)


def test_rules_are_added_to_those_of_the_cfi(program: ElfFile) -> None:
    first, proven = make_table(program), make_proven_table(program)
    assert first.table is not None
    assert proven.table is not None
    assert (proven.origin, proven.why) == (Origin.PROVEN, PROVEN)
    silent, main = place_of(program, "silent"), place_of(program, "main")
    assert find_rule(first.table, silent) is None
    assert find_rule(proven.table, silent) is not None
    assert find_rule(proven.table, silent + 1) != find_rule(proven.table, silent)  # after the push
    assert find_rule(first.table, main) == find_rule(proven.table, main) is not None


def test_too_much_code_is_left_alone(program: ElfFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proven_code, "MAX_WITHOUT_CFI", 4)
    made = make_proven_table(program)
    assert made.table is None
    assert "bytes of code without call frame information: too many" in made.why


@pytest.fixture
def new_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TableCache:
    """It keeps tables of files that were just made, too."""
    monkeypatch.setattr("sframegen.profile.file_cache.SETTLING_TIME", -(10**18))
    return TableCache(tmp_path / "cache")


def test_an_unchanged_file_is_not_read_again(program: ElfFile, new_cache: TableCache) -> None:
    stores = Stores()
    plain = make_table(program, new_cache)
    assert load_cached_table(program, new_cache, stores) == plain._replace(origin=Origin.CACHED)
    made = make_proven_table(program, new_cache)
    assert load_cached_table(program, new_cache, stores) == made


def test_a_file_without_build_id_and_cfi_is_proven_once(compile_c: Compiler, new_cache: TableCache) -> None:
    """As static programs of musl: each profile proved their rules again."""
    flags = ("-O1", "-fno-inline", "-fno-asynchronous-unwind-tables", "-nostartfiles", "-static", "-Wl,--build-id=none")
    elf = open_elf(compile_c("int f(int n) { return n + 1; } int main(int n) { return f(n); }", *flags))
    assert make_table(elf, new_cache).table is None
    assert load_cached_table(elf, new_cache, Stores()) is None
    made = make_proven_table(elf, new_cache)
    assert made.origin is Origin.PROVEN
    assert made.table
    assert find_rule(made.table, place_of(elf, "f"))
    assert load_cached_table(elf, new_cache, Stores()) == made


def test_it_is_remembered_that_nothing_can_be_proven(compile_c: Compiler, new_cache: TableCache) -> None:
    elf = open_elf(compile_c("int main(void) { return 0; }", "-O1", "-nostartfiles", "-shared", "-fPIC", "-Wl,--build-id=sha1"))
    assert make_proven_table(elf, new_cache) == (None, Origin.NOTHING, "")
    assert load_cached_table(elf, new_cache, Stores()) == make_table(elf)._replace(origin=Origin.CACHED_WITHOUT_PROOF)


@pytest.mark.sampled
def test_a_proof_that_takes_too_long_says_so(program: ElfFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sframegen.profile.tables.table_builder.make_proven_table", lambda *_: time.sleep(60))
    monkeypatch.setattr(time_limits, "current", TimeLimits(proof=0.1))
    with closing(TableBuilder(1, None)) as builder:
        builder.request_proof(3, program)
        while not (done := builder.take_ready()):
            time.sleep(0.01)
    [built] = done
    assert (built.table, built.final) == (None, True)
    assert built.why.startswith("no unwind rules were derived for code without call frame information: ")


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
