"""Stacks as lines of names -> how many are complete, marked, or cannot be."""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from corpus.ground_truth.subjects import Calls

UNKNOWN_CALLERS = "[callers unknown]"
GUESS = " [guess]"
_PARAMETERS = re.compile(r"(?<=[\w>])\(([^()]|\(\))*\)( const)?( \(\.[^)]*\))*$")  # LLVM writes ` (.part.0)` after a clone
_OF_PYTHON = re.compile(r"^py::(\w+):/.*")  # `stack` prints the names of a perf map as they are


class Verdict(NamedTuple):
    """Samples. `own`: with a function of the program in it; `wrong`: stacks that cannot be, without a guess, by stack."""

    samples: int
    own: int
    complete: int
    guessed: int
    guessed_wrong: int
    wrong: Counter[str]


def judge(lines: Iterable[str], calls: Calls) -> Verdict:
    """`lines`: "process;outermost;...;innermost number", as .folded files have them."""
    samples = own = complete = guessed = guessed_wrong = 0
    wrong = Counter[str]()
    for line in lines:
        text, _, number = line.rstrip("\n").rpartition(" ")
        count, frames = int(number), text.split(";")[1:]
        names = [name for name in map(_name, frames) if name in calls.callees]
        whole, is_guessed = UNKNOWN_CALLERS not in frames, any(frame.endswith(GUESS) for frame in frames)
        samples += count
        own += count * bool(names)
        complete += count * whole
        guessed += count * is_guessed
        if is_possible(names, calls, whole=whole):
            continue
        if is_guessed:
            guessed_wrong += count
        else:
            wrong[";".join(names)] += count
    return Verdict(samples, own, complete, guessed, guessed_wrong, wrong)


def is_possible(names: list[str], calls: Calls, *, whole: bool) -> bool:
    """`names`: the program's own functions, the outermost first. `whole`: the walk reached the outermost frame."""
    if whole and names and names[0] not in calls.roots | calls.anywhere:
        return False
    return all(callee in calls.anywhere or callee in calls.callees[caller] for caller, callee in pairwise(names))


def _name(frame: str) -> str:
    """Without parameters, parts, files and marks; what was inlined is no frame."""
    return _PARAMETERS.sub("", _OF_PYTHON.sub(r"\1", frame.removesuffix(GUESS)))
