"""Rewrites Debian packages (.deb, .udeb): `ar` archives of two tar archives, the package's files and dpkg's control files.

Among the control files, `md5sums` and the size in `control` follow the changed files. `data` is written to a private file first,
because `control`, which comes before it, is only known afterwards.
"""

from __future__ import annotations

import io
import posixpath
import re
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from linker.objects.archive import HEADER, Member, read_members, rewrite_archive
from sframegen.base.errors import FormatError
from sframegen.elf.file import map_descriptor
from sframegen.packages.compression import MAGIC_SIZE, detect_compression, detect_compression_at, open_compressor, open_decompressed
from sframegen.packages.package_pass import ChangedFiles, Pass, file_size, is_checksum_name, naming_entry, open_part, read_pieces
from sframegen.packages.tar_archives import BLOCK, Admission, TarEntry, pass_compressed, read_entries, set_size

if TYPE_CHECKING:
    from collections.abc import Callable

    from sframegen.packages.package_pass import ChangedFile, PassReport, Visit

MAX_CONTROL_BYTES = 64 << 20
INSTALLED_SIZE = re.compile(rb"^(Installed-Size:[ \t]*)(\d{1,15})", re.MULTILINE | re.IGNORECASE)  # in KiB
MD5SUMS_LINE = re.compile(rb"^([0-9a-f]{32})([ \t]+\*?)(.+)$", re.MULTILINE)  # checksum, space, path


