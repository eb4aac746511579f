"""Damaged files: success or one SframegenError, nothing else."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from linker.inject import undo_record
from linker.inject.plan import plan_injection
from sframegen.base.errors import SframegenError
from sframegen.elf.file import ElfFile
from tests.support.inputs.linker_inputs import inject_bytes, small_file, without_sections
from tests.support.loops import for_each

if TYPE_CHECKING:
    from collections.abc import Iterator

FILES = {
    "program": small_file(),
    "big-endian": small_file("big"),
    "tail": small_file(library=True, blocked=256),
    "no section headers": without_sections(small_file()),
}


def plans(data: bytes) -> bool:
    try:
        plan = plan_injection(ElfFile(memoryview(data), "file"), 28)
    except SframegenError:
        return False
    assert plan.size > plan.original_size == len(data)
    return True


def flipped(data: bytes, places: Iterator[int]) -> Iterator[bytes]:
    for place, bit in itertools.product(places, range(8)):
        changed = bytearray(data)
        changed[place] ^= 1 << bit
        yield bytes(changed)


@for_each("name", FILES)
def test_truncated_at_every_byte(name: str) -> None:
    data = FILES[name]
    assert plans(data)
    assert not any(plans(data[:size]) for size in range(len(data)))


@pytest.mark.full
@pytest.mark.parametrize("name", FILES)
def test_every_bit_of_the_headers(name: str) -> None:
    data = FILES[name]
    elf = ElfFile(memoryview(data))
    tables = [
        range(64 + elf.phnum * 56),
        range(elf.header.e_shoff, elf.header.e_shoff + elf.shnum * 64),
        *(range(s.p_offset, s.p_offset + s.p_filesz) for s in elf.segments if s.p_type in (2, 4)),
    ]
    outcomes = [plans(changed) for changed in flipped(data, itertools.chain(*tables))]
    assert 0 < sum(outcomes) < len(outcomes)


@for_each("place", range(1, 33))
def test_a_damaged_undo_record(place: int) -> None:
    changed = bytearray(inject_bytes(FILES["program"]))
    for value in (0, 0xFF, changed[-place] ^ 1):
        spoiled = changed[:-place] + bytes([value]) + changed[len(changed) - place + 1 :]
        record = undo_record.read_verified(memoryview(bytes(spoiled)))
        assert record is None or value == changed[-place]
