"""Headers of unusual shape: many sections, many segments, a program header table elsewhere."""

from __future__ import annotations

import subprocess
from itertools import product
from typing import TYPE_CHECKING

import pytest

from linker.existing.original import restore_original
from linker.inject.gaps import to_new_offset
from linker.inject.plan import plan_injection
from sframegen.base.errors import RefusedError
from sframegen.elf.file import ElfFile, open_elf
from sframegen.elf.records import PF, PHDR_SIZE, SHN
from tests.linker.inject.both_readers import findings as verify
from tests.linker.inject.test_run import run
from tests.support.inputs.linker_inputs import (
    FLAGS,
    KINDS,
    SOURCE,
    inject,
    small_file,
    with_many_sections,
    with_many_segments,
    with_table_behind,
    without_sections,
)
from tests.support.loops import for_each

if TYPE_CHECKING:
    from pathlib import Path

    from sframegen.elf.records import ByteOrder
    from tests.support.peers import Compiler, Peers


def original_data(changed: Path) -> memoryview:
    found = restore_original(open_elf(changed))
    assert found is not None
    return found.elf.data


@pytest.fixture
def program(compile_c: Compiler) -> bytes:
    return compile_c(SOURCE, *FLAGS, *KINDS["pie"]).read_bytes()


@pytest.mark.full
def test_more_sections_than_the_elf_header_can_say(program: bytes, compile_c: Compiler, peers: Peers, tmp_path: Path) -> None:
    """Moved notes have numbers above 65,280, and their symbols SHN_XINDEX."""
    source, result = tmp_path / "original", tmp_path / "result"
    source.write_bytes(with_many_sections(program, 66_000))
    plan = inject(source, result)
    run(result, "pie", compile_c)
    assert verify(plan, open_elf(source), result) == []
    assert original_data(result) == source.read_bytes()
    elf = open_elf(result)
    assert (elf.header.e_shnum, elf.header.e_shstrndx, len(elf.sections)) == (0, SHN.XINDEX, 66_001)
    assert [s.name for s in elf.sections[-40:-1]] == [s.name for s in open_elf(source).sections[-39:]]
    note = elf.section(".note.ABI-tag")
    assert note is not None
    assert any(".note.ABI-tag" in item.names for item in plan.moves)

    def readelf(*options: str) -> str:
        done = subprocess.run([peers.tool("readelf"), *options, "-W", result], capture_output=True, text=True, check=True)
        assert done.stderr == ""
        return done.stdout

    [symbol] = [line.split() for line in readelf("-s").splitlines() if line.endswith(" __abi_tag")]
    assert (int(symbol[1], 16), int(symbol[6])) == (note.header.sh_addr, note.number)
    assert "0 (66001)" in readelf("-h")
    assert readelf("-S").splitlines()[66_000 + 4].split()[:3] == ["[66000]", ".sframe", "GNU_SFRAME"]


@pytest.mark.full
@pytest.mark.parametrize(("count", "order"), [(SHN.LORESERVE - 2, "little"), (SHN.LORESERVE - 1, "big")])
def test_one_section_too_many_for_the_elf_header(count: int, order: ByteOrder, tmp_path: Path) -> None:
    source, result = tmp_path / "original", tmp_path / "result"
    source.write_bytes(with_many_sections(small_file(order), count))
    plan = inject(source, result)
    elf = open_elf(result)
    assert len(elf.sections) == elf.shnum == count + 1
    assert elf.header.e_shnum == (count + 1 if count + 1 < SHN.LORESERVE else 0)
    assert [section.name for section in elf.sections].count(".sframe") == 1
    assert elf.sections[elf.shstrndx].name == ".shstrtab"
    assert verify(plan, open_elf(source), result) == []
    assert original_data(result) == source.read_bytes()


@pytest.mark.dear
def test_a_symbol_whose_section_nothing_tells() -> None:
    """SHN_XINDEX without the section that holds the numbers: the symbol stays unchanged."""
    data = with_many_sections(small_file(), 66_000)
    header = ElfFile(memoryview(data)).header
    at = header.e_shoff + (66_000 - 1) * 64 + 4
    without = data[:at] + bytes(4) + data[at + 4 :]  # SHT_NULL
    patched = [
        [patch for patch in plan_injection(ElfFile(memoryview(file)), 28).patches if patch.name.startswith(".symtab")]
        for file in (data, without)
    ]
    assert list(map(len, patched)) == [1, 0]


@for_each("count", [1169, 65_535, 66_000])
def test_more_program_headers_than_any_kernel_reads(count: int) -> None:
    why = f"^file: has {count:,} program headers: 3 more would be above the 1,170 that kernels read"
    with pytest.raises(RefusedError, match=why) as error:
        plan_injection(ElfFile(memoryview(with_many_segments(small_file(), count)), "file"), 28)
    assert "\n" not in str(error.value)


@for_each(("flag", "kind"), [*product([PF.R, PF.X], ["pie", "no-pie", "library"]), (PF.R, "static-pie")])
def test_a_program_header_table_elsewhere(flag: int, kind: str, compile_c: Compiler, tmp_path: Path) -> None:
    """Not at offset 64 but after the metadata, or after code, as LIEF 1.0 and BOLT put it; it stays there, and grows."""
    source, result = tmp_path / "original", tmp_path / "result"
    source.write_bytes(with_table_behind(compile_c(SOURCE, *FLAGS, *KINDS[kind]).read_bytes(), flag))
    table = open_elf(source).header
    end = table.e_phoff + table.e_phnum * PHDR_SIZE
    if -end % 0x1000 < 3 * PHDR_SIZE:
        pytest.skip("no room after the headers in what this linker makes")
    source.chmod(0o755)
    plan = inject(source, result)
    assert plan.layout == "front"
    assert plan.table_offset == open_elf(source).header.e_phoff > 64
    assert plan.moves == ()
    assert verify(plan, open_elf(source), result) == []
    assert original_data(result) == source.read_bytes()
    for file in (source, result):
        run(file, kind, compile_c)


def test_section_headers_that_are_none(program: bytes, compile_c: Compiler, tmp_path: Path) -> None:
    """An offset of section headers, but none in number."""
    source, result = tmp_path / "original", tmp_path / "result"
    bare = without_sections(program)
    source.write_bytes(bare[:40] + len(bare).to_bytes(8, "little") + bare[48:] + bytes(64))
    plan = inject(source, result)
    assert open_elf(result).sections == []
    assert open_elf(result).header.e_shoff == to_new_offset(plan.gaps, len(bare))
    assert verify(plan, open_elf(source), result) == []
    run(result, "pie", compile_c)
