"""The output directory of a run: where each result is, and which results there are already."""

from __future__ import annotations

import fcntl
import json
import os
import stat
from contextlib import contextmanager
from dataclasses import asdict, fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from cfi.errors import FormatError
from linker.files.location import locate, make_directory
from linker.files.rename_into_place import write_new
from sframegen.fleet.result_rows import FileRow, Outcome, PackageResult, PackageRow
from sframegen.fleet.sources.fetching import opened_file

if TYPE_CHECKING:
    from collections.abc import Iterator

KEY_BYTES = 32
MAX_RESULT_BYTES = 1 << 28
NONE = bytes(KEY_BYTES)
Row = TypeVar("Row", FileRow, PackageRow)


class OutputDirectory:
    """Paths below an output directory. What is written there is the old content or the new one."""

    def __init__(self, path: str) -> None:
        self.path = path

    def at(self, *names: str) -> str:
        return os.path.join(self.path, *names)  # noqa: PTH118

    @property
    def store(self) -> str:
        """The store of detached sections."""
        return self.at("sections")

    def package(self, name: str) -> str:
        return self.at("packages", name)

    def result(self, key: str) -> str:
        return self.at("results", key[:2], f"{key}.json")

    def seen(self, identity: str) -> str:
        return self.at("seen", identity[:2], f"{identity}.json")

    # -- results

    def write_result(self, key: str, result: PackageResult) -> None:
        """Raises OSError."""
        self.write_json(self.result(key), asdict(result))

    def done(self, key: str) -> PackageRow | None:
        """The package of a result that need not be made again: there, whole, and no failure."""
        try:
            result = read_result(self.result(key))
        except (FormatError, OSError):
            return None
        package = result.package
        if package.outcome is Outcome.FAILED:
            return None
        if package.new_package_bytes and not self._has(package):
            return None
        return package

    def _has(self, package: PackageRow) -> bool:
        """True if its rewritten package is there."""
        try:
            status = os.lstat(self.package(package.package))
        except OSError:
            return False
        return stat.S_ISDIR(status.st_mode) or status.st_size == package.new_package_bytes

    def forget(self, key: str) -> None:
        """Remove the result of a try that failed. Raises OSError."""
        Path(self.result(key)).unlink(missing_ok=True)

    def remember(self, identity: str, key: str) -> None:
        """So that the next run knows the result of a package before it is fetched. Raises OSError."""
        self.write_json(self.seen(identity), {"key": key})

    def seen_as(self, identity: str) -> str:
        """The key of an earlier result for that identity, or ""."""
        try:
            with opened_file(self.seen(identity)) as file:
                key = json.loads(file.read(1000))["key"]
                return key if isinstance(key, str) and len(bytes.fromhex(key)) == KEY_BYTES else ""
        except (FormatError, OSError, ValueError, KeyError, TypeError, RecursionError):
            return ""

    def write_json(self, path: str, value: object) -> None:
        """Raises OSError."""
        _make(os.path.dirname(path))  # noqa: PTH120
        with locate(path) as location:
            write_new(location, json.dumps(value, separators=(",", ":")).encode("ascii") + b"\n", 0o666)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """One run at a time works into it. Raises OSError, BlockingIOError if another one does."""
        make_directory(self.path)
        with locate(self.at("lock")) as location:
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
            descriptor = os.open(location.name, flags, 0o666, dir_fd=location.directory)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise BlockingIOError(error.errno, "another run writes there; wait for its end", self.path) from error
            yield
        finally:
            os.close(descriptor)

    # -- the keys of this run, by the packages' numbers

    @contextmanager
    def new_keys(self) -> Iterator[Keys]:
        """Raises OSError."""
        with locate(self.at("keys")) as location:
            location.unlink()
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(location.name, flags, 0o666, dir_fd=location.directory)
        try:
            yield Keys(descriptor)
        finally:
            os.close(descriptor)

    def keys(self) -> Iterator[str]:
        """Those of the last run's results, in the order of its packages, each once. Raises OSError."""
        given: set[bytes] = set()
        with opened_file(self.at("keys")) as file:
            while key := file.read(KEY_BYTES):
                if key != NONE and len(key) == KEY_BYTES and key not in given:
                    given.add(key)
                    yield key.hex()


class Keys:
    """A file of keys, each at the place of its package's number: a run of any size holds none of them."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __setitem__(self, number: int, key: str) -> None:
        os.pwrite(self.descriptor, bytes.fromhex(key), number * KEY_BYTES)


@cache
def _make(directory: str) -> None:
    make_directory(directory)


def read_result(path: str) -> PackageResult:
    """Raises FormatError for what is no whole result, OSError."""
    with opened_file(path) as file:
        raw = file.read(MAX_RESULT_BYTES)
    try:
        value = json.loads(raw)
        package = _row(PackageRow, value["package"])
        return PackageResult(package, [_row(FileRow, row) for row in value["files"]])
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise FormatError("no whole result of a package", file=path) from error


def _row(kind: type[Row], values: dict[str, Any]) -> Row:
    names = {field.name for field in fields(kind)}
    if values.keys() != names:
        raise ValueError("other fields")
    return kind(**values | {"outcome": Outcome(values["outcome"])})
