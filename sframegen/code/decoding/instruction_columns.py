"""Reads capstone's records of instructions into columns: where each begins, and the effects of those that matter. Compiled.

An instruction matters if it may affect the frame or the flow of control. Its `meaning` is its Flow, PointFlags and the number of
its effects in one number; its Take is how it may put an address into a register (all in isa/effects.py). To see fast whether an
instruction may matter, an Isa (isa/instruction_set.py) has `needles`, pairs of letters: operands that contain one matter. After its
`prefix`, a first byte, the same text means something else. A mnemonic has an index in the columns of InstructionReader.
"""

from __future__ import annotations

import re
from array import array
from typing import TYPE_CHECKING, Any

try:
    import cython
except ImportError:
    from sframegen.base import cython_shadow as cython  # type: ignore[no-redef]

from sframegen.code.isa.disassembly import make_disassembler

if not cython.compiled:
    from sframegen.code.isa.effects import (
        BEGIN,
        CONSTANT,
        DIRECT,
        EFFECTS_SHIFT,
        IN_PAGE,
        PADDING,
        PADS,
        PAGE,
        RELATIVE,
        SLOT,
        STOP,
    )
if TYPE_CHECKING:
    from sframegen.base.columns import Column
    from sframegen.code.isa.effects import Effects
    from sframegen.code.isa.instruction_set import Isa

MAX_MNEMONICS = 1 << 11  # that have an index at a time
IDS = 1 << 14  # capstone's ids of instructions are taken modulo this
MAX_TEXTS = 1 << 16  # texts whose meanings are kept at a time
MNEMONIC_SIZE = 32  # bytes of a mnemonic, with the zero after it

DIGITS = re.compile(rb"0x([0-9a-f]{1,16})|[0-9]{1,16}")


class Meanings:
    """Numbers the effects of instructions. It does not refer to a reader, to avoid reference cycles."""

    def __init__(self, isa: Isa) -> None:
        self.isa = isa
        self.effects: list[Effects] = []
        self._numbers: dict[tuple[object, ...], int] = {}
        self.effects_number(())  # number 0 is for an instruction without effects

    def effects_number(self, effects: Effects) -> int:
        number = self._numbers.setdefault((*map(type, effects), *effects), len(self.effects))  # the tuples alone may be equal
        if number == len(self.effects):
            self.effects.append(effects)
        return number

    def describe_mnemonic(self, mnemonic: str) -> tuple[bool, int]:
        """Return whether each such instruction matters, whatever its operands are, and its Take."""
        return mnemonic == ".byte" or self.isa.always_matters(mnemonic), self.isa.takes.get(mnemonic, 0)

    def find_meaning(self, mnemonic: str, operands: str, first_byte: int, address: int, end: int) -> tuple[int, int | None]:
        """Return an instruction's meaning, and its target or slot, which depend on its address.

        The reader calls this once for each text of an instruction, unless the target or slot differs each time.
        """
        pads = PADS if self.isa.is_padding(mnemonic, operands) else 0
        if mnemonic == ".byte":
            return STOP | pads, None
        point = self.isa.decode_point(address, end, mnemonic, operands, first_byte)
        if point is None:
            return pads, None
        meaning = self.effects_number(point.effects) << EFFECTS_SHIFT | pads | point.flow
        if point.target is not None:
            return meaning | DIRECT, point.target % (1 << 64)
        if point.slot is not None:
            return meaning | SLOT, point.slot % (1 << 64)
        return meaning, None


