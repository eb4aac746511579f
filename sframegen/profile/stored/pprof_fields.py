"""Protocol buffers -> numbers, texts and messages, as far as pprof's schema needs them. Compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from cfi.columns import zeros

try:
    import cython
except ImportError:
    from cfi import cython_shadow as cython  # type: ignore[no-redef]

if TYPE_CHECKING:
    from cfi.columns import Bytes, Column
    from sframegen.profile.stacks.call_tree import CallTree
    from sframegen.profile.stacks.numbered import Numbered

COMPILED: bool = cython.compiled


class Locations(NamedTuple):
    """As for `add_path`."""

    known: Numbered
    begin: Column
    places: Column


@cython.locals(data="const unsigned char[::1]", into="unsigned long long[::1]")
def read_fields(data: Bytes, at: cython.Py_ssize_t, end: cython.Py_ssize_t, into: Column) -> cython.Py_ssize_t:
    """Fill `into` with (number of the field, value, size) of each field in [at, end); return how many, negative if it is cut off.

    Of texts and messages the value is the place of the first byte, and the size is greater by one; of integers it is 0.
    """
    count: cython.Py_ssize_t = 0
    room: cython.Py_ssize_t = len(into) // 3
    key: cython.ulonglong
    value: cython.ulonglong
    byte: cython.ulonglong
    shift: cython.int
    kind: cython.int
    part: cython.int
    size: cython.Py_ssize_t
    while at < end:
        key = value = 0
        size = 0
        kind = -1
        for part in range(2):
            if kind == 1 or kind == 5:  # numbers of 8 and 4 bytes
                break
            shift = 0
            value = 0
            while True:
                if at >= end or shift > 63:
                    return -1
                byte = data[at]
                at += 1
                if shift == 63 and byte > 1:  # more than 64 bits
                    return -1
                value |= (byte & 127) << shift
                if byte < 128:
                    break
                shift += 7
            if part == 0:
                key = value >> 3
                kind = value & 7
        if kind == 1 or kind == 5:
            size = 8 if kind == 1 else 4
            value = 0
        elif kind == 2:
            if value > end - at:
                return -1
            size = value
            value = at
        elif kind != 0:
            return -1
        if kind != 0:
            if size > end - at:
                return -1
            at += size
        if count < room:
            into[3 * count] = key
            into[3 * count + 1] = value
            into[3 * count + 2] = size + 1 if kind == 2 else 0
        count += 1
    return count


@cython.locals(
    data="const unsigned char[::1]",
    begins="const unsigned long long[::1]",
    ends="const unsigned long long[::1]",
    scratch="unsigned long long[::1]",
    into="unsigned long long[::1]",
)
def read_messages(
    data: Bytes, begins: Column, ends: Column, width: cython.Py_ssize_t, scratch: Column, into: Column
) -> cython.Py_ssize_t:
    """Fill `into`, which is 0, with the fields 1 to `width` of each message [begin, end).

    Each has (value, size) of the first field with this number, as `read_fields` has them, how many there are, and where the last
    ends. `scratch`: for the fields of one message. Return how many messages there are; -1 - number of the first that is cut off or
    has more fields.
    """
    row: cython.Py_ssize_t
    one: cython.Py_ssize_t
    at: cython.Py_ssize_t
    count: cython.Py_ssize_t
    room: cython.Py_ssize_t = len(scratch) // 3
    for row in range(len(begins)):
        count = read_fields(data, begins[row], ends[row], scratch)
        if count < 0 or count > room:
            return -1 - row
        for one in range(count):
            if scratch[3 * one] == 0 or scratch[3 * one] > width:
                continue
            at = 4 * (row * width + scratch[3 * one] - 1)
            if into[at + 2] == 0:
                into[at] = scratch[3 * one + 1]
                into[at + 1] = scratch[3 * one + 2]
            into[at + 2] += 1
            if scratch[3 * one + 2]:
                into[at + 3] = scratch[3 * one + 1] + scratch[3 * one + 2] - 1
    return len(begins)


@cython.locals(data="const unsigned char[::1]", into="unsigned long long[::1]")
def read_packed(data: Bytes, at: cython.Py_ssize_t, end: cython.Py_ssize_t, into: Column) -> cython.Py_ssize_t:
    """Fill `into` with the integers in [at, end), as far as it goes; return how many there are, negative if the last is cut off."""
    count: cython.Py_ssize_t = 0
    value: cython.ulonglong = 0
    byte: cython.ulonglong
    shift: cython.int = 0
    while at < end:
        byte = data[at]
        at += 1
        if shift > 63 or (shift == 63 and byte > 1):
            return -1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            if count < len(into):
                into[count] = value
            count += 1
            value = 0
            shift = 0
    return -1 if shift else count


@cython.locals(ids="const unsigned long long[::1]", begin="const unsigned int[::1]", places="const unsigned int[::1]")
def add_path(
    tree: CallTree, ids: Column, count: cython.Py_ssize_t, known: Numbered, begin: Column, places: Column, node: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """The node of a stack whose locations have these ids, the innermost first, below a node; -1 if one is unknown, -2 if too deep.

    `known`: pairs (id, 0); of their numbers the `places` are [begin[number], begin[number + 1]), the outermost first.
    """
    slot: cython.Py_ssize_t
    at: cython.Py_ssize_t
    depth: cython.Py_ssize_t = 0
    while count:
        count -= 1
        slot = known.find(ids[count], 0)
        if slot < 0:
            return -1
        depth += begin[slot + 1] - begin[slot]
        if depth > 1 << 17:  # frames of one stack, inlined ones too
            return -2
        for at in range(begin[slot], begin[slot + 1]):
            node = tree.nodes.of(places[at], node)
    return node


@cython.locals(
    data="const unsigned char[::1]",
    rows="const unsigned long long[::1]",
    begin="const unsigned int[::1]",
    places="const unsigned int[::1]",
    ids="unsigned long long[::1]",
    nodes="unsigned int[::1]",
    values="unsigned long long[::1]",
)
def add_samples(
    tree: CallTree, data: Bytes, rows: Column, column: cython.Py_ssize_t, locations: Locations, most: cython.Py_ssize_t, ids: Column
) -> tuple[Column, Column]:
    """Return nodes and values of samples; of those that are not as usual, or wrong, the node is 2**32 - 1.

    `rows`: the fields 1 to 3 of each, as `read_messages` has them; usual are packed locations and values. `most`: nodes of the
    tree. `ids`: for the numbers of one sample.
    """
    begin = locations.begin
    places = locations.places
    found = zeros("I", len(rows) // 12), zeros("Q", len(rows) // 12)
    nodes, values = found
    row: cython.Py_ssize_t
    at: cython.Py_ssize_t
    count: cython.Py_ssize_t
    node: cython.Py_ssize_t
    value: cython.ulonglong
    for row in range(len(nodes)):
        at = 12 * row
        nodes[row] = 0xFFFFFFFF
        if rows[at + 2] != 1 or rows[at + 6] != 1 or rows[at + 1] == 0 or rows[at + 5] == 0:
            continue
        if rows[at + 10] and not rows[at + 9]:  # a label that is a number
            continue
        count = read_packed(data, rows[at + 4], rows[at + 4] + rows[at + 5] - 1, ids)
        if column < 0 or column >= count or count > len(ids):
            continue
        value = ids[column]
        count = read_packed(data, rows[at], rows[at] + rows[at + 1] - 1, ids)
        if value >> 63 or count < 0 or count > len(ids):
            continue
        node = add_path(tree, ids, count, locations.known, begin, places, 0)
        if node < 0 or tree.nodes.count > most:
            continue
        nodes[row] = node
        values[row] = value
    return found


@cython.locals(
    ids="const unsigned long long[::1]",
    addresses="const unsigned long long[::1]",
    sites="const unsigned int[::1]",
    places="unsigned int[::1]",
)
def add_locations(
    ids: Column, addresses: Column, sites: Column, known: Numbered, numbered: Numbered, places: Column
) -> cython.Py_ssize_t:
    """Fill `places` with the numbers of (address, site); return the first row whose id is `known` already, else -1."""
    row: cython.Py_ssize_t
    for row in range(len(ids)):
        if known.of(ids[row], 0) != row:
            return row
        places[row] = numbered.of(addresses[row], sites[row])
    return -1
