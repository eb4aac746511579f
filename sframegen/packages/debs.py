"""Debian packages (.deb, .udeb): an `ar` archive of two tar archives, one of the files and one of what dpkg knows of them."""

from __future__ import annotations

import hashlib
import io
import posixpath
import re
import tarfile
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from cfi.errors import FormatError
from linker.objects.archive import HEADER, members, rewritten
from sframegen.elf.opening import map_descriptor
from sframegen.packages.compression import MAGIC_SIZE, Compression, compressed, compression_of, decompressed
from sframegen.packages.passing import Pass, file_size, in_entry, is_checksum, part_of, pieces
from sframegen.packages.tar_entries import BLOCK, Admission, Rules, TarEntry, entries, pass_compressed, with_size

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from linker.objects.archive import Member
    from sframegen.packages.passing import Passed, Visit

RULES = Rules(devices=False)
MAX_CONTROL_BYTES = 64 << 20
INSTALLED_SIZE = re.compile(rb"^(Installed-Size:[ \t]*)(\d{1,15})", re.MULTILINE | re.IGNORECASE)
MD5SUMS_LINE = re.compile(rb"^([0-9a-f]{32})([ \t]+\*?)(.+)$", re.MULTILINE)
SIGNATURE = "_gpg"  # names of the members that debsigs and dpkg-sig add begin so


class Parts(NamedTuple):
    """The members that dpkg reads. Others, whose names begin with `_` or follow the data, it does not."""

    control: Member
    data: Member


class ChangedFile(NamedTuple):
    """One changed file. `kilobytes`: what it adds to Installed-Size, which counts each file rounded up to KiB."""

    old_md5: str
    new_md5: str
    kilobytes: int


