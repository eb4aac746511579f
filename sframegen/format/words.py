"""Converts rules to FRE info bytes and data words and back, or tells why that is impossible. Runs once for each distinct rule.

An FRE is a row's start, an info byte (number and size of the data words, base register of the CFA), and the data words. In default
FDEs these are offsets: of the CFA, then of RA and FP unless the ABI fixes them. In flexible FDEs each of CFA, RA and FP has a
control word (register, load from memory or not) and an offset; a padding word stands for RA or FP without a rule of its own.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_right
from enum import Enum
from functools import cache
from itertools import accumulate, chain
from operator import eq
from typing import TYPE_CHECKING

from sframegen.elf.records import STRUCT_BYTE_ORDERS, ByteOrder
from sframegen.format.layouts import (
    CFA_BASE_SP_BIT,
    DATAWORD_COUNT_MASK,
    DATAWORD_COUNT_SHIFT,
    DATAWORD_SIZE_MASK,
    DATAWORD_SIZE_SHIFT,
    DATAWORD_WIDTHS,
    FLEX_DEREF_BIT,
    FLEX_REGISTER_BIT,
    FLEX_REGISTER_SHIFT,
    MANGLED_RA_BIT,
)
from sframegen.format.model import OUTERMOST, FdeType, Rule, Where

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sframegen.format.abi import Abi
    from sframegen.format.layouts import Layout

FDE_TYPES = tuple(FdeType)
SIGNED_CODES, UNSIGNED_CODES = "bhi", "BHI"  # `struct` codes of data words, by fre_dataword_size
DATAWORD_LIMITS = [1 << 8 * width - 1 for width in DATAWORD_WIDTHS]
SIGNED, UNSIGNED = "su"  # offsets are signed; control words, which always fit in a byte, are unsigned
PADDING = 0


class Reason(Enum):
    """The reason why code is left out. The value is the text that users read."""

    RA_COLUMN = "the return address column is not the ABI's"
    NO_CFA = "the CFA has no rule"
    CFA_EXPRESSION = "the CFA is an expression that is neither register + n nor *(register + n)"
    CFA_EXPRESSION_UNALIGNED = "the CFA depends on the PC's low bits, in code that is not aligned for it"
    CFA_SCALE = "the CFA's offset is not a multiple of what the ABI scales it by"
    REGISTER = "a rule names a register that stack tracers do not have"
    RA_RULE = "the return address has a rule that SFrame has no words for"
    RA_SIGNED = "the return address is signed in a way that SFrame does not know"
    FP_UNDEFINED = "the caller's FP is lost"
    FP_RULE = "the caller's FP has a rule that SFrame has no words for"
    SP_RULE = "the caller's SP is not the CFA"
    OFFSET_RANGE = "an offset needs more than 32 bits"
    OUTERMOST = "an outermost frame, which readers of this version do not know"
    FLEX = "the rule needs a flexible FDE, which this version does not have"
    SIGNAL = "a signal frame, which this version does not mark"
    UNREADABLE = "its call frame instructions cannot be read"


class RuleWords:
    """Encodes rules as bytes for one ABI and version. `encode(rule)` returns what `_encode` does, from a cache."""

    def __init__(self, abi: Abi, layout: Layout) -> None:
        self.abi = abi
        self.layout = layout
        self.encode = cache(self._encode)

    def _encode(self, rule: Rule) -> tuple[bytes, bytes]:
        """Return FRE info byte and smallest data words for each FDE type (DEFAULT, FLEX); b"" for a type that cannot express it."""
        cfa, ra, fp, ra_signed = rule
        if cfa is None:
            outermost = bytes((MANGLED_RA_BIT * ra_signed,)) if self.layout.outermost else b""
            return outermost, outermost
        # s390x stores CFA offsets adjusted and scaled down. Readers scale them up again in 32 bits.
        word, remainder = divmod(cfa.offset - self.abi.cfa_adjustment, self.abi.cfa_scale)
        default = flex = b""
        if remainder or _size_code(cfa.offset) == len(DATAWORD_LIMITS):
            return default, flex
        info = MANGLED_RA_BIT * ra_signed
        if not cfa.deref and cfa.register in (self.abi.sp, self.abi.fp):
            default = self._encode_default(info | CFA_BASE_SP_BIT * (cfa.register == self.abi.sp), word, ra, fp)
        if self.layout.flex and cfa.register in self.abi.base_registers:
            flex = self._encode_flex(info, [_control_word(cfa), word], ra, fp)
        return default, flex

    def _pack(self, info: int, shape: str, words: list[int]) -> bytes:
        """Return info byte and words, all in one size; b"" if none is large enough. `shape`: SIGNED or UNSIGNED for each word."""
        size = max(_size_code(word) for sign, word in zip(shape, words, strict=True) if sign == SIGNED)
        if size == len(DATAWORD_LIMITS):
            return b""
        info |= len(words) << DATAWORD_COUNT_SHIFT | size << DATAWORD_SIZE_SHIFT
        return bytes((info,)) + _struct(self.abi.byte_order, shape, size).pack(*words)

    def _encode_default(self, info: int, cfa_word: int, ra: Where | None, fp: Where | None) -> bytes:
        """Encode for default FDEs (CFA = SP or FP + n): offsets from the CFA of RA and FP, unless the ABI fixes them."""
        abi = self.abi
        words = [cfa_word]
        if ra != fixed_place(abi.fixed_ra_offset):
            word = None if ra is None or abi.fixed_ra_offset else self._offset_word(ra)
            if word is None or word == PADDING:
                return b""
            words.append(word)
        if fp != fixed_place(abi.fixed_fp_offset):
            word = None if fp is None or abi.fixed_fp_offset else self._offset_word(fp)
            if word is None or word == PADDING:  # readers take 0 for "unchanged"
                return b""
            if len(words) == 1 and not abi.fixed_ra_offset:  # FP's word is the third, so RA needs a word, too
                if not abi.ra_padding:
                    return b""
                words.append(PADDING)
            words.append(word)
        return self._pack(info, SIGNED * len(words), words)

    def _offset_word(self, where: Where) -> int | None:
        """Return the word for RA or FP in a default FDE: the offset of its place from the CFA; on s390x 2n + 1 for register n."""
        odd_is_register = self.layout.registers_as_odd_offsets and self.abi.registers_as_offsets
        if where.register is not None:
            is_register = where.register in self.abi.base_registers and not where.deref and where.offset == 0
            return where.register << 1 | 1 if odd_is_register and is_register else None
        return where.offset if where.deref and not (odd_is_register and where.offset & 1) else None

    def _encode_flex(self, info: int, words: list[int], ra: Where | None, fp: Where | None) -> bytes:
        """Encode for flexible FDEs: a control word and an offset for each; only a padding word if RA or FP has no rule of its own.

        `words`: the CFA's two, to which RA's and FP's are added.
        """
        shape = UNSIGNED + SIGNED
        for where, offset in ((ra, self.abi.fixed_ra_offset), (fp, self.abi.fixed_fp_offset)):
            if where == fixed_place(offset):
                shape += UNSIGNED
                words.append(PADDING)
            elif where is None or not (where.deref if where.register is None else where.register in self.abi.base_registers):
                return b""
            else:
                shape += UNSIGNED + SIGNED
                words += [_control_word(where), where.offset]
        count = len(shape.rstrip(UNSIGNED))  # trailing padding is dropped: the last word is an offset
        return self._pack(info, shape[:count], words[:count])


def _control_word(where: Where) -> int:
    register = 0 if where.register is None else where.register << FLEX_REGISTER_SHIFT | FLEX_REGISTER_BIT
    return FLEX_DEREF_BIT * where.deref | register


def _size_code(offset: int) -> int:
    """Return the smallest fre_dataword_size that holds an offset; len(DATAWORD_LIMITS) if it needs more than 32 bits."""
    return bisect_right(DATAWORD_LIMITS, offset if offset >= 0 else ~offset)


def encode_rule(rule: Rule, fde_type: FdeType, abi: Abi, layout: Layout) -> bytes | None:
    """Return FRE info byte and data words of one rule; None if that FDE type cannot express it."""
    return RuleWords(abi, layout).encode(rule)[fde_type] or None


def why_inexpressible(rule: Rule, words: RuleWords) -> Reason | None:
    """Return the reason why the version cannot express a rule; None if an FDE type can."""
    if any(words.encode(rule)):
        return None
    abi, layout = words.abi, words.layout
    if rule.cfa is None:
        return Reason.OUTERMOST
    if (rule.cfa.offset - abi.cfa_adjustment) % abi.cfa_scale:
        return Reason.CFA_SCALE
    if encode_rule(rule, FdeType.FLEX, abi, layout._replace(flex=True)) is not None:
        return Reason.FLEX
    registers = {where.register for where in (rule.cfa, rule.ra, rule.fp) if where is not None} - {None}
    if not registers <= set(abi.base_registers):
        return Reason.REGISTER
    if (rule.ra is None and abi.fixed_ra_offset) or _is_cfa_plus_n(rule.ra):
        return Reason.RA_RULE
    return Reason.FP_RULE if _is_cfa_plus_n(rule.fp) else Reason.OFFSET_RANGE


def are_expressible(rules: Iterable[Rule], abi: Abi, layout: Layout) -> bool:
    """True if the version can express all rules."""
    return all(map(any, map(RuleWords(abi, layout).encode, rules)))


def _is_cfa_plus_n(where: Where | None) -> bool:
    """True for RA or FP = cfa + n without a load: the only form that a control word cannot express."""
    return where is not None and where.register is None and not where.deref


@cache
def _struct(byte_order: ByteOrder, shape: str, size: int) -> struct.Struct:
    """Return the packer of data words of a shape and size; cached, as there are few shapes."""
    codes = {SIGNED: SIGNED_CODES[size], UNSIGNED: UNSIGNED_CODES[size]}
    return struct.Struct(STRUCT_BYTE_ORDERS[byte_order] + "".join(codes[code] for code in shape))


class EncodedRules:
    """All rules of a table as bytes, in each FDE type. `rule_at` and `rule_bytes`: as in format.columns.Words."""

    def __init__(self, rules: Iterable[Rule], words: RuleWords) -> None:
        self.abi = words.abi
        self.layout = words.layout
        encoded = [*chain.from_iterable(map(words.encode, rules))]
        self.rule_bytes = b"".join(encoded)
        self.rule_at = array("I", accumulate(map(len, encoded), initial=0))

    def flexible(self) -> bytes:
        """Return a byte for each rule: 1 if default FDEs cannot express it, else 0."""
        return bytes(map(eq, self.rule_at[::2], self.rule_at[1::2]))


def decode_rule(fde_type: FdeType, raw: bytes, abi: Abi, layout: Layout) -> Rule | None:
    """Return the rule of an FRE's info byte and data words (`raw`); None if their number does not fit the FDE type."""
    info = raw[0]
    if not info >> DATAWORD_COUNT_SHIFT & DATAWORD_COUNT_MASK:
        return OUTERMOST
    signed, unsigned = data_words(raw, abi)
    if fde_type is FdeType.FLEX:
        rule = _decode_flex(signed, unsigned, abi)
    else:
        rule = _decode_default(signed, abi.sp if info & CFA_BASE_SP_BIT else abi.fp, abi, layout)
    return rule and rule._replace(ra_signed=bool(info & MANGLED_RA_BIT))


