"""One row's rule <-> its FRE info byte and data words. Pure functions, called once for each distinct rule."""

from __future__ import annotations

import struct
from array import array
from functools import cache
from itertools import accumulate
from typing import TYPE_CHECKING

from sframegen.elf.records import MARKS
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

    from sframegen.elf.records import ByteOrder
    from sframegen.format.abi import Abi
    from sframegen.format.layouts import Layout

    Words = tuple[str, list[int]]  # signedness of each, the words

FDE_TYPES = tuple(FdeType)
SIGNED_CODES, UNSIGNED_CODES = "bhi", "BHI"  # data words, by fre_dataword_size
DATAWORD_LIMITS = [1 << 8 * width - 1 for width in DATAWORD_WIDTHS]
SIGNED, UNSIGNED = "su"  # offsets; the control words of flexible rules, none of which takes more than a byte
PADDING = 0


def encode_rule(rule: Rule, fde_type: FdeType, abi: Abi, layout: Layout) -> bytes | None:
    """FRE info byte and data words, the words of the smallest size that holds them; None where that FDE type cannot say it."""
    said = _WORDS[fde_type](rule, abi, layout)
    if said is None:
        return None
    shape, words = said
    offsets = [word for code, word in zip(shape, words, strict=True) if code == SIGNED]
    lowest, highest = min(offsets, default=0), max(offsets, default=0)
    size = next((size for size, limit in enumerate(DATAWORD_LIMITS) if -limit <= lowest and highest < limit), None)
    if size is None:
        return None
    info = len(words) << DATAWORD_COUNT_SHIFT | size << DATAWORD_SIZE_SHIFT | MANGLED_RA_BIT * rule.ra_signed
    if fde_type is FdeType.DEFAULT and rule.cfa is not None and rule.cfa.register == abi.sp:
        info |= CFA_BASE_SP_BIT
    return _struct(abi.byte_order, shape, size).pack(info, *words)


@cache
def _struct(byte_order: ByteOrder, shape: str, size: int) -> struct.Struct:
    """An FRE info byte and words; there are a dozen shapes."""
    codes = {SIGNED: SIGNED_CODES[size], UNSIGNED: UNSIGNED_CODES[size]}
    return struct.Struct(f"{MARKS[byte_order]}B" + "".join(codes[code] for code in shape))


class EncodedRules:
    """All rules of a table in the words of each FDE type: those of rule r and type t are raw[at[2 * r + t] : at[2 * r + t + 1]].

    Nothing is there where the type cannot say the rule.
    """

    def __init__(self, rules: Iterable[Rule], abi: Abi, layout: Layout) -> None:
        self.abi = abi
        self.layout = layout
        blobs = [encode_rule(rule, fde_type, abi, layout) or b"" for rule in rules for fde_type in FDE_TYPES]
        self.raw = b"".join(blobs)
        self.at = array("I", accumulate(map(len, blobs), initial=0))

    def size(self, rule: int, fde_type: int) -> int:
        """Size in bytes; 0 if the type cannot express the rule."""
        number = 2 * rule + fde_type
        return self.at[number + 1] - self.at[number]


def decode_rule(fde_type: FdeType, raw: bytes, abi: Abi, layout: Layout) -> Rule | None:
    """The rule of an FRE's info byte and data words (`raw`); None where their number fits no rule of that FDE type."""
    info = raw[0]
    if not info >> DATAWORD_COUNT_SHIFT & DATAWORD_COUNT_MASK:
        return OUTERMOST
    signed, unsigned = data_words(raw, abi)
    if fde_type is FdeType.FLEX:
        rule = _flex_rule(signed, unsigned, abi)
    else:
        rule = _default_rule(signed, abi.sp if info & CFA_BASE_SP_BIT else abi.fp, abi, layout)
    return rule and rule._replace(ra_signed=bool(info & MANGLED_RA_BIT))


