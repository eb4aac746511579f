"""The stacks of a tree as bytes: what most of a large file consists of. Compiled."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from cfi.columns import zeros

try:
    import cython
except ImportError:
    from cfi import cython_shadow as cython  # type: ignore[no-redef]

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cfi.columns import Column
    from sframegen.profile.stacks.call_tree import CallTree

COMPILED: bool = cython.compiled
MAX_BYTES = 5  # of a number of 32 bits in a protocol buffer


class PathTexts:
    """Joins the texts of a stack's frames, the outermost first, with a byte between them.

    `texts`: by number. `numbers`: of each frame of the tree. `max_depth`: frames of a stack.
    """

    def __init__(self, tree: CallTree, numbers: Column, texts: Iterable[bytes], max_depth: int, between: bytes = b",") -> None:
        self.tree = tree
        self.numbers = numbers
        self.path = zeros("I", max_depth)
        joined, starts = bytearray(), array("Q", [0])
        for text in texts:
            joined += text + between
            starts.append(len(joined))
        self.joined, self.starts = joined, starts
        self.make_room(1)

    def text(self, node: cython.Py_ssize_t) -> bytes:
        """The stack that ends at that node."""
        depth: cython.Py_ssize_t = 0
        size: cython.Py_ssize_t = 1
        number: cython.uint
        while node:
            number = self.numbers[self.tree.nodes.first[node]]
            self.path[depth] = number
            depth += 1
            size += self.starts[number + 1] - self.starts[number]
            node = self.tree.nodes.second[node]
        if size > len(self.room):
            self.make_room(2 * size)
        at: cython.Py_ssize_t = 0
        place: cython.Py_ssize_t
        end: cython.Py_ssize_t
        while depth:
            depth -= 1
            number = self.path[depth]
            place = self.starts[number]
            end = self.starts[number + 1]
            if cython.compiled:  # a slice would take longer: texts are short
                while place < end:
                    self.room[at] = self.joined[place]
                    at += 1
                    place += 1
            else:
                self.room[at : at + end - place] = self.joined[place:end]
                at += end - place
        return bytes(self.view[: max(at - 1, 0)])

    def make_room(self, size: cython.Py_ssize_t) -> None:
        room = bytearray(size)
        self.room, self.view = room, memoryview(room)


class PathNumbers:
    """`numbers`: of each frame of the tree, as protocol buffers have them. `inlined`: a byte for each frame, 1 if it is."""

    def __init__(self, tree: CallTree, numbers: Column, max_depth: int, inlined: bytes) -> None:
        self.tree = tree
        self.inlined = inlined
        self.numbers = numbers
        self.room = bytearray(max_depth * MAX_BYTES)
        self.view = memoryview(self.room)

    def varints(self, node: cython.Py_ssize_t) -> bytes:
        """Those of the stack that ends at that node, the innermost first, without the frames that others are inlined into."""
        at: cython.Py_ssize_t = 0
        frame: cython.Py_ssize_t
        number: cython.uint
        above: cython.int = 0
        while node:
            frame = self.tree.nodes.first[node]
            number = self.numbers[frame]
            if not above:
                while number > 127:
                    self.room[at] = number & 127 | 128
                    number >>= 7
                    at += 1
                self.room[at] = number
                at += 1
            above = self.inlined[frame]
            node = self.tree.nodes.second[node]
        return bytes(self.view[:at])
