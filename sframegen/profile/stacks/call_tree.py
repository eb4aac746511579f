"""Keeps stacks as one tree: a node is a frame with its caller's node, and a row counts the samples of one node. Compiled."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, TypeVar

from sframegen.profile.stacks.numbered import Numbered

try:
    import cython
except ImportError:
    from sframegen.base import cython_shadow as cython  # type: ignore[no-redef]

if TYPE_CHECKING:
    from sframegen.base.columns import Column
    from sframegen.profile.stacks.growing import Room

COMPILED: bool = cython.compiled
ROOT = 0  # the node without a frame
EMPTY64 = memoryview(array("Q"))
T = TypeVar("T")


class CallTree:
    """The tree. `nodes`: (frame, caller's node), callers before callees. `rows`: (node | end << 32, task); `samples`: their counts.

    Frames and tasks are numbers here, which only the user of the tree can interpret.
    """

    def __init__(self, room: Room) -> None:
        self.room = room
        self.nodes = Numbered(room)
        self.rows = Numbered(room)
        self.column = room.new_column("Q")
        self.samples = self.column.view
        self.root = 0xFFFFFFFF
        self.nodes.of(self.root, 0)

    def row(self, node: cython.ulonglong, end: cython.ulonglong, task: cython.ulonglong) -> cython.Py_ssize_t:
        """Return the row of a node, end and task, adding it if it is new. Raises OSError, MemoryError if there is no room."""
        number: cython.Py_ssize_t = self.rows.of(node | end << 32, task)
        if number >= len(self.samples):
            self.extend()
        return number

    def count(self, row: cython.Py_ssize_t, samples: cython.ulonglong) -> None:
        """Add samples to a row."""
        self.samples[row] += samples

    def node_of(self, row: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Return the node of a row."""
        key: cython.ulonglong = self.rows.first[row]
        return key & self.root

    def end_of(self, row: cython.Py_ssize_t) -> cython.int:
        """Return the end (frames.End) of a row."""
        key: cython.ulonglong = self.rows.first[row]
        return key >> 32

    def items(self, node: cython.Py_ssize_t, of_frame: list[T]) -> list[T]:
        """Return the item of `of_frame` for each frame from the root to this node, the outermost first."""
        found: list[T] = []
        while node:
            found.append(of_frame[self.nodes.first[node]])
            node = self.nodes.second[node]
        found.reverse()
        return found

    def extend(self) -> None:
        """Make room for the counts of more rows."""
        self.samples = EMPTY64
        try:
            self.room.grow(self.column, len(self.rows.first))
        finally:
            self.samples = self.column.view

    def clear(self) -> None:
        """Drop all nodes and rows."""
        row: cython.Py_ssize_t
        for row in range(self.rows.count):
            self.samples[row] = 0
        self.rows.clear()
        self.nodes.clear()
        self.nodes.of(self.root, 0)


class PackedFrames:
    """Numbers packed frames (packed_frames.py). Code without a file (file number 0) is numbered separately for each process.

    `used`: a byte for each file number, 1 once a stack has a frame in that file.
    """

    def __init__(self, room: Room, files: int) -> None:
        self.numbers = Numbered(room)
        self.used = bytearray(files)

    @cython.locals(packed="const unsigned long long[::1]")
    def add(self, tree: CallTree, packed: Column, pid: cython.ulonglong) -> cython.Py_ssize_t:
        """Add a stack, the innermost frame first, and return its node. Raises OSError, MemoryError if there is no room."""
        node: cython.Py_ssize_t = 0
        at: cython.Py_ssize_t = len(packed)
        file: cython.Py_ssize_t
        frame: cython.ulonglong
        while at:
            at -= 1
            frame = packed[at]
            file = (frame >> 48) & 0x7FFF
            self.used[file] = 1
            node = tree.nodes.of(self.numbers.of(frame, 0 if file else pid), node)
        return node
