from __future__ import annotations

import re
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sframegen.base.errors import FormatError
from sframegen.format.abi import ABIS, AMD64, BY_SFRAME_ID, Abi
from sframegen.format.decode import decode
from sframegen.format.encode import Encoder
from sframegen.format.layouts import HEADER_CODE, HEADER_SIZE, V2, V3, WRITABLE, Layout, SframeHeader
from sframegen.format.model import OUTERMOST, FdeType, FunctionTable, Kind, Rule, Where
from sframegen.format.words import decode_rule, encode_rule
from tests.support.loops import for_each
from tests.support.tables import content, function_tables, rules

ADDRESS = 0x3000
RA = Where(None, -8, deref=True)
FORMS = [(abi, layout) for abi in ABIS for layout in WRITABLE.values()]


def sp_plus(offset: int, fp: int | None = None) -> Rule:
    return Rule(Where(AMD64.sp, offset), RA, None if fp is None else Where(None, fp, deref=True))


def table_of(rows: list[tuple[int, Rule]], size: int, start: int = 0x1000, kind: Kind | None = None) -> FunctionTable:
    table = FunctionTable(kinds=[kind or Kind()], rules=[rule for _, rule in rows])
    table.append(start, size, 0, [(offset, number) for number, (offset, _) in enumerate(rows)])
    return table


def encode(table: FunctionTable, address: int = ADDRESS, abi: Abi = AMD64, layout: Layout = V3) -> bytes:
    encoder = Encoder(table, abi, layout)
    section = bytes(encoder.encode(address))
    assert len(section) == encoder.size_bytes
    return section


@given(st.data(), st.sampled_from(FORMS), st.sampled_from([0, ADDRESS, 0x7FF00000]))
def test_decode_undoes_encode(data: st.DataObject, form: tuple[Abi, Layout], address: int) -> None:
    table = data.draw(function_tables(*form))
    section = encode(table, address, *form)
    decoded = decode(section, address)
    assert content(decoded.table) == content(table)
    assert encode(decoded.table, address, *form) == section


@given(st.data(), st.sampled_from(FORMS), st.sampled_from(FdeType))
def test_a_rule_survives_its_words(data: st.DataObject, form: tuple[Abi, Layout], fde_type: FdeType) -> None:
    rule = data.draw(rules(*form, fde_type))
    raw = encode_rule(rule, fde_type, *form)
    if raw is None:
        assert fde_type is FdeType.FLEX
        assert form[1] is V2
    else:
        assert decode_rule(fde_type, raw, *form) == rule


@for_each(
    ("offset", "size"),
    [(127, 1), (-128, 1), (128, 2), (-129, 2), (32767, 2), (-32768, 2), (32768, 4), (-32769, 4), (-(1 << 31), 4)],
)
def test_data_words_are_the_smallest_that_hold_the_offsets(offset: int, size: int) -> None:
    assert encode_rule(sp_plus(8, offset), FdeType.DEFAULT, AMD64, V3) == bytes([1 | 2 << 1 | {1: 0, 2: 1, 4: 2}[size] << 5]) + (
        8
    ).to_bytes(size, "little") + offset.to_bytes(size, "little", signed=True)


@for_each("offset", [1 << 31, -(1 << 31) - 1])
def test_offsets_beyond_32_bits_are_not_encoded(offset: int) -> None:
    assert encode_rule(sp_plus(offset), FdeType.DEFAULT, AMD64, V3) is None
    with pytest.raises(FormatError, match="cannot express"):
        Encoder(table_of([(0, sp_plus(offset))], 8), AMD64)


@for_each("column", ["start", "size", "kind", "first_row", "row_start", "row_rule"])
def test_columns_that_do_not_fit_together_are_refused(column: str) -> None:
    """Loops over rows check no access: a number that leads nowhere, or a short column, must not reach them."""
    for shorter in (True, False):
        table = table_of([(0, sp_plus(8)), (4, sp_plus(16))], 8)
        numbers = getattr(table, column)
        setattr(table, column, numbers[:-1] if shorter else numbers + numbers[:1])
        with pytest.raises(IndexError):
            Encoder(table, AMD64, share=True)
    if column in {"kind", "first_row", "row_rule"}:
        for wrong in (0x7FFF, {"kind": 1, "first_row": 3, "row_rule": 2}[column]):  # far out, and the first that leads nowhere
            table = table_of([(0, sp_plus(8)), (4, sp_plus(16))], 8)
            getattr(table, column)[-1] = wrong
            with pytest.raises(IndexError):
                Encoder(table, AMD64, share=True)


