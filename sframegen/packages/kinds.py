"""The kinds of packages, a row each: how to recognise one, and the function that passes it through."""

from __future__ import annotations

import os
import re
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from cfi.errors import FormatError, naming

if TYPE_CHECKING:
    from collections.abc import Callable

    from sframegen.packages.passing import Passed, Visit

BEGINNING = 512  # bytes of a file that tell its kind
LAYOUT = "oci-layout"  # the file that every OCI layout has
COMPRESSED = (b"\x1f\x8b", b"\xfd7zXZ\0", b"BZh", b"\x28\xb5\x2f\xfd")
# What people take for packages, and what to do instead.
OTHERS = {
    ".dsc": "a source package: it has no programs; build it, and give the .deb",
    ".changes": "a list of an upload's checksums, signed as a whole: rewrite the packages, and make a new one (dpkg-genchanges)",
    ".buildinfo": "the record of a build, whose packages it names by checksum: rewritten packages are not what that build made",
    ".src.rpm": "a source package: it has no programs; build it, and give the .rpm",
}


class PackageKind(NamedTuple):
    """A kind of package: what it is called, what passes it through, its names, and how a file is recognised.

    What passes it through is imported when it is needed: most runs need none. It renews the checksums in the package, and refuses
    to write what it cannot.
    """

    name: str
    passer: str  # its module in this package, and the function
    endings: str  # a regular expression for names in lower case: all that is known of what is far away
    has: Callable[[str, bytes, bool], bool]  # True for a file of this name and beginning, which has such an ending or not

    def is_named(self, name: str) -> bool:
        return re.search(rf"\.(?:{self.endings})\Z", name.lower()) is not None


def _is_tar(name: str, beginning: bytes, is_named: bool) -> bool:
    """By its mark; by its name if it is compressed, or older than marks."""
    is_old = name.lower().endswith(".tar")
    return beginning[257:262] == b"ustar" or is_old or (is_named and beginning.startswith(COMPRESSED))


KINDS = (
    PackageKind("wheel", "wheels.pass_wheel", "whl", lambda _, data, named: named and data.startswith(b"PK\3\4")),
    PackageKind("deb", "debs.pass_deb", "deb", lambda _, data, __: data.startswith(b"!<arch>\ndebian-binary")),
    PackageKind("rpm", "rpms.pass_rpm", "rpm", lambda _, data, __: data.startswith(b"\xed\xab\xee\xdb")),
    PackageKind("squashfs", "squashfs.pass_squashfs", "squashfs|sqfs|snap", lambda _, data, __: data.startswith(b"hsqs")),
    PackageKind("tar", "tar_archives.pass_archive", r"tar(?:\.(?:gz|xz|bz2|zst))?|t(?:gz|xz|bz2|zst)", _is_tar),  # also images
)


def kind_of(path: str | os.PathLike[str], beginning: bytes) -> PackageKind | None:
    """The kind of a file that begins so, BEGINNING bytes of it if it has as many; None: it is not a package.

    Raises FormatError for what is near to a package and cannot be one.
    """
    name = os.fspath(path)
    for end, what in OTHERS.items():
        if name.endswith(end) and not beginning.startswith(b"\x7fELF"):
            raise FormatError(what, file=name)
    return next((kind for kind in KINDS if kind.has(name, beginning, kind.is_named(name))), None)


def is_layout(path: str | os.PathLike[str]) -> bool:
    """True if the path is that of a directory with an OCI layout: images/layout_directory.py passes it through."""
    return Path(path, LAYOUT).is_file()


def pass_through(source: BinaryIO, name: str, visit: Visit, target: BinaryIO | None, *, force: bool) -> Passed:
    """Pass a package through `visit`, which is called for each linked ELF file in it, and write the new one to `target`.

    `source`: a regular file, which can seek. `target` None: only read. A package in which nothing has changed (`Passed.changed` is
    0) need not have been written as a whole: the caller copies it. Raises FormatError for a package that is damaged, or that
    could lead out of itself; RefusedError for one that is signed, if anything changes and `force` is not given; OSError; and what
    `visit` raises. `target` then has a part.
    """
    with naming(name):
        source.seek(0)
        kind = kind_of(name, source.read(BEGINNING))
        if kind is None:
            raise FormatError(f"no package: known are {', '.join(one.name for one in KINDS)}")
        source.seek(0)
        module, function = kind.passer.split(".")
        passed: Passed = getattr(import_module(f"sframegen.packages.{module}"), function)(source, visit, target, force=force)
        return passed
