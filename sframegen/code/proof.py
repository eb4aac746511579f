"""Which functions are proven, and which never return.

A function is proven if, from the frame that an entry has, each of its returns finds that frame again, and so does each of its jumps
to elsewhere: to a place that has it too. One that begins where nothing but the end of another says so must return.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sframegen.code.study import is_entry

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from sframegen.code.around import Around
    from sframegen.code.study import Found


def is_credible(found: Found, entries: Collection[int]) -> bool:
    """Whether it is a function, as far as its own code tells. `entries`: where functions are known to begin."""
    if found.contradiction is not None:
        return False
    if any(entry in entries for entry in found.entries):
        return True
    return found.keeps_frame and found.returns > 0 and all(one.as_entered for one in found.exits)


def proven(found: Iterable[Found], entries: Collection[int], around: Around, owner: Callable[[int], Found | None]) -> list[Found]:
    """Those that are. `entries`: where functions are known to begin; `owner`: what an address of analysed code belongs to.

    What leaves to one that is not, is not either.
    """
    good = {id(one): one for one in found if _holds(one, entries)}
    into: dict[int, list[Found]] = {}
    bad: list[Found] = []
    for one in list(good.values()):
        for exit_ in one.exits:
            other = owner(exit_.target)
            if other is None:
                arrives = exit_.target in entries and not around.holds(exit_.target)
            else:
                into.setdefault(id(other), []).append(one)
                state = other.state_at(exit_.target)
                arrives = id(other) in good and state is not None and is_entry(state, around.isa)
            if not arrives and good.pop(id(one), None) is not None:
                bad.append(one)
    while bad:
        bad.extend(one for one in into.pop(id(bad.pop()), ()) if good.pop(id(one), None) is not None)
    return list(good.values())


def _holds(found: Found, entries: Collection[int]) -> bool:
    """Whether all that leaves the function does so with the frame of an entry."""
    if found.contradiction is not None or not found.keeps_frame or not all(one.as_entered for one in found.exits):
        return False
    is_known = any(entry in entries for entry in found.entries)
    return found.returns > 0 or (is_known and found.jumps + len(found.exits) > 0)


def never_returning(found: Collection[Found], credible: Collection[int], around: Around) -> set[int]:
    """The begins of functions no path of which returns. `credible`: ids of those whose word is taken."""
    owner = {start: one for one in found for start, _ in one.unit}
    returning = {id(one) for one in found if one.comes_back or id(one) not in credible}
    callers: dict[int, list[Found]] = {}
    for one in found:
        for exit_ in one.exits:
            callee = around.callee(exit_.target, None)
            if isinstance(callee, int) and callee in owner:
                callers.setdefault(id(owner[callee]), []).append(one)
            elif not around.known_by_name(callee):
                returning.add(id(one))
    work = list(returning)
    while work:
        for caller in callers.get(work.pop(), ()):
            if id(caller) not in returning:
                returning.add(id(caller))
                work.append(id(caller))
    return {start for start, one in owner.items() if id(one) not in returning and not around.known_by_name(start)}
