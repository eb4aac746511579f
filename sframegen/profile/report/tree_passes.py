"""Compiled passes over call trees: they turn frames into places, and count for formats the costs of functions, labels and groups.

`label_of`: for each site of the places a number; sites of equal labels have the same one. Groups are by rows.
`part`: of the nodes, or of the rows; the first part comes first (`Room.parts`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

try:
    import cython
except ImportError:
    from sframegen.base import cython_shadow as cython  # type: ignore[no-redef]

if TYPE_CHECKING:
    from sframegen.base.columns import Bytes, Column
    from sframegen.profile.stacks.call_tree import CallTree
    from sframegen.profile.stacks.numbered import Numbered

COMPILED: bool = cython.compiled
WHOLE, CUT_OFF = 1, 2  # flags of nodes: in a whole stack, in one whose outermost frames are not known


class Chains(NamedTuple):
    """The places of each frame: `places` from one of `starts` to the next, the outermost first; several if some are inlined."""

    starts: Column
    places: Column


@cython.locals(flag_of_end="const unsigned char[::1]", flags="unsigned char[::1]")
def flag_rows(tree: CallTree, flag_of_end: Bytes, flags: bytearray, part: range) -> None:
    """Set the flags of the nodes of these rows that have samples."""
    row: cython.Py_ssize_t
    for row in range(part.start, part.stop):
        if tree.samples[row]:
            flags[tree.node_of(row)] |= flag_of_end[tree.end_of(row)]


@cython.locals(flags="unsigned char[::1]")
def flag_callers(tree: CallTree, flags: bytearray, part: range) -> None:
    """Add the flags of these nodes to their callers; called for the last part first."""
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
    into: CallTree,
    mapped: Column,
    part: range,
) -> None:
    """Fill `mapped` for each of these nodes with the flag; its first word says where the root goes. First part first.

    Equal nodes below one node are not merged: they are rare, since frames differ in their addresses.
    """
    starts = chains.starts
    frame_places = chains.places
    node: cython.Py_ssize_t
    at: cython.Py_ssize_t
    frame: cython.Py_ssize_t
    above: cython.uint
    for node in range(part.start, part.stop):
        if flags[node] & flag:
            frame = tree.nodes.first[node]
            above = mapped[tree.nodes.second[node]]
            for at in range(starts[frame], starts[frame + 1]):
                above = into.nodes.append(frame_places[at], above)
            mapped[node] = above


@cython.locals(
    flag_of_end="const unsigned char[::1]",
    whole="const unsigned int[::1]",
    cut_off="const unsigned int[::1]",
    rows="unsigned int[::1]",
)
def rename_rows(tree: CallTree, flag_of_end: Bytes, whole: Column, cut_off: Column, into: CallTree, part: range) -> None:
    """Count those of these rows that have samples in the new tree."""
    row: cython.Py_ssize_t
    end: cython.int
    node: cython.uint
    for row in range(part.start, part.stop):
        if tree.samples[row]:
            end = tree.end_of(row)
            node = whole[tree.node_of(row)] if flag_of_end[end] == 1 else cut_off[tree.node_of(row)]
            into.count(into.row(node, end, tree.rows.second[row]), tree.samples[row])


@cython.locals(flag_of="const unsigned char[::1]", flags="unsigned char[::1]")
def mark_nodes(nodes: Numbered, places: Numbered, flag_of: Bytes, flags: bytearray, part: range) -> None:
    """Set the flag of each node whose site has a flag, and of all nodes below it. The root has none."""
    node: cython.Py_ssize_t
    for node in range(part.start, part.stop):
        flags[node] = flag_of[places.second[nodes.first[node]]] | flags[nodes.second[node]]


@cython.locals(depths="unsigned int[::1]")
def deepest(nodes: Numbered, depths: Column, part: range) -> int:
    """Return the largest number of nodes on a path, without the root. `depths`: zeros, for each node."""
    node: cython.Py_ssize_t
    found: cython.uint = 0
    for node in range(part.start, part.stop):
        depths[node] = depths[nodes.second[node]] + 1
        found = max(found, depths[node])
    return found


@cython.locals(flags="const unsigned char[::1]", by_end="unsigned long long[::1]")
def count_samples(tree: CallTree, flags: Bytes, by_end: Column, part: range) -> int:
    """Add the samples of each end; return those of nodes with a flag."""
    row: cython.Py_ssize_t
    flagged: cython.ulonglong = 0
    for row in range(part.start, part.stop):
        by_end[tree.end_of(row)] += tree.samples[row]
        if flags[tree.node_of(row)]:
            flagged += tree.samples[row]
    return flagged


@cython.locals(
    label_of="const unsigned int[::1]",
    own="unsigned long long[::1]",
    total="unsigned long long[::1]",
    last="unsigned int[::1]",
)
def count_labels(tree: CallTree, places: Numbered, label_of: Column, own: Column, total: Column, last: Column, part: range) -> None:
    """Add the samples of each label: where it is innermost, and in all stacks that have it. `last`: zeros, for each label."""
    row: cython.Py_ssize_t
    node: cython.Py_ssize_t
    label: cython.uint
    samples: cython.ulonglong
    for row in range(part.start, part.stop):
        samples = tree.samples[row]
        node = tree.node_of(row)
        if samples and node:
            own[label_of[places.second[tree.nodes.first[node]]]] += samples
            while node:
                label = label_of[places.second[tree.nodes.first[node]]]
                if last[label] != row + 1:
                    last[label] = row + 1
                    total[label] += samples
                node = tree.nodes.second[node]


@cython.locals(group_of="const unsigned int[::1]", totals="unsigned long long[::1]")
def count_groups(tree: CallTree, group_of: Column, totals: Column, part: range) -> None:
    """Add the samples of each group."""
    row: cython.Py_ssize_t
    for row in range(part.start, part.stop):
        totals[group_of[row]] += tree.samples[row]


@cython.locals(group_of="const unsigned int[::1]", sizes="unsigned int[::1]")
def count_rows(tree: CallTree, group_of: Column, sizes: Column, part: range) -> None:
    """Add the rows with samples of each group."""
    row: cython.Py_ssize_t
    for row in range(part.start, part.stop):
        if tree.samples[row]:
            sizes[group_of[row]] += 1


@cython.locals(group_of="const unsigned int[::1]", ends="unsigned int[::1]", order="unsigned int[::1]")
def order_rows(tree: CallTree, group_of: Column, ends: Column, order: Column, part: range) -> None:
    """Fill `order` with the rows that have samples, group after group. `ends`: how far each group is filled."""
    row: cython.Py_ssize_t
    for row in range(part.start, part.stop):
        if tree.samples[row]:
            order[ends[group_of[row]]] = row
            ends[group_of[row]] += 1


@cython.locals(group_of="const unsigned int[::1]", kind_of="unsigned int[::1]")
def number_kinds(tree: CallTree, group_of: Column, first: cython.Py_ssize_t, kind_of: Column, known: Numbered) -> None:
    """Fill `kind_of` for the rows from `first` on that have samples: the numbers of (task | end << 32, group)."""
    place: cython.Py_ssize_t
    row: cython.Py_ssize_t
    end: cython.ulonglong
    for place in range(len(kind_of)):
        row = first + place
        if tree.samples[row]:
            end = tree.end_of(row)
            kind_of[place] = known.of(end << 32 | tree.rows.second[row], group_of[row])


class RecentNodes(NamedTuple):
    """A cache of the last nodes: a word for each node of the profile would be memory that is touched everywhere.

    `held`: a node, at its number modulo the length, a power of two. `mapped`: at the same place its node in the other tree, with
    the turn in the upper half. `path`: room for the nodes of a stack.
    """

    held: Column
    mapped: Column
    path: Column


@cython.locals(
    label_of="const unsigned int[::1]",
    rows="const unsigned int[::1]",
    held="unsigned int[::1]",
    mapped="unsigned long long[::1]",
    path="unsigned int[::1]",
)
def merge_labels(
    tree: CallTree,
    places: Numbered,
    label_of: Column,
    rows: Column,
    turn: cython.ulonglong,
    recent: RecentNodes,
    into: CallTree,
) -> None:
    """Count rows in a tree whose frames are labels. `turn`: a number from 1 on, which differs for each tree."""
    held = recent.held
    mapped = recent.mapped
    path = recent.path
    last: cython.Py_ssize_t = len(held) - 1
    at: cython.Py_ssize_t
    node: cython.Py_ssize_t
    depth: cython.Py_ssize_t
    merged: cython.ulonglong
    for at in range(len(rows)):
        node = tree.node_of(rows[at])
        depth = 0
        while node and (held[node & last] != node or mapped[node & last] >> 32 != turn):
            path[depth] = node
            depth += 1
            node = tree.nodes.second[node]
        merged = mapped[node & last] & tree.root if node else 0
        while depth:
            depth -= 1
            node = path[depth]
            merged = into.nodes.of(label_of[places.second[tree.nodes.first[node]]], merged)
            held[node & last] = node
            mapped[node & last] = turn << 32 | merged
        into.count(into.row(merged, 0, 0), tree.samples[rows[at]])


@cython.locals(totals="unsigned long long[::1]")
def add_up(tree: CallTree, totals: Column) -> None:
    """Fill `totals`, which are zeros, with the samples of each node and all below it."""
    row: cython.Py_ssize_t
    node: cython.Py_ssize_t
    for row in range(tree.rows.count):
        totals[tree.node_of(row)] += tree.samples[row]
    for node in range(tree.nodes.count - 1, 0, -1):
        totals[tree.nodes.second[node]] += totals[node]


@cython.locals(totals="const unsigned long long[::1]", found="unsigned int[::1]")
def at_least(totals: Column, least: cython.ulonglong, found: Column) -> int:
    """Fill `found`, as far as its length, with the nodes of at least `least` samples; return their number."""
    count: cython.Py_ssize_t = 0
    node: cython.Py_ssize_t
    for node in range(len(totals)):
        if totals[node] >= least:
            if count < len(found):
                found[count] = node
            count += 1
    return count
