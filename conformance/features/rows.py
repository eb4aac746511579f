"""FREs: row starts and data words at the limits of their widths, outermost rows, many rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from conformance.features.usual import SIZE, START, entry, frame
from conformance.rules import NONE, OUTERMOST, Rule, rule
from conformance.writer import Function, Row, Section, write

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conformance.case import Case, Combination

WIDTHS = (1, 2, 4)
STARTS = {1: (1, 0xFE, 0xFF), 2: (1, 0xFF, 0x100, 0xFFFE, 0xFFFF), 4: (1, 0xFFFF, 0x10000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFE)}
MOST_ROWS = 0xFFFF
FAR_AFTER = 0x5000 + (4 << 30)


def cases(c: Combination) -> Iterator[Case]:
    yield from starts(c)
    yield from words(c)
    yield from outermost(c)
    yield from edges(c)
    yield from many(c)


def starts(c: Combination) -> Iterator[Case]:
    """Rows of entry and body in turn; at a row's start and just before it."""
    version, machine = c
    rules = (entry(machine), frame(machine))
    for width in WIDTHS:
        places = [at for at in (0, *STARTS[width]) if version == 3 or at < 0x80000000]  # starts have 32 bits
        rows = [Row(at, (machine.entry, machine.frame)[number % 2]) for number, at in enumerate(places)]
        size = places[-1] + 1
        address = FAR_AFTER if size > 1 << 30 and version == 3 else 0x500000 if size <= 1 << 30 else 0x1000
        start = START if address != 0x1000 else 0x200000
        answers: dict[int, Rule] = {start + size: NONE}
        for number, at in enumerate(places):
            answers[start + at] = rules[number % 2]
            if at - 1 not in places[:number] and at:
                answers[start + at - 1] = rules[1 - number % 2]
        section = Section(version, machine, [Function(start, size, rows, width)], address)
        yield c.valid(
            f"row-starts-{width}", write(section), "fre-type", f"row starts of {width} bytes, at their limits", answers,
            address=address, code=(start & ~0xFFF, (start + size + 0xFFF) & ~0xFFF),
        )  # fmt: skip


def limits(c: Combination, width: int) -> tuple[int, int]:
    """The least and the largest CFA word of that width of which the offset has 32 bits."""
    half = 1 << 8 * width - 1
    least, largest = -half, half - 1
    bias, scale = c.machine.cfa_bias, c.machine.cfa_scale
    return max(least, -((1 << 31) + bias) // scale + (scale > 1)), min(largest, ((1 << 31) - 1 - bias) // scale)


def words(c: Combination) -> Iterator[Case]:
    version, machine = c
    cfa_of = {word: word * machine.cfa_scale + machine.cfa_bias for width in WIDTHS for word in limits(c, width)}
    for width in WIDTHS:
        least, largest = limits(c, width)
        rows = [Row(0, (least,), width=width), Row(4, (largest,), width=width), Row(8, (largest,), "fp", width)]
        texts = [f"sp{cfa_of[least]:+}", f"sp{cfa_of[largest]:+}", f"fp{cfa_of[largest]:+}"]
        answers = {START + 4 * number: rule(machine, text) for number, text in enumerate(texts)}
        section = Section(version, machine, [Function(START, SIZE, rows)])
        yield c.valid(f"words-{width}", write(section), "row-info", f"CFA offsets of {width} bytes, at their limits", answers)
    mixed = [Row(4 * number, machine.frame, width=width) for number, width in enumerate((4, 1, 2, 1, 4))]
    section = Section(version, machine, [Function(START, SIZE, mixed)])
    answers = {START + at: frame(machine) for at in range(0, 24, 2)}
    yield c.valid("words-mixed", write(section), "row-info", "each row of a function has its own width of words", answers)
    pairs = [(starts, width) for starts in (2, 4) for width in (2, 4)]
    for row_width, width in pairs:
        rows = [Row(0, machine.entry, width=width), Row(8, machine.frame, width=width)]
        section = Section(version, machine, [Function(START, SIZE, rows, row_width)])
        yield c.valid(
            f"starts-{row_width}-words-{width}", write(section), "row", f"row starts of {row_width} bytes, words of {width}",
            {START: entry(machine), START + 7: entry(machine), START + 8: frame(machine)},
        )  # fmt: skip


def outermost(c: Combination) -> Iterator[Case]:
    version, machine = c
    first = Section(version, machine, [Function(START, SIZE, [Row(0), Row(8, machine.frame)])])
    last = Section(version, machine, [Function(START, SIZE, [Row(0, machine.entry), Row(8)])])
    named = (
        ("outermost-first", first, {START: OUTERMOST, START + 7: OUTERMOST, START + 8: frame(machine)}),
        ("outermost-last", last, {START: entry(machine), START + 8: OUTERMOST, START + SIZE - 1: OUTERMOST}),
        ("outermost-flexible", Section(version, machine, [Function(START, SIZE, [Row(0)], flex=True)]), {START: OUTERMOST}),
    )
    for name, section, answers in named:
        if version == 1:
            either = {pc: (answer,) if answer.kind == "rule" else (OUTERMOST, NONE) for pc, answer in answers.items()}
            if name != "outermost-flexible":
                yield c.open(name, write(section), "outermost", "Version 1 does not say what a row without words is", either)
        elif version == 3 or name != "outermost-flexible":
            yield c.valid(name, write(section), "outermost", "a row without data words", answers)


def edges(c: Combination) -> Iterator[Case]:
    version, machine = c
    at_end = Section(version, machine, [Function(START, SIZE, [Row(0, machine.entry), Row(SIZE, machine.frame)])])
    yield c.open(
        "row-at-end", write(at_end), "row", "a row that begins where the function ends, and covers nothing",
        {START: (entry(machine),), START + SIZE - 1: (entry(machine),), START + SIZE: (NONE,)},
    )  # fmt: skip
    late = Section(version, machine, [Function(START, SIZE, [Row(4, machine.entry)])])
    yield c.open(
        "first-row-late", write(late), "row", "the first row begins after the function's start: nothing is said of the code before",
        {START: (NONE,), START + 3: (NONE,), START + 4: (entry(machine),)},
    )  # fmt: skip
    every = [Row(at, (machine.entry, machine.frame)[at % 2]) for at in range(SIZE)]
    answers = {START + at: (entry(machine), frame(machine))[at % 2] for at in range(SIZE)}
    yield c.valid(
        "row-per-byte", write(Section(version, machine, [Function(START, SIZE, every)])), "row", "a row each byte", answers
    )


def many(c: Combination) -> Iterator[Case]:
    """One machine is enough: these sections are 200 KB."""
    version, machine = c
    if machine.name != "amd64" or version == 1:
        return
    count = MOST_ROWS if version == 3 else MOST_ROWS + 1  # Version 2 counts them in 32 bits
    rows = [Row(at, (8 + 8 * (at % 3),)) for at in range(count)]
    section = Section(version, machine, [Function(START, count, rows, 2)], 0x200000)
    answers = {START + at: rule(machine, f"sp+{8 + 8 * (at % 3)}") for at in (0, 1, 255, 256, 0x7FFF, 0x8000, count - 2, count - 1)}
    yield c.valid(
        f"{count}-rows", write(section), "attribute", f"a function of {count} rows", answers | {START + count: NONE},
        address=0x200000, code=(0x1000, 0x12000),
    )  # fmt: skip
