"""A DecodedTable as the bytes of a file, for the cache."""

from __future__ import annotations

import struct
import zlib

from cfi.errors import FormatError
from sframegen.profile.tables.decoded_table import ELEMENT, RULE_ELEMENTS, DecodedTable

MAGIC = b"SFtable4"  # the last byte is the version
# The magic number, e_machine, the table's numbers, bytes of its data and of its functions, CRC-32 of all with 0 in its place.
HEADER = struct.Struct("<8s12Q")


def stored(table: DecodedTable, machine: int) -> bytes:
    """The bytes of a file: a header with a checksum, then the table's data, then its functions."""
    *numbers, data, left_out, functions = table
    fields = (MAGIC, machine, *numbers, left_out, len(data), len(functions))
    crc = zlib.crc32(functions, zlib.crc32(data, zlib.crc32(HEADER.pack(*fields, 0))))
    return b"".join((HEADER.pack(*fields, crc), data, functions))


def table_in(file: memoryview) -> DecodedTable:
    """The table that a file's bytes hold; it borrows them. Raises FormatError where they are not as they were written."""
    if len(file) < HEADER.size:
        raise FormatError("the stored table is too short")
    magic, machine, *numbers, left_out, size, functions_size, crc = HEADER.unpack_from(file)
    content = file[HEADER.size :]
    unsigned = HEADER.pack(magic, machine, *numbers, left_out, size, functions_size, 0)
    if magic != MAGIC or size + functions_size != len(content) or zlib.crc32(content, zlib.crc32(unsigned)) != crc:
        raise FormatError("the stored table is damaged")
    table = DecodedTable._make([*numbers, content[:size], left_out, bytes(content[size:])])
    parts = (
        (table.index_at, table.pages // 2 + 1),
        (table.rows_at, (table.rows + 1) // 2),
        (table.rules_at, RULE_ELEMENTS * table.rules),
    )
    if any(ELEMENT * (at + elements) > size for at, elements in parts):
        raise FormatError("the stored table is damaged")
    return table
