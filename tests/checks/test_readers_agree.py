"""The two readers of the CFI agree on whatever any instructions say: no finding on a section that sframegen has just made."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest

from sframegen.checks.against_cfi import compare_with_cfi
from sframegen.checks.finding import Severity, Verdict
from sframegen.checks.second.agreement import compare_second_reading
from sframegen.conversion.cfi_sections import Sources
from sframegen.conversion.convert import convert
from sframegen.elf.file import ElfFile
from sframegen.elf.records import PT, SHT, Phdr
from sframegen.format.decode import decode
from sframegen.format.encode import Encoder
from sframegen.format.layouts import V2, V3
from tests.checks.second_reader_programs import ABIS, FUNCTION_BYTES, made_frames
from tests.support.inputs.linker_inputs import Writer
from tests.support.loops import for_each

if TYPE_CHECKING:
    from sframegen.format.abi import Abi
    from sframegen.format.layouts import Layout

ADDRESS = 0x900000
FUNCTIONS = 20
SEEDS = 24


def code() -> tuple[ElfFile, int]:
    """A file with code for all functions, and its address."""
    writer, size = Writer("little", 1), FUNCTIONS * FUNCTION_BYTES
    base = writer.put(".text", SHT.PROGBITS, 6, bytes(size), 0x100).sh_addr
    return ElfFile(memoryview(writer.finish([Phdr(PT.LOAD, 5, base, base, base, size, size, 0x100)]))), base


@pytest.mark.parametrize("abi", ABIS, ids=lambda abi: abi.name)
@for_each("layout", [V3, V2], ids=lambda layout: f"V{layout.version}")
@for_each("eh", [True, False], ids=["eh_frame", "debug_frame"])
def test_both_readers_agree_on_any_instructions(abi: Abi, eh: bool, layout: Layout) -> None:
    """What pyelftools gets wrong is not judged, and that is little."""
    elf, base = code()
    same = unjudged = 0
    for seed in range(SEEDS):
        frames = made_frames(abi, Random(f"{abi.name} {eh} {seed}"), base, FUNCTIONS, eh=eh)
        sources = Sources([frames.section()], 0, 1, [])
        table, _, encoded = convert(sources.sections, elf.executable_ranges(), abi, layout)
        if not len(table):
            continue
        section = decode(bytes(Encoder(table, abi, layout, encoded=encoded).encode(ADDRESS)), ADDRESS)
        truth = compare_with_cfi(elf, section, sources, abi)
        second = compare_second_reading(elf, section, sources, truth, abi, None)
        wrong = [finding.message for finding in (*truth.findings, *second.findings) if finding.severity is Severity.ERROR]
        assert wrong == [], f"seed {seed}"
        assert truth.code[Verdict.WRONG] == 0
        same += second.code["same"]
        unjudged += second.code["unjudged"]
    assert unjudged < same / 10
