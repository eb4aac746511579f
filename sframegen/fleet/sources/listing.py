"""Lists the packages of the sources that a user names, always in the same order."""

from __future__ import annotations

import os
import re
import sys
from itertools import chain
from typing import TYPE_CHECKING, BinaryIO

from linker.files.location import locate, locate_below
from sframegen.base.errors import FormatError
from sframegen.elf.file import read_beginning
from sframegen.elf.records import EHDR_SIZE
from sframegen.fleet.sources.fetching import opened_file, opened_index
from sframegen.fleet.sources.items import (
    Item,
    clean_path,
    is_url,
    local_path,
    make_absolute,
    make_item_below,
    make_name,
    make_refused_item,
    refuse_bad_name,
    without_secrets,
)
from sframegen.format.abi import is_linked
from sframegen.packages import kinds
from sframegen.packages.compression import MAGIC_SIZE, detect_compression, open_decompressed
from sframegen.packages.kinds import IMAGE, OCI_LAYOUT, explain_unhandled

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

BEGINNING_BYTES = 1 << 12  # enough to recognise every kind of package
MAX_LIST_LINE = 1 << 16
STDIN = "-"


def list_items(sources: Sequence[str]) -> Iterator[Item | Exception]:
    """Yield the packages of all sources. If a source cannot be read completely, also yield an exception that names it.

    If there are several sources, the names of packages begin with a part that differs for each source.
    """
    labels = _choose_labels(sources)
    for source, label in zip(sources, labels, strict=True):
        try:
            for item in list_source(source):
                name = f"{label}/{item.name}" if label and not item.refused else item.name
                yield item._replace(name=name, path_or_url=item.path_or_url if item.refused else make_absolute(item.path_or_url))
        except (FormatError, OSError) as error:
            if isinstance(error, FormatError):
                error.file = error.file or without_secrets(source)
            else:
                error.filename = error.filename or source
            yield error


def _choose_labels(sources: Sequence[str]) -> list[str]:
    """Return a unique first part of names for each source, or "" if there is only one."""
    if len(sources) < 2:
        return [""] * len(sources)
    labels: dict[str, None] = {}
    for source in sources:
        name = clean_path(make_name(local_path(source))).rpartition("/")[2] or "source"
        numbered = (f"{name}-{number}" for number in range(2, len(sources) + 1))
        labels[next(label for label in chain([name], numbered) if label not in labels)] = None
    return [*labels]


def list_source(source: str) -> Iterator[Item]:
    """List the packages of one source of any kind. Raises FormatError, OSError."""
    path_or_url = local_path(source)
    if path_or_url == STDIN:
        return _read_list(sys.stdin.buffer, "standard input")
    if is_url(path_or_url):
        return _list_url(path_or_url)
    if os.path.isdir(path_or_url):  # noqa: PTH112
        return _list_tree(path_or_url)
    return list_apt_index(path_or_url) if is_index(path_or_url) else _list_file(path_or_url)


def _list_url(url: str) -> Iterator[Item]:
    path = url.rpartition("?")[0] if "?" in url and not url.startswith("file:") else url
    if is_index(path):
        return list_apt_index(url)
    if url.endswith("/"):
        raise FormatError("a directory of a server: give a list of the URLs of its packages", file=without_secrets(url))
    return iter([refuse_bad_name(Item(make_name(url), url))])


def _list_file(path: str) -> Iterator[Item]:
    """Yield a package, or the packages in a list. Raises FormatError for any other file."""
    with opened_file(path) as file:
        beginning = file.read(BEGINNING_BYTES)
        if why := explain_unhandled(path, beginning):
            raise FormatError(why, file=without_secrets(path))
        if kinds.detect_kind(path, beginning) is not None:
            yield refuse_bad_name(Item(os.path.basename(path), path))  # noqa: PTH119
        elif beginning.startswith(b"\x7fELF"):
            raise FormatError("an ELF file, not a package: use sframegen add-section", file=without_secrets(path))
        elif b"\0" in beginning:
            raise FormatError("neither a package nor a list of packages", file=without_secrets(path))
        else:
            file.seek(0)
            yield from _read_list(file, without_secrets(path))


def _read_list(file: BinaryIO, name: str) -> Iterator[Item]:
    """Yield the items of a list, which has a path or URL in each line. Skips empty lines, and lines that begin with #."""
    while line := file.readline(MAX_LIST_LINE + 1):
        if len(line) > MAX_LIST_LINE:
            raise FormatError(f"a line of more than {MAX_LIST_LINE:,} bytes", file=name)
        text = os.fsdecode(line.strip())
        if text and not text.startswith("#"):
            path_or_url = local_path(text)
            if is_url(path_or_url):
                yield refuse_bad_name(Item(make_name(path_or_url), path_or_url))
            else:
                yield refuse_bad_name(Item(make_name(os.path.abspath(path_or_url)), path_or_url))  # noqa: PTH100


def _list_tree(root: str) -> Iterator[Item]:
    """Yield the packages below a directory by name, without following symbolic links. Raises FormatError for a build root."""
    pending = [""]
    is_empty, has_programs = True, False
    with locate(root) as location:
        top = location.open_subdirectory()
    try:
        while pending:
            directory = pending.pop()
            here = os.path.join(root, directory) if directory else root  # noqa: PTH118
            try:
                with locate_below(top, f"{directory}/." if directory else ".", here) as location:
                    descriptor = location.open_parent()
            except OSError as error:
                if not directory:
                    raise
                yield Item(directory, here, refused=f"cannot be read: {error.strerror}")
                continue
            try:
                for item in _list_directory(descriptor, root, directory, pending):
                    has_programs = has_programs or item is None
                    if item is not None:
                        is_empty = False
                        yield item
            finally:
                os.close(descriptor)
    finally:
        os.close(top)
    if is_empty and has_programs:
        raise FormatError("programs but no packages; for a build root, use sframegen add-tree", file=without_secrets(root))


