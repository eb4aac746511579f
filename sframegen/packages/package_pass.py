"""Passes over the entries of a package, for all formats: checks names and limits, visits ELF files, and makes the report.

To visit a file is to copy it to a private directory, and to call a function with that copy. If the function writes a changed
file, the entry has its contents in the new package. No file is ever written under a name from the package.
"""

from __future__ import annotations

import errno
import io
import os
import posixpath
import shutil
from contextlib import contextmanager, suppress
from functools import partial
from hashlib import file_digest
from hashlib import new as hash_of
from pathlib import Path, PurePosixPath
from time import monotonic
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, Protocol, Self, cast

from linker.files.rename_into_place import StepError
from linker.files.rights import CONTENT_ATTRIBUTES
from linker.files.signatures import checksum_file_paths
from sframegen.base.errors import FormatError, Refusal, RefusedError
from sframegen.elf.records import EHDR_SIZE
from sframegen.format.abi import is_linked
from sframegen.program.signals import PrivateDirectory

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Container, Iterator

    # Called with a path in the package, a private copy of that ELF file, and an unused path. Returns True if it has written the
    # changed file to the unused path. Does not raise for a file that it refuses, because an exception ends the pass.
    Visit = Callable[[str, Path, Path], bool]

CHUNK = 1 << 20
MAX_ENTRIES = 1_000_000
MAX_NAME = 4096  # characters
MAX_HEADER_BYTES = MAX_ENTRIES << 10  # of all entries together, because many extended headers are kept in memory
MAX_ENTRY_BYTES = 64 << 30
MAX_UNPACKED_BYTES = 256 << 30
# A package may unpack to MAX_RATIO times its size, or to MIN_UNPACKED_LIMIT bytes if that is more. Real packages unpack to 3 to 20
# times their size. zlib can reach a factor of 1,032, xz and zstd many thousands.
MAX_RATIO, MIN_UNPACKED_LIMIT = 250, 1 << 30


class Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


class PassReport(NamedTuple):
    """A report of a pass over a package. Sizes are in bytes."""

    kind: str  #: "wheel", "deb", ...
    entries: int  #: all entries of any type
    unpacked_bytes: int  #: of all regular files
    elf_files: int  #: linked ELF files, all of which were visited
    changed_files: int  #: ELF files that were replaced
    seconds_reading: float  #: time for unpacking
    seconds_writing: float  #: time for packing
    warnings: tuple[str, ...] = ()  #: a line each
    signed: str = ""  #: signatures that a change would invalidate; "" if it has none


class Content(NamedTuple):
    """The contents of a visited entry. `file`: a private file with them, which only exists if they have changed."""

    file: Path
    size: int
    is_changed: bool


class FileSums(NamedTuple):
    """The size of a file, and its hexadecimal digests by algorithm name."""

    size: int
    digests: dict[str, str]


class ChangedFile(NamedTuple):
    old: FileSums
    new: FileSums


class ChangedFiles:
    """A visitor that also records the checksums of changed files before and after, by their paths in the package."""

    def __init__(self, visit: Visit, algorithms: tuple[str, ...]) -> None:
        self.by_path: dict[str, ChangedFile] = {}
        self._visit, self._algorithms = visit, algorithms

    def __call__(self, path: str, original: Path, changed: Path) -> bool:
        if is_changed := self._visit(path, original, changed):
            self.by_path[path] = ChangedFile(self._sums(original), self._sums(changed))
        return is_changed

    def _sums(self, path: Path) -> FileSums:
        digests = {}
        with path.open("rb") as file:
            for name in self._algorithms:
                file.seek(0)
                digests[name] = file_digest(file, partial(hash_of, name, usedforsecurity=False)).hexdigest()
        return FileSums(path.stat().st_size, digests)


def _is_due_to(directory: str, error: OSError) -> bool:
    """Return True if the error names a file in the directory, or says that a file system is full, and the directory's is."""
    if str(error.filename).startswith(directory):
        return True
    with suppress(OSError):  # the directory is gone
        disk = shutil.disk_usage(directory)
        return error.errno == errno.ENOSPC and disk.free == 0 < disk.total  # some file systems have no sizes
    return False


