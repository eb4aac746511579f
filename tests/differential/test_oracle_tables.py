from __future__ import annotations

from collections import Counter
from typing import cast

import pytest

from tests.support.oracles import cfi_text, compare, libsframe, rules, sframe_text
from tests.support.oracles.cfi_text import AMBIGUOUS, SILENT, CfiRow, Kind
from tests.support.oracles.compare import Verdict, judge, judge_readings
from tests.support.oracles.expressions import CFA, Value, evaluate
from tests.support.oracles.rules import CONFLICT, NOTHING, OUTERMOST, Interner, OracleError, Ranges, Rule

pytestmark = pytest.mark.once

AMD64 = rules.ABIS[62]
PLAIN = Rule("sp+8", "same", "c-8", signal=False)
R16 = PLAIN._replace(cfa="sp+16")
RSP_160_STORED = "DW_OP_breg7 (rsp): 160; DW_OP_deref"


@pytest.mark.parametrize(
    ("row", "rule", "verdict"),
    [
        (SILENT, None, Verdict.SILENT),
        (SILENT, PLAIN, Verdict.COVERED),
        (CfiRow(PLAIN, ""), PLAIN, Verdict.EQUAL),
        (CfiRow(PLAIN, ""), R16, Verdict.WRONG),
        (CfiRow(PLAIN, ""), OUTERMOST, Verdict.WRONG),
        (CfiRow(PLAIN, ""), None, Verdict.MISSING),
        (CfiRow(OUTERMOST, ""), OUTERMOST, Verdict.EQUAL),
        (CfiRow(R16, "CFA base"), None, Verdict.MISSING),
        (CfiRow(R16, "CFA base"), R16, Verdict.EQUAL),
        (CfiRow(R16, "CFA base"), PLAIN, Verdict.WRONG),
        (CfiRow(None, "SP rule"), PLAIN, Verdict.WRONG),
        (CfiRow(None, "SP rule"), None, Verdict.INEXPRESSIBLE),
        (AMBIGUOUS, PLAIN, Verdict.AMBIGUOUS),
        (AMBIGUOUS, None, Verdict.AMBIGUOUS),
        (CfiRow(PLAIN, ""), compare.OVERLAP, Verdict.WRONG),
    ],
)
def test_judge(row: CfiRow, rule: Rule | None, verdict: Verdict) -> None:
    assert judge(row, rule) is verdict


def ranges_of(*described: tuple[int, int, dict[int, int]]) -> Ranges:
    """(begin, end, address -> id) each."""
    ranges = Ranges()
    for begin, end, rows in described:
        first = len(ranges.locs)
        ranges.locs.extend(rows)
        ranges.ids.extend(rows.values())
        ranges.close(begin, end, first)
    return ranges


@pytest.mark.parametrize(
    ("described", "expected"),
    [
        ([(10, 20, {10: 2, 15: 3})], [(10, 2), (15, 3), (20, NOTHING)]),
        ([(30, 40, {30: 4}), (10, 20, {10: 2})], [(10, 2), (20, NOTHING), (30, 4), (40, NOTHING)]),
        ([(10, 20, {10: 2}), (20, 30, {20: 2})], [(10, 2), (20, 2), (30, NOTHING)]),
        ([(10, 20, {10: 2, 20: 3, 21: 4})], [(10, 2), (20, NOTHING)]),
        ([(10, 20, {12: 2})], [(10, NOTHING), (12, 2), (20, NOTHING)]),
        ([(10, 10, {10: 2})], []),
        ([(10, 20, {10: 2}), (10, 20, {10: 2})], [(10, 2), (20, NOTHING)]),
        ([(10, 20, {10: 2}), (10, 20, {10: 3})], [(10, CONFLICT), (20, NOTHING)]),
        ([(10, 20, {10: 2, 14: 3}), (12, 30, {12: 2})], [(10, 2), (12, 2), (14, CONFLICT), (20, 2), (30, NOTHING)]),
        ([(10, 40, {10: 2}), (12, 14, {12: 3}), (20, 22, {20: 2})], None),
    ],
)
def test_ranges_are_laid_out_by_address(
    described: list[tuple[int, int, dict[int, int]]], expected: list[tuple[int, int]] | None
) -> None:
    table = ranges_of(*described).table()
    steps = list(zip(table.starts, table.ids, strict=True))
    if expected is None:
        expected = [(10, 2), (12, CONFLICT), (14, 2), (20, 2), (22, 2), (40, NOTHING)]
    assert steps == expected


