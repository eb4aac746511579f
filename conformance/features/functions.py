"""The index: where functions are, how large, whose rows they have; what marks them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from conformance.features.usual import SIZE, START, entry, frame, function, short, usual_answers, usual_rows
from conformance.rules import NONE, OUTERMOST, Rule
from conformance.writer import Function, Row, Section, write

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conformance.case import Case, Combination

SECOND = START + 0x100
GIB = 1 << 30


def cases(c: Combination) -> Iterator[Case]:
    yield from neighbours(c)
    yield from distances(c)
    yield from shared(c)
    yield from repeated(c)
    yield from marked(c)
    yield from without(c)


def neighbours(c: Combination) -> Iterator[Case]:
    version, machine = c
    answers = usual_answers(machine)
    two = Section(version, machine, [function(machine), function(machine, SECOND)])
    apart = answers | usual_answers(machine, SECOND) | {SECOND - 1: NONE, SECOND + SIZE: NONE}
    yield c.valid("two-functions", write(two), "index", "between functions nothing is covered", apart)
    touching = Section(version, machine, [function(machine), function(machine, START + SIZE)])
    yield c.valid("adjacent", write(touching), "index", "functions touch", answers | usual_answers(machine, START + SIZE))
    many = Section(version, machine, [short(machine, START + 16 * number, 8) for number in range(33)])
    places = {START + 16 * number + at: entry(machine) for number in (0, 1, 15, 16, 17, 31, 32) for at in (0, 7)}
    yield c.valid("33-functions", write(many), "sorted", "a search finds each of 33 functions", places | {START + 8: NONE})
    yield c.valid(
        "one-byte-function", write(Section(version, machine, [short(machine, START, 1)])), "index", "a function of one byte",
        {START: entry(machine), START + 1: NONE},
    )  # fmt: skip
    empty = Section(version, machine, [short(machine, START, 0), short(machine, SECOND)])
    yield c.valid(
        "empty-function", write(empty), "index", "a function of no bytes covers nothing", {START: NONE, SECOND: entry(machine)}
    )
    same = Section(version, machine, [short(machine, START, 0), short(machine, START)])
    yield c.open(
        "empty-function-same-start", write(same), "sorted", "a function of no bytes, and another with its start",
        {START: (entry(machine), NONE)},
    )  # fmt: skip


class Distance(NamedTuple):
    name: str
    start: int
    address: int
    versions: tuple[int, ...]
    why: str


DISTANCES = (
    Distance("section-before-code", 0x9000, 0x1000, (1, 2, 3), "the code lies after the section"),
    Distance("below-2-gib", 0x1000, 0x1000 + 2 * GIB - 64, (1, 2, 3), "the code lies nearly 2 GiB before the section"),
    Distance("above-2-gib", 0x1000 + 2 * GIB - 64, 0x1000, (1, 2, 3), "the code lies nearly 2 GiB after the section"),
    Distance("below-4-gib", 0x1000, 0x1000 + 4 * GIB, (3,), "the code lies 4 GiB before the section"),
    Distance("above-1-tib", 0x1000 + 1024 * GIB, 0x1000, (3,), "the code lies 1 TiB after the section"),
    Distance("high-half", 0xFFFFFFFF81000000, 0xFFFFFFFF82000000, (1, 2, 3), "addresses of a kernel"),
)


def distances(c: Combination) -> Iterator[Case]:
    version, machine = c
    for name, start, address, versions, why in DISTANCES:
        if version in versions:
            section = Section(version, machine, [function(machine, start)], address)
            yield c.valid(
                name, write(section), "index", why, usual_answers(machine, start), address=address,
                code=(start & ~0xFFF, (start & ~0xFFF) + 0x1000),
            )  # fmt: skip
    rows = (Row(0, machine.entry), Row(0x10000, machine.frame), Row(0xFFFFFFF0, machine.entry))
    section = Section(version, machine, [Function(START, 0xFFFFFFFF, rows, width=4)], 0x5000 + 4 * GIB * (version == 3))
    if version == 3:  # the section lies after 4 GiB of code
        ends = {
            START: entry(machine),
            START + 0x10000: frame(machine),
            START + 0xFFFFFFFE: entry(machine),
            START + 0xFFFFFFFF: NONE,
        }
        yield c.valid(
            "4-gib-function", write(section), "index", "a function of 4 GiB less one byte", ends, address=section.address,
            code=(0x1000, 0x2000 + 4 * GIB),
        )  # fmt: skip


def shared(c: Combination) -> Iterator[Case]:
    version, machine = c
    both = usual_answers(machine) | usual_answers(machine, SECOND)
    pair = [function(machine), function(machine, SECOND, shares=0)]
    why = "two functions have one block of rows: nothing says that each needs its own"
    yield c.valid("shared-rows", write(Section(version, machine, pair)), "index", why, both)
    backwards = Section(version, machine, [short(machine), function(machine, SECOND)], backwards=True)
    yield c.valid(
        "rows-backwards", write(backwards), "index", "the rows of the second function come before those of the first",
        {START: entry(machine)} | usual_answers(machine, SECOND),
    )  # fmt: skip


def repeated(c: Combination) -> Iterator[Case]:
    """PC type MASK, as linkers write for a PLT: entries of 16 bytes, of which the last 5 have pushed 8."""
    version, machine = c
    rows = (Row(0, machine.entry), Row(11, machine.frame))
    for name, size, period in (("plt", 0x40, 16), ("plt-cut-off", 0x2C, 16), ("period-255", 0x200, 255), ("period-larger", 16, 64)):
        if version == 1:
            continue
        section = Section(version, machine, [Function(START, size, rows, mask=True, rep_size=period)])
        answers: dict[int, Rule] = {START + size: NONE}
        for block in range(0, size, period):
            for at, answer in ((0, entry(machine)), (10, entry(machine)), (11, frame(machine)), (period - 1, frame(machine))):
                if block + at < size:
                    answers[START + block + at] = answer
        yield c.valid(name, write(section), "mask", f"{size} bytes, of which rows repeat every {period}", answers)
    if version == 1:
        section = Section(version, machine, [Function(START, 0x40, rows, mask=True)])
        yield c.open(
            "plt", write(section), "mask", "rows are masks, but no field has the size of a block",
            {START: (entry(machine),), START + 11: (frame(machine), entry(machine))},
        )  # fmt: skip
    else:
        section = Section(version, machine, [Function(START, SIZE, usual_rows(machine), rep_size=16)])
        yield c.open(
            "period-without-mask", write(section), "mask", "the size of a repeated block in a function that has none",
            {START: (entry(machine),), START + 0x10: (frame(machine),)},
        )  # fmt: skip


def marked(c: Combination) -> Iterator[Case]:
    version, machine = c
    answers = usual_answers(machine)
    if version == 3:
        marked_answers = {pc: answer._replace(signal=True) for pc, answer in answers.items()}
        yield c.valid(
            "signal-frame", write(Section(version, machine, [function(machine, signal=True)])), "signal",
            "its return addresses are of interrupted instructions", marked_answers,
        )  # fmt: skip
        pair = Section(version, machine, [function(machine, signal=True), function(machine, SECOND)])
        yield c.valid(
            "signal-frame-and-other", write(pair), "signal", "the bit is of one function only",
            marked_answers | usual_answers(machine, SECOND),
        )  # fmt: skip
    if machine.signs:
        rows = tuple(replace(row, mangled=number in (1, 2)) for number, row in enumerate(usual_rows(machine)))
        for name, key_b in (("signed-key-a", False), ("signed-key-b", True)):
            section = Section(version, machine, [Function(START, SIZE, rows, key_b=key_b)])
            signed = {pc: answer._replace(ra_signed=answer.ra is not None, key_b=key_b) for pc, answer in answers.items()}
            yield c.valid(name, write(section), "info", f"signed return addresses in two rows, key {name[-1].upper()}", signed)


def without(c: Combination) -> Iterator[Case]:
    version, machine = c
    for name, flex in (("no-rows", False), ("no-rows-flexible", True)):
        section = write(Section(version, machine, [Function(START, SIZE, flex=flex), short(machine, SECOND)]))
        if version == 3 and not flex:
            yield c.valid(name, section, "no-rows", "a default function without rows", {START: OUTERMOST, SECOND: entry(machine)})
        elif version == 3 or not flex:
            yield c.open(
                name, section, "no-rows", "the version does not say what this function without rows means",
                {START: (NONE, OUTERMOST), SECOND: (entry(machine),)},
            )  # fmt: skip
