"""Derives from the results of functions where others begin, and which never return. Compiled."""

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
    """The starts of functions that credible functions show. A function whose results cannot change is examined only once."""

    def __init__(self, known: set[int], pointed_at: set[int], called: set[int]) -> None:
        self.known = known
        self.pointed_at = pointed_at
        self.called = called
        self.done = bytearray()

    def add_shown_starts(self, evidence: Evidence, ranges: Spans) -> set[int]:
        """Add starts that calls and pointers in code show. Return where credible functions jump to with an entry's frame.

        A function may become credible by this, and then its callees are added as well, in whatever order they are found.
        """
        number: cython.Py_ssize_t
        next_one: cython.Py_ssize_t = 0
        index: cython.Py_ssize_t
        credible: list[int] = []
        waiting: dict[int, int] = {}  # entry that would make a function credible -> function
        self.done += bytes(evidence.count - len(self.done))
        for number in range(evidence.count):
            if not evidence.live[number]:
                continue
            if evidence.is_credible(number):
                credible.append(number)
            elif not evidence.marks[number] & CONTRADICTS:
                for index in range(evidence.end_entry[number], evidence.end_entry[number + 1]):
                    waiting[evidence.entry[index]] = number
        while next_one < len(credible):
            number = credible[next_one]
            next_one += 1
            if self.done[number]:
                continue
            callees = evidence.callees_of(number)
            begins = callees + [taken for taken in evidence.taken_by(number) if ranges.begins(taken)]
            if (
                evidence.end_taken[number] == evidence.end_taken[number + 1]
                and evidence.end_table[number] == evidence.end_table[number + 1]
            ):
                self.done[number] = 1  # otherwise, what it shows depends on the ranges
            for index in range(evidence.end_table[number], evidence.end_table[number + 1]):
                self.pointed_at.discard(evidence.table[index])
            self.called.update(callees)
            self.known.update(begins)
            if waiting:
                credible.extend([waiting.pop(begin) for begin in begins if begin in waiting])
        return find_exit_targets(evidence, credible, ranges)


def find_exit_targets(evidence: Evidence, credible: Iterable[int], ranges: Spans | None) -> set[int]:
    """Return the addresses that these functions jump to, always with an entry's frame; if given, only starts of `ranges`."""
    number: cython.Py_ssize_t
    index: cython.Py_ssize_t
    always: set[int] = set()
    not_always: set[int] = set()
    for number in credible:
        for index in range(evidence.end_exit[number], evidence.end_exit[number + 1]):
            if ranges is None or ranges.begins(evidence.exit_target[index]):
                (always if evidence.exit_as_entered[index] else not_always).add(evidence.exit_target[index])
    return always - not_always


def select_credible(evidence: Evidence) -> list[int]:
    """Return the functions whose results about others are trusted."""
    return [number for number in range(evidence.count) if evidence.live[number] and evidence.is_credible(number)]


def find_often_called(evidence: Evidence, often: set[int], least: int) -> set[int]:
    """Return callees that are called twice, or last, or jumped to, or called from those in `often`: these show most about others.

    Adds to `often` those that are called from `least` functions, and what these call.
    """
    number: cython.Py_ssize_t
    index: cython.Py_ssize_t
    counts: dict[int, int] = {}
    for number in range(evidence.count):
        if evidence.live[number]:
            for callee in evidence.callees_of(number):
                counts[callee] = counts.get(callee, 0) + 1
    often.update([callee for callee, count in counts.items() if count >= least])
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


def find_never_returning(evidence: Evidence, outside: FileContext) -> set[int]:
    """Return the starts of functions that never return, on any path."""
    number: cython.Py_ssize_t
    index: cython.Py_ssize_t
    owner: dict[int, int] = {}
    returning = bytearray(evidence.count)
    callers: dict[int, list[int]] = {}
    stubs, known_names = outside.stubs, outside.known_names
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
            callee: int | str | None = evidence.exit_target[index]
            if callee in stubs:
                callee = outside.resolve_callee(evidence.exit_target[index], None)
            called = owner.get(callee)  # type: ignore[arg-type]  # names own nothing
            if called is not None:
                callers.setdefault(called, []).append(number)
            elif not (known_names[callee] if callee in known_names else outside.never_returns_by_name(callee)):
                returning[number] = 1
    work = [number for number in range(evidence.count) if returning[number]]
    while work:
        for caller in callers.get(work.pop(), ()):
            if not returning[caller]:
                returning[caller] = 1
                work.append(caller)
    return {start for start, found in owner.items() if not returning[found] and start not in outside.named}


def select_callers(evidence: Evidence, numbers: Iterable[int], callees: set[int]) -> list[int]:
    """Return those of the functions whose code continues after calls of these callees."""
    return [number for number in numbers if evidence.continues_after_calls(number, callees)]


def add_cut_functions(evidence: Evidence, cut: dict[int, int]) -> list[int]:
    """Add functions to `cut`, by start, unless one was added there before. Return those of them that overrun another's start."""
    number: cython.Py_ssize_t
    overruns: list[int] = []
    for number in range(evidence.count):
        if evidence.live[number] and evidence.start(number) not in cut:
            cut[evidence.start(number)] = number
            if evidence.marks[number] & OVERRUNS:
                overruns.append(number)
    return overruns


def functions_in_parts(evidence: Evidence, parts: Spans, wanted: Bytes) -> list[int]:
    """Return the functions with code in one of the parts for which `wanted` is 1."""
    number: cython.Py_ssize_t
    index: cython.Py_ssize_t
    part: cython.Py_ssize_t
    found: list[int] = []
    for number in range(evidence.count):
        if evidence.live[number]:
            for index in range(evidence.end_piece[number], evidence.end_piece[number + 1]):
                part = parts.number(evidence.piece_start[index])
                if part >= 0 and wanted[part]:
                    found.append(number)
                    break
    return found