class Pass:
    """A context manager for one pass over a package: checks limits, visits ELF files, and makes the report."""

    def __init__(self, kind: str, packed_bytes: int, visit: Visit, *, signed: str = "", force: bool = False) -> None:
        """`signed`: the package's signatures, or "". Files of a signed package may only change with `force`."""
        self.kind = kind
        self.warnings: list[str] = []
        self.hard_links: dict[str, str] = {}  # in tar archives: path of the link -> path of the file
        self.checksums: Container[str] = ()  # paths of all files that may hold another file's checksum, and perhaps more
        self.seconds_writing = 0.0
        self.elf_files = self.changed_files = 0
        self._visit = visit
        self.signed = signed
        self.force = force
        self._entries = self._unpacked_bytes = self._header_bytes = 0
        self._max_unpacked_bytes = min(max(MIN_UNPACKED_LIMIT, MAX_RATIO * packed_bytes), MAX_UNPACKED_BYTES)
        self._started = monotonic()
        self._seconds_visiting = 0.0
        self._directory = PrivateDirectory()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _type: object, error: object, _traceback: object) -> None:
        """Remove the private files. Raises StepError in place of an OSError that one of them caused, such as a full disk."""
        with self._directory as name:
            if isinstance(error, OSError) and _is_due_to(name, error):
                raise StepError(error.errno, f"temporary files in {name}: {error.strerror}") from error

    def private_path(self, name: str) -> Path:
        """Return a path for a private file of that name, which is removed after the pass."""
        return Path(self._directory.name, name)

    def make_content(self, data: bytes) -> Content:
        """Return `data` as the new contents of an entry, such as a list of checksums."""
        file = self.private_path("list")
        return Content(file, file.write_bytes(data), is_changed=True)

    def count_entry(self, name: str, header_bytes: int = 0) -> str:
        """Count an entry, and return its normalised path. Raises FormatError for a name that could lead out of the package.

        `header_bytes`: the size of its extended headers.
        """
        self._entries += 1
        self._header_bytes += header_bytes
        if self._entries > MAX_ENTRIES:
            raise FormatError(f"more than {MAX_ENTRIES:,} entries")
        if self._header_bytes > MAX_HEADER_BYTES:
            raise FormatError(f"extended headers of more than {MAX_HEADER_BYTES:,} bytes")
        return normalize_name(name)

    @contextmanager
    def restored_counts(self) -> Iterator[None]:
        """Restore the counts at the end of the block, because its entries will be read and counted once more."""
        counted = self._entries, self._unpacked_bytes, self._header_bytes
        yield
        self._entries, self._unpacked_bytes, self._header_bytes = counted

    def count_bytes(self, path: str, size: int) -> None:
        """Count a file's bytes. Raises FormatError if this file, or all files together, are too large."""
        if not 0 <= size <= MAX_ENTRY_BYTES:
            raise FormatError(f"{path}: {size:,} bytes are not the size of a file in a package")
        self._unpacked_bytes += size
        if self._unpacked_bytes > self._max_unpacked_bytes:
            raise FormatError(f"{path}: with this file, the package unpacks to more than {self._max_unpacked_bytes:,} bytes")

    def visit(self, path: str, beginning: bytes, rest: Readable, size: int, attributes: Collection[str] = ()) -> Content | None:
        """Visit a file of `size` bytes if it is a linked ELF file; otherwise return None, without reading `rest`.

        Without `force`, a file is skipped with a warning if its checksum is stored elsewhere. `beginning`: its first bytes, up to
        EHDR_SIZE. `attributes`: the names of its extended attributes. Raises FormatError if `rest` ends early, RefusedError if a
        change would invalidate a signature, and exceptions of the visitor.
        """
        if not is_linked(beginning[:EHDR_SIZE]):
            return None
        if not self.force and (checksum := find_checksums(path, self.checksums, attributes)):
            self.warnings.append(f"{path}: signed: {checksum}")
            return None
        self.elf_files += 1
        original = self.private_path("given")
        with original.open("wb") as file:
            file.write(beginning)
            for piece in read_pieces(rest, size - len(beginning), path):
                file.write(piece)
        changed = self.private_path(f"changed-{self.elf_files}")
        started = monotonic()
        is_changed = self._visit(path, original, changed)
        self._seconds_visiting += monotonic() - started
        original.unlink()
        if not is_changed:
            changed.unlink(missing_ok=True)
            return Content(original, size, is_changed=False)
        if self.signed and not self.force:
            raise RefusedError(Refusal.SIGNED, f"signed: {self.signed}")
        self.changed_files += 1
        return Content(changed, changed.stat().st_size, is_changed=True)

    @contextmanager
    def measured_writing(self) -> Iterator[None]:
        """Measure the time of the block, which packs data."""
        started = monotonic()
        try:
            yield
        finally:
            self.seconds_writing += monotonic() - started

    def write_measured(self, target: BinaryIO, data: bytes) -> None:
        """Write data that `target` packs, and measure the time."""
        with self.measured_writing():
            target.write(data)

    def make_report(self) -> PassReport:
        reading = max(monotonic() - self._started - self._seconds_visiting - self.seconds_writing, 0.0)
        counts = self._entries, self._unpacked_bytes, self.elf_files, self.changed_files
        return PassReport(self.kind, *counts, reading, self.seconds_writing, tuple(self.warnings), self.signed)


