from __future__ import annotations

from cfi.opcodes import RuleKind
from cfi.rules import CfiRule, RegisterRule
from sframegen.conversion.translate import RepeatedPattern, Translator
from sframegen.format.abi import AARCH64, AMD64, S390X, Abi
from sframegen.format.layouts import V2, V3, Layout
from sframegen.format.model import OUTERMOST, Rule, Where
from sframegen.format.words import Reason, RuleWords
from tests.support.inputs.cfi_writer import sleb
from tests.support.loops import for_each


def translated(rule: CfiRule, abi: Abi, layout: Layout) -> Rule | RepeatedPattern | Reason:
    return Translator(RuleWords(abi, layout)).translate(rule)


RBP, RSP, RA, R10 = 6, 7, 16, 10
UNSPECIFIED = RegisterRule(RuleKind.UNSPECIFIED)


def at(offset: int) -> RegisterRule:
    return RegisterRule(RuleKind.OFFSET, offset)


def cfa(register: int, offset: int) -> RegisterRule:
    return RegisterRule(RuleKind.REGISTER, register, offset)


def computed(expression: bytes) -> RegisterRule:
    return RegisterRule(RuleKind.VAL_EXPRESSION, expression=expression)


def negated(bits: int) -> RegisterRule:
    """RA_SIGN_STATE after instructions that negate these bits."""
    return RegisterRule(RuleKind.UNSPECIFIED, bits)


def row(
    cfa_rule: RegisterRule | None = None,
    *,
    ra: RegisterRule | None = None,
    fp: RegisterRule = UNSPECIFIED,
    sp: RegisterRule = UNSPECIFIED,
    ra_column: int = RA,
    ra_state: RegisterRule = UNSPECIFIED,
) -> CfiRule:
    return CfiRule(ra_column, cfa_rule or cfa(RSP, 16), ra or at(-8), fp, sp, ra_state)


SP_16 = Rule(Where(RSP, 16), Where(None, -8, deref=True))
FP_AT_16 = SP_16._replace(fp=Where(None, -16, deref=True))
PLT = b"\x77\x08\x80\x00\x3f\x1a\x3b\x2a\x33\x24\x22"  # rsp + 8 + (((rip & 15) >= 11) << 3)


