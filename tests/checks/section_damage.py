"""A small damage for every rule that a section can break, each done to a section of tests/checks/readers/mutate.py."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from sframegen.checks.specification.wellformed import SectionFacts, examine_section
from sframegen.elf.records import STRUCT_BYTE_ORDERS
from sframegen.format.layouts import HEADER_CODE, HEADER_SIZE, LAYOUTS, SframeHeader
from tests.checks.readers.mutate import Base, bases, put

# Functions of mutate.table_for by what is special in them.
USUAL, SAME_ROWS, ONE_ROW, MASKED, WIDE, HUGE, FLEX, LAST = 0, 1, 2, 3, 4, 5, 6, -1


class Editor:
    """A section whose fields are written by their names. Negative functions count from the last."""

    def __init__(self, base: Base) -> None:
        self.data = bytearray(base.data)
        self.order = base.order
        self.layout = LAYOUTS[base.data[2]]

    @property
    def header(self) -> SframeHeader:
        return SframeHeader(*struct.unpack_from(STRUCT_BYTE_ORDERS[self.order] + HEADER_CODE, self.data))

    def set_header(self, **fields: int) -> None:
        struct.pack_into(STRUCT_BYTE_ORDERS[self.order] + HEADER_CODE, self.data, 0, *self.header._replace(**fields))

    def entry(self, function: int) -> int:
        return HEADER_SIZE + self.layout.index_size * (function % self.header.num_fdes)

    def read(self, at: int, width: int) -> int:
        return int.from_bytes(self.data[at : at + width], self.order)

    def add(self, at: int, width: int, number: int) -> None:
        put(self.data, at, width, self.read(at, width) + number, self.order)

    def start(self, function: int, change: int) -> None:
        self.add(self.entry(function), self.layout.start_width, change)

    def size(self, function: int, size: int) -> None:
        put(self.data, self.entry(function) + self.layout.size_at, 4, size, self.order)

    def block(self, function: int) -> int:
        """Where it begins in the section."""
        offset = self.read(self.entry(function) + self.layout.fre_offset_at, 4)
        return HEADER_SIZE + self.header.freoff + offset

    def attribute(self, function: int) -> int:
        return self.block(function) if self.layout.attribute_in_block else self.entry(function)

    def info(self, function: int) -> int:
        return self.attribute(function) + self.layout.info_at

    def period(self, function: int) -> int:
        return self.attribute(function) + self.layout.rep_size_at

    def rows(self, function: int) -> int:
        return self.block(function) + self.layout.attribute_size

    def row(self, function: int, number: int) -> int:
        """Where one begins, of a function whose rows begin with a byte each."""
        at = self.rows(function)
        for _ in range(number):
            info = self.data[at + 1]
            at += 2 + ((info >> 1 & 0x0F) << (info >> 5 & 3))
        return at

    def set(self, at: int, byte: int) -> None:
        self.data[at] = byte


def _grow(editor: Editor, more: bytes) -> None:
    editor.data += more


def _insert_behind_header(editor: Editor) -> None:
    editor.data[HEADER_SIZE:HEADER_SIZE] = bytes(8)
    editor.set_header(fdeoff=8, freoff=editor.header.freoff + 8)


def _add_auxiliary_header(editor: Editor) -> None:
    editor.data[HEADER_SIZE:HEADER_SIZE] = bytes(4)
    editor.set_header(auxhdr_len=4)


def _append_to_rows(editor: Editor) -> None:
    editor.data += b"\1\2"
    editor.set_header(fre_len=editor.header.fre_len + 2)


def _words_of(editor: Editor, row: int, *words: int) -> None:
    """Other one-byte data words for a row of the flexible function, as many as it has."""
    at = editor.row(FLEX, row)
    assert editor.data[at + 1] >> 1 & 0x0F == len(words)
    editor.data[at + 2 : at + 2 + len(words)] = bytes(words)


DAMAGES: dict[str, Callable[[Editor], object]] = {
    "header-size": lambda e: e.data.__delitem__(slice(20, None)),
    "magic": lambda e: e.set(0, 0),
    "version": lambda e: e.set(2, 9),
    "byte-order": lambda e: e.set_header(abi_arch=1 if e.order == "little" else 3),
    "flags": lambda e: e.set_header(flags=e.header.flags | 0x80),
    "abi": lambda e: e.set_header(abi_arch=9),
    "fixed-offsets": lambda e: e.set_header(cfa_fixed_ra_offset=-16),
    "auxiliary-header": _add_auxiliary_header,
    "index-bounds": lambda e: e.set_header(num_fdes=1000),
    "rows-bounds": lambda e: e.set_header(fre_len=e.header.fre_len + 1),
    "sub-section-order": lambda e: e.set_header(freoff=e.header.freoff - 4),
    "sub-section-gap": _insert_behind_header,
    "another-section": lambda e: _grow(e, bytes(e.data)),
    "trailing-bytes": lambda e: _grow(e, b"\1"),
    "row-total": lambda e: e.set_header(num_fres=1),
    "start-order": lambda e: e.start(LAST, -0x2FF00),
    "same-start": lambda e: e.start(SAME_ROWS, -0x40),
    "overlap": lambda e: e.size(USUAL, 0x41),
    "empty-function": lambda e: e.size(ONE_ROW, 0),
    "start-outside-code": lambda e: e.start(USUAL, -0x800),
    "end-outside-code": lambda e: e.size(LAST, 0x100000),
    "block-outside": lambda e: put(e.data, e.entry(LAST) + e.layout.fre_offset_at, 4, 0x10000, e.order),
    "no-rows": lambda e: put(e.data, e.attribute(FLEX) + e.layout.num_fres_at, e.layout.num_fres_width, 0, e.order),
    "fre-type": lambda e: e.set(e.info(USUAL), 7),
    "fde-type": lambda e: e.set(e.info(USUAL) + 1, 5),
    "unused-bits": lambda e: e.set(e.info(USUAL), 0x40),
    "mask-without-period": lambda e: e.set(e.period(MASKED), 0),
    "period-without-mask": lambda e: e.set(e.period(USUAL), 8),
    "blocks-overlap": lambda e: e.add(e.entry(LAST) + e.layout.fre_offset_at, 4, -1),
    "unused-bytes": _append_to_rows,
    "row-cut-off": lambda e: put(e.data, e.attribute(LAST) + e.layout.num_fres_at, 2, 9, e.order),
    "word-size": lambda e: e.set(e.rows(ONE_ROW) + 1, 0x63),
    "first-row": lambda e: e.set(e.rows(ONE_ROW), 1),
    "row-order": lambda e: e.set(e.row(USUAL, 2), 1),
    "row-at-end": lambda e: e.size(LAST, 0x30),
    "row-beyond-function": lambda e: e.size(LAST, 0x20),
    "row-beyond-period": lambda e: e.set(e.row(MASKED, 2), 16),
    "row-beyond-masked": lambda e: e.size(MASKED, 8),
    "words": lambda e: e.set(e.row(ONE_ROW, 0) + 1, 0x0F << 1),
    "row-without-words": lambda e: e.set(e.rows(ONE_ROW) + 1, 0),
    "cfa-base": lambda e: _words_of(e, 2, 7 << 3, 8),
    "padding-word": lambda e: _words_of(e, 1, 6 << 3 | 3, 0xF8, 2, 0xF8, 0),
    "register": lambda e: _words_of(e, 2, 31 << 3 | 1, 8),
    "signed-address": lambda e: e.set(e.rows(ONE_ROW) + 1, e.data[e.rows(ONE_ROW) + 1] | 0x80),
}
# Where each is found, in sections for AMD64: offset in version 2, in version 3, address.
PLACES: dict[str, tuple[int | None, int | None, int | None]] = {
    "header-size": (0, 0, None), "magic": (0, 0, None), "version": (2, 2, None), "byte-order": (0, 0, None),
    "flags": (3, 3, None), "abi": (4, 4, None), "fixed-offsets": (5, 5, None), "auxiliary-header": (7, 7, None),
    "index-bounds": (8, 8, None), "rows-bounds": (16, 16, None), "sub-section-order": (24, 24, None),
    "sub-section-gap": (20, 20, None), "another-section": (335, 361, None), "trailing-bytes": (335, 361, None),
    "row-total": (12, 12, None), "start-order": (188, 156, 0x100), "same-start": (48, 44, 0x1000),
    "overlap": (48, 44, 0x1040), "empty-function": (68, 60, 0x10a0), "start-outside-code": (28, 28, 0x800),
    "end-outside-code": (188, 156, 0x30000), "block-outside": (188, 156, 0x30000), "no-rows": (148, 124, 0x22000),
    "fre-type": (44, 174, 0x1000), "fde-type": (None, 175, 0x1000), "unused-bits": (44, 174, 0x1000),
    "mask-without-period": (104, 229, 0x10c0), "period-without-mask": (44, 174, 0x1000),
    "blocks-overlap": (324, 345, 0x30000), "unused-bytes": (335, 361, None), "row-cut-off": (335, 361, 0x30000),
    "word-size": (245, 224, 0x10a0), "first-row": (244, 223, 0x10a0), "row-order": (218, 187, 0x1001),
    "row-at-end": (329, 355, 0x30030), "row-beyond-function": (329, 355, 0x30030),
    "row-beyond-period": (258, 242, 0x10d0), "row-beyond-masked": (258, 242, 0x10cb), "words": (245, 224, 0x10a0),
    "row-without-words": (245, None, 0x10a0), "cfa-base": (None, 330, 0x22009), "padding-word": (None, 323, 0x22004),
    "register": (None, 330, 0x22009), "signed-address": (245, 224, 0x10a0),
}  # fmt: skip
# What the damage to one rule breaks besides.
BESIDES = {
    "byte-order": {"fixed-offsets"},
    "start-order": {"start-outside-code"},
    "block-outside": {"unused-bytes"},
    "no-rows": {"unused-bytes", "row-total"},
    "fde-type": {"words"},
    "words": {"blocks-overlap"},
    "row-without-words": {"unused-bytes"},
}
SHIFTED = ("index-bounds", "sub-section-order", "blocks-overlap")  # what is read after these is something else, and breaks any rule


def judge(data: bytes, base: Base, **changed: Any) -> SectionFacts:
    return examine_section(data, base.address, **{"executable": [base.code], "byte_order": base.order, **changed})


def base_named(name: str) -> Base:
    return next(base for base in bases() if base.name == name)


def damaged(base: Base, rule: str) -> bytes:
    editor = Editor(base)
    DAMAGES[rule](editor)
    return bytes(editor.data)
