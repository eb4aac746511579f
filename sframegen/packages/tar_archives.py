"""Rewrites tar archives, compressed or not: each entry keeps its header blocks, except the size of a changed file.

Thus format, order, dates, owners, extended headers and links are kept for any tool, even in forms that tarfile cannot write.
"""

from __future__ import annotations

import os
import re
import tarfile
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, cast

from sframegen.base.errors import FormatError
from sframegen.elf.records import EHDR_SIZE
from sframegen.packages.compression import compressed, compression_at, decompressed
from sframegen.packages.kinds import ALPINE, CONDA, IMAGE, IN_ITS_BUILD, LAYOUT, XBPS
from sframegen.packages.package_pass import (
    CHUNK,
    Pass,
    Timed,
    check_link,
    checked_name,
    file_size,
    is_checksum,
    leads_out,
    pieces,
    skip,
    write_content,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator

    from sframegen.packages.package_pass import Content, PassReport, Readable, Visit

BLOCK = 512
MAX_HEADER_BYTES = 1 << 20  # bytes of one entry's headers, with long names and extended headers
MAX_GLOBAL_RECORDS = 100  # records in extended headers that apply to all entries
MAX_AFTER_END = 64 << 20  # bytes: tools pad the last record, which has megabytes with some of them
TYPE_AT = 156
EXTENDED, LONG_NAMES = (b"x", b"g", b"X"), (b"L", b"K")
MAX_DIGITS = 7  # decimal digits of a record's length
MAX_SIZE = 8**11  # in its field
ATTRIBUTES = ("SCHILY.xattr.", "LIBARCHIVE.xattr.")  # prefixes of extended attributes' names in extended headers
SIZE_FIELD, CHECKSUM_FIELD = slice(124, 136), slice(148, 156)
# Exceptions that tarfile raises for bad headers, besides its own: invalid numbers, chains of extended headers.
BAD_HEADER = (tarfile.TarError, ValueError, OverflowError, IndexError, KeyError, RecursionError)

LAYER = re.compile(r"blobs/.*|[0-9a-f]{64}(?:[./].*)?")  # names that images have beside manifest.json
WITHIN = "its files are in data.tar.gz, which is not read; unpack that"
# Sets of names that together, in any order, mark a package or image that is not handled -> its description.
MARKED = {
    frozenset({LAYOUT, "index.json"}): IMAGE,
    frozenset({"manifest.json", LAYER}): IMAGE,
    frozenset({".MTREE"}): f"an Arch Linux package: {IN_ITS_BUILD}",
    frozenset({"info/paths.json"}): CONDA,
    frozenset({".PKGINFO"}): ALPINE,  # or an old one of Arch Linux
    frozenset({"+MANIFEST"}): f"a FreeBSD package: {IN_ITS_BUILD}",
    frozenset({"files.plist"}): XBPS,
    frozenset({"debian-binary", "control.tar.gz", "data.tar.gz"}): f"an opkg package: {WITHIN}",
    frozenset({"metadata.gz", "data.tar.gz"}): f"a Ruby gem: {WITHIN}",
}
MARKS = frozenset().union(*MARKED)


class TarEntry(NamedTuple):
    info: tarfile.TarInfo
    header: bytes  # all header blocks of the entry
    stored: int  # bytes of its contents in the stream, without padding
    is_whole: bool  # a regular file whose bytes are all in the stream


def pass_archive(source: BinaryIO, visit: Visit, target: BinaryIO | None, *, force: bool) -> PassReport:
    """Pass a tar archive through `visit`, as `pass_through` in kinds.py says."""
    with Pass("tar", file_size(source), visit, force=force) as package:
        marks, checksums = set[object](), set[str]()
        for path in paths_in(package, source):
            marks |= {path, LAYER if LAYER.fullmatch(path) else path} & MARKS
            if is_checksum(path):
                checksums.add(path)
        if why := next((why for names, why in MARKED.items() if names <= marks), None):
            raise FormatError(why)
        pass_compressed(package, source, target, checksums)
        return package.report()


def pass_compressed(
    package: Pass, source: BinaryIO, target: BinaryIO | None, checksums: Container[str] | None, *, devices: bool = True
) -> bool:
    """Pass a tar archive of any compression, from the file's position on; the new one has the same compression.

    Return False if nothing has changed, and nothing was written. A changed archive is read twice, because packing takes longer
    than reading, and once more if the paths of `checksums`, as in `Pass`, are not known. `devices`: as in `Admission`.
    """
    if not package.force:
        package.checksums = set(filter(is_checksum, paths_in(package, source, devices=devices))) if checksums is None else checksums
    start = source.tell()
    compression = compression_at(source)
    changed = visit_tar(package, decompressed(source, compression), devices=devices)
    if target is not None and changed:
        source.seek(start)
        with compressed(target, compression) as out:
            write_tar(decompressed(source, compression), changed, Timed(out, package).write)
    return bool(changed)


def paths_in(package: Pass, source: BinaryIO, *, devices: bool = True) -> Iterator[str]:
    """Yield the paths in a tar archive before it is passed; the file's position is restored. Raises FormatError."""
    start = source.tell()
    compression = compression_at(source)
    stream, admit = decompressed(source, compression), Admission(package, devices=devices)
    with package.counted_again():
        for entry in entries(stream):
            path = admit(entry)
            yield path
            left = entry.stored + -entry.stored % BLOCK
            if compression is None:
                stream.seek(left, os.SEEK_CUR)  # cut off or not: passing reads it
            else:
                skip(stream, left, path)
    source.seek(start)


def visit_tar(package: Pass, source: Readable, *, devices: bool = True) -> dict[int, Content]:
    """Visit the files of a tar stream; return the changed ones, by the number of their entry."""
    changed: dict[int, Content] = {}
    admit = Admission(package, devices=devices)
    for number, entry in enumerate(entries(source)):
        path = admit(entry)
        beginning = b"".join(pieces(source, min(EHDR_SIZE, entry.stored), path))
        content = package.visit(path, beginning, source, entry.stored, attributes_of(entry)) if entry.is_whole else None
        if content is not None and content.changed:
            changed[number] = content
        skip(source, (0 if content else entry.stored - len(beginning)) + -entry.stored % BLOCK, path)
    return changed


def write_tar(source: Readable, changed: dict[int, Content], write: Callable[[bytes], object]) -> None:
    """Write a tar stream with new contents for some entries."""
    for number, entry in enumerate(entries(source, write)):
        content = changed.get(number)
        if content is None:
            write(entry.header)
            for piece in pieces(source, entry.stored + -entry.stored % BLOCK, entry.info.name):
                write(piece)
        else:
            skip(source, entry.stored + -entry.stored % BLOCK, entry.info.name)
            write(with_size(entry.header, content.size))
            write_content(content, write)
            write(bytes(-content.size % BLOCK))


def entries(source: Readable, write: Callable[[bytes], object] = lambda _: None) -> Iterator[TarEntry]:
    """Yield entries; the caller reads their contents and padding. `write` gets the rest of the stream. Raises FormatError."""
    headers = _Headers(source)
    # tarfile only reads headers here.
    archive = tarfile.TarFile(fileobj=cast("BinaryIO", headers), mode="w", encoding="utf-8", errors="surrogateescape")
    while True:
        headers.taken.clear()
        try:
            info = tarfile.TarInfo.fromtarfile(archive)
        except BAD_HEADER as error:
            if headers.is_at_end():
                break
            raise FormatError(f"no header of a tar entry at {headers.at - len(headers.taken):#x}: {error}") from None
        if len(archive.pax_headers) > MAX_GLOBAL_RECORDS:
            raise FormatError(f"more than {MAX_GLOBAL_RECORDS} records of extended headers for all entries")
        padded = archive.offset - info.offset_data
        # Holes of sparse files are in their headers, and GNU tar has sizes above 8 GiB in extended ones.
        is_whole = info.isreg() and not info.issparse() and "size" not in info.pax_headers
        stored = info.size if is_whole else padded
        if info.size < 0 or padded < 0 or padded != stored + -stored % BLOCK:
            raise FormatError(f"{info.name}: {info.size} bytes are not the size of an entry")
        yield TarEntry(info, bytes(headers.taken), stored, is_whole)
        headers.at = archive.offset
    write(bytes(headers.taken))
    for _ in range(MAX_AFTER_END // CHUNK):
        rest = source.read(CHUNK)
        if not rest:
            return
        write(rest)
    raise FormatError("too much data after the end of the tar archive")


class Admission:
    """A filter that counts entries, and raises FormatError for entries beyond the rules and limits.

    `devices`: also devices and FIFOs, which root file systems have.
    """

    def __init__(self, package: Pass, *, devices: bool = True) -> None:
        self._pass, self._devices = package, devices
        self._files: set[str] = set()

    def __call__(self, entry: TarEntry) -> str:
        """Admit an entry; return its path in the package. Raises FormatError."""
        info = entry.info
        path = self._pass.entry(info.name, len(entry.header) - BLOCK)
        self._pass.regular(path, entry.stored)
        if (info.ischr() or info.isblk() or info.isfifo()) and not self._devices:
            raise FormatError(f"{path}: a device or FIFO, which such a package must not contain")
        if info.islnk():
            if leads_out(info.linkname):
                raise FormatError(f"{path}: a hard link that leads out of the package: {info.linkname}")
            target = checked_name(info.linkname)
            self._pass.hard_links[path] = self._pass.hard_links.get(target, target)
        if info.issym():
            check_link(path, info.linkname)
        if info.isreg():
            if path in self._files:
                raise FormatError(f"{path}: a second file of this name")
            self._files.add(path)
        return path


def attributes_of(entry: TarEntry) -> set[str]:
    """Return the names of an entry's extended attributes."""
    return {key.removeprefix(start) for key in entry.info.pax_headers for start in ATTRIBUTES if key.startswith(start)}


def with_size(header: bytes, size: int) -> bytes:
    """Return an entry's header blocks with a new size and checksum in the last one."""
    block = bytearray(header[-BLOCK:])
    if size >= MAX_SIZE:
        raise FormatError(f"{size:,} bytes do not fit into the header of a tar entry")
    block[SIZE_FIELD] = b"%011o\0" % size
    block[CHECKSUM_FIELD] = b" " * 8
    block[CHECKSUM_FIELD] = b"%06o\0 " % sum(block)
    return header[:-BLOCK] + bytes(block)


class _Headers:
    """A stream for tarfile to read headers from. It records the bytes read, and bounds the data that tarfile keeps in memory."""

    def __init__(self, source: Readable) -> None:
        self._source = source
        self._payload_of = b""  # type of the previous header, whose payload comes next
        self.at = 0
        self.taken = bytearray()

    def is_at_end(self) -> bool:
        """Return True if a block of zeros follows, or the archive ends here without one, as with some writers."""
        return self.taken == bytes(BLOCK) or (not self.taken and self.at > 0)

    def tell(self) -> int:
        return self.at

    def read(self, size: int) -> bytes:
        if not 0 <= size <= MAX_HEADER_BYTES - len(self.taken):
            raise FormatError(f"the entry at {self.at:#x} has headers of more than {MAX_HEADER_BYTES:,} bytes")
        beginning = self._source.read(min(size, BLOCK))
        if not (beginning or self.taken) and self.at:
            return b""  # is_at_end
        place = f"headers at {self.at:#x}"
        data = b"".join((beginning, *pieces(self._source, size - len(beginning), place)))
        payload_of, self._payload_of = self._payload_of, b""
        if payload_of in EXTENDED:
            _check_records(data, self.at)
        elif not payload_of and data[TYPE_AT : TYPE_AT + 1] in (*EXTENDED, *LONG_NAMES):
            self._payload_of = data[TYPE_AT : TYPE_AT + 1]
        self.at += size
        self.taken += data
        return data


def _check_records(data: bytes, at: int) -> None:
    """Raise FormatError if tarfile, which does not compare lengths, would read one record as many."""
    start = 0
    while data[start : start + 1].strip(b"\0"):
        digits, space, _ = data[start : start + MAX_DIGITS + 1].partition(b" ")
        end = start + int(digits) if space and digits.isdigit() else 0
        if end <= start + len(digits) + 1 or data[end - 1 : end] != b"\n" or data.find(b"=", start, end) < 0:
            raise FormatError(f"no record of an extended header at {at + start:#x}")
        start = end
