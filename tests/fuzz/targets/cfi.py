"""The reader of call frame information, and the functions that are made of it. The first byte says what section it is."""

from __future__ import annotations

from contextlib import suppress

from cfi.section import CfiSection
from sframegen.base.errors import FormatError
from sframegen.conversion.convert import convert
from sframegen.format.abi import ABIS, Abi
from sframegen.format.decode import decode
from sframegen.format.encode import Encoder
from sframegen.format.layouts import WRITABLE

SEEDS = ("cfi-eh", "cfi-eh-arm", "cfi-eh-big", "cfi-debug", "cfi-debug-64")
ADDRESS = 0x1000
CODE = [(0x1800, 0x2300), (0x2380, 0x4000)]


def section_of(data: bytes, abi: Abi, *, eh: bool) -> CfiSection:
    name = ".eh_frame" if eh else ".debug_frame"
    return CfiSection(name, data, ADDRESS if eh else 0, abi.byte_order, eh, memory=lambda address: address ^ ADDRESS)


def run(data: bytes) -> None:
    if data:
        abi = ABIS[data[0] & 3]
        sections = [section_of(data[1:], abi, eh=not data[0] & 4)]
        if data[0] & 8:
            sections.append(section_of(data[1:], abi, eh=False))
        with suppress(FormatError):
            layout = WRITABLE[2 + (data[0] >> 4 & 1)]
            table, coverage, encoded = convert(sections, CODE, abi, layout)
            assert coverage.covered_bytes + sum(coverage.left_out.values()) == coverage.code_bytes
            if len(table):
                decode(Encoder(table, abi, layout, share=abi.shares_rows, encoded=encoded).encode(0x5000), 0x5000)
