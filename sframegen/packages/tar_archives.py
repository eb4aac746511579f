"""Tar archives, compressed or not. The names in one say what it is: an image, a package of another kind, or files alone.

The names may stand in any order, so all of them are read before anything is passed on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from cfi.errors import FormatError
from sframegen.packages import arch_packages, conda_packages
from sframegen.packages.arch_packages import MTREE, PKGINFO
from sframegen.packages.compression import compression_at, decompressed
from sframegen.packages.conda_packages import PATHS
from sframegen.packages.file_sums import ChangedFiles
from sframegen.packages.images.docker_manifest import BLOBS, IDENTIFIER, MANIFEST
from sframegen.packages.images.documents import MAX_DOCUMENT
from sframegen.packages.images.image_archive import RULES, pass_image
from sframegen.packages.images.oci_index import INDEX
from sframegen.packages.kinds import LAYOUT
from sframegen.packages.passing import Pass, file_size, is_checksum, pieces, replaced, skip
from sframegen.packages.tar_entries import BLOCK, Admission, Rules, entries, pass_compressed

if TYPE_CHECKING:
    from collections.abc import Callable

    from sframegen.packages.passing import Content, Passed, Visit

    # Called with the files that have checksums, the changed files, and the file of each hard link; returns the former renewed.
    Renew = Callable[[dict[str, bytes], ChangedFiles, dict[str, str]], dict[str, bytes]]


class Summed(NamedTuple):
    """A kind of package whose files have checksums in others of its files. Without `renew`, such a package is only read."""

    mark: str  # the path of one that all such packages have
    what: str
    kind: str = "tar"
    lists: tuple[str, ...] = ()  # paths of the files that `renew` reads
    algorithms: tuple[str, ...] = ()
    renew: Renew | None = None


SUMMED = (
    Summed(
        MTREE, "an Arch Linux package", "arch", (PKGINFO, MTREE), arch_packages.ALGORITHMS, arch_packages.renewed_mtree_and_size
    ),
    Summed(PATHS, "a conda package", "conda", (PATHS,), conda_packages.ALGORITHMS, conda_packages.renewed_list_of_paths),
    Summed(PKGINFO, "an Alpine package not named *.apk, or an old Arch Linux package"),
    Summed("+MANIFEST", "a FreeBSD package"),
    Summed("files.plist", "an XBPS package"),
)
LISTS = {path for summed in SUMMED for path in summed.lists}
MAX_LIST_BYTES = 64 << 20
# Files that mark a package with its programs in an inner archive: its kind, and that archive.
WITHIN = {
    ("debian-binary", "control.tar.gz", "data.tar.gz"): ("an opkg package", "data.tar.gz"),
    ("metadata.gz", "data.tar.gz"): ("a Ruby gem", "data.tar.gz"),
}
MARKS = {MANIFEST, LAYOUT, INDEX, *(summed.mark for summed in SUMMED), *(path for paths in WITHIN for path in paths)}


class Contents(NamedTuple):
    """What is known of an archive from the names in it."""

    marks: set[str]
    checksums: set[str]  # paths of files that can have the checksum of another one
    is_image: bool
    lists: dict[str, tuple[int, bytes]]  # files that have checksums of others: the number of the entry, and the contents

    @property
    def within(self) -> str:
        """Why its programs are not read; "" if they are."""
        found = next((what for paths, what in WITHIN.items() if self.marks.issuperset(paths)), None)
        return "" if found is None else f"{found[0]}: its files are in {found[1]}, which is not read; unpack that"

    @property
    def summed(self) -> Summed | None:
        """The kind of package with checksums that it is."""
        return next((summed for summed in SUMMED if summed.mark in self.marks), None)


def pass_archive(source: BinaryIO, visit: Visit, target: BinaryIO | None, *, force: bool) -> Passed:
    """A tar archive. `pass_through` in kinds.py has the contract."""
    contents = contents_of(source)
    source.seek(0)
    if contents.is_image:
        return pass_image(source, visit, target, force=force)
    if contents.within:
        raise FormatError(contents.within)
    summed = contents.summed or Summed("", "", renew=lambda *_: {})
    why = "" if summed.renew else f"{summed.what}: {summed.mark} has checksums of its files; add the sections where it is built"
    changes = ChangedFiles(visit, summed.algorithms)
    with Pass(summed.kind, file_size(source), changes, force=force, only_read=why) as one:

        def renewed(changed: dict[int, Content]) -> dict[int, Content]:
            assert summed.renew is not None  # the pass has refused the others
            documents = {path: data for path, (_, data) in contents.lists.items()}
            return changed | {
                contents.lists[path][0]: replaced(one.free_file(f"list-{number}"), data)
                for number, (path, data) in enumerate(summed.renew(documents, changes, one.hard_links).items())
            }

        pass_compressed(one, source, target, Rules(), contents.checksums, renewed)
        if why and one.elf_files:
            one.warnings.append(f"only read: {why}")
        return one.passed()


def contents_of(source: BinaryIO) -> Contents:
    """Read the names of an archive, within the limits of a pass. Raises FormatError."""
    marks, checksums = set[str](), set[str]()
    has_names, document = False, b""  # of an image; its manifest.json
    lists: dict[str, tuple[int, bytes]] = {}
    with Pass("tar", file_size(source), lambda *_: False) as one:
        compression = compression_at(source)
        stream, admit = decompressed(source, compression), Admission(one, RULES)
        for number, entry in enumerate(entries(stream)):
            path = admit(entry)
            left = entry.stored + -entry.stored % BLOCK
            if path in MARKS and (path not in LISTS or entry.is_whole):
                marks.add(path)
            if is_checksum(path):
                checksums.add(path)
            has_names = has_names or is_of_image(path)
            if path == MANIFEST and entry.is_whole and entry.stored <= MAX_DOCUMENT:
                document = b"".join(pieces(stream, entry.stored, path))
                left -= entry.stored
            if path in LISTS and entry.is_whole:
                if entry.stored > MAX_LIST_BYTES:
                    raise FormatError(f"{path}: {entry.stored:,} bytes are too many")
                lists[path] = number, b"".join(pieces(stream, entry.stored, path))
                left -= entry.stored
            if compression is None:
                stream.seek(left, 1)  # passing reads it
            else:
                skip(stream, left, path)
    is_image = {LAYOUT, INDEX} <= marks or (MANIFEST in marks and (has_names or is_list_of_images(document)))
    return Contents(marks, checksums, is_image, lists)


def is_of_image(path: str) -> bool:
    """True for a name that what `docker save` writes has beside manifest.json."""
    return path.startswith(BLOBS) or IDENTIFIER.fullmatch(path.partition("/")[0].partition(".")[0]) is not None


def is_list_of_images(document: bytes) -> bool:
    """True for what can be the manifest.json of images; many other tools have a file of that name."""
    return document.lstrip()[:1] == b"[" and b'"Config"' in document and b'"Layers"' in document
