"""Tracks of claims about code: ascending ranges without overlaps, each with the number of a claim, and their intersection.

A claim is what one table, such as the section's, says about a range of code. Tracks of several tables share the numbers.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sframegen.conversion.split import UncoveredRanges
    from sframegen.format.model import FunctionTable, Rule

NO_CLAIM = -1  # stands for the number of a claim outside of all ranges
LAST_ADDRESS = (1 << 64) - 1


class Claim(NamedTuple):
    """A table's claim about a range. `rule`: None for PC type MASK and signal frames, which instructions cannot confirm."""

    rule: Rule | None
    key_b: bool = False


class Track(NamedTuple):
    """Columns of ranges, ascending without overlaps, each with the number of a claim."""

    start: array[int]
    end: array[int]
    claim: array[int]

    def add(self, start: int, end: int, claim: int) -> None:
        """Append a range that starts after all others. If it overlaps the last one, that is cut."""
        if self.start and self.end[-1] > start:
            self.end[-1] = start
        if start < end:
            self.start.append(start)
            self.end.append(min(end, LAST_ADDRESS))
            self.claim.append(claim)

    def claim_at(self, address: int) -> int:
        number = bisect_right(self.start, address) - 1
        return self.claim[number] if number >= 0 and address < self.end[number] else NO_CLAIM

    def range_start(self, address: int) -> int:
        return self.start[bisect_right(self.start, address) - 1]

    def reaches(self, address: int, other: int) -> bool:
        """Return True if the range that contains `address` also contains `other`, which must not be lower."""
        number = bisect_right(self.start, address) - 1
        return number >= 0 and address <= other < self.end[number]

    def next_start(self, address: int) -> int:
        """Return the start of the next range; the address itself if there is none."""
        number = bisect_right(self.start, address)
        return self.start[number] if number < len(self.start) else address


def new_track() -> Track:
    return Track(array("Q"), array("Q"), array("q"))


def make_track(start: array[int], end: array[int], claim: array[int]) -> Track:
    """Return a track of columns that ascend by start. Where two ranges overlap, the second one counts."""
    cut = array("Q", map(min, end, start[1:]))
    return Track(start, cut + end[len(cut) :], array("q", claim))


def track_of_table(table: FunctionTable, claims: dict[Claim, int], uncovered: UncoveredRanges | None = None) -> Track:
    """Return the track of the rules that a look-up finds in the table, and add new claims to `claims`.

    `uncovered`: ranges whose rules the table cannot express. Their claims are -2 - reason: below NO_CLAIM, and not in `claims`.
    """
    track = new_track()
    spans = [*_claimed_spans(table, claims)]
    if uncovered is not None:
        spans += [(start, start + size, -2 - reason) for start, size, reason in zip(*uncovered, strict=True)]
        spans.sort()
    for start, end, claim in spans:
        track.add(start, end, claim)
    return track


def _claimed_spans(table: FunctionTable, claims: dict[Claim, int]) -> Iterator[tuple[int, int, int]]:
    """Yield (start, end, number of the claim) for each row of the table, and add new claims to `claims`."""
    numbers: dict[tuple[int, bool], int] = {}
    for function, start, end in table.searchable_ranges():
        kind = table.kinds[table.kind[function]]
        first, after = table.first_row[function : function + 2]
        if kind.mask or kind.signal or first == after:
            yield start, end, claims.setdefault(Claim(None), len(claims))
            continue
        low = start
        for row in range(first, after):
            high = min(end, start + table.row_start[row + 1]) if row + 1 < after else end
            key = table.row_rule[row], kind.key_b
            if key not in numbers:
                numbers[key] = claims.setdefault(Claim(table.rules[key[0]], kind.key_b), len(claims))
            if low < high:
                yield low, high, numbers[key]
                low = high


def intersect_tracks(*tracks: Track) -> Iterator[tuple[int, int, list[int]]]:
    """Yield (start, end, the claim of each track) for each range in which no claim changes and at least one track has one."""
    range_indexes = [0] * len(tracks)  # of the first range of each track that ends after `address`
    address = 0
    while True:
        next_edge = 0  # where the next range of a track begins or ends; 0: none does
        claims = [NO_CLAIM] * len(tracks)
        for number, (start, end, claim) in enumerate(tracks):
            index = range_indexes[number]
            while index < len(end) and end[index] <= address:
                index += 1
            range_indexes[number] = index
            if index == len(end):
                continue
            if start[index] <= address:
                claims[number] = claim[index]
                edge = end[index]
            else:
                edge = start[index]
            next_edge = min(next_edge, edge) if next_edge else edge
        if not next_edge:
            return
        if claims.count(NO_CLAIM) < len(claims):
            yield address, next_edge, claims
        address = next_edge
