"""Compiled passes over call trees: they replace frames by named locations, and count the samples of functions, labels and groups.

A tree has the columns `nodes.first` (frame), `nodes.second` (node of the caller) and `rows.second` (task). `locations`: (address,
site) by number, as in FrameLocations. `label_of`: for each site the number of its label. `group_of`: for each row its group.
`part`: the range of nodes or rows to process; the caller passes all parts in order (`Room.parts`).
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
WHOLE, CUT_OFF = 1, 2  # flags of nodes: in a complete stack, in a stack whose outermost frames are unknown


class LocationLists(NamedTuple):
    """The locations of each frame, the outermost first: `locations` from one of `starts` to the next; inlined ones add more."""

    starts: Column
    locations: Column


@cython.locals(flag_of_end="const unsigned char[::1]", flags="unsigned char[::1]")
def flag_rows(tree: CallTree, flag_of_end: Bytes, flags: bytearray, part: range) -> None:
    """Set the flag of each node at which a stack ends, from the end of its walk, for the rows in `part` that have samples."""
    row: cython.Py_ssize_t
    for row in range(part.start, part.stop):
        if tree.samples[row]:
            flags[tree.node_of(row)] |= flag_of_end[tree.end_of(row)]


@cython.locals(flags="unsigned char[::1]")
def flag_callers(tree: CallTree, flags: bytearray, part: range) -> None:
    """Add the flags of the nodes in `part` to their callers. The caller passes the last part first."""
    node: cython.Py_ssize_t = part.stop
    first: cython.Py_ssize_t = part.start
    while node > first:
        node -= 1
        flags[tree.nodes.second[node]] |= flags[node]


@cython.locals(
    flags="const unsigned char[::1]", starts="const unsigned int[::1]", frame_locations="const unsigned int[::1]",
    copied="unsigned int[::1]",
)  # fmt: skip
def rename_nodes(
    tree: CallTree, flag: cython.int, flags: Bytes, by_frame: LocationLists, into: CallTree, copied: Column, part: range
) -> None:
    """Append the nodes in `part` that have the flag to the tree `into`, and fill `copied` with their numbers there.

    The caller sets the root's entry in `copied`. Equal nodes below a node are not merged, as frames rarely have equal addresses.
    """
    starts = by_frame.starts
    frame_locations = by_frame.locations
    node: cython.Py_ssize_t
    index: cython.Py_ssize_t
    for node in range(part.start, part.stop):
        if flags[node] & flag:
            frame: cython.Py_ssize_t = tree.nodes.first[node]
            parent: cython.uint = copied[tree.nodes.second[node]]
            for index in range(starts[frame], starts[frame + 1]):
                parent = into.nodes.append(frame_locations[index], parent)
            copied[node] = parent


@cython.locals(flag_of_end="const unsigned char[::1]", whole="const unsigned int[::1]", cut_off="const unsigned int[::1]")
def rename_rows(tree: CallTree, flag_of_end: Bytes, whole: Column, cut_off: Column, into: CallTree, part: range) -> None:
    """Count the samples of the rows in `part` in the tree `into`, at the nodes that rename_nodes appended."""
    row: cython.Py_ssize_t
    for row in range(part.start, part.stop):
        if tree.samples[row]:
            end: cython.int = tree.end_of(row)
            node: cython.uint = whole[tree.node_of(row)] if flag_of_end[end] == 1 else cut_off[tree.node_of(row)]  # 1 is WHOLE
            into.add_samples(into.find_or_add_row(node, end, tree.rows.second[row]), tree.samples[row])


@cython.locals(flag_of="const unsigned char[::1]", flags="unsigned char[::1]")
def flag_subtrees(nodes: Numbered, locations: Numbered, flag_of: Bytes, flags: bytearray, part: range) -> None:
    """Set in `flags` the flags of each node's own site and of the nodes above it. The root has no flags."""
    node: cython.Py_ssize_t
    for node in range(part.start, part.stop):
        flags[node] = flag_of[locations.second[nodes.first[node]]] | flags[nodes.second[node]]


@cython.locals(depths="unsigned int[::1]")
def max_node_depth(nodes: Numbered, depths: Column, part: range) -> int:
    """Return the largest number of nodes on a path, without the root. `depths`: zeros, one for each node."""
    node: cython.Py_ssize_t
    max_depth: cython.uint = 0
    for node in range(part.start, part.stop):
        depths[node] = depths[nodes.second[node]] + 1
        max_depth = max(max_depth, depths[node])
    return max_depth


@cython.locals(flags="const unsigned char[::1]", by_end="unsigned long long[::1]")
def count_samples_by_end(tree: CallTree, flags: Bytes, by_end: Column, part: range) -> int:
    """Add the samples of the rows to those of the ends of their walks; return the samples of the rows whose nodes have a flag."""
    row: cython.Py_ssize_t
    flagged: cython.ulonglong = 0
    for row in range(part.start, part.stop):
        by_end[tree.end_of(row)] += tree.samples[row]
        if flags[tree.node_of(row)]:
            flagged += tree.samples[row]
    return flagged


@cython.locals(
    label_of="const unsigned int[::1]", own="unsigned long long[::1]", total="unsigned long long[::1]", last_row="unsigned int[::1]"
)
def count_labels(
    tree: CallTree, locations: Numbered, label_of: Column, own: Column, total: Column, last_row: Column, part: range
) -> None:
    """Add to `own` the samples of stacks in which a label is innermost, to `total` those of all stacks that contain it.

    `last_row`: zeros, one for each label; it becomes the last row that was counted, plus one, so that recursion counts once.
    """
    row: cython.Py_ssize_t
    for row in range(part.start, part.stop):
        samples: cython.ulonglong = tree.samples[row]
        node: cython.Py_ssize_t = tree.node_of(row)
        if samples and node:
            own[label_of[locations.second[tree.nodes.first[node]]]] += samples
            while node:
                label: cython.uint = label_of[locations.second[tree.nodes.first[node]]]
                if last_row[label] != row + 1:
                    last_row[label] = row + 1
                    total[label] += samples
                node = tree.nodes.second[node]


