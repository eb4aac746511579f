"""Hypothesis strategies for SFrame functions as sframegen makes them: ascending, without overlaps."""

from __future__ import annotations

from hypothesis import strategies as st

from sframegen.abi import AMD64
from sframegen.model import OUTERMOST, FunctionTable, Kind, Rule, Where

# Around each boundary of the encoding: data words of 1, 2, 4 bytes, both signs.
OFFSETS = st.one_of(
    st.sampled_from([sign * (1 << bits) + off for bits in (7, 8, 15, 16, 31) for sign in (1, -1) for off in (-1, 0, 1)]),
    st.integers(-40, 400),
).filter(lambda offset: -(1 << 31) <= offset < 1 << 31)
RA = Where(None, -8, deref=True)
RULES = st.one_of(
    st.just(OUTERMOST),
    st.builds(
        Rule,
        st.builds(Where, st.sampled_from([AMD64.sp, AMD64.fp]), OFFSETS, st.just(value=False)),
        st.just(RA),
        st.none() | st.builds(Where, st.none(), OFFSETS, st.just(value=True)),
        st.just(value=False),
    ),
)
# Around each boundary of a row's start.
STEPS = st.one_of(st.integers(1, 40), st.sampled_from([0xFE, 0xFF, 0x100, 0xFFFE, 0xFFFF, 0x10000, 0x10001]))


@st.composite
def function_tables(draw: st.DrawFn, max_functions: int = 8) -> FunctionTable:
    table = FunctionTable()
    kinds = [Kind(), Kind(signal=True), Kind(rep_size=16, mask=True), Kind(rep_size=255, mask=True, key_b=True)]
    numbers: dict[Rule, int] = {}
    address = draw(st.sampled_from([0x1000, 0x401000, 0xFFFFFFFF80000000]))
    for _ in range(draw(st.integers(0, max_functions))):
        kind = draw(st.integers(0, len(kinds) - 1))
        address += draw(st.sampled_from([0, 0, 1, 15, 0x12345]))
        offset = 0
        limit = kinds[kind].rep_size or 1 << 32
        for _ in range(draw(st.integers(1, 6))):
            if offset >= limit:
                break
            table.row_start.append(offset)
            table.row_rule.append(numbers.setdefault(draw(RULES), len(numbers)))
            last = offset
            offset += draw(STEPS)
        size = draw(st.integers(last + 1, offset))
        table.start.append(address)
        table.size.append(size)
        table.kind.append(kind)
        table.first_row.append(len(table.row_start))
        address += size
    table.kinds = kinds
    table.rules = list(numbers)
    return table
