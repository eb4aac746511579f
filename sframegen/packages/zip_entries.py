"""Rewrites zip archives: copies unchanged entries with their headers, without unpacking them, and compresses changed ones."""

from __future__ import annotations

import copy
import errno
import os
import stat
import struct
import zlib
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, BinaryIO, NamedTuple
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile, ZipInfo

from sframegen.base.errors import FormatError
from sframegen.packages.package_pass import Content, Pass, naming_entry, read_pieces, write_content

if TYPE_CHECKING:
    from collections.abc import Iterator

LOCAL_HEADER = struct.Struct("<4s5HIIIHH")  # before an entry's name, extra fields and contents; ends with the first two's sizes
LOCAL_MAGIC, DESCRIPTOR_MAGIC = b"PK\3\4", b"PK\7\10"
MAX_DESCRIPTOR_BYTES = 24  # of a data descriptor, which repeats an entry's checksum and sizes after its contents
ENCRYPTED, DESCRIPTOR_FOLLOWS = 1, 8  # flags
ZIP64, EXTENDED_TIMESTAMP = 0x0001, 0x5455  # kinds of extra fields
ALLOWED_TYPES = (0, stat.S_IFREG, stat.S_IFDIR)  # 0: none is given
# Exceptions that zipfile raises for damaged archives.
ZIPFILE_ERRORS = (BadZipFile, struct.error, zlib.error, EOFError, ValueError, OverflowError, NotImplementedError, RuntimeError)


class ZipEntry(NamedTuple):
    """An entry of a zip archive, and its file offsets."""

    info: ZipInfo
    path: str
    start: int  # file offset of its header
    data: int  # file offset of its contents
    end: int  # file offset of its end, after the data descriptor if there is one


def check_entries(package: Pass, archive: ZipFile, infos: list[ZipInfo]) -> list[ZipEntry]:
    """Check all entries, before any of them is read, and return them. Raises FormatError."""
    entries = []
    paths: set[str] = set()
    for info in infos:
        path = package.count_entry(info.filename)
        with naming_entry(path):
            _check_entry(info)
        if path in paths:
            raise FormatError(f"{path}: a second entry of this name")
        paths.add(path)
        package.count_bytes(path, info.file_size)
        entries.append(_locate_entry(archive, info, path))
    end = 0
    for entry in sorted(entries, key=lambda entry: entry.start):
        if entry.start < end:
            raise FormatError(f"{entry.path}: overlaps with another entry")
        end = entry.end
    if end > archive.start_dir:
        raise FormatError("an entry overlaps with the directory of the archive")
    return entries


def write_zip(archive: ZipFile, entries: list[ZipEntry], contents: dict[str, Content], target: BinaryIO) -> None:
    """Write the archive with new contents for some entries."""
    source = _open_file_of(archive)
    with ZipFile(target, "w") as out:
        if out.fp is not target:  # zipfile treats a file for which tell() fails as a pipe, and hides the error
            raise OSError(errno.ESPIPE, os.strerror(errno.ESPIPE))
        out.comment = archive.comment
        for entry in entries:
            content = contents.get(entry.path)
            if content is None:
                _copy_entry(source, entry, out)
                continue
            with out.open(_copy_info(entry.info), "w", force_zip64=content.size >> 31 > 0) as new:
                write_content(content, new.write)


def _check_entry(info: ZipInfo) -> None:
    """Raise FormatError for an entry of a kind that packages do not have."""
    if info.flag_bits & ENCRYPTED:
        raise FormatError("an encrypted entry")
    if info.compress_type not in (ZIP_STORED, ZIP_DEFLATED):
        raise FormatError(f"zip compression {info.compress_type}: entries of packages are stored or deflated")
    if info.compress_type == ZIP_STORED and info.compress_size != info.file_size:
        raise FormatError(f"stored, with {info.compress_size:,} bytes for {info.file_size:,}")
    if stat.S_IFMT(info.external_attr >> 16) not in ALLOWED_TYPES:
        raise FormatError("a link, device or FIFO, which such a package must not contain")
    if info.is_dir() and info.file_size:
        raise FormatError("a directory with contents")


def _locate_entry(archive: ZipFile, info: ZipInfo, path: str) -> ZipEntry:
    """Return an entry with its file offsets, including its header and data descriptor."""
    source = _open_file_of(archive)
    source.seek(info.header_offset)
    raw = source.read(LOCAL_HEADER.size)
    if len(raw) < LOCAL_HEADER.size or not raw.startswith(LOCAL_MAGIC):
        raise FormatError(f"{path}: no header of an entry at {info.header_offset:#x}")
    *_, name_size, extra_size = LOCAL_HEADER.unpack(raw)
    data = info.header_offset + LOCAL_HEADER.size + name_size + extra_size
    end = data + info.compress_size
    if info.flag_bits & DESCRIPTOR_FOLLOWS:
        source.seek(end)
        after = source.read(MAX_DESCRIPTOR_BYTES)
        values = info.CRC, info.compress_size, info.file_size
        bodies = [struct.pack("<IQQ", *values)]  # sizes have 8 bytes or, if they fit, 4; the magic is optional
        if max(values) <= 0xFFFFFFFF:
            bodies.append(struct.pack("<III", *values))
        descriptors = [magic + body for body in bodies for magic in (DESCRIPTOR_MAGIC, b"")]
        end += next((len(descriptor) for descriptor in descriptors if after.startswith(descriptor)), 0)
    return ZipEntry(info, path, info.header_offset, data, end)


def _copy_entry(source: IO[bytes], entry: ZipEntry, out: ZipFile) -> None:
    """Copy an entry's header and compressed bytes."""
    file = _open_file_of(out)
    info = copy.copy(entry.info)
    info.header_offset = file.seek(out.start_dir)
    source.seek(entry.start)
    for piece in read_pieces(source, entry.end - entry.start, entry.path):
        file.write(piece)
    out.filelist.append(info)
    out.start_dir = file.tell()


def _copy_info(info: ZipInfo) -> ZipInfo:
    """Return a copy of an entry's description, for new contents. The field ZIP64 is dropped, because it has the old sizes."""
    new = copy.copy(info)
    new.extra, offset = b"", 0
    while len(info.extra) - offset >= 4:
        kind, size = struct.unpack_from("<HH", info.extra, offset)
        field = info.extra[offset : offset + 4 + size]
        if kind == EXTENDED_TIMESTAMP and size == 5:  # its flags announce up to three times, but the central directory has only one
            field = field[:4] + bytes([field[4] & 1]) + field[5:]
        if kind != ZIP64:
            new.extra += field
        offset += 4 + size
    return new


def _open_file_of(archive: ZipFile) -> IO[bytes]:
    if archive.fp is None:
        raise ValueError("a closed archive")
    return archive.fp


@contextmanager
def naming_damage(place: str = "a damaged zip archive: ") -> Iterator[None]:
    """Turn exceptions of zipfile in the block into FormatErrors, except errors of the system."""
    try:
        yield
    except (*ZIPFILE_ERRORS, OSError) as error:
        cause = error.__context__ if isinstance(error, BadZipFile) else error  # zipfile raises BadZipFile for read errors, too
        if isinstance(cause, OSError) and cause.errno not in (None, errno.EINVAL):
            raise cause from None
        raise FormatError(f"{place}{error}") from None
