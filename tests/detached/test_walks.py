"""stack and profile use a store: programs without any unwind information of their own are walked with it alone."""

from __future__ import annotations

import json
import platform
import select
import shutil
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

import sframegen
from sframegen.detached.stores import Stores
from sframegen.elf.file import open_elf
from sframegen.elf.records import EHDR_SIZE, RECORDS, Ehdr
from sframegen.profile.tables.make_table import Origin, make_table
from sframegen.profile.tables.table_builder import TableBuilder
from sframegen.profile.tables.table_cache import TableCache
from sframegen.stack.live.process import Process
from sframegen.stack.tracer import Tracer
from sframegen.stack.walking.frames import Frame, RuleSource
from tests.detached.test_detached_file import BUILD_ID, stored
from tests.support.kernel_events import needs_bpf
from tests.support.peers import Compiler
from tests.support.processes.live import Program, command, compiled

pytestmark = [pytest.mark.skipif(platform.machine() != "x86_64", reason="programs for x86-64")]

SOURCE = r"""
KEPT void third(void) { hold(); after++; }
KEPT void second(long n) { volatile char kept[100]; kept[n] = 1; third(); after += kept[n]; }
KEPT void first(void) { second(after); after++; }
int main(void) { first(); puts("done"); return 0; }
"""
BUSY = r"""
#define KEPT __attribute__((noinline, noclone))
volatile long after;
KEPT void third(void) { for (long i = 0; i < 500000000; i++) after++; }
KEPT void second(void) { third(); after++; }
KEPT void first(void) { second(); after++; }
int main(void) { first(); return 0; }
"""
FLAGS = ("-O2", "-fomit-frame-pointer", "-static", "-no-pie", BUILD_ID)


def without_unwind_information(program: Path) -> Path:
    elf = open_elf(program)
    data = bytearray(elf.data)
    for name in (".eh_frame", ".eh_frame_hdr"):
        section = elf.section(name)
        if section is not None:
            start = section.header.sh_offset
            data[start : start + section.header.sh_size] = bytes(section.header.sh_size)
    header = elf.header._replace(e_shoff=0, e_shnum=0, e_shstrndx=0)
    data[:EHDR_SIZE] = RECORDS[Ehdr, "little"].pack(*header)
    blank = program.with_name("blank")
    blank.write_bytes(data)
    blank.chmod(0o755)
    return blank


@pytest.fixture(scope="module")
def blank(compile_c: Compiler, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program without unwind information; `store` beside it has the section of the program that it was."""
    program = compiled(compile_c, tmp_path_factory.mktemp("blank"), SOURCE, *FLAGS, section=False)
    sframegen.add_section(program, detached=program.with_name("store"))
    return without_unwind_information(program)


def frames(pid: int, *stores: Path) -> list[Frame]:
    with Process(pid) as process:
        [thread] = Tracer(stores=Stores(stores)).trace_process(process)
    return thread.frames


def test_a_process_is_walked_with_the_store_alone(blank: Path, tmp_path: Path) -> None:
    """The same frames as of the program with a section of its own, whose code is at other file offsets at most."""
    sframegen.add_section(blank.with_name("program"), output=tmp_path / "added", verify=False)
    with Program(tmp_path / "added") as added:
        expected = frames(added.pid)
    with Program(blank) as running:
        found = frames(running.pid, blank.with_name("store"))
        without = frames(running.pid)
    assert [frame.pc for frame in found] == [frame.pc for frame in expected]
    assert len(found) > 6
    assert {frame.how for frame in found[:-1]} == {RuleSource.SFRAME}
    assert len(without) < len(found)


def test_the_command_finds_it_and_says_what_it_does_not_use(blank: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(blank.with_name("store"), other)
    stored(other).write_bytes(b"damaged")
    with Program(blank) as running:
        done = command("--raw", "--sections", other, "--sections", blank.with_name("store"), running.pid)
        without = command("--raw", running.pid)
    assert done.returncode == 0
    assert done.stderr == f"sframegen: {stored(other)}: not an ELF file; not used\n"
    assert done.stdout.count("#5 ") == 1
    assert "#5 " not in without.stdout


def test_converted_rules_come_after_the_store(compile_c: Compiler, tmp_path: Path) -> None:
    program = compiled(compile_c, tmp_path, SOURCE, *FLAGS, section=False)
    sframegen.add_section(program, detached=tmp_path / "store")
    with Program(program) as running, Process(running.pid) as process:
        [with_store] = Tracer(convert=True, stores=Stores([tmp_path / "store"])).trace_process(process)
        [converted] = Tracer(convert=True).trace_process(process)
    assert {frame.how for frame in with_store.frames[:-1]} == {RuleSource.SFRAME}
    assert {frame.how for frame in converted.frames[:-1]} == {RuleSource.CONVERTED}
    assert [frame.cfa for frame in with_store.frames] == [frame.cfa for frame in converted.frames]
    stores = Stores([tmp_path / "store"])
    assert make_table(open_elf(program), stores=stores).origin is Origin.DETACHED
    assert make_table(open_elf(program)).origin is Origin.CONVERTED
    sframegen.add_section(program, output=tmp_path / "added", verify=False)
    assert make_table(open_elf(tmp_path / "added"), stores=stores).origin is Origin.SECTION


def test_a_table_is_made_of_the_section_and_kept_until_another_comes(blank: Path, tmp_path: Path) -> None:
    elf, store = open_elf(blank), tmp_path / "store"
    cache = TableCache(tmp_path / "tables")

    def built(*stores: Path) -> tuple[Origin, bytes]:
        with closing(TableBuilder(1, cache, stores=Stores(stores))) as builder:
            builder.request(1, elf)
            while not (ready := builder.take_ready()):
                select.select([builder], [], [])
        [one] = ready
        return one.origin, bytes(one.table.data) if one.table else b""

    expected = make_table(elf, stores=Stores([blank.with_name("store")]))
    assert (expected.origin, expected.why) == (Origin.DETACHED, "")
    assert expected.table is not None
    assert built(store)[0] is Origin.NOTHING
    shutil.copytree(blank.with_name("store"), store)
    assert built(store) == (Origin.DETACHED, bytes(expected.table.data))
    assert built()[0] is Origin.NOTHING
    stored(store).write_bytes(b"damaged")
    assert make_table(elf, stores=Stores([store])).why.startswith(f"{stored(store)}: not an ELF file; not used")
    assert built(store)[0] is Origin.NOTHING


@pytest.mark.dear
@needs_bpf
def test_a_profile_of_a_program_without_unwind_information(compile_c: Compiler, tmp_path: Path) -> None:
    program = tmp_path / "busy"
    program.write_bytes(compile_c(BUSY, *FLAGS, name="busy").read_bytes())
    program.chmod(0o755)
    sframegen.add_section(program, detached=tmp_path / "store")
    blank = without_unwind_information(program)

    def depths(*options: object) -> list[int]:
        line = [sys.executable, "-P", "-m", "sframegen", "profile", "--json", "-F", "499", *map(str, options), "--", str(blank)]
        done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=300)
        profile = json.loads(done.stdout)
        return [len(stack["frames"]) for stack in profile["stacks"]]

    with_store = depths("--sections", tmp_path / "store")
    assert max(with_store) >= 4
    assert max(depths(), default=0) < max(with_store)
