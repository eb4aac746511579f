"""Tar archives, compressed or not. The names in one say what it is: an image, a package of another kind, or files alone.

The names may stand in any order, so all of them are read before anything is passed on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from cfi.errors import FormatError
from sframegen.packages.compression import compression_at, decompressed
from sframegen.packages.images.docker_manifest import BLOBS, IDENTIFIER, MANIFEST
from sframegen.packages.images.documents import MAX_DOCUMENT
from sframegen.packages.images.image_archive import RULES, pass_image
from sframegen.packages.images.oci_index import INDEX
from sframegen.packages.kinds import LAYOUT
from sframegen.packages.passing import Pass, file_size, is_checksum, pieces, skip
from sframegen.packages.tar_entries import BLOCK, Admission, Rules, entries, pass_compressed

if TYPE_CHECKING:
    from sframegen.packages.passing import Passed, Visit

# Files that have checksums of the others: what has them. Such a package is read, and not written.
SUMS = {
    ".MTREE": "an Arch Linux package",
    ".PKGINFO": "an Alpine or Arch Linux package",
    "+MANIFEST": "a FreeBSD package",
    "files.plist": "an XBPS package",
    "info/paths.json": "a conda package",
}
# Files that mark a package with its programs in an inner archive: its kind, and that archive.
WITHIN = {
    ("debian-binary", "control.tar.gz", "data.tar.gz"): ("an opkg package", "data.tar.gz"),
    ("metadata.gz", "data.tar.gz"): ("a Ruby gem", "data.tar.gz"),
}
MARKS = {MANIFEST, LAYOUT, INDEX, *SUMS, *(path for paths in WITHIN for path in paths)}


class Contents(NamedTuple):
    """What is known of an archive from the names in it."""

    marks: set[str]
    checksums: set[str]  # paths of files that can have the checksum of another one
    is_image: bool

    @property
    def within(self) -> str:
        """Why its programs are not read; "" if they are."""
        found = next((what for paths, what in WITHIN.items() if self.marks.issuperset(paths)), None)
        return "" if found is None else f"{found[0]}: its files are in {found[1]}, which is not read; unpack that"

    @property
    def summed(self) -> str:
        """Why it is not written; "" if it can be."""
        path = next((path for path in SUMS if path in self.marks), None)
        return "" if path is None else f"{SUMS[path]}: {path} has checksums of its files; add the sections where it is built"


def pass_archive(source: BinaryIO, visit: Visit, target: BinaryIO | None, *, force: bool) -> Passed:
    """A tar archive. `pass_through` in kinds.py has the contract."""
    contents = contents_of(source)
    source.seek(0)
    if contents.is_image:
        return pass_image(source, visit, target, force=force)
    if contents.within:
        raise FormatError(contents.within)
    with Pass("tar", file_size(source), visit, force=force, only_read=contents.summed) as one:
        pass_compressed(one, source, target, Rules(), contents.checksums)
        if contents.summed and one.elf_files:
            one.warnings.append(f"only read: {contents.summed}")
        return one.passed()


def contents_of(source: BinaryIO) -> Contents:
    """Read the names of an archive, within the limits of a pass. Raises FormatError."""
    marks, checksums = set[str](), set[str]()
    has_names, document = False, b""  # of an image; its manifest.json
    with Pass("tar", file_size(source), lambda *_: False) as one:
        compression = compression_at(source)
        stream, admit = decompressed(source, compression), Admission(one, RULES)
        for entry in entries(stream):
            path = admit(entry)
            left = entry.stored + -entry.stored % BLOCK
            if path in MARKS:
                marks.add(path)
            if is_checksum(path):
                checksums.add(path)
            has_names = has_names or is_of_image(path)
            if path == MANIFEST and entry.is_whole and entry.stored <= MAX_DOCUMENT:
                document = b"".join(pieces(stream, entry.stored, path))
                left -= entry.stored
            if compression is None:
                stream.seek(left, 1)  # passing reads it
            else:
                skip(stream, left, path)
    return Contents(
        marks, checksums, {LAYOUT, INDEX} <= marks or (MANIFEST in marks and (has_names or is_list_of_images(document)))
    )


def is_of_image(path: str) -> bool:
    """True for a name that what `docker save` writes has beside manifest.json."""
    return path.startswith(BLOBS) or IDENTIFIER.fullmatch(path.partition("/")[0].partition(".")[0]) is not None


def is_list_of_images(document: bytes) -> bool:
    """True for what can be the manifest.json of images; many other tools have a file of that name."""
    return document.lstrip()[:1] == b"[" and b'"Config"' in document and b'"Layers"' in document
