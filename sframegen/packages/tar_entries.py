"""Tar streams: each entry passed on with its own header blocks, except the size where a file has become another.

So format, order, dates, owners, extended headers and links are kept whatever tool wrote them, also those that tarfile cannot write.
"""

from __future__ import annotations

import tarfile
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, cast

from cfi.errors import FormatError, naming
from sframegen.elf.records import EHDR_SIZE
from sframegen.packages.compression import MAGIC_SIZE, compression_of, packed, unpacked
from sframegen.packages.passing import CHUNK, Pass, Timed, check_link, copied, pieces, size_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sframegen.packages.passing import Passed, Readable, Visit, Writable

BLOCK = 512
MAX_HEADER_BYTES = 1 << 20  # of one entry, with its long names and extended headers
MAX_GLOBAL_RECORDS = 100  # of extended headers that hold for all entries
TYPE_AT = 156
EXTENDED, LONG_NAMES = (b"x", b"g", b"X"), (b"L", b"K")
MAX_DIGITS = 7  # of the length of a record
MAX_SIZE = 8**11  # in its field
SIZE_FIELD, CHECKSUM_FIELD = slice(124, 136), slice(148, 156)
# What tarfile raises for bad headers, besides its own errors: numbers that are none, chains of extended headers.
BAD_HEADER = (tarfile.TarError, ValueError, OverflowError, IndexError, KeyError, RecursionError)


class Rules(NamedTuple):
    """What a kind of package has no business with."""

    devices: bool = True  # and FIFOs: root file systems have them
    links_up: bool = False  # symbolic links that lead above the root
    repeated: bool = False  # a second file of one name


class Entry(NamedTuple):
    """`path`: in the package, without `./` before it."""

    info: tarfile.TarInfo
    path: str
    header: bytes  # all its header blocks
    stored: int  # bytes of its contents in the stream, without the padding
    is_whole: bool  # a regular file whose bytes are all in the stream


def pass_archive(source: BinaryIO, visit: Visit, target: BinaryIO | None, *, force: bool) -> Passed:
    """A tar archive, compressed or not. `pass_through` in kinds.py has the contract."""
    del force  # it has no signature
    with Pass("tar", size_of(source), visit) as one:
        pass_compressed(one, source, target)
        return one.passed()


def pass_compressed(one: Pass, source: BinaryIO, target: BinaryIO | None, rules: Rules | None = None) -> None:
    """`pass_tar` for a file of any compression, which can seek; the new one has the same compression. Raises FormatError."""
    start = source.tell()
    compression = compression_of(source.read(MAGIC_SIZE))
    source.seek(start)
    stream = unpacked(source, compression)
    if target is None:
        pass_tar(one, stream, None, rules)
        return
    with packed(target, compression) as out:
        pass_tar(one, stream, Timed(out, one), rules)


def pass_tar(one: Pass, source: Readable, target: Writable | None, rules: Rules | None = None) -> None:
    """Pass a tar stream through the visits of a pass; neither stream need be able to seek.

    `target` None: only read. All of `source` is read, also what follows the end of the archive. Raises FormatError for what is
    no tar stream, is cut off, or has an entry that `rules` or the pass forbid; RefusedError and what visits raise.
    """
    rules = rules or Rules()
    write = target.write if target is not None else _nothing
    named: set[str] = set()
    for entry in entries(one, source, rules, write):
        info, path = entry.info, entry.path
        if info.isreg():
            one.regular(path, info.size)
            if path in named and not rules.repeated:
                raise FormatError(f"{path}: a second file of this name")
            named.add(path)
        beginning = b"".join(pieces(source, min(EHDR_SIZE, entry.stored), path))
        content = one.visit(path, beginning, source, entry.stored) if entry.is_whole else None
        if content is None:
            write(entry.header)
            write(beginning)
            for piece in pieces(source, entry.stored - len(beginning), path):
                write(piece)
            size = entry.stored
        else:
            size = content.size
            write(with_size(entry.header, size) if content.changed else entry.header)
            copied(content, write)
        padding = b"".join(pieces(source, -entry.stored % BLOCK, path))
        write(padding if size == entry.stored else bytes(-size % BLOCK))


