"""What Arch Linux packages know of their files: .PKGINFO has the size of all, .MTREE the size and checksums of each."""

from __future__ import annotations

import io
import posixpath
import re
from typing import TYPE_CHECKING

from cfi.errors import FormatError
from sframegen.packages.compression import MAGIC_SIZE, compressed, compression_of, decompressed

if TYPE_CHECKING:
    from sframegen.packages.file_sums import ChangedFile, ChangedFiles

PKGINFO, MTREE = ".PKGINFO", ".MTREE"
ALGORITHMS = ("md5", "sha1", "sha256", "sha384", "sha512")
MAX_MTREE_BYTES = 256 << 20
INSTALLED_SIZE = re.compile(rb"^(size[ \t]*=[ \t]*)(\d{1,18})[ \t]*$", re.MULTILINE)  # also of Alpine Linux
ESCAPED = re.compile(rb"\\([0-3][0-7]{2})")
WORD = re.compile(rb"(?<=[ \t])([A-Za-z0-9]+)=([^ \t\r\n]*)")
# Keywords of checksums; mtree(5) has two names for most.
CHECKSUMS = {keyword: one for one in ALGORITHMS for keyword in (one, f"{one}digest")}
NOT_RENEWED = ("cksum", "rmd160", "rmd160digest", "ripemd160digest")


def renewed_mtree_and_size(documents: dict[str, bytes], changes: ChangedFiles, links: dict[str, str]) -> dict[str, bytes]:
    """The lists for the changed files. `links`: the file of each hard link. Raises FormatError where they were wrong before."""
    new = {}
    if PKGINFO in documents:
        new[PKGINFO] = with_installed_size(documents[PKGINFO], changes.growth)
        changes.edited(PKGINFO, documents[PKGINFO], new[PKGINFO])
    new[MTREE] = _renewed_mtree(documents[MTREE], changes.of, links)
    return new


def with_installed_size(pkginfo: bytes, growth: int) -> bytes:
    return INSTALLED_SIZE.sub(lambda found: found[1] + b"%d" % max(int(found[2]) + growth, 0), pkginfo, count=1)


def _renewed_mtree(data: bytes, changes: dict[str, ChangedFile], links: dict[str, str]) -> bytes:
    compression = compression_of(data[:MAGIC_SIZE])
    text = decompressed(io.BytesIO(data), compression).read(MAX_MTREE_BYTES + 1)
    if len(text) > MAX_MTREE_BYTES:
        raise FormatError(f"{MTREE}: more than {MAX_MTREE_BYTES:,} bytes")
    listed = set()
    lines = []
    for line in text.splitlines(keepends=True):
        name = line.split(maxsplit=1)[0] if line.strip() else b""
        if line.rstrip(b"\r\n").endswith(b"\\"):
            raise FormatError(f"{MTREE}: a line that continues on the next one, which is not read")
        path = "" if name[:1] in (b"", b"#", b"/") else _path(name)
        change = changes.get(links.get(path, path))
        listed.add(path)
        lines.append(line if change is None else _renewed_line(line, path, change))
    if missing := next((path for path in changes if path not in listed), None):
        raise FormatError(f"{missing}: not listed in {MTREE}")
    out = io.BytesIO()
    with compressed(out, compression) as file:
        file.write(b"".join(lines))
    return out.getvalue()


def _path(name: bytes) -> str:
    plain = ESCAPED.sub(lambda found: bytes((int(found[1], 8),)), name)
    return posixpath.normpath(plain.decode("utf-8", "surrogateescape"))


def _renewed_line(line: bytes, path: str, change: ChangedFile) -> bytes:
    def renewed(found: re.Match[bytes]) -> bytes:
        keyword, value = found[1].decode(), found[2].decode("ascii", "replace")
        if keyword in NOT_RENEWED:
            raise FormatError(f"{path}: {keyword} in {MTREE}, which is not renewed")
        if keyword == "size":
            old, new = str(change.old.size), str(change.new.size)
        elif keyword in CHECKSUMS:
            old, new = (sums.digests[CHECKSUMS[keyword]] for sums in change)
        else:
            return found[0]
        if value.lower() != old:
            raise FormatError(f"{path}: its {keyword} is another than in {MTREE}")
        return found[1] + b"=" + new.encode()

    return WORD.sub(renewed, line)
