"""Writes stacks and places of a tree as bytes, which are most of a large file. Compiled.

Also encodes protocol buffers, as far as pprof's schema needs them: messages of integers, texts and messages.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from sframegen.base.columns import zeros
from sframegen.profile.report.named import NO_ADDRESS

try:
    import cython
except ImportError:
    from sframegen.base import cython_shadow as cython  # type: ignore[no-redef]

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sframegen.base.columns import Column
    from sframegen.profile.stacks.call_tree import CallTree
    from sframegen.profile.stacks.numbered import Numbered

COMPILED: bool = cython.compiled
VARINT, BYTES = 0, 2
UNSIGNED = 0xFFFFFFFFFFFFFFFF
ONE_BYTE = [bytes([number]) for number in range(0x80)]
SHORT = ONE_BYTE + [bytes([number & 0x7F | 0x80, number >> 7]) for number in range(0x80, 1 << 14)]


def varint(number: int) -> bytes:
    """Return a number of 64 bits as a varint; negative ones are their two's complement."""
    if 0 <= number < len(SHORT):
        return SHORT[number]
    number &= UNSIGNED
    out: list[int] = []  # no bytearray: Cython's append leaves out what it needs where there is no global lock
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def integer(field: int, number: int) -> bytes:
    """Return an integer field; no bytes for 0, which readers assume."""
    return varint(field << 3 | VARINT) + varint(number) if number else b""


def message(field: int, data: bytes) -> bytes:
    return varint(field << 3 | BYTES) + varint(len(data)) + data


def text_field(field: int, characters: str) -> bytes:
    return message(field, characters.encode(errors="replace"))


def packed_numbers(field: int, numbers: Iterable[int]) -> bytes:
    return message(field, b"".join(map(varint, numbers)))


SIZE = 1 << 17  # bytes of a block, about
MAX_BYTES = 10  # of a number of 64 bits in a protocol buffer


class NumberedBytes:
    """Texts by number: `joined` from one of `starts` to the next. `after`: bytes that follow each text."""

    def __init__(self, texts: Iterable[bytes], after: bytes = b"") -> None:
        joined, starts = bytearray(), array("Q", [0])
        for text in texts:
            joined += text + after
            starts.append(len(joined))
        self.joined, self.starts = joined, starts


class Block:
    """A growing buffer of bytes. It counts as full from SIZE bytes on, but still takes more."""

    def __init__(self) -> None:
        self.at = 0
        self.view = memoryview(b"")
        self.make_room(2 * SIZE)

    def make_room(self, size: cython.Py_ssize_t) -> None:
        """Make room for that many more bytes."""
        room = bytearray(2 * (self.at + size))
        room[: self.at] = self.view[: self.at]
        self.room, self.view = room, memoryview(room)

    def is_full(self) -> bool:
        """Return True if the block has SIZE bytes, and should be taken."""
        return self.at >= SIZE

    def taken(self) -> bytes:
        """Return all bytes, and empty the block."""
        found = bytes(self.view[: self.at])
        self.at = 0
        return found

    def put(self, texts: NumberedBytes, number: cython.Py_ssize_t) -> None:
        """Append one of the texts."""
        place: cython.Py_ssize_t = texts.starts[number]
        end: cython.Py_ssize_t = texts.starts[number + 1]
        at: cython.Py_ssize_t = self.at
        if at + end - place > len(self.room):
            self.make_room(end - place)
        self.at = at + end - place
        if cython.compiled:  # a slice would take longer: texts are short
            while place < end:
                self.room[at] = texts.joined[place]
                at += 1
                place += 1
        else:
            self.room[at : self.at] = texts.joined[place:end]

    def put_decimal(self, number: cython.ulonglong) -> None:
        """Append the decimal digits of a number."""
        digits: cython.Py_ssize_t = 1
        rest: cython.ulonglong = number
        while rest > 9:
            rest = rest // 10
            digits += 1
        if self.at + digits > len(self.room):
            self.make_room(digits)
        self.at += digits
        at: cython.Py_ssize_t = self.at
        while digits:
            at -= 1
            digits -= 1
            self.room[at] = 48 + number % 10
            number = number // 10

    def put_varint(self, number: cython.ulonglong) -> None:
        """Append a number as a varint of protocol buffers."""
        if self.at + 10 > len(self.room):
            self.make_room(10)
        at: cython.Py_ssize_t = self.at
        while number > 127:
            self.room[at] = number & 127 | 128
            number >>= 7
            at += 1
        self.room[at] = number
        self.at = at + 1

    def put_block(self, other: Block) -> None:
        """Append another block with its size before it, like a text or message in protocol buffers."""
        place: cython.Py_ssize_t
        self.put_varint(other.at)
        if self.at + other.at > len(self.room):
            self.make_room(other.at)
        for place in range(other.at):
            self.room[self.at + place] = other.room[place]
        self.at += other.at


