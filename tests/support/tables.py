"""Hypothesis strategies for SFrame functions as sframegen makes them, ascending and without overlaps; the look-up in a table."""

from __future__ import annotations

from bisect import bisect_right
from itertools import product

from hypothesis import strategies as st

from sframegen.format.abi import Abi
from sframegen.format.layouts import Layout
from sframegen.format.model import OUTERMOST, FdeType, FunctionTable, Kind, Rule, Where
from sframegen.format.words import encode_rule

# Around each boundary of the encoding: data words of 1, 2, 4 bytes, both signs.
OFFSETS = st.one_of(
    st.sampled_from([sign * (1 << bits) + off for bits in (7, 8, 15, 16, 31) for sign in (1, -1) for off in (-1, 0, 1)]),
    st.integers(-40, 400),
)
# Around each boundary of a row's start.
STEPS = st.one_of(st.integers(1, 40), st.sampled_from([0xFE, 0xFF, 0x100, 0xFFFE, 0xFFFF, 0x10000, 0x10001]))


@st.composite
def rules(draw: st.DrawFn, abi: Abi, layout: Layout, fde_type: FdeType) -> Rule:
    """A rule that FDEs of that type can say."""
    registers = st.sampled_from([abi.sp, abi.fp, abi.ra, 0, 31])
    offsets = OFFSETS.map(lambda offset: offset // 8 * 8 if abi.cfa_scale > 1 else offset)
    places = st.builds(Where, st.none() | registers, OFFSETS, st.booleans())
    fixed = [Where(None, offset, deref=True) if offset else None for offset in (abi.fixed_ra_offset, abi.fixed_fp_offset)]
    candidates = st.builds(
        Rule,
        st.builds(Where, registers, offsets, st.booleans()),
        *(st.just(place) | places for place in fixed),
        st.booleans() if abi.ra_is_signed else st.just(value=False),
    )
    rule = draw(candidates)
    if encode_rule(rule, fde_type, abi, layout) is not None:
        return rule
    plain = Rule(Where(abi.sp, 8 * draw(st.integers(0, 4000))), fixed[0], fixed[1])
    return draw(st.sampled_from([plain, plain._replace(cfa=Where(abi.fp, 160)), OUTERMOST if layout.outermost else plain]))


@st.composite
def function_tables(draw: st.DrawFn, abi: Abi, layout: Layout, max_functions: int = 8) -> FunctionTable:
    table = FunctionTable()
    fde_types = list(FdeType) if layout.flex else [FdeType.DEFAULT]
    rep_sizes = (0, 16, 255) if layout.rep_size_at >= 0 else (0, layout.default_rep_size)
    kinds = [
        Kind(fde_type, rep_size, rep_size > 0, signal, key_b)
        for fde_type, rep_size, signal, key_b in product(
            fde_types, rep_sizes, (False, True) if layout.signal else (False,), (False, True)
        )
    ]
    numbers: dict[Rule, int] = {}
    address = draw(st.sampled_from([0x1000, 0x401000, 0x7FF00000]))
    for _ in range(draw(st.integers(0, max_functions))):
        kind = draw(st.integers(0, len(kinds) - 1))
        address += draw(st.sampled_from([0, 0, 1, 15, 0x12345]))
        offset = 0
        limit = kinds[kind].rep_size or 1 << 32
        for _ in range(draw(st.integers(1, 6))):
            if offset >= limit:
                break
            table.row_start.append(offset)
            table.row_rule.append(numbers.setdefault(draw(rules(abi, layout, kinds[kind].fde_type)), len(numbers)))
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


def find(table: FunctionTable, pc: int) -> Rule | None:
    """The rule at `pc` in a sorted table: what `sframegen.find` is to say of the section's bytes."""
    function = bisect_right(table.start, pc) - 1
    if function < 0 or pc - table.start[function] >= table.size[function]:
        return None
    kind = table.kinds[table.kind[function]]
    first, end = table.first_row[function], table.first_row[function + 1]
    if first == end:
        return None if kind.fde_type else OUTERMOST
    offset = (pc - table.start[function]) % (kind.rep_size if kind.mask and kind.rep_size else 1 << 32)
    return table.rules[table.row_rule[bisect_right(table.row_start, offset, first, end) - 1]]


def edges(table: FunctionTable) -> set[int]:
    places = set()
    for function in range(len(table)):
        start, end = table.start[function], table.start[function] + table.size[function]
        places |= {start, end - 1, *(start + offset for offset, _ in table.rows(function) if start + offset < end)}
        places |= {place - 1 for place in places if place > start}
    return places


def content(table: FunctionTable) -> list[tuple[int, int, Kind, list[tuple[int, Rule]]]]:
    return [(table.start[f], table.size[f], table.kinds[table.kind[f]], table.rows(f)) for f in range(len(table))]
