from __future__ import annotations

from sframegen.conversion.convert import convert
from sframegen.conversion.coverage import Coverage
from sframegen.format.abi import AARCH64, AMD64
from sframegen.format.layouts import V2, V3, Layout
from sframegen.format.model import FdeType, FunctionTable, Kind
from sframegen.format.words import Reason
from tests.support.inputs.cfi_writer import Frames
from tests.support.loops import for_each

CODE = [(0x1000, 0x9000)]
PUSH = b"\x41\x0e\x10"  # after one byte, CFA = rsp + 16
UNSAYABLE = b"\x07\x06"  # rbp is lost
RA_UNDEFINED = b"\x07\x10"
BACK = b"\xc6"
FLEXIBLE = b"\x0c\x0a\x00"  # CFA = r10 + 0
BACK_TO_SP = b"\x0c\x07\x08"
PLT = b"\x0f\x0b\x77\x08\x80\x00\x3f\x1a\x3b\x2a\x33\x24\x22"

Ranges = list[tuple[int, int, list[int]]]


def converted(
    *fdes: tuple[int, int, bytes], debug: tuple[tuple[int, int, bytes], ...] = (), code: int = 0x9000, layout: Layout = V3
) -> tuple[FunctionTable, Coverage]:
    """`code`: where it ends."""
    eh, other = Frames(), Frames(eh=False)
    for frames, some in ((eh, fdes), (other, debug)):
        cie = frames.cie()
        for start, size, program in some:
            frames.plain_fde(cie, start, size, program)
    return convert([eh.section(), other.section()] if debug else [eh.section()], [(0x1000, code)], AMD64, layout)[:2]


def ranges(table: FunctionTable) -> Ranges:
    """(start, end, offsets of rows) of each function."""
    return [(table.start[f], table.start[f] + table.size[f], [offset for offset, _ in table.rows(f)]) for f in range(len(table))]


def test_functions_are_sorted_by_address() -> None:
    table, coverage = converted((0x3000, 0x10, PUSH), (0x2000, 0x20, b""))
    assert ranges(table) == [(0x2000, 0x2020, [0]), (0x3000, 0x3010, [0, 1])]
    assert (coverage.functions, coverage.functions_covered, coverage.code_bytes, coverage.covered_bytes) == (2, 2, 0x30, 0x30)


def test_a_row_that_cannot_be_said_costs_that_row() -> None:
    table, coverage = converted((0x2000, 0x20, PUSH + b"\x44" + UNSAYABLE + b"\x43" + BACK))
    assert ranges(table) == [(0x2000, 0x2005, [0, 1]), (0x2008, 0x2020, [0])]
    assert coverage.left_out == {Reason.FP_UNDEFINED: 3}
    assert (coverage.functions, coverage.functions_covered, coverage.covered_bytes) == (1, 0, 0x1D)


def types(table: FunctionTable) -> list[FdeType]:
    return [table.kinds[kind].fde_type for kind in table.kind]


def test_a_flexible_row_in_a_long_function_gets_a_function_of_its_own() -> None:
    steps = b"".join(b"\x41\x0e" + bytes([8 * (2 + n % 2)]) for n in range(40))
    table, coverage = converted((0x2000, 0x100, steps + b"\x41" + FLEXIBLE + b"\x41" + BACK_TO_SP + steps))
    assert ranges(table) == [
        (0x2000, 0x2029, list(range(41))), (0x2029, 0x202A, [0]), (0x202A, 0x2100, list(range(41))),
    ]  # fmt: skip
    assert types(table) == [FdeType.DEFAULT, FdeType.FLEX, FdeType.DEFAULT]
    assert coverage.covered_bytes == 0x100


def test_a_short_function_is_flexible_as_a_whole() -> None:
    table, _ = converted((0x2000, 0x20, PUSH + b"\x41" + FLEXIBLE + b"\x41" + BACK_TO_SP))
    assert ranges(table) == [(0x2000, 0x2020, [0, 1, 2, 3])]
    assert types(table) == [FdeType.FLEX]


def test_a_version_without_flexible_fdes_leaves_out_what_needs_them() -> None:
    frames = Frames()
    frames.plain_fde(frames.cie(), 0x2000, 0x20, PUSH + b"\x41" + FLEXIBLE + b"\x41" + BACK_TO_SP)
    frames.plain_fde(frames.cie(augmentation="zRS", data=b"\0"), 0x3000, 0x10, b"")
    table, coverage, _ = convert([frames.section()], CODE, AMD64, V2)
    assert ranges(table) == [(0x2000, 0x2002, [0, 1]), (0x2003, 0x2020, [0])]
    assert coverage.left_out == {Reason.FLEX: 1, Reason.SIGNAL: 16}


def test_version_2_leaves_out_outermost_frames() -> None:
    """A function of nothing else, and one whose last rows are such."""
    fdes = (0x2000, 0x20, RA_UNDEFINED), (0x3000, 0x20, b"\x48" + RA_UNDEFINED)
    table, coverage = converted(*fdes, layout=V2)
    assert ranges(table) == [(0x3000, 0x3008, [0])]
    assert coverage.left_out == {Reason.OUTERMOST: 0x20 + 0x18}
    assert coverage.functions_covered == 0
    table, coverage = converted(*fdes)
    assert ranges(table) == [(0x2000, 0x2020, [0]), (0x3000, 0x3020, [0, 8])]
    assert not coverage.left_out


