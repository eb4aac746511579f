"""Which releases of capstone may be there: its private records are read, and what one release writes is parsed.

`make test-constraints` runs this with the first and the last release that the bounds allow.
"""

from __future__ import annotations

import tomllib
from hashlib import sha256
from importlib.metadata import version
from random import Random

import pytest
from packaging.requirements import Requirement

from sframegen.code.isa.disassembly import CapstoneRecord, Disassembler
from sframegen.code.isa.machines import isa_of
from sframegen.format.abi import AARCH64, AMD64, Abi
from tests import ROOT

START = 0x401000
CODE_BYTES = 1 << 17
# Offsets in a record, and the texts of CODE_BYTES random bytes, most of them instructions; as 5.0.2 to 5.0.9 have them.
RECORD = CapstoneRecord(size=248, id_low_at=0, id_high_at=1, length_at=16, bytes_at=18, mnemonic_at=42, operands_at=74)
TEXTS = {"AMD64": "0e9103c53da21872", "AArch64": "324a6f937bc678fa"}


def test_the_release_here_is_within_the_bounds() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    [bounds] = [one for one in map(Requirement, project["dependencies"]) if one.name == "capstone"]
    assert version("capstone") in bounds.specifier


@pytest.mark.parametrize("abi", [AMD64, AARCH64], ids=lambda abi: abi.name)
def test_records_lie_where_they_are_read_and_say_what_the_texts_say_that_are_parsed(abi: Abi) -> None:
    """Without 0x63, MOVSXD: before 5.0.9 no instruction where no prefix makes it one of 64 bits, which compilers always do."""
    disassembler = Disassembler(*isa_of(abi).capstone)
    code = Random(abi.name).randbytes(CODE_BYTES).replace(b"\x63", b"\x89")
    texts, records = list(disassembler.texts(code, START)), disassembler.records(code, START)
    assert disassembler.record == RECORD
    read = [records[at : at + RECORD.size] for at in range(0, len(records), RECORD.size)]
    said = [
        (one[RECORD.length_at], _string(one[RECORD.mnemonic_at : RECORD.operands_at]), _string(one[RECORD.operands_at :]))
        for one in read
    ]
    assert said == [(text[1], text[2], text[3]) for text in texts]
    assert sum(mnemonic != ".byte" for _, _, mnemonic, _ in texts) > 10_000
    assert sha256(repr(texts).encode()).hexdigest()[:16] == TEXTS[abi.name]


def _string(raw: bytes) -> str:
    return raw.partition(b"\0")[0].decode()