def is_checksum_name(path: str) -> bool:
    """Return True if a file of this name may contain another file's checksum."""
    return path.endswith((".hmac", ".chk"))


def find_checksums(path: str, names: Container[str], attributes: Collection[str]) -> str:
    """Describe the checksums and signatures outside of a file that its change would invalidate; "" if there are none."""
    signatures = [f"its attribute {attribute}" for attribute in CONTENT_ATTRIBUTES if attribute in attributes]
    candidates = map(str, checksum_file_paths(PurePosixPath(path)))
    return ", ".join(signatures + [f"a checksum in {candidate}" for candidate in candidates if candidate in names])


def normalize_name(name: str) -> str:
    """Return the normalised path for an entry's name. Raises FormatError if it could lead out of the package."""
    if len(name) > MAX_NAME:
        raise FormatError(f"{name[:40]}...: a name of {len(name):,} characters")
    if not name or "\0" in name or leads_out(name):
        raise FormatError(f"{name!r}: a name that leads out of the package")
    return posixpath.normpath(name)


def leads_out(name: str) -> bool:
    return name.startswith("/") or ".." in name.split("/")


def check_link(path: str, leads_to: str) -> None:
    """Raise FormatError for a symbolic link at `path` that leads above the package's root. Absolute links start at the root."""
    depth = 0 if leads_to.startswith("/") else path.count("/")
    for name in leads_to.split("/"):
        depth += {"": 0, ".": 0, "..": -1}.get(name, 1)
        if depth < 0:
            raise FormatError(f"{path}: a link that leads out of the package: {leads_to}")


def file_size(source: BinaryIO) -> int:
    """Return the size of a file in bytes, and rewind it."""
    size = source.seek(0, os.SEEK_END)
    source.seek(0)
    return size


def open_part(source: BinaryIO, start: int, size: int) -> BinaryIO:
    """Return a byte range of a file as a file of its own. It seeks before each read, so that other readers can share the file."""
    return cast("BinaryIO", io.BufferedReader(_FilePart(source, start, size), CHUNK))


class _FilePart(io.RawIOBase):
    def __init__(self, source: BinaryIO, start: int, size: int) -> None:
        super().__init__()
        self._source, self._start, self._size, self._at = source, start, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def readinto(self, buffer: object, /) -> int:
        view = memoryview(cast("bytearray", buffer)).cast("B")
        self._source.seek(self._start + self._at)
        data = self._source.read(min(len(view), max(self._size - self._at, 0)))
        view[: len(data)] = data
        self._at += len(data)
        return len(data)


def read_pieces(source: Readable, size: int, path: str) -> Iterator[bytes]:
    """Yield the next `size` bytes in pieces. Raises FormatError if the source ends early."""
    while size:
        piece = source.read(min(size, CHUNK))
        if not piece:
            raise FormatError(f"{path}: cut off: {size:,} bytes are missing")
        size -= len(piece)
        yield piece


def skip(source: Readable, size: int, path: str) -> None:
    """Read and discard the next `size` bytes. Raises FormatError if the source ends early."""
    for _ in read_pieces(source, size, path):
        pass


def write_content(content: Content, write: Callable[[bytes], object]) -> None:
    """Write the contents of a visited entry, and remove the private file."""
    with content.file.open("rb") as file:
        for piece in read_pieces(file, content.size, str(content.file)):
            write(piece)
    content.file.unlink()


@contextmanager
def naming_entry(path: str) -> Iterator[None]:
    """Make FormatErrors of the block name the entry at `path`."""
    try:
        yield
    except FormatError as error:
        raise FormatError(f"{path}: {error}") from None