class ControlArchive:
    """The control archive of a Debian package."""

    def __init__(self, package: Pass, source: BinaryIO) -> None:
        """Read the archive. Raises FormatError if it is damaged, or larger than MAX_CONTROL_BYTES."""
        self._compression = detect_compression_at(source)
        self._entries: list[tuple[TarEntry, bytes]] = []
        self._numbers: dict[str, int] = {}  # of the entries of regular files, by path
        after_entries = io.BytesIO()
        admit = Admission(package, devices=False)
        bytes_left = MAX_CONTROL_BYTES
        stream = open_decompressed(source, self._compression)
        for entry in read_entries(stream, after_entries.write):
            path = admit(entry)
            bytes_left -= entry.stored + len(entry.header)
            if bytes_left < 0:
                raise FormatError(f"{path}: more than {MAX_CONTROL_BYTES:,} bytes")
            data = b"".join(read_pieces(stream, entry.stored + entry.padding, path))[: entry.stored]
            if entry.is_whole:
                self._numbers[path] = len(self._entries)
            self._entries.append((entry, data))
        self._after_entries = after_entries.getvalue()
        if "control" not in self._numbers:
            raise FormatError("no file `control`")

    def update_checksums(self, changes: dict[str, ChangedFile], hard_links: dict[str, str]) -> None:
        """Update md5sums and Installed-Size, if present. Raises FormatError if the old checksum of a changed file is wrong."""

        def update_sum(line: re.Match[bytes]) -> bytes:
            path = _parse_path(line)
            change = changes.get(hard_links.get(path, path))
            if change is None:
                return line[0]
            if change.old.digests["md5"].encode() != line[1]:
                raise FormatError(f"{path}: its checksum differs from the one in md5sums")
            return change.new.digests["md5"].encode() + line[2] + line[3]

        # Installed-Size is the sum of file sizes, each rounded up to KiB; -(-n // 1024) rounds up.
        kilobytes = sum(-(-change.new.size // 1024) + -change.old.size // 1024 for change in changes.values())
        self._edit("md5sums", lambda text: MD5SUMS_LINE.sub(update_sum, text))
        self._edit("control", lambda text: INSTALLED_SIZE.sub(lambda m: m[1] + b"%d" % (int(m[2]) + kilobytes), text, count=1))

    def paths_of_checksums(self) -> set[str] | None:
        """Return the paths of files that may hold another file's checksum; None if the package does not list its files."""
        paths = [_parse_path(line) for line in MD5SUMS_LINE.finditer(self._read("md5sums"))]
        return {path for path in paths if is_checksum_name(path)} if paths else None

    def pack(self) -> bytes:
        out = io.BytesIO()
        with open_compressor(out, self._compression) as file:
            for entry, data in self._entries:
                file.write(entry.header)
                file.write(data)
                file.write(bytes(-len(data) % BLOCK))
            file.write(self._after_entries)
        return out.getvalue()

    def _read(self, path: str) -> bytes:
        """Return the contents of a regular file; empty if it does not exist."""
        number = self._numbers.get(path)
        return b"" if number is None else self._entries[number][1]

    def _edit(self, path: str, edit: Callable[[bytes], bytes]) -> None:
        """Replace a file's contents by `edit` of them, if the file exists."""
        number = self._numbers.get(path)
        if number is not None:
            entry, data = self._entries[number]
            new_data = edit(data)
            self._entries[number] = entry._replace(header=set_size(entry.header, len(new_data))), new_data


def _parse_path(line: re.Match[bytes]) -> str:
    """Return the path in a line of md5sums, normalised like the paths of entries."""
    return posixpath.normpath(line[3].decode("utf-8", "surrogateescape"))


SIGNATURE_PREFIX = "_gpg"  # prefix of the names of members that debsigs and dpkg-sig add


class DebMembers(NamedTuple):
    """The members that dpkg reads. It ignores members whose names begin with `_`, and members after `data`."""

    control: Member
    data: Member


def pass_deb(source: BinaryIO, visit: Visit, target: BinaryIO | None, *, force: bool) -> PassReport:
    """Pass a Debian package through `visit`, as `pass_through` in kinds.py says."""
    size = file_size(source)
    members = read_members(map_descriptor(source.fileno(), "")[0], "")
    parts = find_members(members)
    signed = ", ".join(member.name for member in members if member.name.startswith(SIGNATURE_PREFIX))
    changes = ChangedFiles(visit, ("md5",))
    with Pass("deb", size, changes, signed=signed, force=force) as package:
        with naming_entry(parts.control.name):
            control = ControlArchive(package, _open_member(source, parts.control))
        data = package.private_path("data")
        with naming_entry(parts.data.name), data.open("w+b") as file:
            out = None if target is None else file
            archive, checksums = _open_member(source, parts.data), control.paths_of_checksums()
            is_changed = pass_compressed(package, archive, out, checksums, devices=False)
            file.flush()
            if is_changed and target is not None:
                control.update_checksums(changes.by_path, package.hard_links)
                with package.measured_writing():
                    contents: dict[int, bytes | memoryview] = {
                        parts.control.at: control.pack(),
                        parts.data.at: map_descriptor(file.fileno(), "")[0],
                    }
                    target.writelines(rewrite_archive(members, contents, ""))
        if changes.by_path and signed:
            package.warnings.append(f"must be signed again: {signed}")
        return package.make_report()


def find_members(members: list[Member]) -> DebMembers:
    """Return the members that dpkg reads. Raises FormatError for packages that dpkg would reject, too."""
    if members[0].name != "debian-binary" or not bytes(members[0].contents[:4]).startswith(b"2."):
        raise FormatError("not a Debian package of format 2")
    required = [member for member in members[1:] if not member.name.startswith("_")][:2]
    if [member.name.partition(".tar")[0] for member in required] != ["control", "data"]:
        raise FormatError("no control.tar and data.tar after debian-binary, as a Debian package has them")
    for member in required:
        compression = detect_compression(bytes(member.contents[:MAGIC_SIZE]))
        if member.name.partition(".tar")[2] != (f".{compression.name}" if compression else ""):
            raise FormatError(f"{member.name}: compression differs from its name or is not supported")
    return DebMembers(*required)


def _open_member(source: BinaryIO, member: Member) -> BinaryIO:
    return open_part(source, member.at + HEADER.size, len(member.contents))