@for_each(
    ("rule", "expected"),
    [
        (row(), SP_16),
        (row(fp=at(-16)), FP_AT_16),
        (row(cfa(RBP, 16), fp=at(-16)), FP_AT_16._replace(cfa=Where(RBP, 16))),
        (row(fp=RegisterRule(RuleKind.SAME_VALUE)), SP_16),
        (row(sp=RegisterRule(RuleKind.VAL_OFFSET, 0)), SP_16),
        (row(sp=computed(b"\x23\x00")), SP_16),  # the CFA plus 0
        (row(computed(b"\x77\x10")), SP_16),
        (row(computed(b"\x77\x08\x23\x08")), SP_16),
        (row(computed(b"\x77\x18\x38\x1c")), SP_16),
        (row(ra=RegisterRule(RuleKind.UNDEFINED)), OUTERMOST),
        (row(cfa(R10, 0), ra=RegisterRule(RuleKind.UNDEFINED), sp=at(-8)), OUTERMOST),
        (row(ra_column=30), Reason.RA_COLUMN),
        (row(RegisterRule(RuleKind.UNSPECIFIED)), Reason.NO_CFA),
        (row(cfa(RA, 0)), Reason.REGISTER),
        (row(fp=RegisterRule(RuleKind.REGISTER, 63)), Reason.REGISTER),
        (row(cfa(R10, 0)), SP_16._replace(cfa=Where(R10, 0))),
        (row(computed(b"\x76\x78\x06")), SP_16._replace(cfa=Where(RBP, -8, deref=True))),
        (row(computed(b"\x77\x08\x06\x23\x08")), Reason.CFA_EXPRESSION),
        (row(computed(b"")), Reason.CFA_EXPRESSION),
        (row(cfa(RSP, 1 << 31)), Reason.OFFSET_RANGE),
        (row(ra=at(-16)), SP_16._replace(ra=Where(None, -16, deref=True))),
        (row(ra=UNSPECIFIED), Reason.RA_RULE),
        (row(ra=RegisterRule(RuleKind.REGISTER, 2)), SP_16._replace(ra=Where(2, 0))),
        (row(ra=RegisterRule(RuleKind.VAL_OFFSET, 0)), Reason.RA_RULE),
        (row(ra_state=negated(1)), Reason.RA_SIGNED),
        (row(fp=RegisterRule(RuleKind.UNDEFINED)), Reason.FP_UNDEFINED),
        (row(fp=RegisterRule(RuleKind.REGISTER, 9)), SP_16._replace(fp=Where(9, 0))),
        (row(fp=RegisterRule(RuleKind.VAL_OFFSET, -16)), Reason.FP_RULE),
        (row(fp=RegisterRule(RuleKind.EXPRESSION, expression=b"\x76\x00")), SP_16._replace(fp=Where(RBP, 0, deref=True))),
        (row(fp=RegisterRule(RuleKind.EXPRESSION, expression=b"\x40\x1c")), FP_AT_16),  # the CFA, minus 16
        (row(fp=RegisterRule(RuleKind.EXPRESSION, expression=b"\x76\x00\x06")), Reason.FP_RULE),
        (row(fp=computed(b"\x76\x08")), SP_16._replace(fp=Where(RBP, 8))),
        (row(fp=computed(b"\x76\x08\x06")), SP_16._replace(fp=Where(RBP, 8, deref=True))),
        (row(sp=at(-16)), Reason.SP_RULE),
        (row(sp=RegisterRule(RuleKind.VAL_OFFSET, 8)), Reason.SP_RULE),
        (row(sp=RegisterRule(RuleKind.SAME_VALUE)), Reason.SP_RULE),
        (row(cfa(RSP, 0), sp=RegisterRule(RuleKind.SAME_VALUE)), SP_16._replace(cfa=Where(RSP, 0))),
        (row(cfa(5, 0), sp=RegisterRule(RuleKind.REGISTER, 8)), Reason.SP_RULE),  # glibc's longjmp
    ],
)  # fmt: skip
def test_translation(rule: CfiRule, expected: Rule | Reason) -> None:
    assert translated(rule, AMD64, V3) == expected


def test_a_signal_frame_recovers_all_three_from_the_saved_context() -> None:
    """glibc's __restore_rt: the CFA is the interrupted SP, which its SP rule says too."""

    def saved(offset: int) -> bytes:
        return b"\x77" + sleb(offset)

    rule = row(
        computed(saved(160) + b"\x06"),
        ra=RegisterRule(RuleKind.EXPRESSION, expression=saved(168)),
        fp=RegisterRule(RuleKind.EXPRESSION, expression=saved(120)),
        sp=RegisterRule(RuleKind.EXPRESSION, expression=saved(160)),
    )
    expected = Rule(Where(RSP, 160, deref=True), Where(RSP, 168, deref=True), Where(RSP, 120, deref=True))
    assert translated(rule, AMD64, V3) == expected
    assert translated(rule, AMD64, V2) is Reason.FLEX


X29, X30, AARCH64_SP = 29, 30, 31
AARCH64_RULE = CfiRule(X30, cfa(AARCH64_SP, 32), at(-24), at(-32), UNSPECIFIED, UNSPECIFIED)
SIGNED = AARCH64_RULE._replace(ra=UNSPECIFIED, fp=UNSPECIFIED)
READ_RA_STATES = (RuleKind.UNSPECIFIED, RuleKind.VAL_EXPRESSION)


