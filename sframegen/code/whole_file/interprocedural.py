"""Derives from the results of functions (Evidence) where others begin, and which never return. Compiled.

A function is credible if its results about others are trusted: Evidence.is_credible says when.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

try:
    import cython
except ImportError:
    from sframegen.base import cython_shadow as cython  # type: ignore[no-redef]

if not cython.compiled:
    from sframegen.code.function.marks import BY_NAME, COMES_BACK, CONTRADICTS, ENDS, OVERRUNS
if TYPE_CHECKING:
    from collections.abc import Iterable

    from sframegen.base.columns import Bytes
    from sframegen.code.context.file_context import FileContext
    from sframegen.code.whole_file.evidence import Evidence
    from sframegen.elf.columns import Spans


class KnownStarts:
    """The starts of functions that credible functions show. A function whose results cannot change is examined only once.

    `known`: given starts, targets of calls, and addresses that code takes; `called`: targets of calls; `pointed_at`: addresses that
    data has, except those of jump tables.
    """

    def __init__(self, known: set[int], pointed_at: set[int], called: set[int]) -> None:
        self.known = known
        self.pointed_at = pointed_at
        self.called = called
        self.is_examined = bytearray()

    def add_shown_starts(self, evidence: Evidence, ranges: Spans) -> set[int]:
        """Add starts that calls and pointers in code show. Return where credible functions jump to with an entry's frame.

        A function may become credible by this, and then its callees are added as well, in whatever order they are found.
        """
        number: cython.Py_ssize_t
        examined: cython.Py_ssize_t = 0
        index: cython.Py_ssize_t
        credible: list[int] = []
        function_by_entry: dict[int, int] = {}  # by an entry that would make it credible
        self.is_examined += bytes(evidence.count - len(self.is_examined))
        for number in range(evidence.count):
            if not evidence.live[number]:
                continue
            if evidence.is_credible(number):
                credible.append(number)
            elif not evidence.marks[number] & CONTRADICTS:
                for index in range(evidence.end_entry[number], evidence.end_entry[number + 1]):
                    function_by_entry[evidence.entry[index]] = number
        while examined < len(credible):
            number = credible[examined]
            examined += 1
            if self.is_examined[number]:
                continue
            callees = evidence.callees_of(number)
            shown_starts = callees + [taken for taken in evidence.taken_by(number) if ranges.begins(taken)]
            if (
                evidence.end_taken[number] == evidence.end_taken[number + 1]
                and evidence.end_table[number] == evidence.end_table[number + 1]
            ):
                self.is_examined[number] = 1  # otherwise, what it shows depends on the ranges
            for index in range(evidence.end_table[number], evidence.end_table[number + 1]):
                self.pointed_at.discard(evidence.table[index])
            self.called.update(callees)
            self.known.update(shown_starts)
            if function_by_entry:
                credible.extend([function_by_entry.pop(start) for start in shown_starts if start in function_by_entry])
        return find_exit_targets(evidence, credible, ranges)


@cython.locals(number="Py_ssize_t", index="Py_ssize_t")
def find_exit_targets(evidence: Evidence, credible: Iterable[int], ranges: Spans | None) -> set[int]:
    """Return the addresses that these functions jump to, always with an entry's frame; if given, only starts of `ranges`."""
    as_entered: set[int] = set()
    otherwise: set[int] = set()
    for number in credible:
        for index in range(evidence.end_exit[number], evidence.end_exit[number + 1]):
            if ranges is None or ranges.begins(evidence.exit_target[index]):
                (as_entered if evidence.exit_as_entered[index] else otherwise).add(evidence.exit_target[index])
    return as_entered - otherwise


def select_credible(evidence: Evidence) -> list[int]:
    return [number for number in range(evidence.count) if evidence.live[number] and evidence.is_credible(number)]


