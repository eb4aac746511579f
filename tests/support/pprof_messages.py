"""Profiles in pprof's format, read by its schema alone."""

from __future__ import annotations

import gzip
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

# By message of google/pprof/proto/profile.proto: fields that are messages, and repeated integers.
MESSAGES = {"profile": {1: "type", 2: "sample", 3: "mapping", 4: "location", 5: "function", 11: "type"},
            "sample": {3: "label"}, "location": {4: "line"}}  # fmt: skip
LISTS = {"profile": {13}, "sample": {1, 2}}


def number_at(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        number |= (data[at] & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if data[at - 1] < 0x80:
            return number, at


def fields(data: bytes, kind: str) -> dict[int, list[Any]]:
    found: dict[int, list[Any]] = defaultdict(list)
    at = 0
    while at < len(data):
        key, at = number_at(data, at)
        size, at = number_at(data, at)
        if key & 7 == 0:
            found[key >> 3].append(size)
            continue
        assert key & 7 == 2
        part, at = data[at : at + size], at + size
        assert len(part) == size
        if key >> 3 in MESSAGES.get(kind, {}):
            found[key >> 3].append(fields(part, MESSAGES[kind][key >> 3]))
        elif key >> 3 in LISTS.get(kind, ()):
            found[key >> 3].extend(numbers(part))
        else:
            found[key >> 3].append(part.decode())
    return found


def numbers(data: bytes) -> Iterator[int]:
    at = 0
    while at < len(data):
        number, at = number_at(data, at)
        yield number


def stacks_of(data: bytes) -> Counter[tuple[str, ...]]:
    """The samples of each stack of names, the outermost first."""
    read = fields(gzip.decompress(data), "profile")
    functions = {one[1][0]: read[6][one[2][0]] for one in read[5]}
    locations = {one[1][0]: [functions[line[1][0]] for line in one[4]] for one in read[4]}
    found: Counter[tuple[str, ...]] = Counter()
    for sample in read[2]:
        innermost_first = [name for number in sample[1] for name in locations[number]]
        found[tuple(reversed(innermost_first))] += sample[2][0]
    return found