@for_each(
    ("rule", "expected"),
    [
        (AARCH64_RULE, Rule(Where(AARCH64_SP, 32), Where(None, -24, deref=True), Where(None, -32, deref=True))),
        (AARCH64_RULE._replace(ra=UNSPECIFIED, fp=UNSPECIFIED), Rule(Where(AARCH64_SP, 32))),
        (AARCH64_RULE._replace(fp=UNSPECIFIED), Rule(Where(AARCH64_SP, 32), Where(None, -24, deref=True))),
        (AARCH64_RULE._replace(ra=UNSPECIFIED), Rule(Where(AARCH64_SP, 32), None, Where(None, -32, deref=True))),
        (SIGNED._replace(ra_state=negated(1)), Rule(Where(AARCH64_SP, 32), ra_signed=True)),
        (SIGNED._replace(ra_state=computed(b"\x31")), Rule(Where(AARCH64_SP, 32), ra_signed=True)),
        (SIGNED._replace(ra_state=computed(b"\x30")), Rule(Where(AARCH64_SP, 32))),
        *(
            (AARCH64_RULE._replace(ra_state=state), Reason.RA_SIGNED)
            for state in (
                negated(2), negated(3), *map(computed, (b"\x32", b"\x33", b"\x8d\x00", b"", b"\x96")),
                *(RegisterRule(kind, 1, expression=b"\x31") for kind in RuleKind if kind not in READ_RA_STATES),
            )
        ),
        (AARCH64_RULE._replace(cfa=computed(PLT.replace(b"\x80", b"\x8e"))), Reason.CFA_EXPRESSION),  # x30 is not the PC
        (AARCH64_RULE._replace(ra=at(0)), Rule(Where(AARCH64_SP, 32), Where(None, 0, deref=True), Where(None, -32, deref=True))),
    ],
)  # fmt: skip
def test_translation_for_aarch64(rule: CfiRule, expected: Rule | Reason) -> None:
    assert translated(rule, AARCH64, V3) == expected


R5, R11, R14, R15, F0 = 5, 11, 14, 15, 16
S390X_RULE = CfiRule(R14, cfa(R15, 320), at(-48), at(-72), at(-40), UNSPECIFIED)


@for_each(
    ("rule", "expected"),
    [
        (S390X_RULE, Rule(Where(R15, 320), Where(None, -48, deref=True), Where(None, -72, deref=True))),
        (S390X_RULE._replace(ra=UNSPECIFIED), Rule(Where(R15, 320), None, Where(None, -72, deref=True))),
        (
            S390X_RULE._replace(ra=RegisterRule(RuleKind.REGISTER, F0)),
            Rule(Where(R15, 320), Where(F0, 0), Where(None, -72, deref=True)),
        ),
        (
            S390X_RULE._replace(sp=RegisterRule(RuleKind.VAL_OFFSET, -160)),
            Rule(Where(R15, 320), Where(None, -48, deref=True), Where(None, -72, deref=True)),
        ),
        (
            S390X_RULE._replace(sp=RegisterRule(RuleKind.REGISTER, F0)),
            Rule(Where(R15, 320), Where(None, -48, deref=True), Where(None, -72, deref=True)),
        ),
        (S390X_RULE._replace(sp=RegisterRule(RuleKind.VAL_OFFSET, 0)), Reason.SP_RULE),
        (S390X_RULE._replace(cfa=cfa(R15, 324)), Reason.CFA_SCALE),
        (S390X_RULE._replace(cfa=cfa(R5, 100)), Reason.CFA_SCALE),
    ],
)  # fmt: skip
def test_translation_for_s390x(rule: CfiRule, expected: Rule | Reason) -> None:
    assert translated(rule, S390X, V3) == expected


@for_each("first", [0, 1, 5, 11, 15])
def test_a_plt_entry_changes_its_cfa_within_16_bytes(first: int) -> None:
    expression = PLT.replace(b"\x3b", bytes([0x30 + first]))
    at_8, at_16 = SP_16._replace(cfa=Where(RSP, 8)), SP_16
    expected = ((0, at_8), (first, at_16)) if first else ((0, at_16),)
    assert translated(row(computed(expression)), AMD64, V3) == RepeatedPattern(expected)


def test_a_pc_that_is_not_reduced_modulo_16_is_no_pattern() -> None:
    assert translated(row(computed(PLT.replace(b"\x3f", b"\x08\x1f"))), AMD64, V3) is Reason.CFA_EXPRESSION  # & 31
    assert translated(row(computed(b"\x80\x00\x77\x08\x22")), AMD64, V3) is Reason.CFA_EXPRESSION