def entries(one: Pass, source: Readable, rules: Rules, write: Callable[[bytes], object]) -> Iterator[Entry]:
    """The entries, counted and checked; the stream is then at their contents. At its end, `write` gets all that follows."""
    headers = _Headers(source)
    # tarfile reads headers, and is never asked for contents, nor for what it holds.
    archive = tarfile.TarFile(fileobj=cast("BinaryIO", headers), mode="w", encoding="utf-8", errors="surrogateescape")
    while True:
        headers.begin()
        try:
            info = tarfile.TarInfo.fromtarfile(archive)
        except BAD_HEADER as error:
            if headers.taken == bytes(BLOCK):
                break  # the end
            raise FormatError(f"no header of a tar entry at {headers.at - len(headers.taken):#x}: {error}") from None
        if len(archive.pax_headers) > MAX_GLOBAL_RECORDS:
            raise FormatError(f"more than {MAX_GLOBAL_RECORDS} records of extended headers for all entries")
        path = one.entry(info.name)
        with naming(path):
            _check(info, path, rules)
        padded = archive.offset - info.offset_data
        # Holes of sparse files are in their headers, and GNU tar has sizes above 8 GiB in extended ones.
        is_whole = info.isreg() and not info.issparse() and "size" not in info.pax_headers
        stored = info.size if is_whole else padded
        if info.size < 0 or padded < 0 or (is_whole and padded != stored + -stored % BLOCK):
            raise FormatError(f"{path}: {info.size} bytes are no size of an entry")
        yield Entry(info, path, bytes(headers.taken), stored, is_whole)
        headers.at = archive.offset
    write(bytes(headers.taken))
    while rest := source.read(CHUNK):
        write(rest)


def with_size(header: bytes, size: int) -> bytes:
    """An entry's header blocks, the last of which has another size and its checksum."""
    block = bytearray(header[-BLOCK:])
    if size >= MAX_SIZE:
        raise FormatError(f"{size:,} bytes do not fit into the header of a tar entry")
    block[SIZE_FIELD] = b"%011o\0" % size
    block[CHECKSUM_FIELD] = b" " * 8
    block[CHECKSUM_FIELD] = b"%06o\0 " % sum(block)
    return header[:-BLOCK] + bytes(block)


def _check(info: tarfile.TarInfo, path: str, rules: Rules) -> None:
    if (info.ischr() or info.isblk() or info.isfifo()) and not rules.devices:
        raise FormatError("a device or FIFO, which has no business in such a package")
    if info.islnk():
        target = info.linkname
        if target.startswith("/") or ".." in target.split("/"):
            raise FormatError(f"a hard link that leads out of the package: {target}")
    if info.issym() and not rules.links_up:
        check_link(path, info.linkname)


class _Headers:
    """What tarfile reads headers from: the stream, remembering what it gave, within bounds for what tarfile keeps in memory."""

    def __init__(self, source: Readable) -> None:
        self._source = source
        self._payload_of = b""  # type of the header before, whose payload comes next
        self.at = 0
        self.taken = bytearray()

    def begin(self) -> None:
        """The next entry begins here."""
        self.taken.clear()

    def tell(self) -> int:
        return self.at

    def read(self, size: int) -> bytes:
        if not 0 <= size <= MAX_HEADER_BYTES - len(self.taken):
            raise FormatError(f"the entry at {self.at:#x} has headers of more than {MAX_HEADER_BYTES:,} bytes")
        data = b"".join(pieces(self._source, size, f"headers at {self.at:#x}"))
        payload_of, self._payload_of = self._payload_of, b""
        if payload_of in EXTENDED:
            _check_records(data, self.at)
        elif not payload_of and data[TYPE_AT : TYPE_AT + 1] in (*EXTENDED, *LONG_NAMES):
            self._payload_of = data[TYPE_AT : TYPE_AT + 1]
        self.at += size
        self.taken += data
        return data


def _check_records(data: bytes, at: int) -> None:
    """Raises FormatError where tarfile, which does not compare lengths, would read one record as many."""
    start = 0
    while data[start : start + 1].strip(b"\0"):
        digits, space, _ = data[start : start + MAX_DIGITS + 1].partition(b" ")
        end = start + int(digits) if space and digits.isdigit() else 0
        if end <= start + len(digits) + 1 or data[end - 1 : end] != b"\n" or data.find(b"=", start, end) < 0:
            raise FormatError(f"no record of an extended header at {at + start:#x}")
        start = end


def _nothing(_: bytes) -> None:
    pass
