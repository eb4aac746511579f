"""Which functions are proven, and which never return.

A function is proven if, from the frame of an entry, each of its returns and of its jumps to other code finds that frame again, and
the target of each such jump has it too. If only the end of another function shows where it begins, it must return. If it only
jumps, it must reach a function that returns, or be called: labels of computed gotos jump with a frame that is not theirs, and so
does code with a stack of its own, such as Haskell's. SP must have the same alignment at all calls, and that of the ABI if nothing
leads to the function: code after a call that does not return, or where an exception lands, has another frame.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sframegen.code.function.function import is_entry

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from sframegen.code.context.file_context import FileContext
    from sframegen.code.function.function import Found


def is_credible(found: Found, entries: Collection[int]) -> bool:
    """Return True if it is a function, as far as its own code shows. `entries`: where functions are known to begin."""
    if found.contradiction is not None:
        return False
    return found.shows_itself or any(entry in entries for entry in found.entries)


def proven(
    found: Iterable[Found],
    entries: Collection[int],
    called: Collection[int],
    context: FileContext,
    owner: Callable[[int], Found | None],
) -> list[Found]:
    """Return the functions that are proven; one that leaves to another that is not proven is not proven either.

    `entries`: where functions are known to begin; `called`: where calls lead; `owner`: what an address of analysed code belongs to.
    """
    good = {id(one): one for one in found if _holds(one, entries)}
    into: dict[int, list[Found]] = {}
    bad: list[Found] = []
    ends = [one for one in good.values() if one.returns or (one.jumps and any(entry in called for entry in one.entries))]
    for one in list(good.values()):
        for exit_ in one.exits:
            other = owner(exit_.target)
            if other is None:
                ends.append(one)
                arrives = exit_.target in entries and not context.holds(exit_.target)
            else:
                into.setdefault(id(other), []).append(one)
                state = other.state_at(exit_.target)
                arrives = id(other) in good and state is not None and is_entry(state, context.isa)
            if not arrives and good.pop(id(one), None) is not None:
                bad.append(one)
    while bad:
        bad.extend(one for one in into.pop(id(bad.pop()), ()) if good.pop(id(one), None) is not None)
    held: dict[int, Found] = {}
    while ends:
        one = ends.pop()
        if id(one) in good:
            held[id(one)] = good.pop(id(one))
            ends += into.get(id(one), ())
    return list(held.values())


def _holds(found: Found, entries: Collection[int]) -> bool:
    """Return True if each way out of the function has the frame of an entry."""
    if found.contradiction is not None or not found.keeps_frame or not all(one.as_entered for one in found.exits):
        return False
    if any(entry in entries for entry in found.entries):
        return len(found.at_calls) <= 1 and found.returns + found.jumps + len(found.exits) > 0
    return found.at_calls <= {0} and found.returns > 0


def never_returning(found: Collection[Found], credible: Callable[[Found], bool], context: FileContext) -> set[int]:
    """Return the starts of functions that return on no path. `credible`: True for results that are trusted."""
    owner = {start: one for one in found for start, _ in one.unit}
    returning = {id(one) for one in found if one.comes_back or not credible(one)}
    callers: dict[int, list[Found]] = {}
    for one in found:
        for exit_ in one.exits:
            callee = context.callee(exit_.target, None)
            if isinstance(callee, int) and callee in owner:
                callers.setdefault(id(owner[callee]), []).append(one)
            elif not context.known_by_name(callee):
                returning.add(id(one))
    work = list(returning)
    while work:
        for caller in callers.get(work.pop(), ()):
            if id(caller) not in returning:
                returning.add(id(caller))
                work.append(id(caller))
    return {start for start, one in owner.items() if id(one) not in returning and not context.known_by_name(start)}