@cython.locals(group_of="const unsigned int[::1]", totals="unsigned long long[::1]")
def add_group_samples(tree: CallTree, group_of: Column, totals: Column, part: range) -> None:
    """Add the samples of the rows to the `totals` of their groups."""
    row: cython.Py_ssize_t
    for row in range(part.start, part.stop):
        totals[group_of[row]] += tree.samples[row]


@cython.locals(group_of="const unsigned int[::1]", sizes="unsigned int[::1]")
def count_group_rows(tree: CallTree, group_of: Column, sizes: Column, part: range) -> None:
    """Add the number of rows that have samples to the `sizes` of their groups."""
    row: cython.Py_ssize_t
    for row in range(part.start, part.stop):
        if tree.samples[row]:
            sizes[group_of[row]] += 1


@cython.locals(group_of="const unsigned int[::1]", ends="unsigned int[::1]", order="unsigned int[::1]")
def fill_rows_by_group(tree: CallTree, group_of: Column, ends: Column, order: Column, part: range) -> None:
    """Fill `order` with the rows that have samples, group after group. `ends`: for each group, the next index in `order`."""
    row: cython.Py_ssize_t
    for row in range(part.start, part.stop):
        if tree.samples[row]:
            order[ends[group_of[row]]] = row
            ends[group_of[row]] += 1


@cython.locals(group_of="const unsigned int[::1]", kind_of="unsigned int[::1]")
def number_row_kinds(tree: CallTree, group_of: Column, first: cython.Py_ssize_t, kind_of: Column, kinds: Numbered) -> None:
    """Fill `kind_of`, for the rows from `first` on that have samples, with their numbers in `kinds`: (task | end << 32, group)."""
    index: cython.Py_ssize_t
    for index in range(len(kind_of)):
        row: cython.Py_ssize_t = first + index
        if tree.samples[row]:
            end: cython.ulonglong = tree.end_of(row)
            kind_of[index] = kinds.number_of(end << 32 | tree.rows.second[row], group_of[row])


class RecentNodes(NamedTuple):
    """A cache of recently merged nodes, since a word for each node of the profile would take memory that is accessed at random.

    `nodes`: the node in a cache entry, whose index is the node modulo the length, a power of two. `merged`: that node's number in
    the merged tree, with the epoch in the upper 32 bits. `path`: space for the nodes of one stack.
    """

    nodes: Column
    merged: Column
    path: Column


@cython.locals(
    label_of="const unsigned int[::1]", rows="const unsigned int[::1]", cached_nodes="unsigned int[::1]",
    cached_merged="unsigned long long[::1]", path="unsigned int[::1]",
)  # fmt: skip
def merge_labels(
    tree: CallTree, locations: Numbered, label_of: Column, rows: Column, epoch: cython.ulonglong, cache: RecentNodes, into: CallTree
) -> None:
    """Count `rows` in the tree `into`, whose frames are labels. `epoch`: a number from 1 on, different for each tree.

    For each row: go up from its node to one that was merged recently, or to the root; then merge the nodes of that path downwards.
    """
    cached_nodes = cache.nodes
    cached_merged = cache.merged
    path = cache.path
    mask: cython.Py_ssize_t = len(cached_nodes) - 1
    index: cython.Py_ssize_t
    for index in range(len(rows)):
        node: cython.Py_ssize_t = tree.node_of(rows[index])
        depth: cython.Py_ssize_t = 0
        while node and (cached_nodes[node & mask] != node or cached_merged[node & mask] >> 32 != epoch):
            path[depth] = node
            depth += 1
            node = tree.nodes.second[node]
        merged: cython.ulonglong = cached_merged[node & mask] & tree.node_mask if node else 0  # tree.node_mask: 0xFFFFFFFF
        while depth:
            depth -= 1
            node = path[depth]
            merged = into.nodes.number_of(label_of[locations.second[tree.nodes.first[node]]], merged)
            cached_nodes[node & mask] = node
            cached_merged[node & mask] = epoch << 32 | merged
        into.add_samples(into.find_or_add_row(merged, 0, 0), tree.samples[rows[index]])


@cython.locals(totals="unsigned long long[::1]")
def sum_subtrees(tree: CallTree, totals: Column) -> None:
    """Fill `totals`, which are zeros, with the samples of each node and all nodes below it."""
    row: cython.Py_ssize_t
    node: cython.Py_ssize_t
    for row in range(tree.rows.count):
        totals[tree.node_of(row)] += tree.samples[row]
    for node in range(tree.nodes.count - 1, 0, -1):
        totals[tree.nodes.second[node]] += totals[node]


@cython.locals(totals="const unsigned long long[::1]", large="unsigned int[::1]")
def select_large_nodes(totals: Column, minimum: cython.ulonglong, large: Column) -> int:
    """Fill `large`, up to its length, with the nodes of at least `minimum` samples; return the number of such nodes."""
    count: cython.Py_ssize_t = 0
    node: cython.Py_ssize_t
    for node in range(len(totals)):
        if totals[node] >= minimum:
            if count < len(large):
                large[count] = node
            count += 1
    return count
