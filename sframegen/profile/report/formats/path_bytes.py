"""The numbers of a stack's frames as bytes: what most of a large file consists of. Compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING

try:
    import cython
except ImportError:
    from cfi import cython_shadow as cython  # type: ignore[no-redef]

if TYPE_CHECKING:
    from cfi.columns import Column
    from sframegen.profile.stacks.call_tree import CallTree

COMPILED: bool = cython.compiled
MAX_DIGITS = 12  # bytes of a number of 32 bits, with what is around it


class PathBytes:
    """`numbers`: of each frame of the tree. `max_depth`: frames of a stack."""

    def __init__(self, tree: CallTree, numbers: Column, max_depth: int) -> None:
        self.tree = tree
        self.numbers = numbers
        self.text = bytearray(max_depth * MAX_DIGITS + 2)
        self.view = memoryview(self.text)

    def json(self, node: cython.Py_ssize_t) -> bytes:
        """A list of decimal numbers, the outermost first."""
        at: cython.Py_ssize_t = len(self.text)
        number: cython.uint
        at -= 1
        self.text[at] = 93  # ]
        while node:
            number = self.numbers[self.tree.nodes.first[node]]
            at -= 1
            self.text[at] = 48 + number % 10
            while number >= 10:
                number //= 10
                at -= 1
                self.text[at] = 48 + number % 10
            node = self.tree.nodes.second[node]
            if node:
                at -= 1
                self.text[at] = 44  # ,
        at -= 1
        self.text[at] = 91  # [
        return bytes(self.view[at:])

    def varints(self, node: cython.Py_ssize_t) -> bytes:
        """Numbers of a protocol buffer, the innermost first."""
        at: cython.Py_ssize_t = 0
        number: cython.uint
        while node:
            number = self.numbers[self.tree.nodes.first[node]]
            while number > 127:
                self.text[at] = number & 127 | 128
                number >>= 7
                at += 1
            self.text[at] = number
            at += 1
            node = self.tree.nodes.second[node]
        return bytes(self.view[:at])