def data_words(raw: bytes, abi: Abi) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the words after an FRE info byte, as signed and as unsigned numbers."""
    count = raw[0] >> DATAWORD_COUNT_SHIFT & DATAWORD_COUNT_MASK
    size = raw[0] >> DATAWORD_SIZE_SHIFT & DATAWORD_SIZE_MASK
    mark = MARKS[abi.byte_order]
    return (
        struct.unpack_from(f"{mark}{count}{SIGNED_CODES[size]}", raw, 1),
        struct.unpack_from(f"{mark}{count}{UNSIGNED_CODES[size]}", raw, 1),
    )


def words_size(info: int) -> int:
    """Bytes of data words that follow an FRE info byte."""
    return (info >> DATAWORD_COUNT_SHIFT & DATAWORD_COUNT_MASK) * DATAWORD_WIDTHS[info >> DATAWORD_SIZE_SHIFT & DATAWORD_SIZE_MASK]


def fixed(offset: int) -> Where | None:
    """Return the place of a register without a rule in the row: at its fixed offset from the CFA, or unchanged (None)."""
    return Where(None, offset, deref=True) if offset else None


def _cfa_word(offset: int, abi: Abi) -> int | None:
    """s390x stores CFA offsets adjusted and scaled down."""
    word, rest = divmod(offset - abi.cfa_adjustment, abi.cfa_scale)
    return None if rest else word


# -- default FDEs: CFA = SP or FP + n, then the offsets from the CFA of those registers that the ABI does not fix: RA, FP


def _default_words(rule: Rule, abi: Abi, layout: Layout) -> Words | None:
    cfa = rule.cfa
    if cfa is None:
        return ("", []) if layout.outermost else None
    first = _cfa_word(cfa.offset, abi)
    if first is None or cfa.deref or cfa.register not in (abi.sp, abi.fp):
        return None
    words = [first]
    if rule.ra != fixed(abi.fixed_ra_offset):
        word = None if rule.ra is None or abi.fixed_ra_offset else _saved_word(rule.ra, abi, layout)
        if word is None or word == PADDING:
            return None
        words.append(word)
    if rule.fp != fixed(abi.fixed_fp_offset):
        word = None if rule.fp is None or abi.fixed_fp_offset else _saved_word(rule.fp, abi, layout)
        if word is None:
            return None
        if len(words) == 1 and not abi.fixed_ra_offset:  # FP's word is the third, though RA has none
            if not abi.ra_padding:
                return None
            words.append(PADDING)
        words.append(word)
    return SIGNED * len(words), words


def _saved_word(where: Where, abi: Abi, layout: Layout) -> int | None:
    odd = layout.registers_as_odd_offsets and abi.registers_as_offsets
    if where.register is not None:
        return where.register << 1 | 1 if odd and not where.deref and where.offset == 0 else None
    return where.offset if where.deref and not (odd and where.offset & 1) else None


def _default_rule(words: Sequence[int], base: int, abi: Abi, layout: Layout) -> Rule | None:
    saved: list[Where | None] = []
    rest = list(words[1:])
    for offset in (abi.fixed_ra_offset, abi.fixed_fp_offset):
        if offset or not rest:
            saved.append(fixed(offset))
            continue
        word = rest.pop(0)
        if word & 1 and layout.registers_as_odd_offsets and abi.registers_as_offsets:
            saved.append(Where(word >> 1, 0))
        elif word == PADDING and not saved:
            saved.append(None)
        else:
            saved.append(Where(None, word, deref=True))
    return None if rest else Rule(Where(base, words[0] * abi.cfa_scale + abi.cfa_adjustment), saved[0], saved[1])


# -- flexible FDEs: for CFA, RA, FP a control word and an offset; a padding word alone where RA or FP has no rule of its own


def _flex_words(rule: Rule, abi: Abi, layout: Layout) -> Words | None:
    if rule.cfa is None:
        return ("", []) if layout.outermost else None
    first = _cfa_word(rule.cfa.offset, abi)
    if not layout.flex or first is None or rule.cfa.register not in abi.base_registers:
        return None
    shape, words = UNSIGNED + SIGNED, [_control(rule.cfa), first]
    for where, offset in ((rule.ra, abi.fixed_ra_offset), (rule.fp, abi.fixed_fp_offset)):
        if where == fixed(offset):
            shape += UNSIGNED
            words.append(PADDING)
        elif where is None or not (where.deref if where.register is None else where.register in abi.base_registers):
            return None
        else:
            shape += UNSIGNED + SIGNED
            words += [_control(where), where.offset]
    said = len(shape.rstrip(UNSIGNED))  # an offset is the last word
    return shape[:said], words[:said]


def _control(where: Where) -> int:
    base = 0 if where.register is None else where.register << FLEX_REGISTER_SHIFT | FLEX_REGISTER_BIT
    return base | FLEX_DEREF_BIT * where.deref


def flex_places(words: Sequence[int]) -> list[int]:
    """Return the places of the control words of CFA, RA and FP, and of what follows: not the end if the words fit no rule."""
    places = [0]
    for _ in range(3):
        at = places[-1]
        places.append(at + (0 if at >= len(words) else 1 if words[at] == PADDING else 2))
    return places


def _flex_rule(signed: Sequence[int], unsigned: Sequence[int], abi: Abi) -> Rule | None:
    *places, end = flex_places(unsigned)
    if end != len(unsigned):
        return None
    said: list[Where | None] = []
    for at, offset in zip(places, (0, abi.fixed_ra_offset, abi.fixed_fp_offset), strict=True):
        control = unsigned[at] if at < end else PADDING
        if control == PADDING:
            said.append(fixed(offset))
            continue
        register = control >> FLEX_REGISTER_SHIFT if control & FLEX_REGISTER_BIT else None
        said.append(Where(register, signed[at + 1], bool(control & FLEX_DEREF_BIT)))
    cfa, ra, fp = said
    if cfa is None or cfa.register is None:
        return None
    return Rule(cfa._replace(offset=cfa.offset * abi.cfa_scale + abi.cfa_adjustment), ra, fp)


_WORDS = {FdeType.DEFAULT: _default_words, FdeType.FLEX: _flex_words}
