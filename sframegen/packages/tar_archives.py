"""Tar archives, compressed or not. The names in one say whether it has files alone, or is a package or image that is not handled.

The names may stand in any order, so all of them are read before anything is passed on.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, BinaryIO

from sframegen.base.errors import FormatError
from sframegen.packages.compression import compression_at, decompressed
from sframegen.packages.kinds import ALPINE, CONDA, IMAGE, IN_ITS_BUILD, LAYOUT, XBPS
from sframegen.packages.passing import Pass, file_size, is_checksum, skip
from sframegen.packages.tar_entries import BLOCK, Admission, entries, pass_compressed

if TYPE_CHECKING:
    from sframegen.packages.passing import Passed, Visit

LAYER = re.compile(r"blobs/.*|[0-9a-f]{64}(?:[./].*)?")  # names that images have beside manifest.json
WITHIN = "its files are in data.tar.gz, which is not read; unpack that"
# The names that mark what is not handled, all of them in it, and what it is.
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


def pass_archive(source: BinaryIO, visit: Visit, target: BinaryIO | None, *, force: bool) -> Passed:
    """A tar archive. `pass_through` in kinds.py has the contract."""
    checksums = checked_names(source)
    source.seek(0)
    with Pass("tar", file_size(source), visit, force=force) as one:
        pass_compressed(one, source, target, checksums)
        return one.passed()


def checked_names(source: BinaryIO) -> set[str]:
    """Read the names of an archive, within the limits of a pass: the files that can have the checksum of another one.

    Raises FormatError, also for a package or image that is not handled.
    """
    marks, checksums = set[object](), set[str]()
    with Pass("tar", file_size(source), lambda *_: False) as one:
        compression = compression_at(source)
        stream, admit = decompressed(source, compression), Admission(one)
        for entry in entries(stream):
            path = admit(entry)
            marks |= {path, LAYER if LAYER.fullmatch(path) else path} & MARKS
            if is_checksum(path):
                checksums.add(path)
            left = entry.stored + -entry.stored % BLOCK
            if compression is None:
                stream.seek(left, 1)  # passing reads it
            else:
                skip(stream, left, path)
    if why := next((why for names, why in MARKED.items() if names <= marks), None):
        raise FormatError(why)
    return checksums
