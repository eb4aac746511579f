"""RPM packages, read as the tar stream that rpm's own rpm2archive makes of one.

It reads each compression that rpm has, also packages with files above 4 GiB, in bounded memory, and gives hard links their file.
The library rpmfile 2.2 reads neither uncompressed packages nor those compressed with lzma, and keeps a zstd payload in memory.

They are not written. No tool in distributions replaces files in a package and keeps everything else: rpmrebuild makes a package of
an installed one, with another build host, time and header. The header has a digest of each file, of the payload and of itself.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, BinaryIO

from cfi.errors import FormatError
from sframegen.packages.passing import Pass, file_size
from sframegen.packages.piped_tools import reading
from sframegen.packages.tar_entries import Rules, visit_tar

if TYPE_CHECKING:
    from sframegen.packages.passing import Passed, Visit

LEAD = 96  # bytes; the header with the signatures follows
HEADER, HEADER_MAGIC = struct.Struct(">4s4x2I"), b"\x8e\xad\xe8\x01"
INDEX = struct.Struct(">I12x")  # of an entry: its tag
MAX_TAGS = 1 << 16
SIGNATURES = {267: "DSA", 268: "RSA", 278: "OpenPGP", 1002: "PGP", 1005: "GPG"}  # tags
RULES = Rules(devices=True, links_up=True)
REMEDY = "RPM packages are read with it; install rpm2cpio, or rpm"
NOT_WRITTEN = (
    "RPM packages are only read: no tool replaces files in one and keeps the rest; add the sections in the build, after strip, "
    "with sframegen's macros for rpmbuild (docs/packaging.md)"
)


def pass_rpm(source: BinaryIO, visit: Visit, target: BinaryIO | None, *, force: bool) -> Passed:
    """An RPM package, which is only read. `pass_through` in kinds.py has the contract."""
    signed = _signatures(source)
    if target is not None:
        raise FormatError(f"{NOT_WRITTEN}; it is signed, too" if signed else NOT_WRITTEN)
    with Pass("rpm", file_size(source), visit, signed=signed, force=force) as one:
        with reading("rpm2archive", REMEDY, ["-n", "-"], source) as stream:
            visit_tar(one, stream, RULES)
        return one.passed()


def _signatures(source: BinaryIO) -> str:
    """The kinds of its signatures, "" if it has none. Raises FormatError if it is not a package."""
    source.seek(LEAD)
    start = source.read(HEADER.size)
    magic, tags, _ = HEADER.unpack(start) if len(start) == HEADER.size else (b"", 0, 0)
    if magic != HEADER_MAGIC or tags > MAX_TAGS:
        raise FormatError("a damaged RPM package: its header of signatures cannot be read")
    index = source.read(tags * INDEX.size)
    if len(index) != tags * INDEX.size:
        raise FormatError("a damaged RPM package: it ends in its header of signatures")
    found = {SIGNATURES[tag] for (tag,) in INDEX.iter_unpack(index) if tag in SIGNATURES}
    return f"{', '.join(sorted(found))} in its header" if found else ""
