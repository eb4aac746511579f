"""Tables that were made before, as files in a directory that only this user can write."""

from __future__ import annotations

import errno
import os
import stat
import struct
import time
import zlib
from contextlib import suppress
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

from cfi.errors import FormatError
from linker.files.location import below, locate, make_directory
from linker.files.rename_into_place import write_new
from sframegen.elf.opening import map_descriptor
from sframegen.profile.tables.decoded_table import ELEMENT, RULE_ELEMENTS, DecodedTable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cfi.columns import Bytes
    from linker.files.location import Location

LIMIT = 1 << 30  # bytes of all files
SETTLED = 2_000_000_000  # nanoseconds
ENDING = ".table"
MAGIC = b"SFtable1"
HEADER = struct.Struct("<8s10Q")  # the magic number, the table's numbers, bytes of its data, CRC-32 of all that follows the magic
PACKAGES = Path(__file__).parents[3]
MAKERS = (
    "cfi",
    *(f"sframegen/{name}" for name in ("checks", "code", "conversion", "detached", "elf", "format", "profile/tables", "tables")),
)
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class TableCache:
    """`note`: why there is none, one line; empty if there is one."""

    def __init__(self, directory: Path | None = None, limit: int = LIMIT) -> None:
        """`directory`: by default sframegen/tables in $XDG_CACHE_HOME or ~/.cache; it is made. `limit`: bytes of its files."""
        self._limit = limit
        self._directory = -1
        self.note = ""
        self._tool = _tool()
        try:
            self._path = directory or default_directory()
            self._directory = _opened(self._path)
        except (OSError, RuntimeError) as error:  # the latter where a user has no home
            reason = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) and error.filename else str(error)
            self.note = f"tables are not kept: {reason}"

    def name_of(self, build_id: bytes, content: Iterable[Bytes]) -> str:
        """The file for a table. `content`: all that decides it, since files can have one another's build-ids."""
        digest = blake2b(self._tool, digest_size=16)
        for part in content:
            digest.update(len(part).to_bytes(8, "little"))
            digest.update(part)
        return f"{build_id.hex()[:64]}-{digest.hexdigest()}{ENDING}"

    def load(self, name: str) -> DecodedTable | None:
        """None if there is none, or if it is damaged or another user's."""
        if self._directory < 0:
            return None
        try:
            with self._at(name) as place:
                descriptor = place.open()
            try:
                data, status = map_descriptor(descriptor, name)
                if status.st_uid != os.geteuid() or status.st_mode & OTHERS_WRITE:
                    return None
                table = table_in(data)
                os.utime(descriptor)  # the least recently used go first
            finally:
                os.close(descriptor)
        except (OSError, FormatError):
            return None
        return table

    def store(self, name: str, table: DecodedTable) -> None:
        """Keep it; where it cannot be written, it is made again next time."""
        if self._directory >= 0:
            with suppress(OSError), self._at(name) as place:
                write_new(place, stored(table), 0o600)

    def recall(self, status: os.stat_result | None, state: str = "") -> DecodedTable | None:
        """Return the table of an unchanged file without reading that file; None if there is none.

        `state`: of the stores of detached sections, in which there must be none or the same one for the file as then.
        """
        return None if status is None or self._directory < 0 else self.load(self._name_of_file(status, state))

    def remember(self, status: os.stat_result | None, name: str, state: str = "") -> None:
        """Let `recall` find the table with this name, unless the file may still be changing: times of files are coarse."""
        if status is not None and self._directory >= 0 and time.time_ns() - status.st_ctime_ns > SETTLED:
            with suppress(OSError):  # it is there already, or not kept at all
                os.link(name, self._name_of_file(status, state), src_dir_fd=self._directory, dst_dir_fd=self._directory)

    def _name_of_file(self, status: os.stat_result, state: str) -> str:
        about = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns, state)
        return f"file-{blake2b(repr(about).encode(), key=blake2b(_tool()).digest(), digest_size=16).hexdigest()}{ENDING}"

    def trim(self) -> None:
        """Remove the least recently used files until the rest fits the limit."""
        if self._directory < 0:
            return
        with suppress(OSError):
            with os.scandir(self._directory) as entries:
                found = [(one.name, one.stat(follow_symlinks=False)) for one in entries if one.name.endswith(ENDING)]
            total = sum(status.st_size // max(status.st_nlink, 1) for _, status in found)  # many have two names
            for name, status in sorted(found, key=lambda one: one[1].st_mtime_ns):
                if total <= self._limit:
                    break
                os.unlink(name, dir_fd=self._directory)
                total -= status.st_size // max(status.st_nlink, 1)

    def close(self) -> None:
        if self._directory >= 0:
            os.close(self._directory)
            self._directory = -1

    def _at(self, name: str) -> Location:
        return below(self._directory, name, str(self._path / name))


def default_directory() -> Path:
    home = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (home if home.is_absolute() else Path.home() / ".cache") / "sframegen" / "tables"


def _opened(path: Path) -> int:
    """A descriptor of the directory, which is made if need be. Raises OSError, also where another user could write there."""
    make_directory(path.parent)
    with locate(path) as place:
        if place.status() is None:
            with suppress(FileExistsError):  # made by another run
                os.mkdir(place.name, 0o700, dir_fd=place.directory)
    with locate(path) as place:
        descriptor = os.open(place.name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=place.directory)
    status = os.fstat(descriptor)
    if status.st_uid != os.geteuid() or status.st_mode & OTHERS_WRITE:
        os.close(descriptor)
        raise PermissionError(errno.EPERM, "another user can write there", str(path))
    return descriptor


@cache
def _tool() -> bytes:
    """What changes with each version of what makes tables: sizes and times of the installed modules."""
    files = [file for folder in MAKERS for file in sorted((PACKAGES / folder).rglob("*")) if file.suffix in (".py", ".so")]
    return repr([(file.name, (status := file.stat()).st_size, status.st_mtime_ns) for file in files]).encode()


def stored(table: DecodedTable) -> bytes:
    """The bytes of a file with the table: a header with a checksum, then its data."""
    *numbers, data, left_out = table
    fields = (MAGIC, *numbers, left_out, len(data))
    crc = zlib.crc32(data, zlib.crc32(HEADER.pack(*fields, 0)))
    return b"".join((HEADER.pack(*fields, crc), data))


def table_in(file: memoryview) -> DecodedTable:
    """The table that a file's bytes hold; it borrows them. Raises FormatError where they are not as they were written."""
    if len(file) < HEADER.size:
        raise FormatError("the stored table is too short")
    magic, *numbers, left_out, size, crc = HEADER.unpack_from(file)
    data = file[HEADER.size :]
    unsigned = HEADER.pack(magic, *numbers, left_out, size, 0)
    if magic != MAGIC or size != len(data) or zlib.crc32(data, zlib.crc32(unsigned)) != crc:
        raise FormatError("the stored table is damaged")
    table = DecodedTable._make([*numbers, data, left_out])
    parts = (
        (table.index_at, table.pages // 2 + 1),
        (table.rows_at, (table.rows + 1) // 2),
        (table.rules_at, RULE_ELEMENTS * table.rules),
    )
    if any(ELEMENT * (at + elements) > size for at, elements in parts):
        raise FormatError("the stored table is damaged")
    return table
