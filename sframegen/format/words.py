"""One row's rule <-> its FRE info byte and data words. Called once for each distinct rule."""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_right
from functools import cache
from itertools import accumulate, chain
from operator import eq
from typing import TYPE_CHECKING, NamedTuple

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
    from collections.abc import Callable, Iterable, Sequence

    from sframegen.elf.records import ByteOrder
    from sframegen.format.abi import Abi
    from sframegen.format.layouts import Layout

FDE_TYPES = tuple(FdeType)
SIGNED_CODES, UNSIGNED_CODES = "bhi", "BHI"  # data words, by fre_dataword_size
DATAWORD_LIMITS = [1 << 8 * width - 1 for width in DATAWORD_WIDTHS]
SIGNED, UNSIGNED = "su"  # offsets; the control words of flexible rules, none of which takes more than a byte
PADDING = 0


class _Around(NamedTuple):
    """Encoded prefix, packer for the CFA offset, encoded suffix."""

    before: bytes  # the FRE info byte, and in flexible FDEs the CFA's control word
    pack: Callable[[int], bytes]
    after: bytes  # the words for RA and FP


class RuleWords:
    """Rules as bytes, for one ABI and version. Everything but the CFA's offset is the same in many rules, and kept."""

    def __init__(self, abi: Abi, layout: Layout) -> None:
        self.abi = abi
        self.layout = layout
        self.of = cache(self._of)
        self._around = cache(self._words_around)

    def _of(self, rule: Rule) -> tuple[bytes, bytes]:
        """FRE info byte and data words in each FDE type, in the smallest size that holds them; b"" where the type cannot say it."""
        cfa, ra, fp, ra_signed = rule
        if cfa is None:
            outermost = bytes((MANGLED_RA_BIT * ra_signed,)) if self.layout.outermost else b""
            return outermost, outermost
        register, offset, deref = cfa
        word, size = _cfa_word(offset, self.abi)
        by_default, by_control = self._around(size, register, deref, ra, fp, ra_signed)
        default = flex = b""
        if by_default is not None:
            before, pack, after = by_default
            default = before + pack(word) + after
        if by_control is not None:
            before, pack, after = by_control
            flex = before + pack(word) + after
        return default, flex

    def _words_around(
        self, size: int, register: int | None, deref: bool, ra: Where | None, fp: Where | None, ra_signed: bool
    ) -> tuple[_Around | None, _Around | None]:
        """In default and in flexible FDEs; None where these cannot say it.

        `size`: the fre_dataword_size that holds the CFA's offset; `register`, `deref`: the CFA's.
        """
        abi = self.abi
        info = MANGLED_RA_BIT * ra_signed
        default = flex = None
        if not deref and register in (abi.sp, abi.fp):
            default = self._saved_by_default(size, info | CFA_BASE_SP_BIT * (register == abi.sp), ra, fp)
        if register in abi.base_registers:
            flex = self._saved_by_control(size, info, _control(register, deref), ra, fp)
        return default, flex

    def _packed(self, least: int, info: int, controls: list[int], shape: str, words: list[int]) -> _Around | None:
        """All words in one size, at least `least`; None if none is large enough.

        `controls`: words before the CFA's offset; `shape`: the signedness of each of those after it.
        """
        size = max([least, *(_size_of(word) for code, word in zip(shape, words, strict=True) if code == SIGNED)])
        if size == len(DATAWORD_LIMITS):
            return None
        info |= len(controls) + 1 + len(words) << DATAWORD_COUNT_SHIFT | size << DATAWORD_SIZE_SHIFT
        before, offset, after = (_struct(self.abi.byte_order, code, size) for code in (UNSIGNED * len(controls), SIGNED, shape))
        return _Around(bytes((info,)) + before.pack(*controls), offset.pack, after.pack(*words))

    def _saved_by_default(self, size: int, info: int, ra: Where | None, fp: Where | None) -> _Around | None:
        """In default FDEs (CFA = SP or FP + n): the offsets from the CFA of those registers that the ABI does not fix: RA, FP."""
        abi = self.abi
        words = []
        if ra != fixed(abi.fixed_ra_offset):
            word = None if ra is None or abi.fixed_ra_offset else self._offset(ra)
            if word is None or word == PADDING:
                return None
            words.append(word)
        if fp != fixed(abi.fixed_fp_offset):
            word = None if fp is None or abi.fixed_fp_offset else self._offset(fp)
            if word is None or word == PADDING:  # which readers take for "unchanged"
                return None
            if not words and not abi.fixed_ra_offset:  # FP's word is the third, though RA has none
                if not abi.ra_padding:
                    return None
                words.append(PADDING)
            words.append(word)
        return self._packed(size, info, [], SIGNED * len(words), words)

    def _offset(self, where: Where) -> int | None:
        odd = self.layout.registers_as_odd_offsets and self.abi.registers_as_offsets
        if where.register is not None:
            known = where.register in self.abi.base_registers
            return where.register << 1 | 1 if odd and known and not where.deref and where.offset == 0 else None
        return where.offset if where.deref and not (odd and where.offset & 1) else None

    def _saved_by_control(self, size: int, info: int, of_cfa: int, ra: Where | None, fp: Where | None) -> _Around | None:
        """In flexible FDEs: a control word and an offset for each; a padding word alone where RA or FP has no rule of its own."""
        if not self.layout.flex:
            return None
        shape, words = "", []
        for where, offset in ((ra, self.abi.fixed_ra_offset), (fp, self.abi.fixed_fp_offset)):
            if where == fixed(offset):
                shape += UNSIGNED
                words.append(PADDING)
            elif where is None or not (where.deref if where.register is None else where.register in self.abi.base_registers):
                return None
            else:
                shape += UNSIGNED + SIGNED
                words += [_control(where.register, where.deref), where.offset]
        said = len(shape.rstrip(UNSIGNED))  # an offset is the last word
        return self._packed(size, info, [of_cfa], shape[:said], words[:said])


