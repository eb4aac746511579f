"""Rewrites wheels, which are zip archives whose RECORD has a hash of each file.

The library `wheel` is not used, because its WheelFile reads each file into memory, and writes its own dates, order and RECORD.
zipfile reads the archive, and unchanged entries are copied with their headers without unpacking them.
"""

from __future__ import annotations

import re
from typing import IO, TYPE_CHECKING, BinaryIO, NamedTuple
from zipfile import ZipFile

from sframegen.base.errors import FormatError
from sframegen.elf.records import EHDR_SIZE
from sframegen.packages.package_pass import CHUNK, ChangedFiles, Pass, file_size, naming_entry, read_pieces
from sframegen.packages.wheel_record import ALGORITHMS, MAX_RECORD_BYTES, WheelRecord, is_record, is_signature
from sframegen.packages.zip_entries import ZipEntry, check_entries, naming_damage, write_zip

if TYPE_CHECKING:
    from sframegen.packages.package_pass import Content, PassReport, Visit

SBOM = re.compile(r"[^/]+\.dist-info/sboms/.+")  # PEP 770
SBOM_ALGORITHMS = ("md5", "sha1", *ALGORITHMS)


class _DamageNamingFile(NamedTuple):
    """A readable file in the archive. Its `read` raises FormatError, which names the file, if the archive is damaged."""

    file: IO[bytes]
    path: str

    def read(self, size: int, /) -> bytes:
        with naming_damage(f"{self.path}: "):
            return self.file.read(size)


def pass_wheel(source: BinaryIO, visit: Visit, target: BinaryIO | None, *, force: bool) -> PassReport:
    """Pass a wheel through `visit`, as `pass_through` in kinds.py says."""
    size = file_size(source)
    with naming_damage(), ZipFile(source) as archive:
        infos = archive.infolist()
        signed = ", ".join(info.filename for info in infos if is_signature(info.filename))
        has_sbom = any(SBOM.fullmatch(info.filename) for info in infos)
        changes = ChangedFiles(visit, SBOM_ALGORITHMS if has_sbom else ALGORITHMS)
        with Pass("wheel", size, changes, signed=signed, force=force) as package:
            entries = check_entries(package, archive, infos)
            record = _read_record(archive, entries)
            package.checksums = {entry.path for entry in entries}
            contents = {}
            for entry in entries:
                if not entry.info.is_dir():
                    content = _visit_entry(package, archive, entry, record)
                    if content is not None:
                        contents[entry.path] = content
            package.warnings += [f"RECORD lists {path}, which is not there" for path in record.list_unread()]
            if contents and signed:
                package.warnings.append(f"must be signed again: {signed}")
            if contents and target is not None:
                _warn_of_old_sboms(package, archive, entries, changes)
                for path, change in changes.by_path.items():
                    record.update_row(path, change)
                contents[record.path] = package.make_content(record.to_bytes())
                with package.measured_writing():
                    write_zip(archive, entries, contents, target)
            return package.make_report()


def _warn_of_old_sboms(package: Pass, archive: ZipFile, entries: list[ZipEntry], changes: ChangedFiles) -> None:
    """Warn of software bills of materials with old checksums. They are not changed, as they are statements of their authors."""
    old_digests = {path: {digest.encode() for digest in change.old.digests.values()} for path, change in changes.by_path.items()}
    for entry in entries:
        if not entry.info.is_dir() and SBOM.fullmatch(entry.path):
            words = set(re.findall(rb"[0-9a-f]{32,128}", _read_contents(archive, entry).lower()))  # digits of MD5 to SHA512
            if paths := [path for path, digests in old_digests.items() if words & digests]:
                package.warnings.append(f"{entry.path}: has the old checksums of {', '.join(sorted(paths))}: must be made again")


def _read_record(archive: ZipFile, entries: list[ZipEntry]) -> WheelRecord:
    records = [entry for entry in entries if is_record(entry.path)]
    if len(records) != 1:
        raise FormatError(f"{len(records)} files *.dist-info/RECORD; a wheel has one")
    with naming_entry(records[0].path):
        return WheelRecord(records[0].path, _read_contents(archive, records[0]))


def _read_contents(archive: ZipFile, entry: ZipEntry) -> bytes:
    """Return the contents of a file small enough for memory. Raises FormatError for larger ones."""
    info = entry.info
    if info.file_size > MAX_RECORD_BYTES:
        raise FormatError(f"{info.filename}: {info.file_size:,} bytes are too many")
    with naming_damage(f"{info.filename}: "), naming_entry(info.filename), archive.open(info) as file:
        return b"".join(read_pieces(file, info.file_size, info.filename))


def _visit_entry(package: Pass, archive: ZipFile, entry: ZipEntry, record: WheelRecord) -> Content | None:
    """Visit an entry, whose hash must match RECORD. Return its new contents, or None if it has not changed."""
    with naming_damage(f"{entry.path}: "):
        file = archive.open(entry.info)
    with file:
        hashed = record.hash_reads(entry.path, _DamageNamingFile(file, entry.path))
        beginning = b"".join(read_pieces(hashed, min(EHDR_SIZE, entry.info.file_size), entry.path))
        content = package.visit(entry.path, beginning, hashed, entry.info.file_size)
        while hashed.read(CHUNK):
            pass
    hashed.check(entry.info.file_size)
    return content if content is not None and content.is_changed else None
