"""Alpine packages of version 2 (.apk): gzip streams with parts of one tar archive: signatures, control, files.

The signature is of the control part, which has the checksum of the files' part; each file has its own in its header.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from functools import partial
from typing import TYPE_CHECKING, BinaryIO

from cfi.errors import FormatError
from sframegen.packages.arch_packages import PKGINFO, with_installed_size
from sframegen.packages.file_sums import ChangedFiles
from sframegen.packages.passing import CHUNK, Pass, file_size, part_of
from sframegen.packages.small_archives import MAX_BYTES, SmallArchive
from sframegen.packages.tar_entries import Rules, pass_compressed

if TYPE_CHECKING:
    from sframegen.packages.file_sums import ChangedFile
    from sframegen.packages.passing import Content, Passed, Visit

SIGNATURE = ".SIGN."  # how the names of signatures begin
ALGORITHM = "sha1"
FILE_CHECKSUM = b"APK-TOOLS.checksum.SHA1="
DATA_HASH = re.compile(rb"^(datahash[ \t]*=[ \t]*)([0-9a-f]{64})[ \t]*$", re.MULTILINE)
RULES = Rules(devices=True, links_up=True)  # as a root file system


def pass_apk(source: BinaryIO, visit: Visit, target: BinaryIO | None, *, force: bool) -> Passed:
    """An Alpine package. `pass_through` in kinds.py has the contract."""
    size = file_size(source)
    changes = ChangedFiles(visit, (ALGORITHM,))
    with Pass("apk", size, changes, force=force) as one:
        signatures, control, data_at = _control_part(one, source, size)
        one.signed = ", ".join(signatures)
        packed = one.free_file("data")
        with packed.open("w+b") as out:
            part = part_of(source, data_at, size - data_at)
            _check_data(part, control)
            is_changed = pass_compressed(
                one, part, None if target is None else out, RULES, None, lambda changed: _with_checksums(changed, changes)
            )
            if is_changed and target is not None:
                with one.writing():
                    out.flush()
                    out.seek(0)
                    digest = hashlib.file_digest(out, "sha256").hexdigest().encode()
                    control.edit(PKGINFO, lambda text: DATA_HASH.sub(lambda found: found[1] + digest, text))
                    control.edit(PKGINFO, lambda text: with_installed_size(text, changes.growth))
                    target.write(control.packed())
                    out.seek(0)
                    while piece := out.read(CHUNK):
                        target.write(piece)
        if signatures and one.changed:
            one.warnings.append(f"its signature is left out, because it no longer holds: {one.signed}; sign it with abuild-sign")
        return one.passed()


def _control_part(one: Pass, source: BinaryIO, size: int) -> tuple[list[str], SmallArchive, int]:
    """The names of the signatures, the control part, and where the files' part begins."""
    signatures: list[str] = []
    start = 0
    while start < size:
        end = _stream_end(source, start)
        part = part_of(source, start, end - start)
        with one.counted_again():  # signatures do not count: a changed package has none
            paths = SmallArchive(one, part, RULES).paths
        start = end
        if paths and all(path.startswith(SIGNATURE) for path in paths):
            signatures += paths
        elif PKGINFO in paths and start < size:
            part.seek(0)
            return signatures, SmallArchive(one, part, RULES), start
        else:
            break
    raise FormatError(f"no Alpine package of version 2: no part with {PKGINFO} before that of its files")


def _stream_end(source: BinaryIO, start: int) -> int:
    """The offset after the gzip stream that begins there. Raises FormatError."""
    source.seek(start)
    stream, left = zlib.decompressobj(wbits=31), MAX_BYTES
    try:
        while not stream.eof:
            given = stream.unconsumed_tail or source.read(CHUNK)
            unpacked = len(stream.decompress(given, CHUNK))
            left -= unpacked
            if left < 0:
                raise FormatError(f"a part before that of its files has more than {MAX_BYTES:,} bytes")
            if not (given or unpacked):
                raise FormatError(f"its compressed data at {start:#x} is cut off")
    except zlib.error as error:
        raise FormatError(f"its compressed data at {start:#x} is damaged: {error}") from None
    return source.tell() - len(stream.unused_data)


def _check_data(part: BinaryIO, control: SmallArchive) -> None:
    """Raises FormatError where the checksum of the files' part is another than in the control part."""
    found = DATA_HASH.search(control.file(PKGINFO) or b"")
    digest = hashlib.new("sha256")
    while piece := part.read(CHUNK):
        digest.update(piece)
    part.seek(0)
    if found is not None and found[2].decode() != digest.hexdigest():
        raise FormatError(f"the checksum of its files is another than datahash in {PKGINFO}")


def _with_checksums(changed: dict[int, Content], changes: ChangedFiles) -> dict[int, Content]:
    """Changed entries, with the checksums that their headers are to have. Both are in the order of the entries."""
    new = {}
    for (number, content), (path, change) in zip(changed.items(), changes.of.items(), strict=True):
        new[number] = content._replace(header=partial(_renewed_header, path, change))
    return new


def _renewed_header(path: str, change: ChangedFile, header: bytes) -> bytes:
    old, new = (FILE_CHECKSUM + sums.digests[ALGORITHM].encode() + b"\n" for sums in change)
    if FILE_CHECKSUM in header and old not in header:
        raise FormatError(f"{path}: its checksum is another than in its header")
    return header.replace(old, new)
