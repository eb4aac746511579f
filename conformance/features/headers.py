"""The header: flags, counts, places."""

from __future__ import annotations

from typing import TYPE_CHECKING

from conformance.features.usual import START, function, short, usual_answers
from conformance.rules import NONE, OUTERMOST
from conformance.writer import FRAME_POINTER, PCREL, SORTED, Section, write

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conformance.case import Case, Combination


def cases(c: Combination) -> Iterator[Case]:
    version, machine = c
    answers = usual_answers(machine)
    alone = Section(version, machine, [function(machine)])
    yield c.valid("usual", write(alone), "index", "one function of four rows", answers | {START - 1: NONE, START + 0x40: NONE})
    yield c.valid("no-functions", write(Section(version, machine, [])), "header", "no functions: nothing is covered", {START: NONE})
    for name, flags, sentence, why in flag_table(version):
        yield c.valid(name, write(Section(version, machine, [function(machine)], flags=flags)), sentence, why, answers)
    unsorted = [function(machine, START + 0x100), function(machine)]
    flags = PCREL if version > 1 else 0
    if version > 1:
        both = answers | usual_answers(machine, START + 0x100) | {START + 0x40: NONE}
        yield c.valid(
            "unsorted", write(Section(version, machine, unsorted, flags=flags)), "sorted",
            "the flag SORTED is clear, and functions descend", both,
        )  # fmt: skip
    for size in (4, 255):
        yield c.valid(
            f"auxiliary-header-{size}", write(Section(version, machine, [function(machine)], auxiliary=bytes(range(size)))),
            "auxiliary", f"an auxiliary header of {size} bytes, which readers step over", answers,
        )  # fmt: skip
    yield c.valid(
        "padding-after", write(Section(version, machine, [function(machine)], after_rows=bytes(5))), "tiles",
        "zeros follow the rows, as linkers align sections", answers,
    )  # fmt: skip
    first = answers[START]
    gap = write(Section(version, machine, [short(machine)], before_index=bytes(8)))
    why = "the header's offset allows a gap before the index, but the sub-sections are said to tile the section"
    yield c.open("gap-before-index", gap, "tiles", why, {START: (first,)})
    gap = write(Section(version, machine, [short(machine)], before_rows=bytes(8)))
    if version == 3:
        yield c.open("gap-before-rows", gap, "tiles", why.replace("index", "rows"), {START: (first,)})
    else:
        why = "places of rows count from the index's end as the index has it, from the header's offset as the header has it"
        yield c.open("gap-before-rows", gap, "index", why, {START: (first, OUTERMOST)})
    yield c.open(
        "padding-in-rows", write(Section(version, machine, [short(machine)], padding=bytes(3))), "tiles",
        "zeros at the end of the sub-section of rows, that no function has: an assembler aligns so", {START: (answers[START],)},
    )  # fmt: skip


def flag_table(version: int) -> Iterator[tuple[str, int, str, str]]:
    relative = PCREL if version > 1 else 0
    yield "sorted-clear", relative, "sorted", "one function, and the flag SORTED is clear"
    if version > 1:
        yield "from-section", SORTED, "pc-relative", "without the flag PCREL starts count from the section's first byte"
    if version < 3:
        yield "frame-pointer", SORTED | FRAME_POINTER | relative, "frame-pointer", "the flag FRAME_POINTER changes no rule"
