"""Every kind of damage once.

A reader may refuse such a section, or find nothing. It may not crash, read outside, or be wrong about the function that the damage
does not touch. Without the magic number, or with a version that cannot be, nothing in it may be found.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from conformance.features.flexible import FROM_CFA, REGISTER, control
from conformance.features.usual import BODY, SIZE, START, TAIL, entry, frame, function, short, usual_answers, usual_rows
from conformance.rules import NONE
from conformance.specification import about_words
from conformance.writer import INDEX, PCREL, SORTED, Function, Row, Section, write

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from conformance.case import Case, Combination
    from conformance.machines import Machine
    from conformance.rules import Rule
    from conformance.writer import Written

SECOND = START + 0x100
MOST = 0xFFFFFFFF
ALL = (1, 2, 3)
WHERE = ("amd64", "s390x")  # one machine of each byte order
FOREIGN = ("magic", "magic-turned", "version-0", "version-255")  # by name: no SFrame that anybody knows; version 4 may come


class Damage(NamedTuple):
    """`fields`: of the writer, and the numbers that are put there. `spares_first`, `spares_second`: functions it leaves alone."""

    name: str
    fields: dict[str, int]
    sentence: str
    why: str
    versions: tuple[int, ...] = ALL
    spares_first: bool = False
    spares_second: bool = True


def _header(
    name: str, fields: dict[str, int], sentence: str, why: str, *, spares: bool = False, versions: tuple[int, ...] = ALL
) -> Damage:
    return Damage(name, fields, sentence, why, versions, spares, spares)


FIELDS = (
    _header("magic", {"magic": 0xDEE3}, "preamble", "another magic number"),
    _header("magic-turned", {"magic": 0xE2DE}, "order", "the magic number of the other byte order, before numbers of this one"),
    _header("version-0", {"version": 0}, "version", "version 0"),
    _header("version-4", {"version": 4}, "version", "version 4, which is not defined yet"),
    _header("version-255", {"version": 255}, "version", "version 255"),
    _header("abi-0", {"abi": 0}, "abi", "ABI 0"),
    _header("abi-5", {"abi": 5}, "abi", "ABI 5, which is not defined yet"),
    _header("flag-8", {"flags": 0x8 | SORTED | 4}, "flags", "a flag that is not defined", spares=True, versions=(2, 3)),
    _header("flag-128", {"flags": 0x80 | SORTED}, "flags", "a flag that is not defined", versions=(1,)),
    _header("flag-old", {"flags": 2 | SORTED | 4}, "flags", "a flag that Version 3 does not have", spares=True, versions=(3,)),
    _header("auxiliary-length", {"aux_len": 255}, "auxiliary", "an auxiliary header that reaches past the section"),
    _header("functions-one-more", {"num_fdes": 3}, "header", "a function more than the index has"),
    _header("functions-most", {"num_fdes": MOST}, "header", "2 ** 32 - 1 functions"),
    _header("functions-overflow", {"num_fdes": 0x10000001}, "header", "functions whose bytes are more than 32 bits can count"),
    _header("rows-one-less", {"num_fres": 7}, "header", "fewer rows than the functions have", spares=True),
    _header("rows-most", {"num_fres": MOST}, "header", "2 ** 32 - 1 rows", spares=True),
    _header("rows-none", {"num_fres": 0}, "header", "no rows in all, but functions that have some", spares=True),
    _header("length-one-more", {"fre_len": 0x1000}, "header", "rows that reach past the section", spares=True),
    _header("length-most", {"fre_len": MOST}, "header", "2 ** 32 - 1 bytes of rows", spares=True),
    Damage("length-none", {"fre_len": 0}, "header", "no bytes of rows, but functions that have some", spares_first=True),
    _header("index-outside", {"fdeoff": 0x10000}, "header", "an index after the section's end"),
    _header("index-most", {"fdeoff": MOST}, "header", "an index at offset 2 ** 32 - 1"),
    _header("index-minus-4", {"fdeoff": MOST - 3}, "header", "an index at an offset that is -4 in 32 bits"),
    _header("rows-outside", {"freoff": 0x10000}, "header", "rows after the section's end"),
    _header("rows-at-most", {"freoff": MOST}, "header", "rows at offset 2 ** 32 - 1"),
    _header("rows-before-index", {"freoff": 0}, "tiles", "rows that begin where the index does"),
    Damage("block-outside", {"0.fre_off": 0x1000}, "index", "a function whose rows lie after the section's end"),
    Damage("block-most", {"0.fre_off": MOST}, "index", "a function whose rows lie at offset 2 ** 32 - 1"),
    Damage("block-minus-8", {"0.fre_off": MOST - 7}, "index", "a function whose rows lie at an offset that is -8 in 32 bits"),
    Damage("count-most", {"0.num_fres": 0xFFFF}, "attribute", "a function of more rows than there are bytes"),
    Damage("count-of-32-bits", {"0.num_fres": MOST}, "attribute", "a function of 2 ** 32 - 1 rows", (1, 2)),
    *(Damage(f"fre-type-{kind}", {"0.info": kind}, "fre-type", f"FRE type {kind}", ALL) for kind in (3, 15)),
    *(Damage(f"fde-type-{kind}", {"0.info2": kind}, "fde-type", f"FDE type {kind}", (3,)) for kind in (2, 31)),
    Damage("info-unused", {"0.info": 0x40}, "info", "an unused bit of the info byte is set", ALL, spares_first=True),
    Damage("info2-unused", {"0.info2": 0x80}, "info", "an unused bit of the second info byte is set", (3,), spares_first=True),
    Damage("padding", {"0.padding": 0xFFFF}, "index", "padding that is not zero", (2,), spares_first=True),
    Damage("period-zero", {"0.info": 0x10, "0.rep_size": 0}, "mask", "a repeated block of no bytes", (2, 3)),
    Damage("word-size-3", {"0.1.info": 0x65}, "row-info", "data words of a width that is not defined"),
    Damage("word-count-15", {"0.1.info": 0x1F}, "row-info", "a row of 15 data words"),
    Damage("row-beyond", {"0.3.start": 0xFF}, "row", "a row that begins after the function's end"),
    Damage("row-again", {"0.2.start": 4}, "row", "two rows with one start"),
    Damage("row-descends", {"0.2.start": 2}, "row", "a row that begins before the one before it"),
)  # fmt: skip


def cases(c: Combination) -> Iterator[Case]:
    version, machine = c
    if machine.name not in WHERE:
        return
    base = write(Section(version, machine, [function(machine), function(machine, SECOND)]))
    for damage in FIELDS:
        if version in damage.versions:
            answers = spared(c, first=damage.spares_first, second=damage.spares_second)
            if damage.name in FOREIGN:
                answers = dict.fromkeys(answers, (NONE,))
            data = base.change(damage.fields).data
            yield c.invalid(f"damaged-{damage.name}", data, damage.sentence, damage.why, answers)
    yield from cut_off(c, base)
    yield from wrong_order(c)
    yield from wrong_words(c)
    if version == 3:
        yield from wrong_flexible(c)
    yield foreign(c)


def spared(c: Combination, *, first: bool, second: bool) -> dict[int, Sequence[Rule]]:
    """All places are probed; a function that is spared has its rules or none, for the other anything will do."""
    answers: dict[int, Sequence[Rule]] = {}
    for start, is_spared in ((START, first), (SECOND, second)):
        for pc, answer in usual_answers(c.machine, start).items():
            answers[pc] = (answer, NONE) if is_spared else ()
    return answers


def cut_off(c: Combination, base: Written) -> Iterator[Case]:
    index = sum(width for _, width in INDEX[c.version])
    whole = len(base.data)
    lengths = {0, 1, 2, 3, 4, 16, 27, 28, 29, 28 + index - 1, 28 + index, 28 + 2 * index - 1, 28 + 2 * index, 28 + 2 * index + 4}
    for length in sorted({*lengths, whole - 8, whole - 1}):
        sentence = "preamble" if length < 28 else "header"
        answers = {pc: () if not length else answer for pc, answer in spared(c, first=length > 28, second=length > 28).items()}
        yield c.invalid(f"damaged-cut-{length}", base.data[:length], sentence, f"the first {length} of {whole} bytes", answers)


def wrong_order(c: Combination) -> Iterator[Case]:
    version, machine = c
    flags = SORTED | (PCREL if version > 1 else 0)
    descending = Section(version, machine, [function(machine, SECOND), function(machine)], flags=flags)
    yield c.invalid(
        "damaged-starts-descend", write(descending).data, "sorted", "functions descend, and the flag SORTED is set",
        spared(c, first=True, second=True),
    )  # fmt: skip
    larger = Function(START, 0x180, usual_rows(machine))
    overlap = Section(version, machine, [larger, function(machine, SECOND)])
    yield c.open(
        "overlap", write(overlap), "index", "a function reaches into the next one: the text does not forbid it",
        usual_tuples(machine) | {SECOND + BODY: (frame(machine), entry(machine), NONE)},
    )  # fmt: skip
    same = Section(version, machine, [function(machine), short(machine)])
    yield c.open(
        "same-start", write(same), "sorted", "two functions have one start: the text does not forbid it",
        {START: (entry(machine), NONE), START + BODY: (frame(machine), entry(machine), NONE)},
    )  # fmt: skip


def usual_tuples(machine: Machine) -> dict[int, tuple[Rule, ...]]:
    return {pc: (answer,) for pc, answer in usual_answers(machine).items() if pc < START + TAIL}


def foreign(c: Combination) -> Case:
    """The numbers of the header and index are turned around, the ABI's number is not."""
    other = c.machine._replace(byte_order="big" if c.machine.byte_order == "little" else "little")
    data = write(Section(c.version, other, [function(other), function(other, SECOND)])).data
    why = "the other byte order than that of its ABI"
    return c.invalid("damaged-byte-order", data, "order", why, spared(c, first=True, second=True))


