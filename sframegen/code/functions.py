"""Functions in code without call frame information: where each ends, and which of their rows are proven.

A function is proven if, from the frame that an entry has, each of its returns finds that frame again, and so does each of its jumps
to elsewhere, which must be the begin of a function. One that begins where nothing but the end of another says so must return.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sframegen.code.analysis import analyse, rules
from sframegen.code.effects import Flow
from sframegen.code.isa import ISAS
from sframegen.code.pieces import decode
from sframegen.code.state import CALLERS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sframegen.abi import Abi
    from sframegen.code.analysis import Analysis, Surroundings
    from sframegen.code.isa import Isa
    from sframegen.code.pieces import Piece
    from sframegen.code.state import State
    from sframegen.elf import ElfFile
    from sframegen.model import Rule

Range = tuple[int, int]  # [start, end)

WINDOW = 1 << 10  # bytes that are decoded at first to find a function's end
MAX_CODE = 1 << 26  # bytes of a file that are looked at: some minutes, and some hundred megabytes of memory
MAX_FUNCTION = 1 << 18  # bytes; hand-written ones have some ten thousand
SHORT_JUMP = 1 << 10  # bytes that a jump spans within a function that no branch shows to reach so far
ENDS = {Flow.RETURN, Flow.JUMP, Flow.INDIRECT, Flow.STOP}
MAX_ROUNDS = 8  # in which functions that others call are found


@dataclass(slots=True)
class Candidate:
    """A function, or what may be one, that ends before `limit`; the next one may begin at `behind`."""

    start: int
    end: int
    limit: int
    behind: int
    returns: list[int]  # addresses of instructions
    analysis: Analysis = field(repr=False)


class Finder:
    """Of one file. `silent`: code of which no CFI speaks; `known`: where functions begin, there or elsewhere."""

    def __init__(self, elf: ElfFile, abi: Abi, silent: list[Range], known: Iterable[int], around: Surroundings) -> None:
        self.elf = elf
        self.abi = abi
        self.isa: Isa = ISAS[abi.name]
        self.silent = _first(silent, MAX_CODE)
        self.known = set(known)
        self.begins = {address for address in self.known if self._range(address) is not None}  # those of silent code, and guesses
        self.around = around
        self.found: dict[int, Candidate] = {}
        self.swept: dict[int, list[int]] = {}  # their begins, by number of the range

    def rows(self) -> list[tuple[int, int, Rule]]:
        """(start, end, rule) of all that is proven, ascending."""
        again = set(range(len(self.silent)))
        for _ in range(MAX_ROUNDS):
            begins = sorted(self.begins)
            for number in again:
                self._sweep(number, begins)
            again = self._learn()
            if not again:
                break
        rows = [row for start in self._proven() for row in self.found[start].analysis.rows if self._in_frame(row.state)]
        return rules(rows, self.abi)

    def _range(self, address: int) -> int | None:
        """The number of the silent range that holds it."""
        number = bisect_right(self.silent, address, key=lambda one: one[0]) - 1
        return number if number >= 0 and address < self.silent[number][1] else None

    def _sweep(self, number: int, begins: list[int]) -> None:
        """One range, from function to function, each from where the one before ends."""
        start, end = self.silent[number]
        before = {begin: self.found.pop(begin) for begin in self.swept.pop(number, ())}
        self.swept[number] = swept = []
        here = start
        for limit in (*begins[bisect_right(begins, start) : bisect_left(begins, end)], end):
            while here < limit:
                candidate = before.get(here)
                if candidate is None or (candidate.limit != limit and candidate.end > min(limit, candidate.limit - 1)):
                    piece = self._function(here, limit)
                    if piece is None:
                        break
                    analysis = analyse([piece], {here: self.isa.entry}, self.isa, self.around)
                    candidate = Candidate(
                        here,
                        piece.end,
                        limit,
                        self._behind(piece.end, limit),
                        [point.address for point in piece.points if point.flow is Flow.RETURN],
                        analysis,
                    )
                self.found[here] = candidate
                swept.append(here)
                here = min(candidate.behind, limit)
            here = limit

    def _learn(self) -> set[int]:
        """Begins that proven functions call or leave to, where none was thought to be; the numbers of their silent ranges."""
        again = set()
        for start, candidate in self.found.items():
            if not self._holds(candidate):
                continue
            called = [target for target, _ in candidate.analysis.calls if target is not None and target != start]
            self.known.update(called)
            for target in (*called, *(one.target for one in candidate.analysis.exits)):
                number = self._range(target)
                if number is not None and target not in self.begins and target not in self.found:
                    self.begins.add(target)
                    again.add(number)
        return again

    def _function(self, start: int, limit: int) -> Piece | None:
        """Decoded from its begin to its end, which is the limit at the latest; None where it seems to have none."""
        size = WINDOW
        while True:
            code = self.elf.at(start, min(size, limit - start, MAX_FUNCTION))
            piece = decode(code, start, self.isa)
            end = self._end(piece, limit)
            cut = start + len(code) != limit  # the last instruction may be
            if end is not None and not (cut and end > piece.end - self.isa.longest):
                return decode(code[: end - start], start, self.isa)
            if not cut:
                return piece
            if size >= MAX_FUNCTION:
                return None
            size *= 4

    def _behind(self, end: int, limit: int) -> int:
        """Where code goes on behind padding."""
        here = end
        while here < limit:
            window = self.elf.at(here, min(64, limit - here))
            for address, _, mnemonic, operands in decode(window, here, self.isa).instructions:
                if not self.isa.pads(mnemonic, operands):
                    return address
            here += len(window)
        return limit

    # -- what is proven

    def _proven(self) -> list[int]:
        """The begins of functions that are; what leaves to one that is not, is not either."""
        good = {start for start, candidate in self.found.items() if self._holds(candidate)}
        into: dict[int, list[int]] = {}
        bad = []
        for start in good:
            for one in self.found[start].analysis.exits:
                into.setdefault(one.target, []).append(start)
                if self._range(one.target) is not None and one.target not in good:
                    bad.append(one.target)
        while bad:
            for start in into.pop(bad.pop(), ()):
                if start in good:
                    good.remove(start)
                    bad.append(start)
        return sorted(good)

    def _holds(self, candidate: Candidate) -> bool:
        """Whether all that leaves the function does so with the frame of an entry, if what it leaves to is a function."""
        analysis = candidate.analysis
        if analysis.contradiction is not None:
            return False
        rows = sorted(analysis.rows)
        ends = [row.end for row in rows]
        proofs, known = 0, candidate.start in self.known
        for address in (*candidate.returns, *analysis.jumps):
            number = bisect_right(ends, address)
            if number == len(rows) or rows[number].start > address:
                continue  # not reached
            if not self._is_entry(rows[number].state):
                return False
            proofs += known or address in candidate.returns
        for one in analysis.exits:
            if not self._is_entry(one.state) or (self._range(one.target) is None and one.target not in self.known):
                return False
            proofs += known
        return proofs > 0

    def _is_entry(self, state: State) -> bool:
        entry = self.isa.entry
        return (state.sp, state.fp) == (entry.sp, CALLERS) and (entry.ra is None or state.ra == CALLERS)

    def _in_frame(self, state: State) -> bool:
        """The return address, where calls put it, lies not below SP. Nor is it signed by key B: a function says that as a whole."""
        at = self.isa.entry.sp
        return (state.sp is None or at is None or state.sp <= at) and state.key_b is False

    def _end(self, piece: Piece, limit: int) -> int | None:
        """Behind the first instruction behind which nothing goes on, and over which no branch before it leads; None without one."""
        furthest = piece.start
        for point in piece.points:
            if point.target is not None and point.target >= point.end:
                near = furthest > point.end or point.target - point.end < SHORT_JUMP
                if point.flow is Flow.BRANCH or (point.flow is Flow.JUMP and near):
                    furthest = max(furthest, point.target)
            if point.flow is Flow.INDIRECT and furthest < point.end:
                furthest = max(furthest, *self.around.table(piece, point, lambda target: piece.start <= target < limit), 0)
            if furthest < point.end and (
                point.flow in ENDS or (point.flow is Flow.CALL and not self.around.returns(point.target, point.slot))
            ):
                return point.end
        return None


def _first(ranges: list[Range], limit: int) -> list[Range]:
    """So many bytes of them."""
    found = []
    for start, end in ranges:
        if limit:
            found.append((start, min(end, start + limit)))
            limit -= found[-1][1] - start
    return found
