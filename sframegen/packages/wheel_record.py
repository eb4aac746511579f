"""Checks and updates a wheel's RECORD, which has the hash and size of each file in the wheel."""

from __future__ import annotations

import csv
import hashlib
import io
import re
from base64 import urlsafe_b64encode
from codecs import BOM_UTF8
from typing import TYPE_CHECKING, NamedTuple

from sframegen.base.errors import FormatError
from sframegen.packages.package_pass import MAX_ENTRIES, ChangedFile, Readable

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_RECORD_BYTES, MAX_LINE = 64 << 20, 1 << 16
ALGORITHMS = ("sha256", "sha384", "sha512")  # the wheel specification requires sha256 or better
RECORD_PATH = r"[^/]+\.dist-info/RECORD"


def is_record(path: str) -> bool:
    return re.fullmatch(RECORD_PATH, path) is not None


def is_signature(path: str) -> bool:
    return re.fullmatch(RECORD_PATH + r"\.(?:jws|p7s)", path) is not None


class RecordRow(NamedTuple):
    path: str
    hash: str  # "sha256=...", "" if there is none
    size: str


class WheelRecord:
    """The RECORD of a wheel. Rows keep their order, and keep their bytes unless their file changes."""

    def __init__(self, path: str, data: bytes) -> None:
        """Parse RECORD. Raises FormatError if it is not a table of three columns, or a file has two different rows."""
        self.path = path
        self._byte_order_mark = BOM_UTF8 if data.startswith(BOM_UTF8) else b""
        self._rows: dict[str, RecordRow] = {}
        self._lines: list[tuple[RecordRow | None, str]] = []  # (row, the line's text); the row is None for an empty line
        self._read_paths: set[str] = set()
        try:
            raw_lines: list[str] = []
            reader = csv.reader(_split_lines(data.decode("utf-8-sig"), raw_lines), strict=True)
            for fields in reader:
                text, done = "".join(raw_lines), reader.line_num
                raw_lines.clear()
                if len(fields) not in (0, len(RecordRow._fields)):
                    raise FormatError(f"line {done}: {len(fields)} columns; RECORD has three")
                row = RecordRow(*fields) if fields else None
                self._lines.append((row, text))
                if row is not None and self._rows.setdefault(row.path, row) != row:
                    raise FormatError(f"line {done}: a second row for {row.path}")
        except (csv.Error, UnicodeDecodeError) as error:
            raise FormatError(f"not a wheel's RECORD: {error}") from None

    def hash_reads(self, path: str, file: Readable) -> HashedFile:
        """Return a wrapper of `file` that hashes all bytes read. Raises FormatError if RECORD does not list the path."""
        self._read_paths.add(path)
        row = None if path == self.path else self._rows.get(path)
        if row is None and path != self.path and not is_signature(path):
            raise FormatError(f"{path}: not listed in RECORD")
        return HashedFile(row or RecordRow(path, "", ""), file)

    def list_unread(self) -> list[str]:
        """Return the listed files that were not read, without the directories that old tools list."""
        return [path for path in self._rows if path not in self._read_paths and not path.endswith("/")]

    def update_row(self, path: str, change: ChangedFile) -> None:
        """Update the row of a file that was checked and then replaced."""
        row = self._rows[path]
        algorithm = row.hash.partition("=")[0]
        new_hash = row.hash and _format_hash(algorithm, bytes.fromhex(change.new.digests[algorithm]))
        self._rows[path] = RecordRow(path, new_hash, row.size and str(change.new.size))

    def to_bytes(self) -> bytes:
        return self._byte_order_mark + "".join(self._yield_lines()).encode()

    def _yield_lines(self) -> Iterator[str]:
        for old_row, text in self._lines:
            if old_row is None or (row := self._rows[old_row.path]) == old_row:
                yield text
                continue
            # Hashes and sizes contain neither commas nor quotes, so rsplit finds the last two columns even if they are quoted.
            path, hash_column, size_column = text.rsplit(",", 2)
            yield ",".join((path, hash_column.replace(old_row.hash, row.hash), size_column.replace(old_row.size, row.size)))


def _format_hash(algorithm: str, digest: bytes) -> str:
    """Return a hash as RECORD writes it."""
    return f"{algorithm}={urlsafe_b64encode(digest).rstrip(b'=').decode()}"


def _split_lines(text: str, raw_lines: list[str]) -> Iterator[str]:
    """Yield the lines, and append them to `raw_lines`. Raises FormatError for too many lines, or one that is too long."""
    for number, line in enumerate(io.StringIO(text, newline=""), 1):
        if number > MAX_ENTRIES or len(line) > MAX_LINE:
            raise FormatError(f"line {number}: more than RECORD of a wheel has")
        raw_lines.append(line)
        yield line


class HashedFile:
    """A file that hashes and counts the bytes read from it, to compare them with its RECORD row."""

    def __init__(self, row: RecordRow, file: Readable) -> None:
        """Raises FormatError if the row's hash algorithm is not allowed in wheels."""
        self._row, self._file, self._read_bytes = row, file, 0
        self._algorithm = row.hash.partition("=")[0]
        if row.hash and self._algorithm not in ALGORITHMS:
            raise FormatError(f"{row.path}: hash {self._algorithm} in RECORD; wheels have {', '.join(ALGORITHMS)}")
        self._hash = hashlib.new(self._algorithm or ALGORITHMS[0])

    def read(self, size: int, /) -> bytes:
        data = self._file.read(size)
        self._hash.update(data)
        self._read_bytes += len(data)
        return data

    def check(self, size: int) -> None:
        """Raise FormatError unless the bytes read have the given size, and the row's size and hash."""
        if self._read_bytes != size:
            raise FormatError(f"{self._row.path}: {self._read_bytes:,} bytes, not {size:,} as its header has it")
        if self._row.size and self._row.size != str(size):
            raise FormatError(f"{self._row.path}: {size:,} bytes, but {self._row.size} in RECORD")
        if self._row.hash and self._row.hash.rstrip("=") != _format_hash(self._algorithm, self._hash.digest()):
            raise FormatError(f"{self._row.path}: its hash differs from the one in RECORD")