def test_rows_out_of_order_are_refused() -> None:
    with pytest.raises(OracleError, match="order"):
        ranges_of((10, 20, {10: 2, 15: 3, 12: 4})).table()


def test_pieces_and_overlay_cut_at_the_boundaries_of_both() -> None:
    one = ranges_of((10, 20, {10: 2, 15: 3}), (40, 50, {40: 2})).table()
    two = ranges_of((5, 18, {5: 7, 15: 8}), (60, 61, {60: 7})).table()
    assert [piece for piece in rules.pieces(one, two) if piece[2:] != (NOTHING, NOTHING)] == [
        (5, 10, NOTHING, 7),
        (10, 15, 2, 7),
        (15, 18, 3, 8),
        (18, 20, 3, NOTHING),
        (40, 50, 2, NOTHING),
        (60, 61, NOTHING, 7),
    ]
    both = rules.by_byte(rules.overlay(one, two))
    assert both == rules.by_byte(two) | rules.by_byte(one)


def test_short_gaps_between_functions_are_padding() -> None:
    table = ranges_of((0, 10, {0: 2}), (25, 30, {25: 2}), (46, 50, {46: 2})).table()
    found = [compare.is_padding(table, at) for at in (10, 24, 30, 45, 50)]
    assert found == [True, True, False, False, False]


@pytest.mark.parametrize("text", ["sp+8 u", "sp+8 u f x", "sp8 u f", "sp+8 u x", "RA undefined x"])
def test_an_unknown_sframe_row_is_refused(text: str) -> None:
    with pytest.raises(OracleError, match="unknown row"):
        sframe_text.parse_row(text, "c-8", signal=False)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("  sp+8      u         f            ", ("sp+8", "same", "c-8", True)),
        ("  sp+2147483647c-2147483640(r10+2147483640)", ("sp+2147483647", "c-2147483640", "(r10+2147483640)", True)),
        ("  sp+-2147483648u         f            ", ("sp-2147483648", "same", "c-8", True)),
        ("  sp+8      c-16      U[s]         ", ("sp+8", "c-16", "c-8", True, "B")),
        ("  RA undefined", ("", "", "undefined", False)),
    ],
)
def test_sframe_rows(text: str, rule: tuple[str, str, str, bool] | tuple[str, str, str, bool, str]) -> None:
    assert sframe_text.parse_row(text, "c-8", signal=True, key="B") == Rule(*rule)


class LibsframeThatReads:
    """Finds a rule by PC."""

    def __init__(self, found: dict[int, int]) -> None:
        self.find = found.__getitem__


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        ({10: 2, 14: 2, 15: 3, 19: 3}, Verdict.EQUAL),
        ({10: 3, 14: 2, 15: 3, 19: 3}, Verdict.WRONG),
        ({10: 2, 14: 3, 15: 3, 19: 3}, Verdict.WRONG),
        ({10: 2, 14: NOTHING, 15: 3, 19: 3}, Verdict.MISSING),
    ],
)
def test_libsframe_is_judged_at_the_first_and_last_byte_of_a_row(found: dict[int, int], verdict: Verdict) -> None:
    readable: Interner[Rule | None] = Interner(None, compare.OVERLAP)
    rows = Interner(SILENT, AMBIGUOUS)
    for rule in (PLAIN, R16):
        assert readable.id(rule) == rows.id(CfiRow(rule, ""))
    table = ranges_of((10, 20, {10: 2, 15: 3})).table()
    report = compare.Report()
    cfi = cfi_text.CfiText(table, rows, 1, 0)
    compare.judge_all(cfi, table, readable, cast("libsframe.Decoder", LibsframeThatReads(found)), report, lambda *_: False)
    assert report.bytes == Counter({Verdict.EQUAL: 5}) + Counter({verdict: 5})


