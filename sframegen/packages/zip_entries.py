"""Rewrites zip archives: unchanged entries are copied compressed, with their own headers; changed ones are written anew."""

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
from sframegen.packages.package_pass import Content, Pass, in_entry, pieces, write_content

if TYPE_CHECKING:
    from collections.abc import Iterator

LOCAL_HEADER = struct.Struct("<4s5HIIIHH")
LOCAL_MAGIC, DESCRIPTOR_MAGIC = b"PK\3\4", b"PK\7\10"
ENCRYPTED, DESCRIPTOR_FOLLOWS = 1, 8  # flags
ZIP64, TIMES = 0x0001, 0x5455  # extra fields
KNOWN_TYPES = (0, stat.S_IFREG, stat.S_IFDIR)
# Exceptions that zipfile raises for damaged archives.
DAMAGED = (BadZipFile, struct.error, zlib.error, EOFError, ValueError, OverflowError, NotImplementedError, RuntimeError)


class ZipEntry(NamedTuple):
    """An entry of a zip archive, with its place in the file."""

    info: ZipInfo
    path: str
    start: int  # file offset of its header
    data: int  # file offset of its contents
    end: int  # file offset of its end, after the data descriptor if there is one


def checked_entries(package: Pass, given: ZipFile, infos: list[ZipInfo]) -> list[ZipEntry]:
    """Return all entries, checked before any of them is read."""
    found = []
    named: set[str] = set()
    for info in infos:
        path = package.entry(info.filename)
        with in_entry(path):
            _check(info)
        if path in named:
            raise FormatError(f"{path}: a second entry of this name")
        named.add(path)
        package.regular(path, info.file_size)
        found.append(_locate_entry(given, info, path))
    end = 0
    for entry in sorted(found, key=lambda entry: entry.start):
        if entry.start < end:
            raise FormatError(f"{entry.path}: overlaps with another entry")
        end = entry.end
    if end > given.start_dir:
        raise FormatError("an entry overlaps with the directory of the archive")
    return found


def write_zip(given: ZipFile, found: list[ZipEntry], contents: dict[str, Content], target: BinaryIO) -> None:
    """Write the archive with new contents for some entries."""
    source = _file_of(given)
    with ZipFile(target, "w") as out:
        if out.fp is not target:  # zipfile treats a file for which tell() fails as a pipe, and hides the error
            raise OSError(errno.ESPIPE, os.strerror(errno.ESPIPE))
        out.comment = given.comment
        for entry in found:
            content = contents.get(entry.path)
            if content is None:
                _copy(source, entry, out)
                continue
            with out.open(_copy_info(entry.info), "w", force_zip64=content.size >> 31 > 0) as new:
                write_content(content, new.write)


def _check(info: ZipInfo) -> None:
    if info.flag_bits & ENCRYPTED:
        raise FormatError("an encrypted entry")
    if info.compress_type not in (ZIP_STORED, ZIP_DEFLATED):
        raise FormatError(f"zip compression {info.compress_type}: entries of packages are stored or deflated")
    if info.compress_type == ZIP_STORED and info.compress_size != info.file_size:
        raise FormatError(f"stored, with {info.compress_size:,} bytes for {info.file_size:,}")
    if stat.S_IFMT(info.external_attr >> 16) not in KNOWN_TYPES:
        raise FormatError("a link, device or FIFO, which such a package must not contain")
    if info.is_dir() and info.file_size:
        raise FormatError("a directory with contents")


def _locate_entry(given: ZipFile, info: ZipInfo, path: str) -> ZipEntry:
    """Return an entry with its place, including header and descriptor."""
    source = _file_of(given)
    source.seek(info.header_offset)
    raw = source.read(LOCAL_HEADER.size)
    if len(raw) < LOCAL_HEADER.size or not raw.startswith(LOCAL_MAGIC):
        raise FormatError(f"{path}: no header of an entry at {info.header_offset:#x}")
    *_, name_size, extra_size = LOCAL_HEADER.unpack(raw)
    data = info.header_offset + LOCAL_HEADER.size + name_size + extra_size
    end = data + info.compress_size
    if info.flag_bits & DESCRIPTOR_FOLLOWS:
        source.seek(end)
        after = source.read(24)
        sizes = info.CRC, info.compress_size, info.file_size
        forms = [struct.pack("<IQQ", *sizes)] + [struct.pack("<III", *sizes)] * (max(sizes) <= 0xFFFFFFFF)
        marked = [magic + form for form in forms for magic in (DESCRIPTOR_MAGIC, b"")]
        end += next((len(form) for form in marked if after.startswith(form)), 0)
    return ZipEntry(info, path, info.header_offset, data, end)


def _copy(source: IO[bytes], entry: ZipEntry, out: ZipFile) -> None:
    """Copy an entry's header and its bytes, which stay compressed."""
    file = _file_of(out)
    info = copy.copy(entry.info)
    info.header_offset = file.seek(out.start_dir)
    source.seek(entry.start)
    for piece in pieces(source, entry.end - entry.start, entry.path):
        file.write(piece)
    out.filelist.append(info)
    out.start_dir = file.tell()


def _copy_info(info: ZipInfo) -> ZipInfo:
    """Return a copy of an entry's description, for new contents."""
    new = copy.copy(info)
    kept, at = b"", 0
    while len(info.extra) - at >= 4:
        kind, size = struct.unpack_from("<HH", info.extra, at)
        field = info.extra[at : at + 4 + size]
        if kind == TIMES and size == 5:  # the central directory has one time after the flags, the entry's header has all
            field = field[:4] + bytes([field[4] & 1]) + field[5:]
        kept += field * (kind != ZIP64)
        at += 4 + size
    new.extra = kept
    return new


def _file_of(archive: ZipFile) -> IO[bytes]:
    if archive.fp is None:
        raise ValueError("a closed archive")
    return archive.fp


@contextmanager
def damage_named(place: str = "a damaged zip archive: ") -> Iterator[None]:
    """Turn exceptions of zipfile in the block into FormatErrors, except system errors."""
    try:
        yield
    except (*DAMAGED, OSError) as error:
        cause = error.__context__ if isinstance(error, BadZipFile) else error  # also of a file that cannot be read
        if isinstance(cause, OSError) and cause.errno not in (None, errno.EINVAL):
            raise cause from None
        raise FormatError(f"{place}{error}") from None