def pass_deb(source: BinaryIO, visit: Visit, target: BinaryIO | None, *, force: bool) -> Passed:
    """A Debian package. `pass_through` in kinds.py has the contract."""
    size = file_size(source)
    found = members(map_descriptor(source.fileno(), "")[0], "")
    parts = deb_members(found)
    signed = ", ".join(member.name for member in found if member.name.startswith(SIGNATURE))
    changes: dict[str, ChangedFile] = {}

    def noted(path: str, given: Path, changed: Path) -> bool:
        is_changed = visit(path, given, changed)
        if is_changed:
            kilobytes = -(-changed.stat().st_size // 1024) + -given.stat().st_size // 1024
            changes[path] = ChangedFile(_md5(given), _md5(changed), kilobytes)
        return is_changed

    with Pass("deb", size, noted, signed=signed, force=force) as one:
        with in_entry(parts.control.name):
            control = Control(one, _part(source, parts.control), compression_of(bytes(parts.control.contents[:MAGIC_SIZE])))
        data = one.free_file("data")
        with in_entry(parts.data.name), data.open("w+b") as file:
            is_changed = pass_compressed(
                one, _part(source, parts.data), None if target is None else file, RULES, control.checksums()
            )
            file.flush()
            if is_changed and target is not None:
                control.change(changes, one.hard_links)
                with one.writing():
                    contents: dict[int, bytes | memoryview] = {
                        parts.control.at: control.packed(),
                        parts.data.at: map_descriptor(file.fileno(), "")[0],
                    }
                    target.writelines(rewritten(found, contents, ""))
        if changes and signed:
            one.warnings.append(f"to be signed again: {signed}")
        return one.passed()


def deb_members(found: list[Member]) -> Parts:
    """Raises FormatError for what dpkg would not take either."""
    if found[0].name != "debian-binary" or not bytes(found[0].contents[:4]).startswith(b"2."):
        raise FormatError("not a Debian package of format 2")
    read = [member for member in found[1:] if not member.name.startswith("_")][:2]
    if [member.name.partition(".tar")[0] for member in read] != ["control", "data"]:
        raise FormatError("no control.tar and data.tar after debian-binary, as a Debian package has them")
    for member in read:
        compression = compression_of(bytes(member.contents[:MAGIC_SIZE]))
        if member.name.partition(".tar")[2] != (f".{compression.name}" if compression else ""):
            raise FormatError(f"{member.name}: not compressed as its name says, or in a way that is not read")
    return Parts(*read)


class Control:
    """The control archive, which is small: in memory, with its entries as they were."""

    def __init__(self, one: Pass, source: BinaryIO, compression: Compression | None) -> None:
        self._compression = compression
        self._entries: list[tuple[TarEntry, bytes]] = []
        self._at: dict[str, int] = {}
        tail = io.BytesIO()
        admit = Admission(one, RULES)
        left = MAX_CONTROL_BYTES
        stream = decompressed(source, compression)
        for entry in entries(stream, tail.write):
            path = admit(entry)
            left -= entry.stored + len(entry.header)
            if left < 0:
                raise FormatError(f"{path}: more than {MAX_CONTROL_BYTES:,} bytes")
            data = b"".join(pieces(stream, entry.stored + -entry.stored % BLOCK, path))[: entry.stored]
            if entry.is_whole:
                self._at[path] = len(self._entries)
            self._entries.append((entry, data))
        self._tail = tail.getvalue()
        if "control" not in self._at:
            raise FormatError("no file `control`")

    def change(self, changes: dict[str, ChangedFile], hard_links: dict[str, str]) -> None:
        """Correct md5sums and Installed-Size, where they are there. Raises FormatError where the sum of a file was wrong before."""

        def summed(line: re.Match[bytes]) -> bytes:
            path = _path(line)
            change = changes.get(hard_links.get(path, path))
            if change is None:
                return line[0]
            if change.old_md5.encode() != line[1]:
                raise FormatError(f"{path}: its sum is another than in md5sums")
            return change.new_md5.encode() + line[2] + line[3]

        kilobytes = sum(change.kilobytes for change in changes.values())
        self._edit("md5sums", lambda text: MD5SUMS_LINE.sub(summed, text))
        self._edit("control", lambda text: INSTALLED_SIZE.sub(lambda m: m[1] + b"%d" % (int(m[2]) + kilobytes), text, count=1))

    def checksums(self) -> set[str] | None:
        """Return the paths of files that can have the checksum of another one; None if the package does not list its files."""
        at = self._at.get("md5sums")
        paths = [] if at is None else [_path(line) for line in MD5SUMS_LINE.finditer(self._entries[at][1])]
        return {path for path in paths if is_checksum(path)} if paths else None

    def _edit(self, path: str, edit: Callable[[bytes], bytes]) -> None:
        at = self._at.get(path)
        if at is not None:
            entry, data = self._entries[at]
            new = edit(data)
            self._entries[at] = entry._replace(header=with_size(entry.header, len(new))), new

    def packed(self) -> bytes:
        out = io.BytesIO()
        with compressed(out, self._compression) as file:
            for entry, data in self._entries:
                file.write(entry.header)
                file.write(data)
                file.write(bytes(-len(data) % BLOCK))
            file.write(self._tail)
        return out.getvalue()


def _path(line: re.Match[bytes]) -> str:
    """The path in a line of md5sums, as entries have it."""
    return posixpath.normpath(line[3].decode("utf-8", "surrogateescape"))


def _part(source: BinaryIO, member: Member) -> BinaryIO:
    return part_of(source, member.at + HEADER.size, len(member.contents))


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def control_of(file: BinaryIO) -> bytes:
    """The file `control` in a Debian package. Raises FormatError, tarfile.TarError."""
    packed = bytes(deb_members(members(map_descriptor(file.fileno(), "")[0], "")).control.contents)
    data = decompressed(io.BytesIO(packed), compression_of(packed[:MAGIC_SIZE])).read(MAX_CONTROL_BYTES)
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for entry in archive:
            if entry.name in ("control", "./control") and (content := archive.extractfile(entry)):
                return content.read()
    raise FormatError("no control file")
