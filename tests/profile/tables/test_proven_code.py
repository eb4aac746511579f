"""Rules for code without call frame information: proven from its instructions, in a table that is made after the first one."""

from __future__ import annotations

import os
import time
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from sframegen.code.whole_file import proven_code
from sframegen.code.whole_file.proven_code import PROVEN
from sframegen.detached.stores import Stores
from sframegen.elf.file import ElfFile, open_elf
from sframegen.elf.symbols import read_functions
from sframegen.profile.tables.make_table import Origin, load_cached_table, make_proven_table, make_table
from sframegen.profile.tables.table_builder import TableBuilder
from sframegen.profile.tables.table_cache import TableCache
from sframegen.program import time_limits
from sframegen.program.time_limits import TimeLimits
from tests.support.decoded_tables import find_rule

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.peers import Compiler

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
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TableCache:
    """It keeps tables of files that were just made, too."""
    monkeypatch.setattr("sframegen.profile.file_cache.SETTLING_TIME", -(10**18))
    return TableCache(tmp_path / "cache")


def test_an_unchanged_file_is_not_read_again(program: ElfFile, cache: TableCache) -> None:
    stores = Stores()
    plain = make_table(program, cache)
    assert load_cached_table(program, cache, stores) == plain._replace(origin=Origin.CACHED)
    made = make_proven_table(program, cache)
    assert load_cached_table(program, cache, stores) == made


def test_a_file_without_build_id_and_cfi_is_proven_once(compile_c: Compiler, cache: TableCache) -> None:
    """As static programs of musl: each profile proved their rules again."""
    flags = ("-O1", "-fno-inline", "-fno-asynchronous-unwind-tables", "-nostartfiles", "-static", "-Wl,--build-id=none")
    elf = open_elf(compile_c("int f(int n) { return n + 1; } int main(int n) { return f(n); }", *flags))
    assert make_table(elf, cache).table is None
    assert load_cached_table(elf, cache, Stores()) is None
    made = make_proven_table(elf, cache)
    assert made.origin is Origin.PROVEN
    assert made.table
    assert find_rule(made.table, place_of(elf, "f"))
    assert load_cached_table(elf, cache, Stores()) == made


def test_it_is_remembered_that_nothing_can_be_proven(compile_c: Compiler, cache: TableCache) -> None:
    elf = open_elf(compile_c("int main(void) { return 0; }", "-O1", "-nostartfiles", "-shared", "-fPIC", "-Wl,--build-id=sha1"))
    assert make_proven_table(elf, cache) == (None, Origin.NOTHING, "")
    recalled = load_cached_table(elf, cache, Stores())
    assert recalled == make_table(elf)._replace(origin=Origin.CACHED_WITHOUT_PROOF)


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
