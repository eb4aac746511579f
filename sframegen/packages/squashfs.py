"""squashfs images, read and written with squashfs-tools-ng: `sqfs2tar | ... | tar2sqfs`, as tar streams.

Unpacking with unsquashfs and packing with mksquashfs would need root for owners and devices, and would have the names of the image
on this machine's disk. A tar stream has owners, devices, hard links and extended attributes, and nothing of it is unpacked.
sqfstar 4.5, the other tool that packs tar streams, loses the root directory's mode and rejects options of compressors.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from cfi.errors import FormatError
from linker.files.refusals import Refusal, RefusedError
from sframegen.packages.passing import CHUNK, Pass, file_size
from sframegen.packages.piped_tools import reading, running, tool
from sframegen.packages.tar_entries import Rules, checksums_in, visit_tar, write_tar

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager
    from typing import IO

    from sframegen.packages.passing import Passed, Visit

SUPERBLOCK = struct.Struct("<4x2I I I 6H Q Q 6Q")  # after the magic number: inodes, time, block size, fragments, ...
OPTIONS_AT, HEADER = 96, struct.Struct("<H")
NOT_COMPRESSED = 0x1 | 0x2 | 0x8 | 0x100 | 0x800  # inodes, data, fragments, attributes, owners
NO_FRAGMENTS, EXPORTABLE, HAS_OPTIONS = 0x10, 0x80, 0x400
RULES = Rules(devices=True, links_up=True)
NOT_WRITTEN = "lz4"  # unsquashfs cannot read what tar2sqfs 1.2 packs so
REMEDY = "squashfs images are read and written with it; install squashfs-tools-ng"
GZIP_STRATEGIES = ("default", "filtered", "huffman", "rle", "fixed")
XZ_FILTERS = ("x86", "powerpc", "ia64", "arm", "armthumb", "sparc")
LZO_ALGORITHMS = ("lzo1x_1", "lzo1x_1_11", "lzo1x_1_12", "lzo1x_1_15", "lzo1x_999")


class Superblock(NamedTuple):
    time: int  # when it was made, in seconds
    block_size: int
    compressor: str  # as tar2sqfs names it
    flags: int
    used: int  # bytes; padding follows
    options: tuple[str, ...]  # of the compressor, as tar2sqfs names them
    padding: int  # the multiple of bytes that the file has


def pass_squashfs(source: BinaryIO, visit: Visit, target: BinaryIO | None, *, force: bool) -> Passed:
    """A squashfs image. `pass_through` in kinds.py has the contract."""
    size = file_size(source)
    superblock = _superblock(source, size)
    if target is not None and superblock.compressor == NOT_WRITTEN:
        raise FormatError(
            f"compressed with {NOT_WRITTEN}, which tar2sqfs does not write as others read it: pack it with another one"
        )
    if target is not None:
        _check_padding(source, superblock.used)
    with Pass("squashfs", size, visit, force=force) as one:
        if superblock.flags & NOT_COMPRESSED:
            one.warnings.append("parts of the image are stored without compression; tar2sqfs compresses them")
        if not force:
            with _reading(source) as stream:
                one.checksums = checksums_in(one, stream, RULES)
        with _reading(source) as stream:
            changed = visit_tar(one, stream, RULES)
        if target is not None and changed:
            new = one.free_file("new.squashfs")
            with one.writing():
                with _reading(source) as stream, _writing(superblock, os.fspath(new)) as archive:
                    write_tar(stream, changed, archive.write)
                with new.open("rb") as file:
                    shutil.copyfileobj(file, target, CHUNK)
        return one.passed()


def _superblock(source: BinaryIO, size: int) -> Superblock:
    source.seek(0)
    data = source.read(OPTIONS_AT)
    if len(data) < OPTIONS_AT:
        raise FormatError("no squashfs image: it ends in its superblock")
    _, time, block_size, _, kind, _, flags, _, major, minor, _, used, *_ = SUPERBLOCK.unpack_from(data)
    if (major, minor) != (4, 0):
        raise FormatError(f"squashfs {major}.{minor} is not read, only 4.0")
    if not 1 <= kind <= len(_OPTIONS) or used > size:
        raise FormatError("a damaged squashfs image: " + ("it is cut off" if used > size else f"unknown compressor {kind}"))
    options: tuple[str, ...] = ()
    name, fields, text = _OPTIONS[kind - 1]
    if flags & HAS_OPTIONS:
        source.seek(OPTIONS_AT)
        block = source.read(HEADER.size + fields.size)
        if len(block) < HEADER.size + fields.size:
            raise FormatError("a damaged squashfs image: it ends in the options of its compressor")
        options = text(*fields.unpack_from(block, HEADER.size))
    source.seek(0)
    return Superblock(time, block_size, name, flags, used, options, 4096 if size % 4096 == 0 else 1024)


def _check_padding(source: BinaryIO, used: int) -> None:
    """Raises RefusedError where something other than zeros follows the image."""
    source.seek(used)
    while rest := source.read(CHUNK):
        if rest.strip(b"\0"):
            raise RefusedError(Refusal.APPENDED_DATA, "data follows the squashfs image, hashes of dm-verity for instance")


def _names(bits: int, names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for bit, name in enumerate(names) if bits >> bit & 1)


# By number: the name, what is stored of its options, and how tar2sqfs is given them.
_OPTIONS = (
    (
        "gzip",
        struct.Struct("<IHH"),
        lambda level, window, bits: (f"level={level}", f"window={window}", *_names(bits, GZIP_STRATEGIES)),
    ),
    ("lzma", struct.Struct("<"), lambda: ()),
    ("lzo", struct.Struct("<II"), lambda kind, level: (f"algorithm={dict(enumerate(LZO_ALGORITHMS)).get(kind)}", f"level={level}")),
    ("xz", struct.Struct("<II"), lambda size, bits: (f"dictsize={size}", *_names(bits, XZ_FILTERS))),
    ("lz4", struct.Struct("<II"), lambda _, bits: ("hc",) if bits & 1 else ()),
    ("zstd", struct.Struct("<I"), lambda level: (f"level={level}",)),
)


def _reading(source: BinaryIO) -> AbstractContextManager[IO[bytes]]:
    """The image as a tar stream, which has the root directory as its first entry."""
    return reading("sqfs2tar", REMEDY, ["-s", "-r", ".", "/proc/self/fd/0"], source)


@contextmanager
def _writing(superblock: Superblock, path: str) -> Iterator[IO[bytes]]:
    """What is written to it becomes an image with the settings of another one. Raises FormatError where tar2sqfs fails."""
    options = ["-c", superblock.compressor, "-b", str(superblock.block_size), "-q", "-s"]
    options += ["-B", str(superblock.padding)]
    if superblock.options:
        options += ["-X", ",".join(superblock.options)]
    if superblock.flags & EXPORTABLE:
        options.append("-e")
    if superblock.flags & NO_FRAGMENTS:
        options.append("-T")
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(superblock.time)}
    with running([tool("tar2sqfs", REMEDY), *options, path], stdin=subprocess.PIPE, environment=environment) as process:
        assert process.stdin is not None
        yield process.stdin
        process.stdin.close()
