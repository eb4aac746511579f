"""Tables that were made before, as files in a directory that only this user can write."""

from __future__ import annotations

import os
import struct
import zlib
from functools import cache
from hashlib import blake2b
from typing import TYPE_CHECKING

from sframegen.base.errors import FormatError
from sframegen.profile.kept_files import LIMIT, KeptFiles, is_settled, name_of_unchanged
from sframegen.profile.tables.decoded_table import ELEMENT, RULE_ELEMENTS, DecodedTable
from sframegen.program.build import packages_directory

if TYPE_CHECKING:
    from pathlib import Path

MAGIC = b"SFtable4"  # the last byte is the version
# The magic number, e_machine, the table's numbers, bytes of its data and of its functions, CRC-32 of all with 0 in its place.
HEADER = struct.Struct("<8s12Q")


def table_bytes(table: DecodedTable, machine: int) -> bytes:
    """Return the bytes of a cache file: a header with a checksum, then the table's data, then its functions."""
    *numbers, data, left_out, functions = table
    fields = (MAGIC, machine, *numbers, left_out, len(data), len(functions))
    crc = zlib.crc32(functions, zlib.crc32(data, zlib.crc32(HEADER.pack(*fields, 0))))
    return b"".join((HEADER.pack(*fields, crc), data, functions))


def table_in(file: memoryview) -> DecodedTable:
    """Return the table in a cache file's bytes, without a copy. Raises FormatError if they are not as they were written."""
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


ENDING = ".table"
PACKAGES = ("cfi", "linker", "sframegen")


class TableCache:
    """A cache of decoded tables. `note`: one line that says why there is no cache; empty if there is one."""

    def __init__(self, directory: Path | None = None, limit: int = LIMIT) -> None:
        """`directory`: by default sframegen/tables in $XDG_CACHE_HOME or ~/.cache; it is made. `limit`: bytes of its files."""
        self._files = KeptFiles("tables", ENDING, directory, limit)
        self.note = f"tables are not kept: {self._files.why}" if self._files.why else ""

    def load(self, status: os.stat_result | None, state: str = "") -> DecodedTable | None:
        """Return the table of an unchanged file, without reading the file; None if none is cached, or a damaged or foreign one.

        `state`: identifies other input of the table, such as the stores of detached sections.
        """
        data = None if status is None else self._files.load(_name_of(status, state))
        try:
            return None if data is None else table_in(data)
        except FormatError:
            return None

    def store(self, status: os.stat_result | None, table: DecodedTable, machine: int, state: str = "") -> None:
        """Store a table with its file's e_machine, unless the file may still be changing: times of files are coarse."""
        if status is not None and is_settled(status):
            self._files.store(_name_of(status, state), table_bytes(table, machine))

    @property
    def descriptors(self) -> tuple[int, ...]:
        """Return the open descriptors that another process needs to use the cache."""
        return self._files.descriptors

    def trim(self) -> None:
        self._files.trim()

    def close(self) -> None:
        self._files.close()


def _name_of(status: os.stat_result, state: str) -> str:
    return name_of_unchanged(status, _tool(), state) + ENDING


@cache
def _tool() -> bytes:
    return modules_digest(packages_directory())


def modules_digest(packages: str) -> bytes:
    """Return a hash of all modules, compiled and interpreted, with the version: a change to any of them may change tables."""
    digest = blake2b(digest_size=16)
    for package in PACKAGES:
        for folder, folders, names in os.walk(f"{packages}/{package}"):
            folders.sort()
            for name in sorted(names):
                if name.endswith((".py", ".so")):
                    path = f"{folder}/{name}"
                    with open(path, "rb") as file:  # noqa: PTH123 - hundreds of files: without pathlib
                        data = file.read()
                    digest.update(f"{path[len(packages) :]} {len(data)}\n".encode())
                    digest.update(data)
    return digest.digest()
