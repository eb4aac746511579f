"""GNU libsframe's own look-up of a PC, through ctypes."""

from __future__ import annotations

import ctypes
from array import array
from bisect import bisect_right

from .rules import NOTHING, OUTERMOST, Abi, Interner, OracleError, Rule

PCREL = 0x4  # section flag: function starts count from their own field
SIGNAL, KEY_B, MASK = 0x80, 0x20, 0x10  # in a function's first info byte
FDE_TYPE = 0x1F  # in its second
DEFAULT, FLEX = 0, 1
BASE_IS_SP = 1
NOT_PRESENT = 2011  # error number: the row has no such data word
# A row entry is a 4-byte start, 24 bytes of data words (zero where unused), the info byte, and padding.
ENTRY_SIZE = 32
WORDS_AND_INFO = slice(4, 29)


class Decoder:
    """A decoded V3 section, loaded at `address`. PCs are link-time addresses. The library does not check its input:
    give it only sections that readelf has printed without a complaint."""

    def __init__(self, library: str, section: bytes, address: int, abi: Abi, rules: Interner[Rule | None]) -> None:
        self._library = lib = ctypes.CDLL(library)
        lib.sframe_decode.restype = ctypes.c_void_p
        for name, kind in (
            ("sframe_decoder_get_num_fidx", ctypes.c_uint32),
            ("sframe_decoder_get_offsetof_fde_start_addr", ctypes.c_uint32),
            ("sframe_decoder_get_flags", ctypes.c_uint8),
            ("sframe_decoder_get_fixed_ra_offset", ctypes.c_int8),
            ("sframe_fre_get_base_reg_id", ctypes.c_uint8),
            ("sframe_fre_get_ra_undefined_p", ctypes.c_bool),
            ("sframe_fre_get_ra_mangled_p", ctypes.c_bool),
            ("sframe_get_fre_udata", ctypes.c_uint32),
        ):
            getattr(lib, name).restype = kind
        self._find = lib.sframe_find_fre
        self._find.argtypes = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)
        self._abi = abi
        self._rules = rules
        self._address = address
        self._section = section  # the decoder points into it
        self._error = ctypes.c_int()
        self._error_at = ctypes.byref(self._error)
        context = lib.sframe_decode(section, ctypes.c_size_t(len(section)), self._error_at)
        if not context:
            raise OracleError(f"libsframe refuses the section: error {self._error.value}")
        self._context = ctypes.c_void_p(context)
        self._entry = ctypes.create_string_buffer(ENTRY_SIZE)
        self._memo: dict[tuple[bytes, int, int], int] = {}
        fixed = lib.sframe_decoder_get_fixed_ra_offset(self._context)
        self._fixed_ra = f"c{fixed:+d}" if fixed else "same"
        self._read_functions()
        self._begin = self._end = 0
        self._kind, self._info = DEFAULT, 0

    @property
    def masks(self) -> list[bool]:
        """For each function, whether its rows are repeated for each block."""
        return [bool(info & MASK) for info in self._infos]

    def close(self) -> None:
        self._library.sframe_decoder_free(ctypes.byref(self._context))

    def _read_functions(self) -> None:
        self._starts, self._sizes = array("Q"), array("L")
        self._infos, self._infos2, self.block_sizes = array("B"), array("B"), array("B")
        lib, context = self._library, self._context
        pcrel = lib.sframe_decoder_get_flags(context) & PCREL
        rows, size, start = ctypes.c_uint32(), ctypes.c_uint32(), ctypes.c_int64()
        info, info2, block_size = ctypes.c_ubyte(), ctypes.c_ubyte(), ctypes.c_uint8()
        out = [ctypes.byref(x) for x in (rows, size, start, info, info2, block_size)]
        for index in range(lib.sframe_decoder_get_num_fidx(context)):
            if lib.sframe_decoder_get_funcdesc_v3(context, index, *out):
                raise OracleError(f"libsframe cannot read function {index}")
            field = lib.sframe_decoder_get_offsetof_fde_start_addr(context, index, self._error_at) if pcrel else 0
            self._starts.append(self._address + field + start.value)
            self._sizes.append(size.value)
            self._infos.append(info.value)
            self._infos2.append(info2.value)
            self.block_sizes.append(block_size.value)

    def find(self, pc: int) -> int:
        """Id of the rule in force at `pc`, NOTHING where libsframe finds none."""
        if self._find(self._context, pc - self._address, self._entry):
            return NOTHING
        if not self._begin <= pc < self._end:
            index = max(bisect_right(self._starts, pc) - 1, 0)
            self._begin = self._starts[index]
            self._end = self._begin + self._sizes[index]
            self._kind = self._infos2[index] & FDE_TYPE
            self._info = self._infos[index] & (SIGNAL | KEY_B)
        key = (self._entry.raw[WORDS_AND_INFO], self._kind, self._info)
        rule = self._memo.get(key)
        if rule is None:
            rule = self._memo[key] = self._rules.id(self._rule())
        return rule

    def _rule(self) -> Rule:
        lib, entry = self._library, self._entry
        if lib.sframe_fre_get_ra_undefined_p(self._context, entry, self._error_at):
            return OUTERMOST
        key = ("B" if self._info & KEY_B else "A") if lib.sframe_fre_get_ra_mangled_p(self._context, entry, self._error_at) else ""
        signal = bool(self._info & SIGNAL)
        if self._kind == FLEX:
            ra_words = 2 if self._word(2) else 1
            cfa = self._place("cfa", self._word(0) or 0)
            ra = self._place("ra", self._word(2) or 0) or self._fixed_ra
            fp = self._place("fp", self._word(2 + ra_words) or 0) or "same"
            return Rule(cfa, fp, ra, signal, key)
        base = "sp" if lib.sframe_fre_get_base_reg_id(entry, self._error_at) == BASE_IS_SP else "fp"
        fp_offset, ra_offset = self._offset("fp"), self._offset("ra")
        return Rule(
            f"{base}{self._offset('cfa'):+d}",
            "same" if fp_offset is None else f"c{fp_offset:+d}",
            f"c{ra_offset:+d}" if ra_offset else "same",  # RA at CFA + 0 is padding: only FP has a rule
            signal,
            key,
        )

    def _word(self, index: int) -> int | None:
        """Data word of the row, None past the last."""
        self._error.value = 0
        word: int = self._library.sframe_get_fre_udata(self._entry, index, self._error_at)
        return None if self._error.value else word

    def _offset(self, of: str) -> int | None:
        self._error.value = 0
        get = getattr(self._library, f"sframe_fre_get_{of}_offset")
        offset: int = get(self._context, self._entry, self._kind, self._error_at)
        if self._error.value not in {0, NOT_PRESENT}:
            raise OracleError(f"libsframe reads no {of} offset: error {self._error.value}")
        return None if self._error.value else offset

    def _place(self, of: str, control: int) -> str:
        """What a flexible row's control word and offset say: bit 0 register-based, bit 1 stored there; "" for 0."""
        if control == 0:
            return ""
        register_based, stored = control & 1, control & 2
        place = f"{self._abi.base(control >> 3) if register_based else 'c'}{self._offset(of):+d}"
        if register_based:
            return f"({place})" if stored else place
        return place if stored else place.replace("c", "v")
