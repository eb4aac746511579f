"""Encodes the stacks and frame locations of a call tree, which are most of a large file, as bytes. Compiled.

Each writer appends to a block until that is full; the caller takes the bytes, and calls it again with the position that it
returned. Also encodes the fields of protocol buffers that pprof's schema needs: integers, texts and messages.
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
WIRE_VARINT, WIRE_BYTES = 0, 2  # wire types of protocol buffers; a field begins with its number << 3 | wire type
UINT64_MASK = 0xFFFFFFFFFFFFFFFF
ONE_BYTE = [bytes([number]) for number in range(0x80)]
SHORT_VARINTS = ONE_BYTE + [bytes([number & 0x7F | 0x80, number >> 7]) for number in range(0x80, 1 << 14)]


def encode_varint(number: int) -> bytes:
    """Return a 64-bit number as a varint; negative numbers are encoded as their two's complement."""
    if 0 <= number < len(SHORT_VARINTS):
        return SHORT_VARINTS[number]
    number &= UINT64_MASK
    out: list[int] = []  # not a bytearray, since Cython's append to one lacks the lock that Python without a GIL needs
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def integer_field(field: int, number: int) -> bytes:
    """Return an integer field; empty for 0, which readers assume for a missing field."""
    return encode_varint(field << 3 | WIRE_VARINT) + encode_varint(number) if number else b""


def message_field(field: int, data: bytes) -> bytes:
    return encode_varint(field << 3 | WIRE_BYTES) + encode_varint(len(data)) + data


def text_field(field: int, characters: str) -> bytes:
    return message_field(field, characters.encode(errors="replace"))


def packed_field(field: int, numbers: Iterable[int]) -> bytes:
    return message_field(field, b"".join(map(encode_varint, numbers)))


BLOCK_SIZE = 1 << 17  # bytes from which on a block counts as full
MAX_VARINT_BYTES = 10  # of a 64-bit number


class NumberedBytes:
    """Texts by number: `joined` from one of `starts` to the next. `after`: bytes to append to each text."""

    def __init__(self, texts: Iterable[bytes], after: bytes = b"") -> None:
        joined, starts = bytearray(), array("Q", [0])
        for text in texts:
            joined += text + after
            starts.append(len(joined))
        self.joined, self.starts = joined, starts


class Block:
    """A growing buffer of bytes. With BLOCK_SIZE bytes it counts as full, but still accepts more."""

    def __init__(self) -> None:
        self.length = 0
        self.view = memoryview(b"")
        self.make_room(2 * BLOCK_SIZE)

    def make_room(self, size: cython.Py_ssize_t) -> None:
        room = bytearray(2 * (self.length + size))
        room[: self.length] = self.view[: self.length]
        self.buffer, self.view = room, memoryview(room)

    def is_full(self) -> bool:
        """Return True if the block has BLOCK_SIZE bytes or more, so that the caller should take them."""
        return self.length >= BLOCK_SIZE

    def take(self) -> bytes:
        """Return all bytes, and empty the block."""
        content = bytes(self.view[: self.length])
        self.length = 0
        return content

    def put_text(self, texts: NumberedBytes, number: cython.Py_ssize_t) -> None:
        source: cython.Py_ssize_t = texts.starts[number]
        end: cython.Py_ssize_t = texts.starts[number + 1]
        at: cython.Py_ssize_t = self.length
        if at + end - source > len(self.buffer):
            self.make_room(end - source)
        self.length = at + end - source
        if cython.compiled:  # a slice would take longer, since texts are short
            while source < end:
                self.buffer[at] = texts.joined[source]
                at += 1
                source += 1
        else:
            self.buffer[at : self.length] = texts.joined[source:end]

    def put_decimal(self, number: cython.ulonglong) -> None:
        digits: cython.Py_ssize_t = 1
        higher_digits: cython.ulonglong = number
        while higher_digits > 9:
            higher_digits = higher_digits // 10
            digits += 1
        if self.length + digits > len(self.buffer):
            self.make_room(digits)
        self.length += digits
        at: cython.Py_ssize_t = self.length
        while digits:
            at -= 1
            digits -= 1
            self.buffer[at] = 48 + number % 10  # 48: "0"
            number = number // 10

    def put_varint(self, number: cython.ulonglong) -> None:
        """Append a number as a varint of protocol buffers."""
        if self.length + 10 > len(self.buffer):  # 10: MAX_VARINT_BYTES
            self.make_room(10)
        at: cython.Py_ssize_t = self.length
        while number > 127:
            self.buffer[at] = number & 127 | 128
            number >>= 7
            at += 1
        self.buffer[at] = number
        self.length = at + 1

    def put_block(self, other: Block) -> None:
        """Append the size and the bytes of another block, as protocol buffers encode a text or a message."""
        source: cython.Py_ssize_t
        self.put_varint(other.length)
        if self.length + other.length > len(self.buffer):
            self.make_room(other.length)
        for source in range(other.length):
            self.buffer[self.length + source] = other.buffer[source]
        self.length += other.length