@pytest.mark.parametrize(
    ("rule", "filled", "verdict"), [(2, True, Verdict.PADDING), (2, False, Verdict.COVERED), (3, True, Verdict.COVERED)]
)
def test_a_long_gap_may_have_the_rule_before_it_where_it_is_filled(rule: int, filled: bool, verdict: Verdict) -> None:
    readable: Interner[Rule | None] = Interner(None, compare.OVERLAP)
    rows = Interner(SILENT, AMBIGUOUS)
    for one in (PLAIN, R16):
        assert readable.id(one) == rows.id(CfiRow(one, ""))
    cfi = cfi_text.CfiText(ranges_of((10, 20, {10: 2}), (60, 70, {60: 2})).table(), rows, 2, 0)
    table = ranges_of((10, 20, {10: 2}), (20, 60, {20: rule}), (60, 70, {60: 2})).table()
    readings = LibsframeThatReads({10: 2, 19: 2, 20: rule, 59: rule, 60: 2, 69: 2})
    report = compare.Report()
    compare.judge_all(cfi, table, readable, cast("libsframe.Decoder", readings), report, lambda *at: filled and at == (20, 60))
    assert report.bytes == {Verdict.EQUAL: 20, verdict: 40}


def test_the_gravest_verdict_of_all_readers_counts() -> None:
    row = CfiRow(R16, "CFA base")
    assert judge_readings(row, [R16, R16, R16]) is Verdict.EQUAL
    assert judge_readings(row, [R16, R16, None]) is Verdict.MISSING
    assert judge_readings(row, [None, R16, PLAIN]) is Verdict.WRONG


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("DW_OP_breg7 (rsp): 8", Value(7, 8)),
        ("DW_OP_breg15: -8", Value(15, -8)),
        ("DW_OP_bregx: 80 (xmm29) -8; DW_OP_nop", Value(80, -8)),
        ("DW_OP_breg7 (rsp): 8; DW_OP_deref", Value(7, 8, stored=True)),
        ("DW_OP_breg7 (rsp): 8; DW_OP_deref; DW_OP_deref", None),
        ("DW_OP_breg7 (rsp): 8; DW_OP_deref; DW_OP_plus_uconst: 8", None),
        ("DW_OP_breg7 (rsp): 8; DW_OP_plus_uconst: 300; DW_OP_deref", Value(7, 308, stored=True)),
        ("DW_OP_lit31; DW_OP_breg7 (rsp): 8; DW_OP_plus", Value(7, 39)),
        ("DW_OP_breg7 (rsp): 8; DW_OP_consts: -7; DW_OP_minus", Value(7, 15)),
        ("DW_OP_const1u: 200; DW_OP_breg7 (rsp): 8; DW_OP_minus", None),
        ("DW_OP_breg7 (rsp): 8; DW_OP_breg6 (rbp): 8; DW_OP_plus", None),
        ("DW_OP_breg7 (rsp): 8; DW_OP_breg6 (rbp): 8; DW_OP_swap; DW_OP_drop", Value(6, 8)),
        ("DW_OP_const2u: 513; DW_OP_dup; DW_OP_mul; DW_OP_breg7 (rsp): 0; DW_OP_plus", Value(7, 513 * 513)),
        ("DW_OP_const8u: 18446744073709551615; DW_OP_breg7 (rsp): 0; DW_OP_plus", Value(7, -1)),
        ("DW_OP_lit3; DW_OP_lit1; DW_OP_shl; DW_OP_breg7 (rsp): 0; DW_OP_plus", Value(7, 6)),
        ("DW_OP_plus_uconst: 16", Value(CFA, 16)),
        ("DW_OP_deref", Value(CFA, 0, stored=True)),
        ("DW_OP_drop; DW_OP_plus", None),
        ("DW_OP_drop", None),
        ("DW_OP_call_frame_cfa", None),
        ("(User defined location op 0xf9)", None),
    ],
)
def test_evaluate(text: str, value: Value | None) -> None:
    assert evaluate(text, Value(CFA, 0)) == value