@for_each("function", range(3))
def test_functions_whose_rows_end_before_they_begin_are_refused(function: int) -> None:
    table = table_of([(0, sp_plus(8))], 8)
    for start in (0x2000, 0x3000):
        table.append(start, 8, 0, [(0, 0)])
    Encoder(table, AMD64)
    table.first_row[function] = table.first_row[function + 1] + 1
    with pytest.raises(IndexError):
        Encoder(table, AMD64)


@for_each("used", [Kind(FdeType.FLEX), Kind(signal=True)])
def test_what_a_version_cannot_say_is_refused_where_it_is_used(used: Kind) -> None:
    """Even if the first such kind in the table's list is not used."""
    table = table_of([(0, sp_plus(8))], 8)
    table.kinds = [Kind(), Kind(FdeType.FLEX, signal=True), used]
    Encoder(table, AMD64, V2)
    table.kind[0] = 2
    Encoder(table, AMD64, V3)
    with pytest.raises(FormatError, match=re.escape(f"version 2 cannot express {used}")):
        Encoder(table, AMD64, V2)


@for_each(("last", "width"), [(0, 1), (0xFF, 1), (0x100, 2), (0xFFFF, 2), (0x10000, 4)])
def test_row_starts_are_as_wide_as_the_last_one_needs(last: int, width: int) -> None:
    """The function may be larger than the width says: only its last row counts."""
    rows = [(0, sp_plus(8))] + ([(last, sp_plus(16))] if last else [])
    assert len(encode(table_of(rows, 0x20000))) == HEADER_SIZE + 16 + 5 + len(rows) * (width + 1 + 1)


def test_the_shape_that_every_consumer_accepts() -> None:
    table = table_of([(0, sp_plus(8)), (4, sp_plus(16, -16)), (9, OUTERMOST)], 32)
    section = encode(table)
    header = SframeHeader(*struct.unpack_from("<" + HEADER_CODE, section))
    assert header == SframeHeader(0xDEE2, 3, 0x5, 3, 0, -8, 0, 1, 3, 5 + 3 + 4 + 2, 0, 16)
    assert struct.unpack_from("<qII", section, HEADER_SIZE) == (0x1000 - (ADDRESS + HEADER_SIZE), 32, 0)
    assert section[HEADER_SIZE + 16 :] == bytes([3, 0, 0, 0, 0]) + bytes([0, 3, 8]) + bytes([4, 5, 16, 0xF0]) + bytes([9, 1 * 0])


def test_words_of_flexible_rows_as_gnu_as_writes_them() -> None:
    """s390x: `.cfi_register 11, 16`, then `.cfi_register 14, 17`; AMD64: `.cfi_escape` for DRAP."""
    s390x = BY_SFRAME_ID[4]
    in_f0 = Rule(Where(15, 160), None, Where(16, 0))
    assert encode_rule(in_f0._replace(fp=None), FdeType.FLEX, s390x, V3) == bytes.fromhex("04 79 00")
    assert encode_rule(in_f0, FdeType.FLEX, s390x, V3) == bytes.fromhex("0a 79 00 00 81 00")
    assert encode_rule(in_f0._replace(ra=Where(17, 0)), FdeType.FLEX, s390x, V3) == bytes.fromhex("0c 79 00 89 00 81 00")
    drap = Rule(Where(6, -8, deref=True), RA, Where(6, 0, deref=True))
    assert encode_rule(drap, FdeType.FLEX, AMD64, V3) == bytes([5 << 1, 6 << 3 | 3, 0xF8, 0, 6 << 3 | 3, 0])


def test_s390x_says_registers_as_odd_offsets_in_version_2() -> None:
    s390x = BY_SFRAME_ID[4]
    rule = Rule(Where(15, 320), Where(17, 0), Where(16, 0))
    assert encode_rule(rule, FdeType.DEFAULT, s390x, V2) == bytes([1 | 3 << 1, 20, 35, 33])
    assert encode_rule(rule, FdeType.DEFAULT, s390x, V3) is None
    assert encode_rule(rule._replace(ra=None), FdeType.DEFAULT, s390x, V2) == bytes([1 | 3 << 1, 20, 0, 33])


def test_version_2_gets_no_row_without_words_and_has_it_read() -> None:
    """An erratum gives it the meaning of version 3; glibc, which reads nothing else, does not know that."""
    raw = encode_rule(OUTERMOST, FdeType.DEFAULT, AMD64, V3)
    assert raw == b"\0"
    assert decode_rule(FdeType.DEFAULT, raw, AMD64, V2) == OUTERMOST
    assert [encode_rule(OUTERMOST, fde_type, AMD64, V2) for fde_type in FdeType] == [None, None]
    with pytest.raises(FormatError, match="version 2 cannot express"):
        Encoder(table_of([(0, sp_plus(8)), (4, OUTERMOST)], 8), AMD64, V2)


