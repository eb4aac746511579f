"""Rewrites tar archives, compressed or not. Each entry keeps its header blocks, except for the size of a changed file.

Thus formats, order, dates, owners, extended headers and links stay the same, even in forms that tarfile cannot write. An archive
is read once for its names, once to visit its ELF files, and once more to write the new archive if a file has changed.
"""

from __future__ import annotations

import os
import re
import tarfile
from functools import partial
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, cast

from sframegen.base.errors import FormatError
from sframegen.elf.records import EHDR_SIZE
from sframegen.packages.compression import detect_compression_at, open_compressor, open_decompressed
from sframegen.packages.kinds import ALPINE, CONDA, IMAGE, OCI_LAYOUT, USE_ADD_TREE, XBPS
from sframegen.packages.package_pass import (
    CHUNK,
    Pass,
    check_link,
    file_size,
    is_checksum_name,
    leads_out,
    normalize_name,
    read_pieces,
    skip,
    write_content,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator

    from sframegen.packages.package_pass import Content, PassReport, Readable, Visit

BLOCK = 512  # bytes; headers and contents are padded to whole blocks
MAX_HEADER_BYTES = 1 << 20  # bytes of one entry's headers, with long names and extended headers
MAX_GLOBAL_RECORDS = 100  # records in extended headers that apply to all entries
MAX_AFTER_END = 64 << 20  # bytes, because tools pad the last record, and some use records of several megabytes
TYPE_OFFSET = 156  # in a header: the byte for the entry's type
EXTENDED, LONG_NAMES = (b"x", b"g", b"X"), (b"L", b"K")  # types of headers whose payload belongs to the next entry
MAX_DIGITS = 7  # decimal digits of a record's length
MAX_SIZE = 8**11  # the size field has 11 octal digits
ATTRIBUTES = ("SCHILY.xattr.", "LIBARCHIVE.xattr.")  # prefixes of extended attributes' names in extended headers
SIZE_FIELD, CHECKSUM_FIELD = slice(124, 136), slice(148, 156)
# Exceptions that tarfile raises for bad headers, such as invalid numbers and long chains of extended headers.
BAD_HEADER = (tarfile.TarError, ValueError, OverflowError, IndexError, KeyError, RecursionError)

LAYER_NAME = re.compile(r"blobs/.*|[0-9a-f]{64}(?:[./].*)?")  # matches names in container images beside manifest.json
ANY_LAYER = "*"  # stands for all names that LAYER_NAME matches
UNPACK_INNER = "its files are in data.tar.gz, which is not read; unpack that"
# Sets of names that together, in any order, mark a package or image that is not handled -> its description.
MARKED_KINDS = {
    frozenset({OCI_LAYOUT, "index.json"}): IMAGE,
    frozenset({"manifest.json", ANY_LAYER}): IMAGE,
    frozenset({".MTREE"}): f"an Arch Linux package: {USE_ADD_TREE}",
    frozenset({"info/paths.json"}): CONDA,
    frozenset({".PKGINFO"}): ALPINE,  # or an old one of Arch Linux
    frozenset({"+MANIFEST"}): f"a FreeBSD package: {USE_ADD_TREE}",
    frozenset({"files.plist"}): XBPS,
    frozenset({"debian-binary", "control.tar.gz", "data.tar.gz"}): f"an opkg package: {UNPACK_INNER}",
    frozenset({"metadata.gz", "data.tar.gz"}): f"a Ruby gem: {UNPACK_INNER}",
}
MARKING_NAMES = frozenset().union(*MARKED_KINDS)


class TarEntry(NamedTuple):
    """An entry of a tar archive, whose contents follow in the stream."""

    info: tarfile.TarInfo
    header: bytes  # all header blocks of the entry
    stored: int  # bytes of its contents in the stream, without padding
    is_whole: bool  # a regular file whose bytes are all in the stream

    @property
    def padding(self) -> int:
        return -self.stored % BLOCK


def pass_archive(source: BinaryIO, visit: Visit, target: BinaryIO | None, *, force: bool) -> PassReport:
    """Pass a tar archive through `visit`, as `pass_through` in kinds.py says."""
    with Pass("tar", file_size(source), visit, force=force) as package:
        marks, checksums = set[str](), set[str]()
        marking_paths = MARKING_NAMES - {ANY_LAYER}
        for path in read_paths(package, source):
            if path in marking_paths:
                marks.add(path)
            if LAYER_NAME.fullmatch(path):
                marks.add(ANY_LAYER)
            if is_checksum_name(path):
                checksums.add(path)
        if why := next((why for names, why in MARKED_KINDS.items() if names <= marks), None):
            raise FormatError(why)
        pass_compressed(package, source, target, checksums)
        return package.make_report()


def pass_compressed(
    package: Pass, source: BinaryIO, target: BinaryIO | None, checksums: Container[str] | None, *, devices: bool = True
) -> bool:
    """Pass a tar archive, compressed or not, from the file's position on. The new one gets the same compression.

    Return False if nothing has changed, so that nothing was written. A changed archive is read twice, because packing takes
    longer than reading, and once more if `checksums`, which become those of the `Pass`, are None. `devices`: as in `Admission`.
    """
    if not package.force:
        package.checksums = (
            set(filter(is_checksum_name, read_paths(package, source, devices=devices))) if checksums is None else checksums
        )
    start = source.tell()
    compression = detect_compression_at(source)
    changed = visit_tar(package, open_decompressed(source, compression), devices=devices)
    if target is not None and changed:
        source.seek(start)
        with open_compressor(target, compression) as out:
            write_tar(open_decompressed(source, compression), changed, partial(package.write_measured, out))
    return bool(changed)


def read_paths(package: Pass, source: BinaryIO, *, devices: bool = True) -> Iterator[str]:
    """Yield the paths in a tar archive before the pass over it. Restores the file's position. Raises FormatError."""
    start = source.tell()
    compression = detect_compression_at(source)
    stream, admit = open_decompressed(source, compression), Admission(package, devices=devices)
    with package.restored_counts():
        for entry in read_entries(stream):
            path = admit(entry)
            yield path
            if compression is None:
                stream.seek(entry.stored + entry.padding, os.SEEK_CUR)  # the pass will find out if the contents are cut off
            else:
                skip(stream, entry.stored + entry.padding, path)
    source.seek(start)


def visit_tar(package: Pass, source: Readable, *, devices: bool = True) -> dict[int, Content]:
    """Visit the files of a tar stream, and return the changed contents by the number of their entry."""
    changed: dict[int, Content] = {}
    admit = Admission(package, devices=devices)
    for number, entry in enumerate(read_entries(source)):
        path = admit(entry)
        beginning = b"".join(read_pieces(source, min(EHDR_SIZE, entry.stored), path))
        content = package.visit(path, beginning, source, entry.stored, extended_attributes(entry)) if entry.is_whole else None
        if content is not None and content.is_changed:
            changed[number] = content
        unread_bytes = entry.stored - len(beginning) if content is None else 0  # a visit reads all of them
        skip(source, unread_bytes + entry.padding, path)
    return changed


def write_tar(source: Readable, changed: dict[int, Content], write: Callable[[bytes], object]) -> None:
    """Write a tar stream with new contents for some entries."""
    for number, entry in enumerate(read_entries(source, write)):
        content = changed.get(number)
        if content is None:
            write(entry.header)
            for piece in read_pieces(source, entry.stored + entry.padding, entry.info.name):
                write(piece)
        else:
            skip(source, entry.stored + entry.padding, entry.info.name)
            write(set_size(entry.header, content.size))
            write_content(content, write)
            write(bytes(-content.size % BLOCK))


def read_entries(source: Readable, write: Callable[[bytes], object] = lambda _: None) -> Iterator[TarEntry]:
    """Yield entries; the caller reads their contents and padding. `write` gets the rest of the stream. Raises FormatError."""
    headers = _HeaderStream(source)
    # tarfile only reads headers here.
    archive = tarfile.TarFile(fileobj=cast("BinaryIO", headers), mode="w", encoding="utf-8", errors="surrogateescape")
    while True:
        headers.raw.clear()
        try:
            info = tarfile.TarInfo.fromtarfile(archive)
        except BAD_HEADER as error:
            if headers.is_at_end():
                break
            raise FormatError(f"no header of a tar entry at {headers.offset - len(headers.raw):#x}: {error}") from None
        if len(archive.pax_headers) > MAX_GLOBAL_RECORDS:
            raise FormatError(f"more than {MAX_GLOBAL_RECORDS} records of extended headers for all entries")
        padded_size = archive.offset - info.offset_data  # tarfile sets `offset` to that of the next header
        # A sparse file's header lists its holes, and GNU tar writes sizes above 8 GiB to extended headers.
        is_whole = info.isreg() and not info.issparse() and "size" not in info.pax_headers
        entry = TarEntry(info, bytes(headers.raw), info.size if is_whole else padded_size, is_whole)
        if info.size < 0 or padded_size < 0 or padded_size != entry.stored + entry.padding:
            raise FormatError(f"{info.name}: {info.size} bytes are not the size of an entry")
        yield entry
        headers.offset = archive.offset
    write(bytes(headers.raw))
    for _ in range(MAX_AFTER_END // CHUNK):
        padding = source.read(CHUNK)
        if not padding:
            return
        write(padding)
    raise FormatError("too much data after the end of the tar archive")


class Admission:
    """A filter that counts entries, and raises FormatError for entries that break rules or exceed limits.

    `devices`: True to accept devices and FIFOs, which archives of root file systems contain.
    """

    def __init__(self, package: Pass, *, devices: bool = True) -> None:
        self._pass, self._devices = package, devices
        self._files: set[str] = set()

    def __call__(self, entry: TarEntry) -> str:
        """Check and count an entry, and return its path in the package. Raises FormatError."""
        info = entry.info
        path = self._pass.count_entry(info.name, len(entry.header) - BLOCK)
        self._pass.count_bytes(path, entry.stored)
        if (info.ischr() or info.isblk() or info.isfifo()) and not self._devices:
            raise FormatError(f"{path}: a device or FIFO, which such a package must not contain")
        if info.islnk():
            if leads_out(info.linkname):
                raise FormatError(f"{path}: a hard link that leads out of the package: {info.linkname}")
            target = normalize_name(info.linkname)
            self._pass.hard_links[path] = self._pass.hard_links.get(target, target)
        if info.issym():
            check_link(path, info.linkname)
        if info.isreg():
            if path in self._files:
                raise FormatError(f"{path}: a second file of this name")
            self._files.add(path)
        return path


def extended_attributes(entry: TarEntry) -> set[str]:
    return {key.removeprefix(start) for key in entry.info.pax_headers for start in ATTRIBUTES if key.startswith(start)}


def set_size(header: bytes, size: int) -> bytes:
    """Return an entry's header blocks with a new size and checksum in the last one."""
    block = bytearray(header[-BLOCK:])
    if size >= MAX_SIZE:
        raise FormatError(f"{size:,} bytes do not fit into the header of a tar entry")
    block[SIZE_FIELD] = b"%011o\0" % size
    block[CHECKSUM_FIELD] = b" " * 8
    block[CHECKSUM_FIELD] = b"%06o\0 " % sum(block)
    return header[:-BLOCK] + bytes(block)


class _HeaderStream:
    """A stream from which tarfile reads headers. It records their bytes, and limits how much data tarfile keeps in memory."""

    def __init__(self, source: Readable) -> None:
        self._source = source
        self._payload_of = b""  # type of the previous header if its payload, such as a long name, comes next
        self.offset = 0
        self.raw = bytearray()

    def is_at_end(self) -> bool:
        """Return True if a block of zeros follows, or the archive ends here without one, as with some writers."""
        return self.raw == bytes(BLOCK) or (not self.raw and self.offset > 0)

    def tell(self) -> int:
        return self.offset

    def read(self, size: int) -> bytes:
        if not 0 <= size <= MAX_HEADER_BYTES - len(self.raw):
            raise FormatError(f"the entry at {self.offset:#x} has headers of more than {MAX_HEADER_BYTES:,} bytes")
        beginning = self._source.read(min(size, BLOCK))
        if not (beginning or self.raw) and self.offset:
            return b""  # is_at_end
        place = f"headers at {self.offset:#x}"
        data = b"".join((beginning, *read_pieces(self._source, size - len(beginning), place)))
        payload_of, self._payload_of = self._payload_of, b""
        if payload_of in EXTENDED:
            _check_records(data, self.offset)
        elif not payload_of and data[TYPE_OFFSET : TYPE_OFFSET + 1] in (*EXTENDED, *LONG_NAMES):
            self._payload_of = data[TYPE_OFFSET : TYPE_OFFSET + 1]
        self.offset += size
        self.raw += data
        return data


def _check_records(data: bytes, offset: int) -> None:
    """Raise FormatError if tarfile would read one record of an extended header as many, because it does not check lengths.

    A record is `LENGTH KEY=VALUE` with a line break at its end, and the length is that of the whole record.
    """
    start = 0
    while data[start : start + 1].strip(b"\0"):
        digits, space, _ = data[start : start + MAX_DIGITS + 1].partition(b" ")
        end = start + int(digits) if space and digits.isdigit() else 0
        if end <= start + len(digits) + 1 or data[end - 1 : end] != b"\n" or data.find(b"=", start, end) < 0:
            raise FormatError(f"no record of an extended header at {offset + start:#x}")
        start = end
