"""A tree of frames -> a tree of places, where stacks that are not whole lie below a place of their own. Compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

try:
    import cython
except ImportError:
    from sframegen.base import cython_shadow as cython  # type: ignore[no-redef]

if TYPE_CHECKING:
    from collections.abc import Callable

    from sframegen.base.columns import Bytes, Column
    from sframegen.profile.stacks.call_tree import CallTree

COMPILED: bool = cython.compiled
WHOLE, CUT_OFF = 1, 2  # flags of nodes: in a whole stack, in one whose outermost frames are not known


class Chains(NamedTuple):
    """The places of each frame: `places` from one of `starts` to the next, the outermost first: several, if any are inlined."""

    starts: Column
    places: Column


@cython.locals(flag_of_end="const unsigned char[::1]", flags="unsigned char[::1]")
def flag_rows(tree: CallTree, flag_of_end: Bytes, flags: bytearray, part: range) -> None:
    """Set the flags of the nodes of these rows that have samples."""
    row: cython.Py_ssize_t
    first: cython.Py_ssize_t = part.start
    end: cython.Py_ssize_t = part.stop
    for row in range(first, end):
        if tree.samples[row]:
            flags[tree.node_of(row)] |= flag_of_end[tree.end_of(row)]


@cython.locals(flags="unsigned char[::1]")
def flag_callers(tree: CallTree, flags: bytearray, part: range) -> None:
    """Give the callers of these nodes their flags: the last part first."""
    node: cython.Py_ssize_t = part.stop
    first: cython.Py_ssize_t = part.start
    while node > first:
        node -= 1
        flags[tree.nodes.second[node]] |= flags[node]


@cython.locals(
    flags="const unsigned char[::1]",
    starts="const unsigned int[::1]",
    frame_places="const unsigned int[::1]",
    mapped="unsigned int[::1]",
)
def rename_nodes(
    tree: CallTree,
    flag: cython.int,
    flags: Bytes,
    chains: Chains,
    folding: Callable[[int, int], int] | None,
    into: CallTree,
    mapped: Column,
    part: range,
) -> None:
    """Fill `mapped` for each of these nodes that has the flag; its first word says where the root goes. The first part first.

    `folding`: says what becomes of a place below a node of the new tree; None: it becomes a node there, also if an equal one is
    there: that is rare, as frames differ in their addresses.
    """
    starts = chains.starts
    frame_places = chains.places
    node: cython.Py_ssize_t
    at: cython.Py_ssize_t
    frame: cython.Py_ssize_t
    above: cython.uint
    first: cython.Py_ssize_t = part.start
    end: cython.Py_ssize_t = part.stop
    for node in range(first, end):
        if flags[node] & flag:
            frame = tree.nodes.first[node]
            above = mapped[tree.nodes.second[node]]
            for at in range(starts[frame], starts[frame + 1]):
                above = into.nodes.append(frame_places[at], above) if folding is None else folding(above, frame_places[at])
            mapped[node] = above


@cython.locals(
    flag_of_end="const unsigned char[::1]",
    whole="const unsigned int[::1]",
    cut_off="const unsigned int[::1]",
    rows="unsigned int[::1]",
)
def rename_rows(tree: CallTree, flag_of_end: Bytes, whole: Column, cut_off: Column, into: CallTree, part: range) -> None:
    """Count these rows, as far as they have samples, in the new tree."""
    row: cython.Py_ssize_t
    end: cython.int
    node: cython.uint
    first: cython.Py_ssize_t = part.start
    last: cython.Py_ssize_t = part.stop
    for row in range(first, last):
        if tree.samples[row]:
            end = tree.end_of(row)
            node = whole[tree.node_of(row)] if flag_of_end[end] == 1 else cut_off[tree.node_of(row)]
            into.count(into.row(node, end, tree.rows.second[row]), tree.samples[row], tree.weights[row])