class StackTextWriter:
    """Appends stacks to a block as the texts of their frames, the outermost frame first.

    `texts`: by number, each with a separator at its end. `numbers`: the text of each frame. `max_depth`: of a stack.
    """

    def __init__(self, tree: CallTree, numbers: Column, texts: NumberedBytes, max_depth: int) -> None:
        self.tree, self.numbers, self.texts = tree, numbers, texts
        self.path = zeros("I", max_depth)
        self.block = Block()

    def put_stack(self, node: cython.Py_ssize_t) -> None:
        """Append the stack that ends at a node, without a separator at its end; nothing for the root."""
        depth: cython.Py_ssize_t = 0
        has_frames: cython.bint = node != 0
        while node:
            self.path[depth] = self.numbers[self.tree.nodes.first[node]]
            depth += 1
            node = self.tree.nodes.second[node]
        while depth:
            depth -= 1
            self.block.put_text(self.texts, self.path[depth])
        if has_frames:
            self.block.length -= 1  # without the last separator

    def put_folded_lines(self, row: cython.Py_ssize_t, delimiters: NumberedBytes) -> cython.Py_ssize_t:
        """Append a line for each row from `row` on until the block is full. Return the next row.

        `delimiters`: 0: a group's name before no stack; 1: the name and a separator, before a stack; 2: a space; 3: a line end.
        """
        while row < self.tree.rows.count and self.block.length < BLOCK_SIZE:
            node: cython.Py_ssize_t = self.tree.node_of(row)
            self.block.put_text(delimiters, 1 if node else 0)
            self.put_stack(node)
            self.block.put_text(delimiters, 2)
            self.block.put_decimal(self.tree.samples[row])
            self.block.put_text(delimiters, 3)
            row += 1
        return row

    @cython.locals(kinds="const unsigned int[::1]")
    def put_json_stacks(
        self, first: cython.Py_ssize_t, done: cython.Py_ssize_t, kinds: Column, heads: NumberedBytes, middles: NumberedBytes
    ) -> int:
        """Append (head, samples, middle, stack) for each row with samples, until the block is full.

        `kinds`: of the rows from `first` on, by which to choose head and middle. `done`: how many of them are done; return it.
        """
        row: cython.Py_ssize_t = first + done
        while done < len(kinds) and self.block.length < BLOCK_SIZE:
            if self.tree.samples[row]:
                self.block.put_text(heads, kinds[done])
                self.block.put_decimal(self.tree.samples[row])
                self.block.put_text(middles, kinds[done])
                self.put_stack(self.tree.node_of(row))
            row += 1
            done += 1
        return done


