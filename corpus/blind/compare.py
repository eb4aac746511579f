"""What the instructions say against what the CFI says: by value, at every byte of code."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from sframegen.checks.contradictions import DOUBTFUL, RIGHT, UNDECIDED, judge_rule
from sframegen.checks.tracks import NO_CLAIM, Claim, make_track, new_track, track_of_table
from sframegen.checks.tracks import intersect_tracks as in_order
from sframegen.code.function.rules_of_states import rule_of_state

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sframegen.code.isa.effects import FrameState
    from sframegen.code.whole_file.passes import Survey
    from sframegen.format.abi import Abi
    from sframegen.format.model import FunctionTable, Rule

NOT_FOUND = "silent"


class Difference(NamedTuple):
    """Code of which the two say different things. `kind`: what is different."""

    start: int
    end: int
    kind: str
    rule: Rule
    state: FrameState


class Compared(NamedTuple):
    """Bytes that the CFI describes and SFrame can say, and where it says otherwise."""

    bytes_by_verdict: Counter[str]
    differences: list[Difference]

    @property
    def code_bytes(self) -> int:
        return sum(self.bytes_by_verdict.values())

    @property
    def emitted(self) -> int:
        return self.code_bytes - self.bytes_by_verdict[NOT_FOUND]

    @property
    def right(self) -> int:
        return self.bytes_by_verdict[RIGHT]

    @property
    def incomparable(self) -> int:
        return self.bytes_by_verdict[UNDECIDED]

    @property
    def different(self) -> int:
        return self.emitted - self.right - self.incomparable


def compare(table: FunctionTable, functions: Sequence[tuple[int, int]], survey: Survey, abi: Abi) -> Compared:
    """What the CFI's rules say of the functions, and what states say that become rows."""
    emits = [rule_of_state(state, abi.sp, abi.fp, abi.fixed_ra_offset) is not None for state in survey.states]
    counts: Counter[str] = Counter()
    differences: list[Difference] = []
    numbers: dict[Claim, int] = {}
    cfi, code, found = track_of_table(table, numbers), new_track(), make_track(survey.start, survey.end, survey.state)
    claims = list(numbers)
    for start, end in functions:
        code.add(start, end, 0)
    for start, end, (inside, said, state) in in_order(code, cfi, found):
        rule, key_b = claims[said] if NO_CLAIM not in (inside, said) else Claim(None)
        if rule is None:
            continue
        what = NOT_FOUND
        if state != NO_CLAIM and emits[state]:
            what = judge_rule(rule, key_b, survey.states[state], abi.sp, abi.fp)
            if what in DOUBTFUL:
                what = UNDECIDED
            if what not in (RIGHT, UNDECIDED):
                differences.append(Difference(start, end, what, rule, survey.states[state]))
        counts[what] += end - start
    return Compared(counts, differences)