def test_version_2_reaches_two_gigabytes() -> None:
    encoder = Encoder(table_of([(0, sp_plus(8))], 8, start=0x100000), AMD64, V2)
    assert list(decode(encoder.encode(0x80000000), 0x80000000).table.start) == [0x100000]
    for address in (0x80100000, 0x8010000000):
        with pytest.raises(FormatError, match="too far from the section"):
            encoder.encode(address)


@for_each("address", [0x1000, 0x200000])
def test_version_2_reaches_less_than_two_gigabytes_ahead(address: int) -> None:
    """The farthest function may be the last one, and after the section."""
    for distance, fits in (((1 << 31) - 1, True), (1 << 31, False)):
        table = table_of([(0, sp_plus(8))], 8, start=address)
        table.append(address + distance, 8, 0, [(0, 0)])
        encoder = Encoder(table, AMD64, V2)
        if fits:
            assert list(decode(encoder.encode(address), address).table.start) == [address, address + distance]
        else:
            with pytest.raises(FormatError, match="too far from the section"):
                encoder.encode(address)


def small_section() -> bytearray:
    return bytearray(encode(table_of([(0, sp_plus(8)), (4, sp_plus(16, -16))], 32)))


@for_each(
    ("offset", "value", "message"),
    [
        (0, b"\0\0", r"^\.sframe\+0x0: magic number is 0000"),
        (2, b"\x07", "version 7 is not read"),
        (4, b"\x09", "unknown ABI 9"),
        (8, b"\xff\xff\xff\xff", "4294967295 functions do not fit"),
        (16, b"\xff\xff\xff\x7f", "FRE sub-section ends at"),
        (HEADER_SIZE + 12, b"\xff", "outside the FRE sub-section"),
        (HEADER_SIZE + 16, b"\xff\xff", "65535 rows in 56 bytes"),
        (HEADER_SIZE + 18, b"\x03", "unknown FRE type"),
        (HEADER_SIZE + 19, b"\x05", "unknown FDE type 5"),
        (HEADER_SIZE + 21, b"\x01", "do not ascend"),
        (HEADER_SIZE + 22, b"\x63", "unknown data word size"),
        (HEADER_SIZE + 22, b"\x07", "unknown data word size"),
        (HEADER_SIZE + 24, b"\x00", "do not ascend"),
        (HEADER_SIZE + 24, b"\x21", "do not ascend"),
    ],
)
def test_what_is_unsafe_to_read_is_refused(offset: int, value: bytes, message: str) -> None:
    section = small_section()
    section[offset : offset + len(value)] = value
    with pytest.raises(FormatError, match=message):
        decode(section, ADDRESS)


def test_truncated_at_any_byte() -> None:
    section = small_section()
    for size in range(len(section)):
        with pytest.raises(FormatError):
            decode(section[:size], ADDRESS)


@for_each(("count", "is_read"), [(80, True), (81, False)])
def test_sixteen_rows_for_each_byte_are_read_and_no_more(count: int, is_read: bool) -> None:
    """80 functions with one block of 1,313 rows: 16 for each of the section's 6,565 bytes."""
    block = struct.pack("<HBBB", 1313, 1, 0, 0) + b"".join(struct.pack("<HBb", start, 3, 8) for start in range(1313))
    header = SframeHeader(0xDEE2, 3, 5, 3, 0, -8, 0, count, 1, len(block), 0, 16 * count)
    section = struct.pack("<" + HEADER_CODE, *header) + struct.pack("<qII", 0, 0x10000, 0) * count + block
    if is_read:
        assert 16 * len(section) == len(decode(section, ADDRESS).table.row_start) == 105_040
    else:
        with pytest.raises(FormatError, match="106353 rows in 6581 bytes"):
            decode(section, ADDRESS)


def test_more_different_rules_than_are_kept_at_hand() -> None:
    numbers = [(7 * n * n) % 20_011 for n in range(12_000)] * 2
    rules = [Rule(Where(AMD64.sp, 8 * n), Where(None, -8, deref=True)) for n in range(20_011)]
    table = FunctionTable(kinds=[Kind(), Kind(FdeType.FLEX)], rules=rules)
    for part, rows in enumerate([numbers[:9000], numbers[9000:18_000], numbers[18_000:]]):
        table.append(0x1000 + 0x10000 * part, len(rows), part % 2, enumerate(rows))
    decoded = decode(Encoder(table, AMD64, V3, share=False).encode(0x100000), 0x100000).table
    assert [decoded.rows(function) for function in range(3)] == [table.rows(function) for function in range(3)]