class InstructionReader:
    """Reads the instructions of one ABI. Meanings are kept by text; capstone's ids only speed up the search for a mnemonic.

    `consumed`: the number of bytes that the last `read` decoded. `value`: a second result, the number or address that a method
    parse_*, takes_address or read_meaning has found; the caller takes it from there at once.
    `direct` and `by_slot`: by mnemonic, the meaning of jumps and calls whose operands end in a target, or in [rip + n]; 0 before
    one has been read. Other operands, such as the register of cbz, do not change it.
    """

    def __init__(self, meanings: Meanings, records: int) -> None:
        """`records`: the most instructions that are read at a time."""
        isa = meanings.isa
        capstone = make_disassembler(*isa.capstone)
        pairs = bytearray(1 << 16)  # by two letters: 1 for a needle
        for needle in isa.needles:
            pairs[ord(needle[0]) << 8 | ord(needle[1])] = 1
        self.meanings = meanings
        self.disassemble = capstone.records
        self.took_address = False
        self.data = b""
        (
            self.record_size, self.id_low_at, self.id_high_at, self.length_at, self.bytes_at, self.mnemonic_at, self.operands_at,
        ) = capstone.record  # fmt: skip
        self.pairs = pairs
        self.prefix = isa.prefix
        self.index_of_id = array("H", bytes(2 * IDS))  # index 0, of no mnemonic, for ids that have not been read
        self.mnemonic_bytes = bytearray(MNEMONIC_SIZE * MAX_MNEMONICS)
        self.always_matters = bytearray(MAX_MNEMONICS)
        self.takes = bytearray(MAX_MNEMONICS)
        self.direct = array("q", bytes(8 * MAX_MNEMONICS))
        self.by_slot = array("q", bytes(8 * MAX_MNEMONICS))
        self.mnemonics = [b"-"] * MAX_MNEMONICS
        self.needle = re.compile("|".join(isa.needles).encode()).search  # interpreted; compiled, `pairs` is used
        self.known_meanings: list[dict[bytes, int]] = [{} for _ in range(MAX_MNEMONICS)]
        self.indexes: dict[bytes, int] = {}
        self.pages = array("Q", bytes(8 * 32))  # by AArch64 register
        self.mask = 0xFFFFFFFFFFFFFFFF
        self.value = 0
        self.consumed = self.texts = 0  # `texts`: how many have a meaning in `known_meanings`
        offsets, at, ends, effects, taken_at = [array("I", bytes(4 * records)) for _ in range(5)]
        flows = bytearray(records)
        addresses, taken = [array("Q", bytes(8 * records)) for _ in range(2)]
        # In the order of DecodedCode. Kept as objects, too, because slices of the typed attributes would be views when compiled.
        self.columns: tuple[Any, ...] = (offsets, at, ends, effects, flows, addresses, taken, taken_at)
        self.offsets, self.at, self.ends, self.effects, self.flows, self.addresses, self.taken, self.taken_at = self.columns

    def start_piece(self) -> None:
        """Forgets the pages that `adrp` put into registers, because another piece of code begins."""
        number: cython.Py_ssize_t
        for number in range(32):
            self.pages[number] = 0

    @cython.locals(marks="unsigned char[::1]")
    def read(
        self, code: bytes, start: cython.ulonglong, first: cython.longlong, end: cython.longlong, limit: cython.longlong,
        marks: bytearray,
    ) -> list[Column]:  # fmt: skip
        """Returns the columns `offsets` to `taken_at` of DecodedCode for instructions that begin from offset `first` up to `limit`.

        `code` is the whole piece, at address `start`; the last instruction ends at offset `end` at most. Fills `marks`, a Mark for
        each byte of the piece.
        """
        here: cython.longlong = first
        size: cython.longlong
        meaning: cython.longlong
        record: cython.Py_ssize_t = 0  # offset of the next record in `raw`
        after: cython.Py_ssize_t = 0  # end of the last record
        raw: bytes = b""
        points: cython.Py_ssize_t = 0
        takes: cython.Py_ssize_t = 0
        count: cython.Py_ssize_t = 0
        while here < limit:
            if record == after:
                raw = self.disassemble(code[here:end], start + here)
                self.data = raw
                record = 0
                after = len(raw)
                if not raw:
                    break
            size = self.data[record + self.length_at]
            meaning = self.read_record(raw, record, start + here, size)
            record += self.record_size
            self.offsets[count] = here
            count += 1
            if self.took_address:
                self.taken[takes] = self.value
                self.taken_at[takes] = here
                takes += 1
            marks[here] = PADDING if meaning & PADS else BEGIN
            meaning &= ~PADS
            if meaning:
                self.at[points] = here
                self.ends[points] = here + size
                self.effects[points] = meaning >> EFFECTS_SHIFT
                self.flows[points] = meaning & 31  # Flow, DIRECT and SLOT
                self.addresses[points] = self.value if meaning & (DIRECT | SLOT) else 0
                points += 1
            here += size
        self.consumed = here - first
        offsets, at, ends, effects, flows, addresses, taken, taken_at = self.columns
        return [
            offsets[:count], at[:points], ends[:points], effects[:points], flows[:points], addresses[:points], taken[:takes],
            taken_at[:takes],
        ]  # fmt: skip

    def read_record(
        self, raw: bytes, record: cython.Py_ssize_t, address: cython.ulonglong, size: cython.longlong
    ) -> cython.Py_ssize_t:
        """Returns the meaning of a record's instruction. Sets `value` to its target or slot; if `took_address`, to that address."""
        text: cython.Py_ssize_t = record + self.operands_at
        name: cython.Py_ssize_t = record + self.mnemonic_at
        id_index: cython.Py_ssize_t = (
            self.data[record + self.id_low_at] + 256 * self.data[record + self.id_high_at]
        ) % 16384  # IDS
        index: cython.Py_ssize_t = self.index_of_id[id_index]
        taken: cython.ulonglong = 0
        matters: cython.int
        take: cython.int
        meaning: cython.longlong
        if not (self.has_mnemonic(index, name) if cython.compiled else raw.startswith(self.mnemonics[index], name)):
            index = self.mnemonic_index(raw, name)
            self.index_of_id[id_index] = index
        matters = self.always_matters[index]
        if not matters:
            matters = self.has_needle(text) if cython.compiled else self.needle(raw, text, raw.find(0, text)) is not None
        take = self.takes[index]
        self.took_address = bool(take and self.takes_address(take, text, address + size))
        taken = self.value
        meaning = self.read_meaning(raw, record, index, address, size) if matters else 0
        if self.took_address:
            self.value = taken  # read_meaning has overwritten it
        return meaning

    def mnemonic_index(self, raw: bytes, begin: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Returns the index of the mnemonic at `begin`; a new mnemonic gets one."""
        end: cython.Py_ssize_t = self.text_end(begin)
        number: cython.Py_ssize_t
        index: cython.Py_ssize_t
        mnemonic: bytes = raw[begin:end]
        if mnemonic not in self.indexes:
            if len(self.indexes) == MAX_MNEMONICS - 1:
                self.indexes.clear()
            index = len(self.indexes) + 1  # 0 is of no mnemonic
            always_matters, take = self.meanings.describe_mnemonic(mnemonic.decode("ascii"))
            for number in range(32):
                self.mnemonic_bytes[index * 32 + number] = self.data[begin + number] if begin + number < end else 0
            self.mnemonics[index] = mnemonic + b"\0"
            self.always_matters[index] = always_matters
            self.takes[index] = take
            self.direct[index] = self.by_slot[index] = 0
            self.known_meanings[index] = {}
            self.indexes[mnemonic] = index
        return self.indexes[mnemonic]

    def read_meaning(
        self, raw: bytes, record: cython.Py_ssize_t, index: cython.Py_ssize_t, address: cython.ulonglong, size: cython.longlong
    ) -> cython.Py_ssize_t:
        """Returns the meaning of an instruction that matters: its mnemonic's, its text's, or find_meaning's. Sets `value`."""
        text: cython.Py_ssize_t = record + self.operands_at
        end: cython.Py_ssize_t = self.text_end(text)
        meaning: cython.longlong
        if self.direct[index] and self.parse_number(self.last_number_start(text, end)) == end:
            return self.direct[index]
        if self.by_slot[index] and self.parse_rip_relative(text, address + size):
            return self.by_slot[index]
        operands: bytes = raw[text:end]
        first: cython.int = self.data[record + self.bytes_at]
        known_meanings: dict[bytes, int] = self.known_meanings[index]
        # No operands end in "!" on machines with a prefix: it marks texts after one.
        key: bytes = operands + b"!" if first == self.prefix else operands
        found = known_meanings.get(key)
        if found is not None:
            return found
        mnemonic: bytes = raw[record + self.mnemonic_at : self.text_end(record + self.mnemonic_at)]
        found, target_or_slot = self.meanings.find_meaning(
            mnemonic.decode("ascii"), operands.decode("ascii"), first, address, (address + size) & self.mask
        )
        meaning = found
        if meaning & DIRECT:
            self.direct[index] = meaning
        elif meaning & SLOT:
            self.by_slot[index] = meaning
        else:
            if self.texts == 65536:  # MAX_TEXTS
                for texts in self.known_meanings:
                    texts.clear()
                self.texts = 0
            known_meanings[key] = found
            self.texts += 1
        self.value = target_or_slot or 0
        return meaning

    # -- parsing of texts, which end with a zero; methods of `bytes` replace the loops where these would be interpreted

    def has_mnemonic(self, index: cython.Py_ssize_t, pos: cython.Py_ssize_t) -> cython.int:
        """Returns True if the mnemonic of that index is at `pos`. Compiled only, like has_needle: see read_record."""
        name: cython.Py_ssize_t = index * 32  # MNEMONIC_SIZE
        while self.mnemonic_bytes[name] == self.data[pos] and self.mnemonic_bytes[name]:
            name += 1
            pos += 1
        return self.mnemonic_bytes[name] == self.data[pos]

    def has_needle(self, pos: cython.Py_ssize_t) -> cython.int:
        before: cython.int = 0
        letter: cython.int = self.data[pos]
        while letter:
            if self.pairs[before * 256 + letter]:
                return 1
            before = letter
            pos += 1
            letter = self.data[pos]
        return 0

    def text_end(self, pos: cython.Py_ssize_t) -> cython.Py_ssize_t:
        if not cython.compiled:
            return self.data.find(0, pos)
        while self.data[pos]:
            pos += 1
        return pos

    def last_number_start(self, pos: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Returns the position after the last `#`, which precedes numbers on AArch64; the start of the text if there is none."""
        start: cython.Py_ssize_t
        if not cython.compiled:
            return self.data.rfind(35, pos, end) + 1 or pos
        start = end
        while start > pos:
            if self.data[start - 1] == 35:  # #
                return start
            start -= 1
        return pos

    def parse_number(self, pos: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Returns the end of the number at `pos`, decimal or hexadecimal with 0x, and sets `value` to it; 0 if there is none."""
        begin: cython.Py_ssize_t
        base: cython.int = 10
        digit: cython.int
        if not cython.compiled:
            match = DIGITS.match(self.data, pos)
            self.value = int(match[1], 16) if match and match[1] else int(match[0]) if match else 0
            return match.end() if match else 0
        if self.data[pos] == 48 and self.data[pos + 1] == 120:  # 0x
            base = 16
            pos += 2
        begin = pos
        self.value = 0
        while True:
            digit = self.data[pos]
            if 48 <= digit <= 57:
                digit -= 48
            elif base == 16 and 97 <= digit <= 102:
                digit -= 87
            else:
                return pos if pos > begin else 0
            if pos - begin == 16:
                return 0
            self.value = self.value * base + digit
            pos += 1

    def parse_rip_relative(self, pos: cython.Py_ssize_t, end: cython.ulonglong) -> cython.int:
        """Returns True if the operands at `pos` end in `[rip + n]`, and sets `value` to `end + n`. `end`: of the instruction."""
        end_of_number: cython.Py_ssize_t
        sign: cython.int
        if not cython.compiled:
            pos = self.data.find(91, pos, self.data.find(0, pos))
            if pos < 0:
                return 0
        while self.data[pos] != 91:  # [
            if not self.data[pos]:
                return 0
            pos += 1
        if self.data[pos - 1] != 32 or self.data[pos + 1] != 114 or self.data[pos + 2] != 105 or self.data[pos + 3] != 112:  # rip
            return 0
        sign = self.data[pos + 5]
        end_of_number = self.parse_number(pos + 7) if sign else 0
        if end_of_number == 0 or self.data[end_of_number] != 93 or self.data[end_of_number + 1]:  # ]
            return 0
        self.value = (end + self.value if sign == 43 else end - self.value) & self.mask
        return 1

    def parse_x_register(self, pos: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Parses AArch64's register x0 to x31 and `, `. Sets `value` to its number, and returns the end; 0 if there is none."""
        if self.data[pos] != 120:  # x
            return 0
        pos = self.parse_number(pos + 1)
        return pos + 2 if pos and self.data[pos] == 44 and self.value < 32 else 0

    def takes_address(self, take: cython.int, pos: cython.Py_ssize_t, end: cython.ulonglong) -> cython.int:
        """Returns True if an instruction with that Take does put an address into a register, and sets `value` to the address."""
        register: cython.Py_ssize_t
        page: cython.ulonglong = 0
        if take == RELATIVE:
            return self.parse_rip_relative(pos, end)
        if take == CONSTANT:
            while self.data[pos] > 44:  # a comma, after a register's name; operands in memory have spaces and brackets before it
                if self.data[pos] == 91:
                    return 0
                pos += 1
            if self.data[pos] != 44:
                return 0
            pos = self.parse_number(pos + 2)
            return 1 if pos and not self.data[pos] else 0
        pos = self.parse_x_register(pos)
        if pos == 0:
            return 0
        if take == IN_PAGE:
            pos = self.parse_x_register(pos)
            if pos == 0:
                return 0
            page = self.pages[self.value]
        register = self.value
        if self.data[pos] != 35:  # #
            return 0
        pos = self.parse_number(pos + 1)
        if pos == 0 or self.data[pos]:
            return 0
        self.value = (page + self.value) & self.mask
        if take == PAGE:
            self.pages[register] = self.value
        return 1
