"""Keeps stacks as one tree, in which stacks with the same callers share nodes. Compiled.

A node is a frame with its caller's node, so that a node stands for a whole stack, from the root to its frame. A row counts the
samples of one stack: of a node, in one task (stacks/tasks.py), whose walks ended for one reason (frames.End).
"""

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
        self.node_mask = 0xFFFFFFFF  # of the node in a row; also the frame of the root, since no other frame has this number
        self.nodes.number_of(self.node_mask, 0)

    def find_or_add_row(self, node: cython.ulonglong, end: cython.ulonglong, task: cython.ulonglong) -> cython.Py_ssize_t:
        """Return the row of a node, end and task, adding it if it is new. Raises OSError, MemoryError if there is no room."""
        number: cython.Py_ssize_t = self.rows.number_of(node | end << 32, task)
        if number >= len(self.samples):
            self.grow_samples()
        return number

    def add_samples(self, row: cython.Py_ssize_t, samples: cython.ulonglong) -> None:
        self.samples[row] += samples

    def node_of(self, row: cython.Py_ssize_t) -> cython.Py_ssize_t:
        key: cython.ulonglong = self.rows.first[row]
        return key & self.node_mask

    def end_of(self, row: cython.Py_ssize_t) -> cython.int:
        """Return the end (frames.End) of a row."""
        key: cython.ulonglong = self.rows.first[row]
        return key >> 32

    def list_path(self, node: cython.Py_ssize_t, of_frame: list[T]) -> list[T]:
        """Return the item of `of_frame` for each frame from the root to this node, the outermost first."""
        path: list[T] = []
        while node:
            path.append(of_frame[self.nodes.first[node]])
            node = self.nodes.second[node]
        path.reverse()
        return path

    def grow_samples(self) -> None:
        """Make room for the counts of more rows."""
        self.samples = EMPTY64
        try:
            self.room.grow(self.column, len(self.rows.first))
        finally:
            self.samples = self.column.view

    def clear(self) -> None:
        row: cython.Py_ssize_t
        for row in range(self.rows.count):
            self.samples[row] = 0
        self.rows.clear()
        self.nodes.clear()
        self.nodes.number_of(self.node_mask, 0)


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
        while at:
            at -= 1
            frame: cython.ulonglong = packed[at]
            file: cython.Py_ssize_t = (frame >> 48) & 0x7FFF  # packed_frames.FILE_SHIFT, FILE_MASK
            self.used[file] = 1
            node = tree.nodes.number_of(self.numbers.number_of(frame, 0 if file else pid), node)
        return node