def wrong_words(c: Combination) -> Iterator[Case]:
    """More data words than the machine's default rules have."""
    version, machine = c
    words = (*machine.frame, -64)
    for width in (1, 4):
        first = Function(START, SIZE, [Row(0, words, width=width)])
        section = Section(version, machine, [first, function(machine, SECOND)])
        yield c.invalid(
            f"damaged-words-{len(words)}-{width}", write(section).data, about_words(machine.name),
            f"{len(words)} data words of {width} bytes in a default row", spared(c, first=False, second=True),
        )  # fmt: skip


def wrong_flexible(c: Combination) -> Iterator[Case]:
    sp = control(c.machine.sp)
    lines = (
        ("one-word", (sp,), "flexible", "a control word without its offset"),
        ("three-words", (sp, 24, FROM_CFA), "flexible", "a control word of RA without its offset"),
        ("seven-words", (sp, 24, FROM_CFA, -8, FROM_CFA, -16, 1), "flexible", "a word after CFA, RA and FP"),
        ("15-words", (sp, 24, *range(1, 14)), "flexible", "15 words"),
        ("cfa-from-cfa", (FROM_CFA, 24), "cfa-register", "a CFA whose base is the CFA"),
        ("cfa-padding", (0, 24), "cfa-register", "a padding word for the CFA"),
        ("cfa-base-missing", (sp & ~REGISTER, 24), "cfa-register", "a CFA with a register number, but no base register"),
    )
    for name, words, sentence, why in lines:
        for width in (1, 4):
            first = Function(START, SIZE, [Row(0, words, width=width)], flex=True)
            section = Section(c.version, c.machine, [first, function(c.machine, SECOND)])
            answers = spared(c, first=False, second=True)
            yield c.invalid(f"damaged-flexible-{name}-{width}", write(section).data, sentence, why, answers)