def test_rows_that_become_equal_are_one_row() -> None:
    """rbx is saved: a row of CFI that SFrame has no word for."""
    table, _ = converted((0x2000, 0x20, b"\x41\x83\x02\x41\x16\x07\x02\x23\x00"))  # then SP = CFA, said by an expression
    assert ranges(table) == [(0x2000, 0x2020, [0])]


def test_a_plt_is_split_at_its_first_entry() -> None:
    table, coverage = converted((0x2000, 0x40, b"\x0e\x10\x46\x0e\x18\x4a" + PLT))
    assert ranges(table) == [(0x2000, 0x2010, [0, 6]), (0x2010, 0x2040, [0, 11])]
    assert [table.kinds[kind] for kind in table.kind] == [Kind(), Kind(rep_size=16, mask=True)]
    assert coverage.covered_bytes == 0x40


def test_a_plt_pattern_holds_only_where_the_code_is_aligned() -> None:
    table, coverage = converted((0x2008, 0x38, PLT))
    assert len(table) == 0
    assert coverage.left_out == {Reason.CFA_EXPRESSION_UNALIGNED: 0x38}


@for_each("signal", [False, True])
def test_the_key_of_signed_return_addresses_is_kept(signal: bool) -> None:
    frames = Frames()
    frames.plain_fde(frames.cie(augmentation="zRBS" if signal else "zRB", data=b"\0", ra=30), 0x2000, 16)
    table = convert([frames.section()], CODE, AARCH64)[0]
    assert [(table.kinds[kind].signal, table.kinds[kind].key_b) for kind in table.kind] == [(signal, True)]


def test_a_function_of_many_rows_is_split() -> None:
    two_rows = b"\x41\x0e\x10\x41\x0e\x08"
    table, _ = converted((0x1000, 0x6000, two_rows * 0x3000))
    assert len(table) == 1
    table, coverage = converted((0x1000, 0x20000, two_rows * 0x8100), code=0x40000)
    assert [table.first_row[f + 1] - table.first_row[f] for f in range(len(table))] == [0xFFFF, 0x10200 - 0xFFFF + 1]
    assert table.start[1] == 0x1000 + 0xFFFF
    assert coverage.covered_bytes == 0x20000


def test_fdes_that_describe_no_code_are_counted() -> None:
    table, coverage = converted(
        (0x2000, 0, b""), (0, 0x10, b""), (0x8FF8, 0x10, b""), (0xFFF0, 0x10, b""), (0x3000, (1 << 64) - 1, b""), (0x4000, 8, b"")
    )
    assert ranges(table) == [(0x4000, 0x4008, [0])]
    assert coverage.ignored_fdes == {"empty": 1, "outside of executable segments": 4}


def test_an_fde_of_four_gigabytes_is_too_large() -> None:
    """SFrame has 32 bits for a function's size."""
    for size, ignored in ((1 << 32, {"larger than 4 GiB": 1}), ((1 << 32) - 1, {})):
        table, coverage = converted((0x1000, size, b""), code=0x1000 + (1 << 33))
        assert coverage.ignored_fdes == ignored
        assert sum(table.size) == (0 if ignored else size)


def test_the_first_of_several_fdes_for_one_start_counts() -> None:
    table, coverage = converted((0x2000, 0x10, b""), (0x2000, 0x20, PUSH), (0x2000, 0x10, b""))
    assert ranges(table) == [(0x2000, 0x2010, [0])]
    assert coverage.ignored_fdes == {"a second one for the same code": 2}


def test_the_greatest_start_counts_where_fdes_overlap() -> None:
    table, coverage = converted((0x2000, 0x100, PUSH), (0x2020, 0x10, b""))
    assert ranges(table) == [(0x2000, 0x2020, [0, 1]), (0x2020, 0x2030, [0])]
    assert coverage.ignored_fdes == {"cut short by the next one": 1}
    assert coverage.code_bytes == 0x30


def test_debug_frame_fills_what_eh_frame_is_silent_on() -> None:
    table, coverage = converted(
        (0x2000, 0x10, b""), (0x2040, 0x10, b""), debug=((0x2000, 0x80, b"\x50\x0e\x10\x44\x0e\x18"), (0x2040, 0x10, PUSH))
    )
    assert ranges(table) == [
        (0x2000, 0x2010, [0]), (0x2010, 0x2040, [0, 4]), (0x2040, 0x2050, [0]),
    ]  # fmt: skip
    assert coverage.code_bytes == 0x50


def test_debug_frame_beside_an_empty_eh_frame() -> None:
    table, coverage = converted(debug=((0x2000, 0x10, b""), (0x2040, 0x10, PUSH)))
    assert ranges(table) == [(0x2000, 0x2010, [0]), (0x2040, 0x2050, [0, 1])]
    assert coverage.code_bytes == 0x20
