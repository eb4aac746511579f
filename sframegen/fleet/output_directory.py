"""Reads and writes results in the output directory of a run, and finds the results of earlier runs.

results/ab/KEY.json        the result for a package: its row, and those of its ELF files
seen/ab/IDENTITY_KEY.json  the key of the result for a content that is identified by its size, times and so on
keys                       the keys of the last run's results, 32 bytes each, at the numbers of their packages
packages/NAME              a rewritten package
"""

from __future__ import annotations

import fcntl
import json
import os
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar, get_args, get_origin

from linker.files.location import Location, OwnDirectory
from linker.files.rename_into_place import writing_new
from sframegen.base.errors import FormatError
from sframegen.fleet.result_rows import COLUMN_TYPES, FileRow, Finished, PackageResult, PackageRow, RowOutcome, to_one_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sframegen.fleet.sources.items import Item

KEY_BYTES = 32
MAX_RESULT_BYTES = 1 << 28
NO_KEY = bytes(KEY_BYTES)  # in the file of keys, for a package that has no result yet
FILE_MODE = 0o644  # before the umask, so that other users can never write
LOCK_MODE = 0o600  # of the lock file, because any user who can open it could lock it
Row = TypeVar("Row", FileRow, PackageRow)


class OutputDirectory(OwnDirectory):
    """An output directory, which is open for the whole run. Files in it are replaced completely or not at all."""

    def locate_package(self, name: str, *, make: bool = False) -> Location:
        """Return the location of a rewritten package. Raises OSError."""
        return self.at(f"packages/{name}", make=make)

    @contextmanager
    def open_file(self, name: str) -> Iterator[BinaryIO]:
        """Open an existing file for reading. Raises FormatError if it is not a regular file, OSError."""
        with self.at(name) as location, os.fdopen(location.open(), "rb") as file:
            yield file

    @contextmanager
    def open_new_file(self, name: str) -> Iterator[BinaryIO]:
        """Open a file for writing. It replaces the existing file at the end of the block, unless that raises. Raises OSError."""
        with self.at(name, make=True) as location, writing_new(location, FILE_MODE) as file:
            yield file

    def write_json(self, name: str, value: object) -> None:
        """Write a value as one line of JSON. Raises OSError."""
        with self.open_new_file(name) as file:
            file.write(json.dumps(value, separators=(",", ":")).encode("ascii") + b"\n")

    def write_result(self, key: str, result: PackageResult) -> None:
        """Write the result of a package under its key. Raises OSError."""
        self.write_json(_result_path(key), {"package": vars(result.package), "files": [vars(row) for row in result.files]})

    def read_result(self, key: str) -> PackageResult:
        """Read the result of a key. Raises FormatError if it is missing, incomplete or damaged."""
        try:
            with self.open_file(_result_path(key)) as file:
                value = json.loads(file.read(MAX_RESULT_BYTES))
            package = _parse_row(PackageRow, value["package"])
            return PackageResult(package, [_parse_row(FileRow, row) for row in value["files"]])
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            why = f": {error.strerror}" if isinstance(error, OSError) else ""
            raise FormatError(f"no whole result of a package{why}", file=f"{self.path}/{_result_path(key)}") from error

    def write_no_content(self, key: str, item: Item, outcome: RowOutcome, reason: str) -> Finished:
        """Write the result of a package that was refused or failed before its content was known. Raises OSError."""
        reason = to_one_line(reason)
        self.write_result(key, PackageResult(PackageRow(item.name, item.source, outcome=outcome, reason=reason)))
        return Finished(key, outcome, reason)

    def find_earlier_result(self, identity_key: str) -> Finished | None:
        """Return the earlier result of an item, or None. `identity_key`: a key from RunOptions.make_identity_key, or ""."""
        key = self.find_key(identity_key) if identity_key else ""
        package = self.read_finished_package(key) if key else None
        return Finished(key, package.outcome, package.reason, is_new=False) if package else None

    def read_finished_package(self, key: str) -> PackageRow | None:
        """Return the package's row if its result is complete and not a failure, so that it need not be repeated; else None."""
        try:
            result = self.read_result(key)
        except FormatError:
            return None
        package = result.package
        if package.outcome is RowOutcome.FAILED or (package.new_package_bytes and not self._has_rewritten(package)):
            return None
        return package

    def _has_rewritten(self, package: PackageRow) -> bool:
        """Return True if the rewritten package exists, with the size in the row."""
        try:
            with self.locate_package(package.package) as location:
                status = location.status()
        except OSError:
            return False
        return status is not None and status.st_size == package.new_package_bytes

    def remove_result(self, key: str) -> None:
        """Remove the result of a failed attempt, if there is one. Raises OSError."""
        try:
            location = self.at(_result_path(key))
        except FileNotFoundError:  # there is no directory for keys with these first digits
            return
        with location:
            location.unlink()

    def store_key(self, identity_key: str, key: str) -> None:
        """Store the result key for an identity key, so that the next run finds the result without the content. Raises OSError."""
        self.write_json(_identity_path(identity_key), {"key": key})

    def find_key(self, identity_key: str) -> str:
        """Return the result key that an earlier run has stored for the identity key, or ""."""
        try:
            with self.open_file(_identity_path(identity_key)) as file:
                key = json.loads(file.read(1000))["key"]
                return key if isinstance(key, str) and len(bytes.fromhex(key)) == KEY_BYTES else ""
        except (FormatError, OSError, ValueError, KeyError, TypeError, RecursionError):
            return ""

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the directory for one run at a time. Raises BlockingIOError if another run has locked it, OSError."""
        with self._open("lock", os.O_NONBLOCK, LOCK_MODE) as descriptor:
            with suppress(PermissionError):  # the file may belong to another user, such as root
                os.fchmod(descriptor, LOCK_MODE)  # an earlier version let others read it
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise BlockingIOError(error.errno, "another run writes there; wait for its end", self.path) from error
            yield

    @contextmanager
    def _open(self, name: str, flags: int, mode: int) -> Iterator[int]:
        """Open a file for reading and writing, and create it if it does not exist. Raises OSError."""
        with self.at(name) as location:
            flags |= os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(location.name, flags, mode, dir_fd=location.directory)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    @contextmanager
    def new_keys(self) -> Iterator[int]:
        """Start an empty file of keys for this run, and yield its descriptor. Raises OSError."""
        with self.at("keys") as location:
            location.unlink()
        with self._open("keys", os.O_EXCL, FILE_MODE) as descriptor:
            yield descriptor

    def read_keys(self) -> Iterator[str]:
        """Yield the keys of the last run's results, in the order of its packages, each once. Raises OSError."""
        yielded: set[bytes] = set()
        with self.open_file("keys") as file:
            while key := file.read(KEY_BYTES):
                if key != NO_KEY and len(key) == KEY_BYTES and key not in yielded:
                    yielded.add(key)
                    yield key.hex()


