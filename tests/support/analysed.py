"""One function alone, analysed: what is proven of it, and where it leads."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import NamedTuple, cast

from sframegen.code.context.file_context import FileContext
from sframegen.code.decoding.decoded_code import DecodedCode
from sframegen.code.function.analysis import FunctionWalker, Surroundings
from sframegen.code.function.findings import Findings
from sframegen.code.function.marks import FunctionMark, PointNote
from sframegen.code.isa.effects import DIRECT, FLOW_MASK, SLOT, Flow, FrameState
from sframegen.code.isa.instruction_set import Isa
from sframegen.elf.columns import Spans


class StateRow(NamedTuple):
    """[start, end) has the state."""

    start: int
    end: int
    state: FrameState


class Exit(NamedTuple):
    source: int
    target: int
    state: FrameState


class Analysis(NamedTuple):
    """What is proven. Code without a row is not proven."""

    rows: list[StateRow]  #: ascending
    exits: list[Exit]
    calls: list[tuple[int | None, int | None]]  #: (target, slot) of the calls that are reached
    returns: bool  #: with an instruction that returns, or a jump to anywhere
    contradiction: int | None  #: an instruction that returns with another frame than the entry's; then there are no rows
    too_costly: bool  #: the walk took too many steps; `contradiction` says where


def analyse(pieces: Sequence[DecodedCode], entries: Mapping[int, FrameState], isa: Isa, surroundings: Surroundings) -> Analysis:
    walker = FunctionWalker(isa, surroundings)
    blocks = walker.walk(pieces, entries)
    states = walker.frames.states
    exits = [Exit(source, target, states[state]) for source, target, state in blocks.exits] if blocks.complete else []
    contradiction = blocks.address_of(blocks.contradiction) if blocks.contradiction >= 0 else None
    calls = [
        call
        for call, note in zip(_calls(pieces), blocks.notes, strict=False)
        if call and note & (PointNote.IS_CALLED | PointNote.IS_LAST)
    ]
    findings = Findings(cast("FileContext", _Nothing()), Spans(array("Q"), array("Q")))
    findings.add(blocks, walker.returns_elsewhere, entries, [piece.taken for piece in pieces], ())
    blocks.drop_references()
    found = findings.columns()
    words = zip(found.row_start, found.row_word, strict=True)
    rows = [StateRow(start, start + (word >> 32), found.states[word & 0xFFFFFFFF]) for start, word in words]
    return Analysis(rows, exits, calls, bool(found.marks[0] & FunctionMark.COMES_BACK), contradiction, not blocks.complete)


def _calls(pieces: Sequence[DecodedCode]) -> list[tuple[int | None, int | None] | None]:
    return [
        (address if flow & DIRECT else None, address if flow & SLOT else None) if flow & FLOW_MASK == Flow.CALL else None
        for piece in pieces
        for flow, address in zip(piece.flows, piece.addresses, strict=True)
    ]


class _Nothing:
    """Nothing is known outside of the function."""

    def __init__(self) -> None:
        self.stubs: set[int] = set()
        self.never_returning: set[int] = set()
        self.names: dict[str, int] = {}

    def resolve_callee(self, target: int | None, _slot: int | None) -> int | None:
        return target