@cython.locals(number="Py_ssize_t", index="Py_ssize_t")
def find_often_called(evidence: Evidence, often: set[int], min_callers: int) -> set[int]:
    """Return functions to analyse early: those that are called twice, or last, or jumped to, or called from those in `often`.

    Adds to `often` those that are called from at least `min_callers` functions, and the callees of all in `often`.
    """
    counts: dict[int, int] = {}
    for number in range(evidence.count):
        if evidence.live[number]:
            for callee in evidence.callees_of(number):
                counts[callee] = counts.get(callee, 0) + 1
    often.update([callee for callee, count in counts.items() if count >= min_callers])
    found = {callee for callee, count in counts.items() if count > 1}
    for number in range(evidence.count):
        if not evidence.live[number]:
            continue
        for index in range(evidence.end_call[number], evidence.end_call[number + 1]):
            if evidence.call_kind[index] & (ENDS | BY_NAME) == ENDS:
                found.add(evidence.callee[index])
        for index in range(evidence.end_exit[number], evidence.end_exit[number + 1]):
            found.add(evidence.exit_target[index])
        if evidence.start(number) in often:
            found.update(evidence.callees_of(number))
            often.update(evidence.callees_of(number))
    return found


@cython.locals(number="Py_ssize_t", index="Py_ssize_t")
def find_never_returning(evidence: Evidence, context: FileContext) -> set[int]:
    """Return the starts of functions that never return: on no path, in them or in the functions that they jump to."""
    owner: dict[int, int] = {}
    returning = bytearray(evidence.count)
    jumping_to: dict[int, list[int]] = {}
    stubs, known_names = context.stubs, context.known_names
    for number in range(evidence.count):
        if evidence.live[number]:
            for index in range(evidence.end_piece[number], evidence.end_piece[number + 1]):
                owner[evidence.piece_start[index]] = number
    for number in range(evidence.count):
        if not evidence.live[number]:
            continue
        if evidence.marks[number] & COMES_BACK or not evidence.is_credible(number):
            returning[number] = 1
        for index in range(evidence.end_exit[number], evidence.end_exit[number + 1]):
            target: int | str | None = evidence.exit_target[index]
            if target in stubs:
                target = context.resolve_callee(evidence.exit_target[index], None)
            jumped_to = owner.get(target)  # type: ignore[arg-type]  # a name of another file's function has no owner
            if jumped_to is not None:
                jumping_to.setdefault(jumped_to, []).append(number)
            elif not (known_names[target] if target in known_names else context.never_returns_by_name(target)):
                returning[number] = 1
    # Whatever jumps to a function that returns may return as well.
    worklist = [number for number in range(evidence.count) if returning[number]]
    while worklist:
        for jumper in jumping_to.get(worklist.pop(), ()):
            if not returning[jumper]:
                returning[jumper] = 1
                worklist.append(jumper)
    return {start for start, function in owner.items() if not returning[function] and start not in context.never_returning_by_name}


def select_callers(evidence: Evidence, numbers: Iterable[int], callees: set[int]) -> list[int]:
    return [number for number in numbers if evidence.continues_after_calls(number, callees)]


def add_cut_functions(evidence: Evidence, first_cut: dict[int, int]) -> list[int]:
    """Add functions to `first_cut`, by start, unless it has one there. Return those added that overrun another's start."""
    number: cython.Py_ssize_t
    overruns: list[int] = []
    for number in range(evidence.count):
        if evidence.live[number] and evidence.start(number) not in first_cut:
            first_cut[evidence.start(number)] = number
            if evidence.marks[number] & OVERRUNS:
                overruns.append(number)
    return overruns


@cython.locals(number="Py_ssize_t", index="Py_ssize_t", part="Py_ssize_t")
def functions_in_parts(evidence: Evidence, parts: Spans, is_chosen: Bytes) -> list[int]:
    """Return the functions with code in one of the parts for which `is_chosen` is 1."""
    found: list[int] = []
    for number in range(evidence.count):
        if evidence.live[number]:
            for index in range(evidence.end_piece[number], evidence.end_piece[number + 1]):
                part = parts.number(evidence.piece_start[index])
                if part >= 0 and is_chosen[part]:
                    found.append(number)
                    break
    return found