def data_words(raw: bytes, abi: Abi) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the words after an FRE info byte, as signed and as unsigned numbers."""
    count = raw[0] >> DATAWORD_COUNT_SHIFT & DATAWORD_COUNT_MASK
    size = raw[0] >> DATAWORD_SIZE_SHIFT & DATAWORD_SIZE_MASK
    mark = STRUCT_BYTE_ORDERS[abi.byte_order]
    return (
        struct.unpack_from(f"{mark}{count}{SIGNED_CODES[size]}", raw, 1),
        struct.unpack_from(f"{mark}{count}{UNSIGNED_CODES[size]}", raw, 1),
    )


def fixed_place(offset: int) -> Where | None:
    """Return where a register without a rule in the row is: at its fixed offset from the CFA, or unchanged (None)."""
    return Where(None, offset, deref=True) if offset else None


def _decode_default(words: Sequence[int], base: int, abi: Abi, layout: Layout) -> Rule | None:
    ra_and_fp: list[Where | None] = []
    remaining = list(words[1:])
    for offset in (abi.fixed_ra_offset, abi.fixed_fp_offset):
        if offset or not remaining:
            ra_and_fp.append(fixed_place(offset))
            continue
        word = remaining.pop(0)
        if word & 1 and layout.registers_as_odd_offsets and abi.registers_as_offsets:
            ra_and_fp.append(Where(word >> 1, 0))
        elif word == PADDING and not ra_and_fp:
            ra_and_fp.append(None)
        else:
            ra_and_fp.append(Where(None, word, deref=True))
    return None if remaining else Rule(Where(base, words[0] * abi.cfa_scale + abi.cfa_adjustment), ra_and_fp[0], ra_and_fp[1])


def control_word_indexes(words: Sequence[int]) -> list[int]:
    """Return the indexes of the control words of CFA, RA and FP, and the index after them: len(words) if they form a rule."""
    indexes = [0]
    for _ in range(3):
        index = indexes[-1]
        indexes.append(index + (0 if index >= len(words) else 1 if words[index] == PADDING else 2))
    return indexes


def _decode_flex(signed: Sequence[int], unsigned: Sequence[int], abi: Abi) -> Rule | None:
    *indexes, end = control_word_indexes(unsigned)
    if end != len(unsigned):
        return None
    decoded: list[Where | None] = []
    for index, offset in zip(indexes, (0, abi.fixed_ra_offset, abi.fixed_fp_offset), strict=True):
        control = unsigned[index] if index < end else PADDING
        if control == PADDING:
            decoded.append(fixed_place(offset))
            continue
        register = control >> FLEX_REGISTER_SHIFT if control & FLEX_REGISTER_BIT else None
        decoded.append(Where(register, signed[index + 1], bool(control & FLEX_DEREF_BIT)))
    cfa, ra, fp = decoded
    if cfa is None or cfa.register is None:
        return None
    return Rule(cfa._replace(offset=cfa.offset * abi.cfa_scale + abi.cfa_adjustment), ra, fp)