class PathTexts:
    """A block for stacks as texts of their frames, the outermost first.

    `texts`: by number; each ends with the byte that is between two. `numbers`: of each frame of the tree. `max_depth`: of a stack.
    """

    def __init__(self, tree: CallTree, numbers: Column, texts: NumberedBytes, max_depth: int) -> None:
        self.tree = tree
        self.numbers = numbers
        self.texts = texts
        self.path = zeros("I", max_depth)
        self.block = Block()

    def put(self, node: cython.Py_ssize_t) -> None:
        """Append the stack that ends at that node, without the last byte; nothing for the root."""
        depth: cython.Py_ssize_t = 0
        some: cython.bint = node != 0
        while node:
            self.path[depth] = self.numbers[self.tree.nodes.first[node]]
            depth += 1
            node = self.tree.nodes.second[node]
        while depth:
            depth -= 1
            self.block.put(self.texts, self.path[depth])
        if some:
            self.block.at -= 1

    def put_lines(self, row: cython.Py_ssize_t, begin: NumberedBytes) -> cython.Py_ssize_t:
        """Append lines of rows from `row` on until full: text 0, or 1 and the stack, then samples. Return the next row."""
        node: cython.Py_ssize_t
        while row < self.tree.rows.count and self.block.at < SIZE:
            node = self.tree.node_of(row)
            self.block.put(begin, 1 if node else 0)
            self.put(node)
            self.block.put(begin, 2)
            self.block.put_decimal(self.tree.samples[row])
            self.block.put(begin, 3)
            row += 1
        return row

    @cython.locals(kinds="const unsigned int[::1]")
    def put_rows(
        self, first: cython.Py_ssize_t, done: cython.Py_ssize_t, kinds: Column, heads: NumberedBytes, middles: NumberedBytes
    ) -> int:
        """Append rows with samples: head, samples, middle, stack. `kinds`: of rows from `first` on; return how many are done."""
        row: cython.Py_ssize_t = first + done
        while done < len(kinds) and self.block.at < SIZE:
            if self.tree.samples[row]:
                self.block.put(heads, kinds[done])
                self.block.put_decimal(self.tree.samples[row])
                self.block.put(middles, kinds[done])
                self.put(self.tree.node_of(row))
            row += 1
            done += 1
        return done


class PathNumbers:
    """A block for stacks as numbers of their frames, and for samples, in protocol buffers.

    `numbers`: of each frame of the tree. `inlined`: a byte for each frame, 1 if it is. `period`: of a sample; 0: there is none.
    """

    def __init__(self, tree: CallTree, numbers: Column, max_depth: int, inlined: bytes, period: int) -> None:
        self.tree = tree
        self.inlined = inlined
        self.numbers = numbers
        self.path = Block()
        self.values = Block()
        self.block = Block()
        self.period = period
        self.path.make_room(max_depth * MAX_BYTES)

    def put(self, node: cython.Py_ssize_t) -> None:
        """Append the frames of the stack that ends at a node, the innermost first, without those that others are inlined into."""
        frame: cython.Py_ssize_t
        above: cython.int = 0
        self.path.at = 0
        while node:
            frame = self.tree.nodes.first[node]
            if not above:
                self.path.put_varint(self.numbers[frame])
            above = self.inlined[frame]
            node = self.tree.nodes.second[node]

    @cython.locals(kinds="const unsigned int[::1]")
    def put_samples(self, first: cython.Py_ssize_t, done: cython.Py_ssize_t, kinds: Column, labels: NumberedBytes) -> int:
        """Append samples of rows, like PathTexts.put_rows: locations, values, labels, in fields 1, 2 and others of field 2."""
        row: cython.Py_ssize_t = first + done
        kind: cython.Py_ssize_t
        size: cython.Py_ssize_t
        rest: cython.Py_ssize_t
        while done < len(kinds) and self.block.at < SIZE:
            if self.tree.samples[row]:
                kind = kinds[done]
                self.put(self.tree.node_of(row))
                self.values.at = 0
                self.values.put_varint(self.tree.samples[row])
                if self.period:
                    self.values.put_varint(self.tree.samples[row] * self.period)
                size = 2 + self.path.at + 2 + self.values.at + labels.starts[kind + 1] - labels.starts[kind]
                rest = self.path.at
                while rest > 127:
                    size += 1
                    rest >>= 7
                self.block.put_varint(2 << 3 | 2)
                self.block.put_varint(size)
                self.block.put_varint(1 << 3 | 2)
                self.block.put_block(self.path)
                self.block.put_varint(2 << 3 | 2)
                self.block.put_block(self.values)
                self.block.put(labels, kind)
            row += 1
            done += 1
        return done


class PlaceBytes:
    """Writes places as pprof locations: number, from 1 on; the site's bytes in `before`; address; the site's lines.

    `outer`: for each place, what follows it: the number of the place that it is inlined into, and one; else 0.
    """

    def __init__(self, places: Numbered, before: NumberedBytes, lines: NumberedBytes, outer: Column) -> None:
        self.places = places
        self.before = before
        self.lines = lines
        self.outer = outer
        self.fields = Block()
        self.block = Block()
        self.no_address = NO_ADDRESS

    def put(self, place: cython.Py_ssize_t) -> int:
        """Append places from `place` on until the block is full, each as field 4. Return the next place."""
        at: cython.Py_ssize_t
        address: cython.ulonglong
        while place < self.places.count and self.block.at < SIZE:
            self.fields.at = 0
            self.fields.put_varint(1 << 3)
            self.fields.put_varint(place + 1)
            self.fields.put(self.before, self.places.second[place])
            address = self.places.first[place]
            if address and address != self.no_address:
                self.fields.put_varint(3 << 3)
                self.fields.put_varint(address)
            at = place + 1
            while at:
                self.fields.put(self.lines, self.places.second[at - 1])
                at = self.outer[at - 1]
            self.block.put_varint(4 << 3 | 2)
            self.block.put_block(self.fields)
            place += 1
        return place