def write_key(descriptor: int, number: int, key: str) -> None:
    """Write a key to the file of keys at its package's number. It is in a file so that memory does not grow with the run."""
    os.pwrite(descriptor, bytes.fromhex(key), number * KEY_BYTES)


def _result_path(key: str) -> str:
    return f"results/{key[:2]}/{key}.json"


def _identity_path(identity_key: str) -> str:
    return f"seen/{identity_key[:2]}/{identity_key}.json"


def _parse_row(row_type: type[Row], values: dict[str, Any]) -> Row:
    """Parse a row, which a hostile worker may have written. Raises ValueError, TypeError or AttributeError for anything else."""
    types = COLUMN_TYPES[row_type]
    if values.keys() != types.keys():
        raise ValueError("other fields")
    row = row_type(**values | {"outcome": RowOutcome(values["outcome"])})
    if not all(_is_valid(value, types[name]) for name, value in vars(row).items()):
        raise ValueError("another type")
    return row


def _is_valid(value: object, column_type: Any) -> bool:  # noqa: ANN401 - a type, perhaps a generic one
    """Return True if the column can store the value. May raise TypeError otherwise."""
    if column_type is int:
        return type(value) is int and abs(value) < 1 << 63
    if column_type is float:
        return isinstance(value, float) or _is_valid(value, int)
    if isinstance(value, list | dict) and type(value) is get_origin(column_type):
        item_type = get_args(column_type)[-1]
        return all(_is_valid(item, item_type) for item in (value.values() if isinstance(value, dict) else value))
    return isinstance(value, column_type)
