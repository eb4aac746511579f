"""Debian packages (.deb, .udeb): an `ar` archive of two tar archives, one of the files and one of what dpkg knows of them."""

from __future__ import annotations

import io
import tarfile
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from cfi.errors import FormatError
from linker.objects.archive import HEADER, members, rewritten
from sframegen.elf.opening import map_descriptor
from sframegen.packages.compression import MAGIC_SIZE, compression_at, compression_of, decompressed
from sframegen.packages.deb_control import MAX_BYTES, Control
from sframegen.packages.file_sums import ChangedFiles
from sframegen.packages.passing import Pass, file_size, in_entry, part_of
from sframegen.packages.tar_entries import pass_compressed

if TYPE_CHECKING:
    from linker.objects.archive import Member
    from sframegen.packages.passing import Passed, Visit

SIGNATURE = "_gpg"  # names of the members that debsigs and dpkg-sig add begin so


class Parts(NamedTuple):
    """The members that dpkg reads. Others, whose names begin with `_` or follow the data, it does not."""

    control: Member
    data: Member


def pass_deb(source: BinaryIO, visit: Visit, target: BinaryIO | None, *, force: bool) -> Passed:
    """A Debian package. `pass_through` in kinds.py has the contract."""
    size = file_size(source)
    found = members(map_descriptor(source.fileno(), "")[0], "")
    parts = deb_members(found)
    signed = ", ".join(member.name for member in found if member.name.startswith(SIGNATURE))
    changes = ChangedFiles(visit, ("md5",))
    with Pass("deb", size, changes, signed=signed, force=force) as one:
        with in_entry(parts.control.name):
            control = Control(one, _part(source, parts.control))
        data = one.free_file("data")
        with in_entry(parts.data.name), data.open("w+b") as file:
            is_changed = pass_compressed(
                one, _part(source, parts.data), None if target is None else file, control.checksums(), devices=False
            )
            file.flush()
            if is_changed and target is not None:
                control.change(changes.of, one.hard_links)
                with one.writing():
                    contents: dict[int, bytes | memoryview] = {
                        parts.control.at: control.packed(),
                        parts.data.at: map_descriptor(file.fileno(), "")[0],
                    }
                    target.writelines(rewritten(found, contents, ""))
        if changes.of and signed:
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


def _part(source: BinaryIO, member: Member) -> BinaryIO:
    return part_of(source, member.at + HEADER.size, len(member.contents))


def control_of(file: BinaryIO) -> bytes:
    """The file `control` in a Debian package. Raises FormatError, tarfile.TarError."""
    packed = io.BytesIO(deb_members(members(map_descriptor(file.fileno(), "")[0], "")).control.contents)
    data = decompressed(packed, compression_at(packed)).read(MAX_BYTES)
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for entry in archive:
            if entry.name in ("control", "./control") and (content := archive.extractfile(entry)):
                return content.read()
    raise FormatError("no control file")
