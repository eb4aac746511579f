"""Reads capstone's instructions into columns: where they begin, and the few that affect a frame. Compiled."""

from __future__ import annotations

import re
from array import array
from typing import TYPE_CHECKING, Any

try:
    import cython
except ImportError:
    from sframegen.base import cython_shadow as cython  # type: ignore[no-redef]

from sframegen.code.isa.disassembly import disassembler

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

SLOTS = 1 << 11  # mnemonics that are kept at a time
IDS = 1 << 14  # capstone's numbers for instructions; greater ones share places
MAX_TEXTS = 1 << 16  # texts whose meanings are kept at a time
NAME = 32  # bytes of a mnemonic, with the zero after it

DIGITS = re.compile(rb"0x([0-9a-f]{1,16})|[0-9]{1,16}")


class Meanings:
    """The numbers of effects, and the instructions that have them. It does not refer to a reader, to avoid reference cycles."""

    def __init__(self, isa: Isa) -> None:
        self.isa = isa
        self.effects: list[Effects] = []
        self._numbers: dict[tuple[object, ...], int] = {}
        self.number(())  # number 0 is for an instruction without effects

    def number(self, effects: Effects) -> int:
        number = self._numbers.setdefault((*map(type, effects), *effects), len(self.effects))  # the tuples alone may be equal
        if number == len(self.effects):
            self.effects.append(effects)
        return number

    def mnemonic(self, mnemonic: str) -> tuple[bool, int]:
        """Return whether each such instruction matters, whatever its operands are, and its Take."""
        return mnemonic == ".byte" or self.isa.matters(mnemonic), self.isa.takes.get(mnemonic, 0)

    def meaning(self, mnemonic: str, operands: str, first_byte: int, address: int, end: int) -> tuple[int, int | None]:
        """Return Flow, PointFlags and number of the effects in one number; the target or the slot, which depend on the address.

        Each instruction is asked for once, as far as its text is enough.
        """
        pads = PADS if self.isa.pads(mnemonic, operands) else 0
        if mnemonic == ".byte":
            return STOP | pads, None
        point = self.isa.point(address, end, mnemonic, operands, first_byte)
        if point is None:
            return pads, None
        what = self.number(point.effects) << EFFECTS_SHIFT | pads | point.flow
        if point.target is not None:
            return what | DIRECT, point.target % (1 << 64)
        if point.slot is not None:
            return what | SLOT, point.slot % (1 << 64)
        return what, None


