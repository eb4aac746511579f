"""One row's rule <-> its FRE info byte and data words. Pure functions, called once for each distinct rule."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from sframegen.format.records import (
    BYTE_ORDER_MARKS,
    CFA_BASE_SP_BIT,
    DATAWORD_COUNT_MASK,
    DATAWORD_COUNT_SHIFT,
    DATAWORD_SIZE_MASK,
    DATAWORD_SIZE_SHIFT,
    DATAWORD_WIDTHS,
    MANGLED_RA_BIT,
)
from sframegen.model import OUTERMOST, FdeType, Rule, Where

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sframegen.abi import Abi

WORD_CODES = ("b", "h", "i")  # signed data words, by fre_dataword_size


def fde_type_of(rule: Rule, abi: Abi) -> FdeType | None:
    """The FDE type that can say `rule`; None where no type can."""
    return None if _default_words(rule, abi) is None else FdeType.DEFAULT


def encode_rule(rule: Rule, abi: Abi) -> bytes | None:
    """FRE info byte and data words, the words of the smallest size that holds them; None where the format cannot say it."""
    words = _default_words(rule, abi)
    if words is None:
        return None
    size = next((size for size, code in enumerate(WORD_CODES) if all(_fits(word, code) for word in words)), None)
    if size is None:
        return None
    info = len(words) << DATAWORD_COUNT_SHIFT | size << DATAWORD_SIZE_SHIFT
    if rule.cfa is not None and rule.cfa.register == abi.sp:
        info |= CFA_BASE_SP_BIT
    if rule.ra_signed:
        info |= MANGLED_RA_BIT
    return bytes([info]) + struct.pack(f"{BYTE_ORDER_MARKS[abi.byte_order]}{len(words)}{WORD_CODES[size]}", *words)


def decode_rule(fde_type: FdeType, raw: bytes, abi: Abi) -> Rule | None:
    """The rule of an FRE's info byte and data words (`raw`); None where their number fits no rule of that FDE type."""
    info = raw[0]
    count = info >> DATAWORD_COUNT_SHIFT & DATAWORD_COUNT_MASK
    if count == 0:
        return OUTERMOST
    if fde_type is not FdeType.DEFAULT:
        return None
    code = WORD_CODES[info >> DATAWORD_SIZE_SHIFT & DATAWORD_SIZE_MASK]
    words = struct.unpack_from(f"{BYTE_ORDER_MARKS[abi.byte_order]}{count}{code}", raw, 1)
    return _default_rule(words, info, abi)


def words_size(info: int) -> int:
    """Bytes of data words that follow an FRE info byte."""
    return (info >> DATAWORD_COUNT_SHIFT & DATAWORD_COUNT_MASK) * DATAWORD_WIDTHS[info >> DATAWORD_SIZE_SHIFT & DATAWORD_SIZE_MASK]


def _fits(word: int, code: str) -> bool:
    limit = 1 << 8 * struct.calcsize(code) - 1
    return -limit <= word < limit


def _default_words(rule: Rule, abi: Abi) -> list[int] | None:
    """CFA = SP or FP + n, then the offsets from the CFA of those registers that the ABI does not fix: RA, FP."""
    if rule == OUTERMOST:
        return []
    cfa = rule.cfa
    if cfa is None or cfa.deref or cfa.register not in (abi.sp, abi.fp):
        return None
    words = [cfa.offset]
    for where, fixed in ((rule.ra, abi.fixed_ra_offset), (rule.fp, abi.fixed_fp_offset)):
        if where == (Where(None, fixed, deref=True) if fixed else None):
            continue
        if where is None or where.register is not None or not where.deref or fixed:
            return None
        words.append(where.offset)
    return words


def _default_rule(words: Sequence[int], info: int, abi: Abi) -> Rule | None:
    register = abi.sp if info & CFA_BASE_SP_BIT else abi.fp
    saved: list[Where | None] = []
    rest = list(words[1:])
    for fixed in (abi.fixed_ra_offset, abi.fixed_fp_offset):
        offset = fixed or (rest.pop(0) if rest else None)
        saved.append(None if offset is None else Where(None, offset, deref=True))
    return None if rest else Rule(Where(register, words[0]), saved[0], saved[1], bool(info & MANGLED_RA_BIT))
