"""What functions show of others: where these begin, and which never return. Compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING

try:
    import cython
except ImportError:
    from sframegen.base import cython_shadow as cython  # type: ignore[no-redef]

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sframegen.base.columns import Bytes
    from sframegen.code.context.file_context import FileContext
    from sframegen.code.whole_file.shown import Evidence, Places

COMPILED: bool = cython.compiled


class Learned:
    """Facts from functions that are trusted. Each is examined once, if others change nothing of what it shows."""

    def __init__(self, known: set[int], pointed_at: set[int], called: set[int]) -> None:
        self.known = known
        self.pointed_at = pointed_at
        self.called = called
        self.done = bytearray()

    def learn(self, shown: Evidence, ranges: Places) -> set[int]:
        """Add what calls and pointers in code show. Return where trusted functions leave to with an entry's frame.

        Callees of functions that become credible count too, to any depth: the order makes no difference.
        """
        number: cython.Py_ssize_t
        turn: cython.Py_ssize_t = 0
        place: cython.Py_ssize_t
        credible: list[int] = []
        waiting: dict[int, int] = {}  # by the entry that is to be known
        self.done += bytes(shown.count - len(self.done))
        for number in range(shown.count):
            if not shown.live[number]:
                continue
            if shown.is_credible(number):
                credible.append(number)
            elif not shown.marks[number] & 64:  # CONTRADICTS
                for place in range(shown.end_entry[number], shown.end_entry[number + 1]):
                    waiting[shown.entry[place]] = number
        while turn < len(credible):
            number = credible[turn]
            turn += 1
            if self.done[number]:
                continue
            callees = shown.callees_of(number)
            begins = callees + [taken for taken in shown.taken_by(number) if ranges.begins(taken)]
            if shown.end_taken[number] == shown.end_taken[number + 1] and shown.end_table[number] == shown.end_table[number + 1]:
                self.done[number] = 1  # else it says other things of other ranges
            for place in range(shown.end_table[number], shown.end_table[number + 1]):
                self.pointed_at.discard(shown.table[place])
            self.called.update(callees)
            self.known.update(begins)
            if waiting:
                credible.extend([waiting.pop(begin) for begin in begins if begin in waiting])
        return left_to(shown, credible, ranges)


def left_to(shown: Evidence, credible: Iterable[int], ranges: Places | None) -> set[int]:
    """Return where these functions leave to, always with an entry's frame. `ranges`: only the starts of these."""
    number: cython.Py_ssize_t
    place: cython.Py_ssize_t
    always: set[int] = set()
    not_always: set[int] = set()
    for number in credible:
        for place in range(shown.end_exit[number], shown.end_exit[number + 1]):
            if ranges is None or ranges.begins(shown.exit_target[place]):
                (always if shown.exit_as_entered[place] else not_always).add(shown.exit_target[place])
    return always - not_always


def credible_of(shown: Evidence) -> list[int]:
    """Return the functions whose results are trusted about others."""
    return [number for number in range(shown.count) if shown.live[number] and shown.is_credible(number)]


def often_called(shown: Evidence, often: set[int], least: int) -> set[int]:
    """Return callees that may show most about others: called twice, or last, or left to, or called from those in `often`.

    To `often` come those that are called from `least` functions, and what these call.
    """
    number: cython.Py_ssize_t
    place: cython.Py_ssize_t
    counts: dict[int, int] = {}
    for number in range(shown.count):
        if shown.live[number]:
            for callee in shown.callees_of(number):
                counts[callee] = counts.get(callee, 0) + 1
    often.update([callee for callee, count in counts.items() if count >= least])
    found = {callee for callee, count in counts.items() if count > 1}
    for number in range(shown.count):
        if not shown.live[number]:
            continue
        for place in range(shown.end_call[number], shown.end_call[number + 1]):
            if shown.call_kind[place] & 6 == 2:  # ENDS, BY_NAME
                found.add(shown.callee[place])
        for place in range(shown.end_exit[number], shown.end_exit[number + 1]):
            found.add(shown.exit_target[place])
        if shown.start(number) in often:
            found.update(shown.callees_of(number))
            often.update(shown.callees_of(number))
    return found


def never_returning(shown: Evidence, outside: FileContext) -> set[int]:
    """Return the starts of functions that return on no path."""
    number: cython.Py_ssize_t
    place: cython.Py_ssize_t
    owner: dict[int, int] = {}
    returning = bytearray(shown.count)
    callers: dict[int, list[int]] = {}
    stubs, by_name = outside.stubs, outside.by_name
    for number in range(shown.count):
        if shown.live[number]:
            for place in range(shown.end_piece[number], shown.end_piece[number + 1]):
                owner[shown.piece_start[place]] = number
    for number in range(shown.count):
        if not shown.live[number]:
            continue
        if shown.marks[number] & 1 or not shown.is_credible(number):  # COMES_BACK
            returning[number] = 1
        for place in range(shown.end_exit[number], shown.end_exit[number + 1]):
            callee: int | str | None = shown.exit_target[place]
            if callee in stubs:
                callee = outside.callee(shown.exit_target[place], None)
            called = owner.get(callee)  # type: ignore[arg-type]  # names own nothing
            if called is not None:
                callers.setdefault(called, []).append(number)
            elif not (by_name[callee] if callee in by_name else outside.known_by_name(callee)):
                returning[number] = 1
    work = [number for number in range(shown.count) if returning[number]]
    while work:
        for caller in callers.get(work.pop(), ()):
            if not returning[caller]:
                returning[caller] = 1
                work.append(caller)
    return {start for start, found in owner.items() if not returning[found] and start not in outside.named}


def calls_into(shown: Evidence, numbers: Iterable[int], callees: set[int]) -> list[int]:
    """Return those of the functions whose code goes on after calls of these callees."""
    return [number for number in numbers if shown.goes_on_after(number, callees)]


def newly_cut(shown: Evidence, cut: dict[int, int]) -> list[int]:
    """Add functions by their starts to `cut` if nothing was cut there. Return those of them that overrun another's start."""
    number: cython.Py_ssize_t
    overruns: list[int] = []
    for number in range(shown.count):
        if shown.live[number] and shown.start(number) not in cut:
            cut[shown.start(number)] = number
            if shown.marks[number] & 256:  # OVERRUNS
                overruns.append(number)
    return overruns


def within(shown: Evidence, parts: Places, wanted: Bytes) -> list[int]:
    """Return the functions with code in a part of which `wanted` has 1."""
    number: cython.Py_ssize_t
    place: cython.Py_ssize_t
    part: cython.Py_ssize_t
    found: list[int] = []
    for number in range(shown.count):
        if shown.live[number]:
            for place in range(shown.end_piece[number], shown.end_piece[number + 1]):
                part = parts.number(shown.piece_start[place])
                if part >= 0 and wanted[part]:
                    found.append(number)
                    break
    return found