class SampleWriter:
    """Appends pprof samples to a block, with stacks as numbers of their frames' locations.

    `numbers`: the location of each frame. `inlined`: a byte for each frame, 1 if it is. `period`: nanoseconds of a sample, or 0.
    """

    def __init__(self, tree: CallTree, numbers: Column, max_depth: int, inlined: bytes, period: int) -> None:
        self.tree, self.numbers, self.inlined, self.period = tree, numbers, inlined, period
        self.path, self.values, self.block = Block(), Block(), Block()
        self.path.make_room(max_depth * MAX_VARINT_BYTES)

    def fill_path(self, node: cython.Py_ssize_t) -> None:
        """Fill `path` with the locations of a stack, the innermost first. Inlined frames share their caller's location."""
        was_inlined: cython.int = 0
        self.path.length = 0
        while node:
            frame: cython.Py_ssize_t = self.tree.nodes.first[node]
            if not was_inlined:
                self.path.put_varint(self.numbers[frame])
            was_inlined = self.inlined[frame]
            node = self.tree.nodes.second[node]

    @cython.locals(kinds="const unsigned int[::1]")
    def put_samples(self, first: cython.Py_ssize_t, done: cython.Py_ssize_t, kinds: Column, labels: NumberedBytes) -> int:
        """Append a Sample message for each row with samples, until the block is full; as StackTextWriter.put_json_stacks does."""
        row: cython.Py_ssize_t = first + done
        while done < len(kinds) and self.block.length < BLOCK_SIZE:
            if self.tree.samples[row]:
                kind: cython.Py_ssize_t = kinds[done]
                self.fill_path(self.tree.node_of(row))
                self.values.length = 0
                self.values.put_varint(self.tree.samples[row])
                if self.period:
                    self.values.put_varint(self.tree.samples[row] * self.period)
                # Two bytes each for the field number and the size; the size of a long path takes more than one of them.
                size: cython.Py_ssize_t = (
                    2 + self.path.length + 2 + self.values.length + labels.starts[kind + 1] - labels.starts[kind]
                )
                higher_bits: cython.Py_ssize_t = self.path.length
                while higher_bits > 127:
                    size += 1
                    higher_bits >>= 7
                self.block.put_varint(2 << 3 | 2)  # Profile.sample; 2: WIRE_BYTES
                self.block.put_varint(size)
                self.block.put_varint(1 << 3 | 2)  # Sample.location_id
                self.block.put_block(self.path)
                self.block.put_varint(2 << 3 | 2)  # Sample.value
                self.block.put_block(self.values)
                self.block.put_text(labels, kind)
            row += 1
            done += 1
        return done


class LocationWriter:
    """Appends frame locations to a block as pprof's Location messages: id, mapping, address, and lines.

    `mappings`, `lines`: encoded fields by site. `outer`: for each location, one plus the location that it is inlined into, or 0.
    """

    def __init__(self, locations: Numbered, mappings: NumberedBytes, lines: NumberedBytes, outer: Column) -> None:
        self.locations, self.mappings, self.lines, self.outer = locations, mappings, lines, outer
        self.fields, self.block = Block(), Block()
        self.no_address = NO_ADDRESS

    def put_locations(self, location: cython.Py_ssize_t) -> int:
        """Append the locations from `location` on until the block is full. Return the next location."""
        while location < self.locations.count and self.block.length < BLOCK_SIZE:
            self.fields.length = 0
            self.fields.put_varint(1 << 3)  # Location.id; 0 is not a valid id
            self.fields.put_varint(location + 1)
            self.fields.put_text(self.mappings, self.locations.second[location])
            address: cython.ulonglong = self.locations.first[location]
            if address and address != self.no_address:
                self.fields.put_varint(3 << 3)  # Location.address
                self.fields.put_varint(address)
            current: cython.Py_ssize_t = location + 1
            while current:
                self.fields.put_text(self.lines, self.locations.second[current - 1])
                current = self.outer[current - 1]
            self.block.put_varint(4 << 3 | 2)  # Profile.location; 2: WIRE_BYTES
            self.block.put_block(self.fields)
            location += 1
        return location
