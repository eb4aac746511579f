"""A tree of frames -> a tree of places, where stacks that are not whole lie below a place of their own. Compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING

try:
    import cython
except ImportError:
    from cfi import cython_shadow as cython  # type: ignore[no-redef]

if TYPE_CHECKING:
    from collections.abc import Callable

    from cfi.columns import Bytes, Column
    from sframegen.profile.stacks.call_tree import CallTree

COMPILED: bool = cython.compiled
WHOLE, CUT_OFF = 1, 2  # flags of nodes: in a whole stack, in one whose outermost frames are not known


@cython.locals(flag_of_end="const unsigned char[::1]", flags="unsigned char[::1]")
def flag_nodes(tree: CallTree, flag_of_end: Bytes, flags: bytearray) -> None:
    """Set the flags of all nodes in stacks with samples. `flags`: zeros."""
    row: cython.Py_ssize_t
    node: cython.Py_ssize_t
    for row in range(tree.rows.count):
        if tree.samples[row]:
            flags[tree.node_of(row)] |= flag_of_end[tree.end_of(row)]
    for node in range(tree.nodes.count - 1, 0, -1):
        flags[tree.nodes.second[node]] |= flags[node]


@cython.locals(flags="const unsigned char[::1]", place_of="const unsigned int[::1]", mapped="unsigned int[::1]")
def rename_nodes(
    tree: CallTree,
    flag: cython.int,
    flags: Bytes,
    place_of: Column,
    folding: Callable[[int, int], int] | None,
    into: CallTree,
    mapped: Column,
) -> None:
    """Fill `mapped` for each node that has the flag; its first word says where the root goes. `place_of`: of each frame.

    `folding`: says what becomes of a place below a node of the new tree; None: it becomes a node there.
    """
    node: cython.Py_ssize_t
    place: cython.uint
    above: cython.uint
    for node in range(1, tree.nodes.count):
        if flags[node] & flag:
            place = place_of[tree.nodes.first[node]]
            above = mapped[tree.nodes.second[node]]
            mapped[node] = into.nodes.of(place, above) if folding is None else folding(above, place)


@cython.locals(
    flag_of_end="const unsigned char[::1]",
    whole="const unsigned int[::1]",
    cut_off="const unsigned int[::1]",
    rows="unsigned int[::1]",
)
def rename_rows(tree: CallTree, flag_of_end: Bytes, whole: Column, cut_off: Column, into: CallTree, rows: Column) -> None:
    """Count all rows with samples in the new tree, and fill `rows` with their numbers there."""
    row: cython.Py_ssize_t
    end: cython.int
    node: cython.uint
    for row in range(tree.rows.count):
        if tree.samples[row]:
            end = tree.end_of(row)
            node = whole[tree.node_of(row)] if flag_of_end[end] == 1 else cut_off[tree.node_of(row)]
            rows[row] = into.row(node, end, tree.rows.second[row])
            into.count(rows[row], tree.samples[row], tree.weights[row])