def _list_directory(descriptor: int, root: str, directory: str, pending: list[str]) -> Iterator[Item | None]:
    """Yield the packages in one open directory, and None for a linked ELF file. Adds its subdirectories to `pending`."""
    here = os.path.join(root, directory) if directory else root  # noqa: PTH118
    entries = sorted(os.scandir(descriptor), key=lambda entry: entry.name)
    if any(entry.name == OCI_LAYOUT for entry in entries):
        yield make_refused_item(directory or os.path.basename(os.path.abspath(root)), here, IMAGE)  # noqa: PTH100, PTH119
        return
    subdirectories = []
    for entry in entries:
        path = os.path.join(directory, entry.name)  # noqa: PTH118
        if entry.is_dir(follow_symlinks=False):
            subdirectories.append(path)
        elif entry.is_file(follow_symlinks=False):
            try:
                beginning = read_beginning(entry.name, entry.name, BEGINNING_BYTES, os.O_NOFOLLOW, directory=descriptor)
            except (FormatError, OSError) as error:  # FormatError: a file of another kind has replaced it
                reason = error.strerror if isinstance(error, OSError) else error.message
                yield Item(path, os.path.join(root, path), refused=f"cannot be read: {reason}")  # noqa: PTH118
                continue
            if why := explain_unhandled(entry.name, beginning):
                yield make_refused_item(path, os.path.join(root, path), why)  # noqa: PTH118
            elif kinds.detect_kind(entry.name, beginning) is not None:
                yield refuse_bad_name(Item(path, os.path.join(root, path)))  # noqa: PTH118
            elif is_linked(beginning[:EHDR_SIZE]):
                yield None
    pending += subdirectories[::-1]  # the last one is taken first


# -- indexes of APT repositories

APT_INDEX = re.compile(r"Packages(?:\.(?:gz|xz|zst|bz2))?$")
MAX_INDEX_BYTES = 1 << 30  # bytes of an index as fetched, perhaps compressed
MAX_UNPACKED_BYTES = 8 << 30
MAX_LINE_BYTES = 1 << 20
UNPACKED_CHUNK = 1 << 16
SHA256 = re.compile(r"[0-9a-f]{64}\Z")


def list_apt_index(index: str) -> Iterator[Item]:
    """Yield the packages of an APT index, given by path or URL. Raises FormatError, OSError."""
    from debian.deb822 import Packages  # noqa: PLC0415 - of the extra `fleet`

    repository, dists, _ = index.rpartition("/dists/")
    parent = index.rpartition("/")[0] or ("/" if index.startswith("/") else ".")
    base = repository if dists else parent  # names are relative to it; a flat repository has no `dists`
    fields = ["Filename", "Size", "SHA256"]
    with opened_index(index, MAX_INDEX_BYTES) as file:
        lines = _read_lines(file, without_secrets(index))
        for paragraph in Packages.iter_paragraphs(lines, fields=fields, use_apt_pkg=False):
            filename = paragraph.get("Filename", "").removeprefix("./")
            if filename:
                yield _make_apt_item(base, filename, paragraph.get("SHA256", ""), paragraph.get("Size", ""))


def _make_apt_item(base: str, filename: str, checksum: str, size: str) -> Item:
    checksum = checksum.strip().lower()
    is_size = size.isascii() and size.isdigit() and len(size) < 16
    return make_item_below(base, filename, checksum if SHA256.match(checksum) else "", int(size) if is_size else -1)


def _read_unpacked(file: BinaryIO, name: str) -> Iterator[bytes]:
    """Yield the unpacked content of an index in pieces."""
    beginning = file.read(MAGIC_SIZE)
    file.seek(0)
    if not beginning and os.fstat(file.fileno()).st_size:
        raise FormatError("cannot be read", file=name)
    stream, unpacked_bytes = open_decompressed(file, detect_compression(beginning)), 0
    while True:
        try:
            piece = stream.read(UNPACKED_CHUNK)
        except FormatError as error:
            raise FormatError(f"damaged: {error.message}", file=name) from error
        if not piece:
            return
        unpacked_bytes += len(piece)
        if unpacked_bytes > MAX_UNPACKED_BYTES:
            raise FormatError(f"unpacks to more than {MAX_UNPACKED_BYTES:,} bytes", file=name)
        yield piece


def _read_lines(file: BinaryIO, name: str) -> Iterator[bytes]:
    incomplete_line = b""
    for piece in _read_unpacked(file, name):
        *lines, incomplete_line = (incomplete_line + piece).split(b"\n")
        yield from map(_as_utf8, lines)
        if len(incomplete_line) > MAX_LINE_BYTES:
            raise FormatError(f"a line of more than {MAX_LINE_BYTES:,} bytes", file=name)
    if incomplete_line:
        yield _as_utf8(incomplete_line)


def _as_utf8(line: bytes) -> bytes:
    """Return the line with escapes for bytes that are not UTF-8, from which the parser would guess another encoding, or fail."""
    return line.decode(errors="backslashreplace").encode()


def is_index(path_or_url: str) -> bool:
    return APT_INDEX.match(path_or_url.rpartition("/")[2]) is not None