@pytest.mark.parametrize(
    ("cells", "note", "rule", "reason"),
    [
        ({"CFA": "rsp-8", "ra": "c-8"}, {}, ("sp-8", "same", "c-8"), ""),
        ({"CFA": "rbp+16", "rbp": "c+16", "ra": "c-8"}, {}, ("fp+16", "c+16", "c-8"), ""),
        ({"CFA": "rbp+16", "rbp": "s", "rsp": "v+0", "ra": "c-8"}, {}, ("fp+16", "same", "c-8"), ""),
        ({"CFA": "rsp+8", "rbp": "v-16", "ra": "c-8"}, {}, None, "FP rule"),
        ({"CFA": "rsp+8", "rbp": "r15", "ra": "c-8"}, {}, ("sp+8", "r15+0", "c-8"), "FP in a register or elsewhere"),
        ({"CFA": "rip+8", "ra": "c-8"}, {}, None, "base register"),
        ({"CFA": "r99+8", "ra": "c-8"}, {}, None, "base register"),
        ({"CFA": "fs.base+8", "ra": "c-8"}, {}, None, "base register"),
        ({"CFA": "rsp+8", "rbp": "r16 (rip)", "ra": "c-8"}, {}, None, "base register"),
        ({"CFA": "rsp+2147483647", "ra": "c-8"}, {}, ("sp+2147483647", "same", "c-8"), ""),
        ({"CFA": "rsp+2147483648", "ra": "c-8"}, {}, None, "offset of more than 32 bits"),
        ({"CFA": "rsp+8", "rsp": "c+32", "ra": "c-8"}, {}, None, "SP rule"),
        ({"CFA": "rsp+8", "rsp": "r8 (r8)", "ra": "c-8"}, {}, None, "SP rule"),
        ({"CFA": "rsp+0", "rsp": "s", "ra": "c-8"}, {}, ("sp+0", "same", "c-8"), ""),
        ({"CFA": "rdi+0", "rsp": "r5 (rdi)", "ra": "c-8"}, {}, ("r5+0", "same", "c-8"), "CFA base"),
        (
            {"CFA": "exp", "rsp": "exp", "ra": "exp"},
            {CFA: RSP_160_STORED, 7: "DW_OP_breg7 (rsp): 160", 16: "DW_OP_breg7 (rsp): 168"},
            ("(sp+160)", "same", "(sp+168)"),
            "CFA base",
        ),
        ({"CFA": "exp", "rsp": "exp", "ra": "c-8"}, {CFA: RSP_160_STORED, 7: "DW_OP_breg7 (rsp): 168"}, None, "SP rule"),
        ({"CFA": "exp", "ra": "exp"}, {CFA: RSP_160_STORED, 16: RSP_160_STORED}, None, "RA rule"),
        ({"CFA": "rsp+8", "ra": "u"}, {}, None, "RA rule"),
        ({"CFA": "rsp+8", "ra": "u"}, {16: cfi_text.UNDEFINED}, ("", "", "undefined"), ""),
        ({"ra": "c-8"}, {}, None, "no CFA rule"),
    ],
)
def test_translate(cells: dict[str, str], note: dict[int, str], rule: tuple[str, str, str] | None, reason: str) -> None:
    expected = Rule(*rule, signal=False) if rule else None
    assert cfi_text.translate(AMD64, cells, note, Kind(16)) == CfiRow(expected, reason)


@pytest.mark.parametrize("cells", [{"CFA": "new", "ra": "c-8"}, {"CFA": "rsp+8", "rbp": "new", "ra": "c-8"}])
def test_an_unknown_cell_is_refused(cells: dict[str, str]) -> None:
    with pytest.raises(OracleError, match=r"unknown .* rule: 'new'"):
        cfi_text.translate(AMD64, cells, {}, Kind(16))