class InstructionReader:
    """Columns for one ABI. The meaning of an instruction is kept by its text; capstone's number for it only finds its mnemonic.

    After `read`: `consumed`, how many bytes the instructions have. instruction_columns.pxd has the types.
    """

    def __init__(self, meanings: Meanings, records: int) -> None:
        """`records`: the largest number that is read at a time."""
        isa = meanings.isa
        capstone = disassembler(*isa.capstone)
        pairs = bytearray(1 << 16)
        for needle in isa.needles:
            pairs[ord(needle[0]) << 8 | ord(needle[1])] = 1
        self.meanings = meanings
        self.disassemble = capstone.records
        self.took = False
        self.data = b""
        (
            self.record_size, self.id_low_at, self.id_high_at, self.length_at, self.bytes_at, self.mnemonic_at, self.operands_at,
        ) = capstone.record  # fmt: skip
        self.pairs = pairs
        self.prefix = isa.prefix
        self.slot_of = array("H", bytes(2 * IDS))
        self.names = bytearray(NAME * SLOTS)
        self.looks = bytearray(SLOTS)
        self.takes = bytearray(SLOTS)
        self.direct = array("q", bytes(8 * SLOTS))
        self.by_slot = array("q", bytes(8 * SLOTS))
        self.mnemonics = [b"-"] * SLOTS
        self.needle = re.compile("|".join(isa.needles).encode()).search
        self.known: list[dict[bytes, int]] = [{} for _ in range(SLOTS)]
        self.slots: dict[bytes, int] = {}
        self.pages = array("Q", bytes(8 * 32))
        self.mask = 0xFFFFFFFFFFFFFFFF
        self.value = 0
        self.consumed = self.texts = 0
        words = [array("I", bytes(4 * records)) for _ in range(5)]
        longs = [array("Q", bytes(8 * records)) for _ in range(2)]
        self.columns: tuple[Any, ...] = (*words[:4], bytearray(records), *longs, words[4])
        self.offsets, self.at, self.ends, self.effects, self.taken_at = words
        self.flows = self.columns[4]
        self.addresses, self.taken = longs

    def begin(self) -> None:
        """Starts another piece of code."""
        number: cython.Py_ssize_t
        for number in range(32):
            self.pages[number] = 0

    @cython.locals(marks="unsigned char[::1]")
    def read(
        self,
        code: bytes,
        start: cython.ulonglong,
        first: cython.longlong,
        end: cython.longlong,
        limit: cython.longlong,
        marks: bytearray,
    ) -> list[Column]:
        """Columns of the code from `first` bytes into the piece at `start` to an instruction after `limit`, `end` at most.

        Gives offsets of all instructions; of those that matter offset, end, effects by number, Flow with DIRECT or SLOT, target or
        slot; addresses that are put into registers, and the offsets of what does it. `marks`: a Mark for each byte of the piece.
        """
        here: cython.longlong = first
        size: cython.longlong
        what: cython.longlong
        where: cython.Py_ssize_t = 0  # offset of the next record
        after: cython.Py_ssize_t = 0  # the last
        raw: bytes = b""
        points: cython.Py_ssize_t = 0
        takes: cython.Py_ssize_t = 0
        count: cython.Py_ssize_t = 0
        while here < limit:
            if where == after:
                raw = self.disassemble(code[here:end], start + here)
                self.data = raw
                where = 0
                after = len(raw)
                if not raw:
                    break
            size = self.data[where + self.length_at]
            what = self.read_one(raw, where, start + here, size)
            where += self.record_size
            self.offsets[count] = here
            count += 1
            if self.took:
                self.taken[takes] = self.value
                self.taken_at[takes] = here
                takes += 1
            marks[here] = PADDING if what & PADS else BEGIN
            what &= ~PADS
            if what:
                self.at[points] = here
                self.ends[points] = here + size
                self.effects[points] = what >> EFFECTS_SHIFT
                self.flows[points] = what & 31
                self.addresses[points] = self.value if what & (DIRECT | SLOT) else 0
                points += 1
            here += size
        self.consumed = here - first
        offsets, at, ends, effects, flows, addresses, taken, taken_at = self.columns
        return [
            offsets[:count],
            at[:points],
            ends[:points],
            effects[:points],
            flows[:points],
            addresses[:points],
            taken[:takes],
            taken_at[:takes],
        ]

    def read_one(self, raw: bytes, where: cython.Py_ssize_t, address: cython.ulonglong, size: cython.longlong) -> cython.Py_ssize_t:
        """The meaning of a record's instruction. `took`: it puts `value` into a register; else that is its target or slot."""
        text: cython.Py_ssize_t = where + self.operands_at
        name: cython.Py_ssize_t = where + self.mnemonic_at
        place: cython.Py_ssize_t = (self.data[where + self.id_low_at] + 256 * self.data[where + self.id_high_at]) % 16384  # IDS
        slot: cython.Py_ssize_t = self.slot_of[place]
        taken: cython.ulonglong = 0
        asked: cython.int
        take: cython.int
        what: cython.longlong
        if not (self.is_named(slot, name) if cython.compiled else raw.startswith(self.mnemonics[slot], name)):
            slot = self.slot(raw, name)
            self.slot_of[place] = slot
        asked = self.looks[slot]
        if not asked:
            asked = self.has_needle(text) if cython.compiled else self.needle(raw, text, raw.find(0, text)) is not None
        take = self.takes[slot]
        self.took = bool(take and self.takes_address(take, text, address + size))
        taken = self.value
        what = self.meaning(raw, where, slot, address, size) if asked else 0
        if self.took:
            self.value = taken
        return what

    def slot(self, raw: bytes, begin: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Returns the slot of the mnemonic at `begin`."""
        end: cython.Py_ssize_t = self.end(begin)
        number: cython.Py_ssize_t
        place: cython.Py_ssize_t
        mnemonic: bytes = raw[begin:end]
        if mnemonic not in self.slots:
            if len(self.slots) == SLOTS - 1:
                self.slots.clear()
            place = len(self.slots) + 1
            looks, take = self.meanings.mnemonic(mnemonic.decode("ascii"))
            for number in range(32):
                self.names[place * 32 + number] = self.data[begin + number] if begin + number < end else 0
            self.mnemonics[place] = mnemonic + b"\0"
            self.looks[place] = looks
            self.takes[place] = take
            self.direct[place] = self.by_slot[place] = 0
            self.known[place] = {}
            self.slots[mnemonic] = place
        return self.slots[mnemonic]

    def meaning(
        self, raw: bytes, where: cython.Py_ssize_t, slot: cython.Py_ssize_t, address: cython.ulonglong, size: cython.longlong
    ) -> cython.Py_ssize_t:
        """Returns the meaning of an instruction, and sets `value` to its target or slot."""
        text: cython.Py_ssize_t = where + self.operands_at
        end: cython.Py_ssize_t = self.end(text)
        what: cython.longlong
        if self.direct[slot] and self.number(self.last_number(text, end)) == end:
            return self.direct[slot]
        if self.by_slot[slot] and self.relative(text, address + size):
            return self.by_slot[slot]
        operands: bytes = raw[text:end]
        first: cython.int = self.data[where + self.bytes_at]
        known: dict[bytes, int] = self.known[slot]
        key: bytes = operands + b"!" if first == self.prefix else operands
        found = known.get(key)
        if found is not None:
            return found
        mnemonic: bytes = raw[where + self.mnemonic_at : self.end(where + self.mnemonic_at)]
        found, place = self.meanings.meaning(
            mnemonic.decode("ascii"), operands.decode("ascii"), first, address, (address + size) & self.mask
        )
        what = found
        if what & DIRECT:
            self.direct[slot] = what
        elif what & SLOT:
            self.by_slot[slot] = what
        else:
            if self.texts == 65536:  # MAX_TEXTS
                for texts in self.known:
                    texts.clear()
                self.texts = 0
            known[key] = found
            self.texts += 1
        self.value = place or 0
        return what

    # -- texts; interpreted, what bytes have for it takes the place of loops

    def is_named(self, slot: cython.Py_ssize_t, pos: cython.Py_ssize_t) -> cython.int:
        """True if the mnemonic at `pos` is the one in the slot."""
        name: cython.Py_ssize_t = slot * 32  # NAME
        while self.names[name] == self.data[pos] and self.names[name]:
            name += 1
            pos += 1
        return self.names[name] == self.data[pos]

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

    def end(self, pos: cython.Py_ssize_t) -> cython.Py_ssize_t:
        if not cython.compiled:
            return self.data.find(0, pos)
        while self.data[pos]:
            pos += 1
        return pos

    def last_number(self, pos: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """After the last `#`, which AArch64's numbers have before them, or else where the text begins."""
        place: cython.Py_ssize_t
        if not cython.compiled:
            return self.data.rfind(35, pos, end) + 1 or pos
        place = end
        while place > pos:
            if self.data[place - 1] == 35:  # #
                return place
            place -= 1
        return pos

    def number(self, pos: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Where a number ends, decimal or hexadecimal with 0x, which is left in `value`; 0 where there is none."""
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

    def relative(self, pos: cython.Py_ssize_t, end: cython.ulonglong) -> cython.int:
        """True if the operands at `pos` end in `[rip + n]`, with the address of that, by the instruction's end, in `value`."""
        behind: cython.Py_ssize_t
        sign: cython.int
        if not cython.compiled:
            pos = self.data.find(91, pos, self.data.find(0, pos))
            if pos < 0:
                return 0
        while self.data[pos] != 91:  # [
            if not self.data[pos]:
                return 0
            pos += 1
        if self.data[pos - 1] != 32 or self.data[pos + 1] != 114 or self.data[pos + 2] != 105 or self.data[pos + 3] != 112:
            return 0
        sign = self.data[pos + 5]
        behind = self.number(pos + 7) if sign else 0
        if behind == 0 or self.data[behind] != 93 or self.data[behind + 1]:  # ]
            return 0
        self.value = (end + self.value if sign == 43 else end - self.value) & self.mask
        return 1

    def register(self, pos: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """After the comma and the space that follow a register, AArch64's x of `value`; 0 where none is."""
        if self.data[pos] != 120:  # x
            return 0
        pos = self.number(pos + 1)
        return pos + 2 if pos and self.data[pos] == 44 and self.value < 32 else 0

    def takes_address(self, take: cython.int, pos: cython.Py_ssize_t, end: cython.ulonglong) -> cython.int:
        """True if an instruction that may put an address into a register does; `value`: which."""
        register: cython.Py_ssize_t
        page: cython.ulonglong = 0
        if take == RELATIVE:
            return self.relative(pos, end)
        if take == CONSTANT:
            while self.data[pos] > 44:  # a comma; spaces and brackets are in memory's names
                if self.data[pos] == 91:
                    return 0
                pos += 1
            if self.data[pos] != 44:
                return 0
            pos = self.number(pos + 2)
            return 1 if pos and not self.data[pos] else 0
        pos = self.register(pos)
        if pos == 0:
            return 0
        if take == IN_PAGE:
            pos = self.register(pos)
            if pos == 0:
                return 0
            page = self.pages[self.value]
        register = self.value
        if self.data[pos] != 35:  # #
            return 0
        pos = self.number(pos + 1)
        if pos == 0 or self.data[pos]:
            return 0
        self.value = (page + self.value) & self.mask
        if take == PAGE:
            self.pages[register] = self.value
        return 1
