"""Default rules: what the data words of a row are on each machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from conformance.features.usual import SIZE, START
from conformance.rules import rule
from conformance.specification import about_words
from conformance.writer import Function, Row, Section, write

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conformance.case import Case, Combination

# Name, base and words of a row; CFA, RA and FP that they say; why.
Line = tuple[str, str, tuple[int, ...], tuple[str, ...], str]
AMD64: tuple[Line, ...] = (
    ("cfa", "sp", (16,), ("sp+16",), "one word: CFA"),
    ("cfa-by-fp", "fp", (16,), ("fp+16",), "one word: CFA from FP"),
    ("cfa-zero", "sp", (0,), ("sp+0",), "the CFA is SP"),
    ("cfa-negative", "sp", (-8,), ("sp-8",), "the CFA lies below SP"),
    ("cfa-fp", "sp", (32, -16), ("sp+32", "*(cfa-8)", "*(cfa-16)"), "two words: CFA, FP"),
    ("cfa-fp-by-fp", "fp", (16, -16), ("fp+16", "*(cfa-8)", "*(cfa-16)"), "two words: CFA from FP, and FP"),
    ("fp-at-cfa", "sp", (16, 0), ("sp+16", "*(cfa-8)", "*(cfa+0)"), "FP is at the CFA: an offset of 0 is as good as another"),
    ("fp-above", "sp", (16, 8), ("sp+16", "*(cfa-8)", "*(cfa+8)"), "FP lies above the CFA"),
)
AARCH64: tuple[Line, ...] = (
    ("cfa", "sp", (16,), ("sp+16",), "one word: CFA; RA and FP are in their registers"),
    ("cfa-by-fp", "fp", (16,), ("fp+16",), "one word: CFA from FP"),
    ("cfa-ra-fp", "sp", (32, -24, -32), ("sp+32", "*(cfa-24)", "*(cfa-32)"), "three words: CFA, RA, FP"),
    ("cfa-ra-fp-by-fp", "fp", (32, -24, -32), ("fp+32", "*(cfa-24)", "*(cfa-32)"), "three words: CFA from FP, RA, FP"),
    ("ra-fp-above", "sp", (0, 8, 16), ("sp+0", "*(cfa+8)", "*(cfa+16)"), "RA and FP lie above the CFA"),
)
S390X: tuple[Line, ...] = (
    ("cfa", "sp", (0,), ("sp+160",), "one word, which is 160 less than the offset, divided by 8"),
    ("cfa-by-fp", "fp", (2,), ("fp+176",), "one word: CFA from FP"),
    ("cfa-negative", "sp", (-21,), ("sp-8",), "the CFA lies below SP"),
    ("cfa-ra", "sp", (4, -48), ("sp+192", "*(cfa-48)"), "two words: CFA, RA"),
    ("cfa-ra-fp", "sp", (4, -48, -72), ("sp+192", "*(cfa-48)", "*(cfa-72)"), "three words: CFA, RA, FP"),
    ("cfa-fp", "fp", (4, 0, -72), ("fp+192", "kept", "*(cfa-72)"), "an RA offset of 0 stands for none; FP is saved"),
)
S390X_REGISTERS: tuple[Line, ...] = (
    ("ra-in-register", "sp", (0, 16 << 1 | 1), ("sp+160", "r16+0"), "an odd RA offset is a register number"),
    ("fp-in-register", "sp", (0, 16 << 1 | 1, 17 << 1 | 1), ("sp+160", "r16+0", "r17+0"), "RA and FP are in registers"),
    ("fp-in-register-alone", "sp", (0, 0, 16 << 1 | 1), ("sp+160", "kept", "r16+0"), "FP is in a register, RA in its own"),
)
TABLES = {"amd64": AMD64, "aarch64": AARCH64, "aarch64-be": AARCH64, "s390x": S390X}


def cases(c: Combination) -> Iterator[Case]:
    version, machine = c
    for line in TABLES[machine.name]:
        yield from _both_widths(c, line, about_words(machine.name))
    if machine.cfa_scale > 1 and version == 2:
        for line in S390X_REGISTERS:
            yield from _both_widths(c, line, "s390x-register")
    if machine.signs:
        section = Section(version, machine, [Function(START, SIZE, [Row(0, (32, -24))])])
        yield c.open(
            "default-cfa-ra", write(section), "aarch64", "two words: CFA and RA, where there are to be one or three",
            {START: (rule(machine, "sp+32", "*(cfa-24)"),)},
        )  # fmt: skip
        section = Section(version, machine, [Function(START, SIZE, [Row(0, (32, 0, -32))])])
        yield c.open(
            "default-ra-at-cfa", write(section), "aarch64", "an RA offset of 0, which stands for none on s390x only",
            {START: (rule(machine, "sp+32", "*(cfa+0)", "*(cfa-32)"), rule(machine, "sp+32", "kept", "*(cfa-32)"))},
        )  # fmt: skip


def _both_widths(c: Combination, line: Line, sentence: str) -> Iterator[Case]:
    """In rows of one byte, and of four bytes a word."""
    name, base, words, texts, why = line
    rows = [Row(0, words, base), Row(8, words, base, width=4)]
    section = Section(c.version, c.machine, [Function(START, SIZE, rows)])
    answer = rule(c.machine, *texts)
    yield c.valid(f"default-{name}", write(section), sentence, why, {START: answer, START + 8: answer})
