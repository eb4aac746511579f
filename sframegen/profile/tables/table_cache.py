"""Caches decoded tables between runs, in a directory that only this user can write; file_cache.py limits its size."""

from __future__ import annotations

import os
import struct
import zlib
from functools import cache
from hashlib import blake2b
from typing import TYPE_CHECKING

from sframegen.base.errors import FormatError
from sframegen.profile.file_cache import LIMIT, FileCache, is_settled, name_result
from sframegen.profile.tables.decoded_table import ELEMENT_SIZE, RULE_ELEMENTS, DecodedTable
from sframegen.program.build import packages_directory

if TYPE_CHECKING:
    from pathlib import Path

MAGIC = b"SFtable4"  # the last byte is the version
# MAGIC, e_machine, the integer fields of DecodedTable, the sizes of its `data` and `functions`, and a CRC-32 of the whole file, for
# which the CRC field itself counts as 0.
HEADER = struct.Struct("<8s12Q")


def encode_table(table: DecodedTable, machine: int) -> bytes:
    """Return the bytes of a cache file: a header with a checksum, the table's data, and its functions."""
    *numbers, data, left_out, functions = table
    fields = (MAGIC, machine, *numbers, left_out, len(data), len(functions))
    crc = zlib.crc32(functions, zlib.crc32(data, zlib.crc32(HEADER.pack(*fields, 0))))
    return b"".join((HEADER.pack(*fields, crc), data, functions))


def decode_table(file: memoryview) -> DecodedTable:
    """Return the table in a cache file's bytes, without copying its data. Raises FormatError if any byte was changed."""
    if len(file) < HEADER.size:
        raise FormatError("the stored table is too short")
    magic, machine, *numbers, left_out, size, functions_size, crc = HEADER.unpack_from(file)
    content = file[HEADER.size :]
    without_crc = HEADER.pack(magic, machine, *numbers, left_out, size, functions_size, 0)
    if magic != MAGIC or size + functions_size != len(content) or zlib.crc32(content, zlib.crc32(without_crc)) != crc:
        raise FormatError("the stored table is damaged")
    table = DecodedTable._make([*numbers, content[:size], left_out, bytes(content[size:])])
    parts = (
        (table.index_at, table.pages // 2 + 1),
        (table.rows_at, (table.rows + 1) // 2),
        (table.rules_at, RULE_ELEMENTS * table.rules),
    )
    if any(ELEMENT_SIZE * (at + elements) > size for at, elements in parts):
        raise FormatError("the stored table is damaged")
    return table


SUFFIX = ".table"
PACKAGES = ("cfi", "linker", "sframegen")


class TableCache:
    """A cache of decoded tables. `note`: one line on why nothing is cached; empty if the directory can be used."""

    def __init__(self, directory: Path | None = None, limit: int = LIMIT) -> None:
        """`directory`: created if missing; by default sframegen/tables in $XDG_CACHE_HOME or ~/.cache. `limit`: bytes in all."""
        self._files = FileCache("tables", SUFFIX, directory, limit)
        self.note = f"tables are not kept: {self._files.why}" if self._files.why else ""

    def load(self, status: os.stat_result | None, state: str = "") -> DecodedTable | None:
        """Return the cached table of a file, judged by its `status` alone; None if none is cached, or only a damaged one.

        `state`: identifies the table's other input, such as the stores of detached sections.
        """
        data = None if status is None else self._files.load(_name_entry(status, state))
        try:
            return None if data is None else decode_table(data)
        except FormatError:
            return None

    def store(self, status: os.stat_result | None, table: DecodedTable, machine: int, state: str = "") -> None:
        """Store a table with its file's e_machine, unless the file may still be changing, because file times are coarse."""
        if status is not None and is_settled(status):
            self._files.store(_name_entry(status, state), encode_table(table, machine))

    @property
    def descriptors(self) -> tuple[int, ...]:
        """Return the open descriptors that a forked process needs to use the cache."""
        return self._files.descriptors

    def trim(self) -> None:
        self._files.trim()

    def close(self) -> None:
        self._files.close()


def _name_entry(status: os.stat_result, state: str) -> str:
    return name_result(status, _own_digest(), state) + SUFFIX


@cache
def _own_digest() -> bytes:
    return modules_digest(packages_directory())


def modules_digest(packages: str) -> bytes:
    """Return a hash of all modules, compiled and interpreted, because a change to any of them may change tables."""
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
