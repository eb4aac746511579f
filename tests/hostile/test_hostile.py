"""Damaged files through the whole job: add-section ends with a section that can be read, or with one error line."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import pytest

from sframegen import add_section, read
from sframegen.base.errors import SframegenError
from sframegen.elf.file import ElfFile, open_elf
from sframegen.elf.records import EHDR_SIZE, PHDR_SIZE, SHDR_SIZE
from sframegen.program.build import build_kind
from tests.fuzz.seeds import DEBUG, SHARED, SOURCE
from tests.support.memory_files import written
from tests.support.peers import Compiler

CASE_CPU_SECONDS = 5.0
KINDS = {"eh_frame": (*SHARED, "-s"), "eh_frame by segment": (*SHARED, "-s"), "debug_frame": (*SHARED, *DEBUG)}


@contextmanager
def time_cap() -> Iterator[None]:
    def give_up(*_: object) -> NoReturn:
        raise TimeoutError(f"still running after {CASE_CPU_SECONDS} s of CPU time")

    before = signal.signal(signal.SIGPROF, give_up)
    signal.setitimer(signal.ITIMER_PROF, CASE_CPU_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def attempt(data: bytes) -> bool:
    """True if the damaged file could be given a section; it is left unchanged in any case."""
    file = written(data)
    out = file.with_name("out")
    out.unlink(missing_ok=True)
    refusal = ""
    with time_cap():
        try:
            summary = add_section(file, output=out, verify=False)
        except SframegenError as error:
            refusal = str(error)
    assert file.read_bytes() == data
    if refusal:
        assert refusal.startswith(f"{file}: ")
        assert "\n" not in refusal
        assert not out.exists()
        return False
    if summary.section_bytes:
        assert len(read(out).table.row_start) == summary.rows
    else:
        assert out.read_bytes() == data
    return True


@pytest.fixture(scope="module", params=KINDS)
def victim(request: pytest.FixtureRequest, compile_c: Compiler) -> bytes:
    data = bytearray(compile_c(SOURCE, *KINDS[request.param]).read_bytes())
    if request.param == "eh_frame by segment":
        data[40:48] = bytes(8)  # e_shoff
        data[58:64] = bytes(6)  # e_shentsize, e_shnum, e_shstrndx
        del data[max(segment.p_offset + segment.p_filesz for segment in ElfFile(memoryview(bytes(data))).segments) :]
    assert len(data) < 20_000
    return bytes(data)


@pytest.mark.dear
def test_truncated_at_any_byte(victim: bytes) -> None:
    assert attempt(victim)
    # Where nothing is read that lies after, a cut is not noticed; it is in the first half.
    sizes = range(0, len(victim), 1 if build_kind() == "compiled" else 7)
    outcomes = [attempt(victim[:size]) for size in sizes]
    assert not any(outcomes[: (EHDR_SIZE + PHDR_SIZE) // sizes.step])


def interesting(path: Path) -> Iterator[range]:
    """Headers, tables of segments, sections and names, notes, CFI: what is read."""
    elf = open_elf(path)
    yield range(EHDR_SIZE)
    yield range(elf.header.e_phoff, elf.header.e_phoff + elf.phnum * PHDR_SIZE)
    yield range(elf.header.e_shoff, elf.header.e_shoff + elf.shnum * SHDR_SIZE)
    for section in elf.sections:
        if section.name in {".eh_frame", ".eh_frame_hdr", ".debug_frame", ".shstrtab", ".note.gnu.build-id"}:
            yield range(section.header.sh_offset, section.header.sh_offset + section.header.sh_size)
    if not elf.sections:
        for segment in elf.segments:
            if segment.p_filesz < 1000:  # PT_GNU_EH_FRAME, PT_NOTE
                yield range(segment.p_offset, segment.p_offset + segment.p_filesz + 200)


@pytest.mark.full
def test_any_flipped_bit(victim: bytes) -> None:
    places = sorted({place for places in interesting(written(victim)) for place in places if place < len(victim)})
    outcomes = set()
    damaged = bytearray(victim)
    for place in places:
        for bit in range(8) if build_kind() == "compiled" else (place % 8,):  # interpreted: an eighth of them, for the time
            damaged[place] ^= 1 << bit
            outcomes.add(attempt(bytes(damaged)))
            damaged[place] ^= 1 << bit
    assert outcomes == {True, False}