def _control(register: int | None, deref: bool) -> int:
    return FLEX_DEREF_BIT * deref | (0 if register is None else register << FLEX_REGISTER_SHIFT | FLEX_REGISTER_BIT)


def _size_of(offset: int) -> int:
    """The fre_dataword_size that holds an offset; one more than there are if it needs more than 32 bits."""
    return bisect_right(DATAWORD_LIMITS, offset if offset >= 0 else ~offset)


def encode_rule(rule: Rule, fde_type: FdeType, abi: Abi, layout: Layout) -> bytes | None:
    """FRE info byte and data words of one rule; None where that FDE type cannot say it."""
    return RuleWords(abi, layout).of(rule)[fde_type] or None


@cache
def _struct(byte_order: ByteOrder, shape: str, size: int) -> struct.Struct:
    """Data words; there are a few shapes."""
    codes = {SIGNED: SIGNED_CODES[size], UNSIGNED: UNSIGNED_CODES[size]}
    return struct.Struct(MARKS[byte_order] + "".join(codes[code] for code in shape))


class EncodedRules:
    """All rules of a table in the words of each FDE type: those of rule r and type t are raw[at[2 * r + t] : at[2 * r + t + 1]].

    Nothing is there where the type cannot say the rule.
    """

    def __init__(self, rules: Iterable[Rule], words: RuleWords) -> None:
        self.abi = words.abi
        self.layout = words.layout
        blobs = [*chain.from_iterable(map(words.of, rules))]
        self.raw = b"".join(blobs)
        self.at = array("I", accumulate(map(len, blobs), initial=0))

    def flexible(self) -> bytes:
        """For each rule, whether default FDEs cannot say it."""
        return bytes(map(eq, self.at[::2], self.at[1::2]))


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


def fixed(offset: int) -> Where | None:
    """Return the place of a register without a rule in the row: at its fixed offset from the CFA, or unchanged (None)."""
    return Where(None, offset, deref=True) if offset else None


def _cfa_word(offset: int, abi: Abi) -> tuple[int, int]:
    """A CFA offset's word, and the fre_dataword_size that holds it. s390x stores CFA offsets adjusted and scaled down.

    Readers scale it up again in 32 bits: an offset that needs more has no word, though the scaled one would fit.
    """
    word, rest = divmod(offset - abi.cfa_adjustment, abi.cfa_scale)
    return word, len(DATAWORD_LIMITS) if rest or _size_of(offset) == len(DATAWORD_LIMITS) else _size_of(word)


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
