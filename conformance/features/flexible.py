"""Flexible rules of Version 3: each of CFA, RA and FP from a register or from the CFA, loaded or not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from conformance.features.usual import SIZE, START, function, usual_answers
from conformance.rules import NONE, OUTERMOST, rule
from conformance.writer import Function, Row, Section, write

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conformance.case import Case, Combination
    from conformance.machines import Machine

REGISTER, DEREF, UNUSED = 1, 2, 4
FROM_CFA = DEREF  # the control word of *(cfa + offset)
SECOND = START + 0x100


def control(register: int, *, deref: bool = False) -> int:
    return register << 3 | DEREF * deref | REGISTER


def table(m: Machine) -> Iterator[tuple[str, tuple[int, ...], tuple[str, ...], str]]:
    """Name; words; CFA, RA and FP that they say; why."""
    cfa, text, ra = _plain_cfa(m)
    fixed = f"*(cfa{m.fixed_ra:+})" if m.fixed_ra else "kept"
    loaded = control(m.fp, deref=True)
    yield "cfa", (cfa, 0), (text,), "two words: CFA"
    yield "cfa-register", (control(10), 16), ("r10+16",), "the CFA's base is a register other than SP and FP"
    yield "ra-from-cfa", (cfa, 0, FROM_CFA, -24), (text, "*(cfa-24)"), "RA is loaded from the CFA"
    yield "ra-in-register", (cfa, 0, control(ra), 0), (text, f"r{ra}+0"), "RA is in a register"
    yield "ra-from-register", (cfa, 0, control(ra, deref=True), 8), (text, f"*(r{ra}+8)"), "RA is loaded from a register"
    yield "fp-after-padding", (cfa, 0, 0, FROM_CFA, -16), (text, fixed, "*(cfa-16)"), "a padding word for RA, and FP"
    yield "fp-from-itself", (cfa, 0, 0, loaded, 0), (text, fixed, "*(fp+0)"), "FP is loaded from FP"
    yield "fp-in-register", (cfa, 0, 0, control(3), 0), (text, fixed, "r3+0"), "FP is in a register"
    yield "fp-plus", (cfa, 0, 0, control(3), -8), (text, fixed, "r3-8"), "FP is a register less 8"
    yield "ra-fp", (cfa, 0, FROM_CFA, -8, FROM_CFA, -16), (text, "*(cfa-8)", "*(cfa-16)"), "six words: CFA, RA, FP"
    yield "ra-at-cfa", (cfa, 0, FROM_CFA, 0), (text, "*(cfa+0)"), "RA is at the CFA, which default rules may not say"
    yield "registers", (cfa, 0, control(ra), 0, control(3), 0), (text, f"r{ra}+0", "r3+0"), "RA and FP are in registers"


def _plain_cfa(m: Machine) -> tuple[int, str, int]:
    """SP + 0, and a register that RA may be in."""
    return control(m.sp), "sp+0", {7: 1, 31: 9, 15: 1}[m.sp]


def cases(c: Combination) -> Iterator[Case]:
    version, machine = c
    if version != 3:
        return
    if machine.cfa_scale > 1:
        yield from scaled(c)
    else:
        yield from plain(c)
    yield from pairs(c)
    yield from unclear(c)


def plain(c: Combination) -> Iterator[Case]:
    version, machine = c
    for name, words, texts, why in table(machine):
        rows = [Row(0, words), Row(8, words, width=2), Row(16, words, width=4)]
        section = Section(version, machine, [Function(START, SIZE, rows, flex=True)])
        answer = rule(machine, *texts)
        yield c.valid(f"flexible-{name}", write(section), "flexible", why, {START + at: answer for at in (0, 8, 16)})
    drap = (control(machine.fp, deref=True), -8, 0, control(machine.fp, deref=True), 0)
    fixed = f"*(cfa{machine.fixed_ra:+})" if machine.fixed_ra else "kept"
    section = Section(version, machine, [Function(START, SIZE, [Row(0, drap)], flex=True)])
    yield c.valid(
        "flexible-drap", write(section), "flexible", "a realigned stack: the CFA is loaded from FP",
        {START: rule(machine, "*(fp-8)", fixed, "*(fp+0)")},
    )  # fmt: skip


def scaled(c: Combination) -> Iterator[Case]:
    """s390x: here the text does not adjust the CFA's offset as 3.1.3 does; GNU as, its readers and the kernel's patches do."""
    version, machine = c
    for name, words, texts, why in table(machine):
        section = Section(version, machine, [Function(START, SIZE, [Row(0, words), Row(8, words, width=2)], flex=True)])
        as_written = rule(machine, *texts)
        assert as_written.cfa
        offset = words[1] * machine.cfa_scale + machine.cfa_bias
        adjusted = as_written._replace(cfa=as_written.cfa._replace(offset=offset))
        yield c.open(
            f"flexible-{name}", write(section), "flexible",
            f"{why}; the text does not adjust the CFA's offset as in default rules, GNU as does",
            {START: (as_written, adjusted), START + 8: (as_written, adjusted)},
        )  # fmt: skip


def pairs(c: Combination) -> Iterator[Case]:
    """Flexible functions beside others, as signal frames, with repeated blocks and sharing rows."""
    version, machine = c
    if machine.cfa_scale > 1:
        return
    words = (control(machine.sp), 24, FROM_CFA, -8)
    answer = rule(machine, "sp+24", "*(cfa-8)")
    flexible = Function(START, SIZE, [Row(0, words)], flex=True)
    beside = Section(version, machine, [flexible, function(machine, SECOND)])
    yield c.valid(
        "flexible-and-default", write(beside), "fde-type", "the type is of one function only",
        {START: answer} | usual_answers(machine, SECOND),
    )  # fmt: skip
    signal = Section(version, machine, [Function(START, SIZE, [Row(0, words)], flex=True, signal=True)])
    yield c.valid("flexible-signal", write(signal), "signal", "a flexible signal frame", {START: answer._replace(signal=True)})
    masked = Section(version, machine, [Function(START, SIZE, [Row(0, words)], flex=True, mask=True, rep_size=16)])
    yield c.valid("flexible-mask", write(masked), "mask", "a flexible function of repeated blocks", {START + 16: answer})
    shared = Section(version, machine, [flexible, Function(SECOND, SIZE, (), flex=True, shares=0)])
    yield c.valid(
        "flexible-shared", write(shared), "index", "two flexible functions with one block", {START: answer, SECOND: answer}
    )
    mixed = [Row(0, words), Row(4), Row(8, words, width=4)]
    section = Section(version, machine, [Function(START, SIZE, mixed, flex=True)])
    yield c.valid(
        "flexible-outermost-row", write(section), "outermost", "an outermost row between flexible ones",
        {START: answer, START + 4: OUTERMOST, START + 8: answer},
    )  # fmt: skip


def unclear(c: Combination) -> Iterator[Case]:
    version, machine = c
    if machine.cfa_scale > 1:
        return
    sp = control(machine.sp)
    fixed = rule(machine, "sp+24")
    lines = (
        ("padding-last", (sp, 24, 0), fixed, "a padding word after which nothing comes"),
        ("two-paddings", (sp, 24, 0, 0), fixed, "padding words for RA and FP, after which nothing comes"),
        ("unused-bit", (sp | UNUSED, 24), fixed, "the unused bit of a control word is set"),
        ("sp-bit-clear", (sp, 24), fixed, "the row's own base bit says FP, which flexible rows do not use"),
    )
    for name, words, answer, why in lines:
        base = "fp" if name == "sp-bit-clear" else "sp"
        section = Section(version, machine, [Function(START, SIZE, [Row(0, words, base)], flex=True)])
        yield c.open(f"flexible-{name}", write(section), "flexible", why, {START: (answer, NONE)})
    far = (1 << 20 << 3 | REGISTER, 24)
    section = Section(version, machine, [Function(START, SIZE, [Row(0, far, width=4)], flex=True)])
    yield c.open(
        "flexible-register-number", write(section), "flexible", "a register number that the ABI does not have",
        {START: (NONE, rule(machine, f"r{1 << 20}+24"))},
    )  # fmt: skip
