"""A file's table says what its section or its call frame information says, at random addresses of real files."""

from __future__ import annotations

import random
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sframegen import add_section
from sframegen.base.errors import FormatError
from sframegen.conversion.cfi_sections import find_sources
from sframegen.conversion.convert import convert_sources
from sframegen.elf.file import ElfFile, open_elf
from sframegen.elf.records import ET
from sframegen.format.abi import abi_of
from sframegen.format.locate import find_sframe, read_sframe
from sframegen.format.model import look_up_in
from sframegen.profile.tables import decoded_table
from sframegen.profile.tables.decoded_table import NO_RULE, RULE_BYTES, pack_rule
from sframegen.profile.tables.make_table import Origin, make_table
from sframegen.stack.walking.step import RuleFlag
from tests.support.decoded_tables import find_rule
from tests.support.zstandard import compress_section

if TYPE_CHECKING:
    from collections.abc import Callable

    from sframegen.format.layouts import FormatVersion
    from sframegen.format.model import Match

NAMES = ("libc.so.6", "libcrypto.so.3", "libstdc++.so.6")
FILES = [Path("/usr/bin/bash"), *(next(Path("/usr/lib").glob(f"*-linux-gnu/{name}")) for name in NAMES)]
PCS = 4000


def pcs_of(elf: ElfFile) -> list[int]:
    numbers = random.Random(19)
    ranges = elf.executable_ranges()
    return [numbers.randrange(max(0, start - 64), end + 64) for start, end in numbers.choices(ranges, k=PCS)]


def agrees(elf: ElfFile, origin: Origin, look_up: Callable[[int], Match | None]) -> None:
    made = make_table(elf)
    assert (made.origin, made.why) == (origin, "")
    assert made.table is not None
    assert made.table.left_out == 0
    covered = 0
    for pc in pcs_of(elf):
        found, rule = look_up(pc), find_rule(made.table, pc)
        if rule and rule.flags & RuleFlag.CFA_DEREF and rule.ra_register:  # no section says that: corrected_rules.py
            assert found is None
            continue
        expected = pack_rule(found.rule, signal=found.kind.signal) if found else NO_RULE
        assert (RULE_BYTES.pack(*rule) if rule else NO_RULE) == expected, hex(pc)
        covered += rule is not None
    assert covered > PCS / 2


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_converted(file: Path) -> None:
    elf = open_elf(file)
    table = convert_sources(find_sources(elf), elf.executable_ranges(), abi_of(elf)).table
    agrees(elf, Origin.CONVERTED, lambda pc: look_up_in(table, pc))


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_from_the_section(file: Path, version: FormatVersion, tmp_path: Path) -> None:
    add_section(file, output=tmp_path / "added", version=version, verify=False)
    elf = open_elf(tmp_path / "added")
    agrees(elf, Origin.SECTION, read_sframe(elf).look_up)


@pytest.fixture
def python(copied: Callable[[str], Path]) -> Path:
    return copied(sys.executable)


@pytest.fixture
def added(python: Path, tmp_path: Path) -> Path:
    add_section(python, output=tmp_path / "added", verify=False)
    return tmp_path / "added"


@pytest.mark.parametrize(
    ("at", "value", "why"),
    [
        (2, 9, ".sframe+0x2: unknown version of the format: 9"),
        (4, 2, ".sframe+0x5: fixed offsets of FP and RA are not those of the ABI"),
    ],
)
def test_a_damaged_section_is_not_used(python: Path, added: Path, at: int, value: int, why: str) -> None:
    data = bytearray(added.read_bytes())
    elf = ElfFile(memoryview(data), "added")
    found = find_sframe(elf)
    assert found is not None
    data[data.index(found[0]) + at] = value
    made = make_table(elf)
    assert made.origin is Origin.CONVERTED
    assert made.why.startswith(f"added: {why}")
    assert made.why.endswith("; not used")
    assert made.table == make_table(open_elf(python)).table


def test_files_of_other_kinds() -> None:
    for at, value, why in (
        (18, 0, "e_machine 0 (little-endian) is not supported, only AMD64, AArch64, AArch64 big-endian, s390x"),
        (16, ET.REL, "not a program or library for x86-64 or AArch64"),
    ):
        data = bytearray(open_elf(FILES[0]).data)
        data[at] = value
        assert make_table(ElfFile(memoryview(data), "other")) == (None, Origin.NOTHING, f"other: {why}")


def test_call_frame_information_of_nothing() -> None:
    data = bytearray(open_elf(FILES[0]).data)
    elf = ElfFile(memoryview(data), "file")
    section = elf.section(".eh_frame")
    assert section is not None
    start, size = section.header.sh_offset, section.header.sh_size
    data[start : start + size] = bytes(size)
    assert make_table(elf) == (None, Origin.NOTHING, "")
    data[start : start + size] = b"\x77" * size
    made = make_table(elf)
    assert made[:2] == (None, Origin.NOTHING)
    assert made.why.startswith("file: .eh_frame+0x0: ")


def test_what_a_table_cannot_hold_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoded_table, "MAX_TEXT_BYTES", 1 << 12)
    made = make_table(open_elf(FILES[0]))
    assert made.table is not None
    assert made.why == f"{FILES[0]}: does not fit into its table: {made.table.left_out:,} functions and rules"


def test_any_flipped_bit_gives_a_table_or_a_reason(added: Path) -> None:
    original = added.read_bytes()
    data = bytearray(original)
    elf = open_elf(added)
    numbers = random.Random(4)
    sections = [section.header for section in elf.sections if section.name in (".sframe", ".eh_frame", ".note.gnu.build-id")]
    places = [(0, 1 << 10), *((header.sh_offset, header.sh_size) for header in sections)]
    origins = set()
    for _ in range(150):
        start, size = numbers.choice(places)
        at = start + numbers.randrange(min(size, 1 << numbers.randrange(5, 24)))
        data[at] ^= 1 << numbers.randrange(8)
        with suppress(FormatError):
            made = make_table(ElfFile(memoryview(data), "flipped"))
            origins.add(made.origin)
            assert made.origin is Origin.SECTION or made.why or made.table, at
            for pc in pcs_of(elf)[:50]:
                _ = made.table and find_rule(made.table, pc)
        data[at] = original[at]
    assert origins >= {Origin.SECTION, Origin.CONVERTED}


@pytest.mark.parametrize("is_compressed", [False, True])
def test_a_section_that_no_segment_has(tmp_path: Path, is_compressed: bool) -> None:
    add_section(FILES[0], output=tmp_path / "added", verify=False, unloaded=True)
    if is_compressed:
        compress_section(tmp_path / "added")
    elf = open_elf(tmp_path / "added")
    agrees(elf, Origin.SECTION, read_sframe(elf).look_up)
