"""Reads an APT index (`Packages`) as a list of packages, as a stream and within limits."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, BinaryIO

from sframegen.base.errors import FormatError
from sframegen.fleet.sources.fetching import index_file
from sframegen.fleet.sources.items import Item, item_below, local_path, without_secrets
from sframegen.packages.compression import MAGIC_SIZE, compression_of, decompressed

if TYPE_CHECKING:
    from collections.abc import Iterator

APT_INDEX = re.compile(r"Packages(?:\.(?:gz|xz|zst|bz2))?$")
MAX_INDEX_BYTES = 1 << 30  # bytes of an index as fetched, perhaps compressed
MAX_UNPACKED_BYTES = 8 << 30
MAX_LINE_BYTES = 1 << 20
PIECE = 1 << 16
SHA256 = re.compile(r"[0-9a-f]{64}\Z")


def apt_items(index: str) -> Iterator[Item]:
    """Yield the packages of an APT index, given by path or URL. Raises FormatError, OSError."""
    from debian.deb822 import Packages  # noqa: PLC0415 - of the extra `fleet`

    index = local_path(index)
    base = _apt_base(index)
    fields = ["Filename", "Size", "SHA256"]
    with index_file(index, MAX_INDEX_BYTES) as file:
        lines = _lines(file, without_secrets(index))
        for paragraph in Packages.iter_paragraphs(lines, fields=fields, use_apt_pkg=False):
            filename = paragraph.get("Filename", "").removeprefix("./")
            if filename:
                yield _item(base, filename, paragraph.get("SHA256", ""), paragraph.get("Size", ""))


def _apt_base(index: str) -> str:
    """Return the base of the index's file names: above /dists/, or in a flat repository the index's own directory."""
    above, dists, _ = index.rpartition("/dists/")
    return above if dists else _directory(index)


def _directory(path: str) -> str:
    return path.rpartition("/")[0] or ("/" if path.startswith("/") else ".")


def _item(base: str, filename: str, checksum: str, size: str) -> Item:
    checksum = checksum.strip().lower()
    is_size = size.isascii() and size.isdigit() and len(size) < 16
    return item_below(base, filename, checksum if SHA256.match(checksum) else "", int(size) if is_size else -1)


# -- bytes


def _pieces(file: BinaryIO, name: str) -> Iterator[bytes]:
    """Yield the unpacked content of an index in pieces."""
    beginning = file.read(MAGIC_SIZE)
    file.seek(0)
    if not beginning and os.fstat(file.fileno()).st_size:
        raise FormatError("cannot be read", file=name)
    stream, done = decompressed(file, compression_of(beginning)), 0
    while True:
        try:
            piece = stream.read(PIECE)
        except FormatError as error:
            raise FormatError(f"damaged: {error.message}", file=name) from error
        if not piece:
            return
        done += len(piece)
        if done > MAX_UNPACKED_BYTES:
            raise FormatError(f"unpacks to more than {MAX_UNPACKED_BYTES:,} bytes", file=name)
        yield piece


def _lines(file: BinaryIO, name: str) -> Iterator[bytes]:
    rest = b""
    for piece in _pieces(file, name):
        *lines, rest = (rest + piece).split(b"\n")
        yield from lines
        if len(rest) > MAX_LINE_BYTES:
            raise FormatError(f"a line of more than {MAX_LINE_BYTES:,} bytes", file=name)
    if rest:
        yield rest


def is_index(place: str) -> bool:
    return APT_INDEX.match(local_path(place).rpartition("/")[2]) is not None
