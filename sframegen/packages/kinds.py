"""The table of package kinds: how to recognise each, and the function that passes it through; of others, why they are refused."""

from __future__ import annotations

import os
import re
from importlib import import_module
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, Protocol

from linker.objects.archive import is_debian_package
from sframegen.base.errors import FormatError, name_file_in_errors

if TYPE_CHECKING:
    from collections.abc import Callable

    from sframegen.packages.package_pass import PassReport, Visit

BEGINNING = 512  # bytes at a file's start that determine its kind
COMPRESSED = (b"\x1f\x8b", b"\xfd7zXZ\0", b"BZh", b"\x28\xb5\x2f\xfd")
ZIP, GZIP, CPIO = b"PK\3\4", b"\x1f\x8b", (b"070701", b"070702", b"070707", b"\xc7\x71")

IN_ITS_BUILD = "run add-tree in its build (docs/packaging.md)"
IMAGE, LAYOUT = f"a container image: {IN_ITS_BUILD}", "oci-layout"  # the latter: a file that marks a directory as one
RPM, SQUASHFS = f"an RPM package: {IN_ITS_BUILD}", f"a squashfs image: {IN_ITS_BUILD}"
ALPINE, CONDA = f"an Alpine package: {IN_ITS_BUILD}", f"a conda package: {IN_ITS_BUILD}"
XBPS = f"an XBPS package: {IN_ITS_BUILD}"

ANY, INITRAMFS = ".*", "an initramfs, or another cpio archive: add sections to its files, and make it again"


class Passer(Protocol):
    def __call__(self, source: BinaryIO, visit: Visit, target: BinaryIO | None, /, *, force: bool) -> PassReport: ...


class PackageKind(NamedTuple):
    """A kind of package: its name, the function that passes it through, and how a file of the kind is recognised.

    That function updates the checksums in the package, and refuses a package if it cannot.
    """

    name: str
    passer: str  # module and name, imported only for packages of this kind
    endings: str  # a regular expression for lower-case names: of remote files, nothing else is known
    has: Callable[[str, bytes, bool], bool]  # takes name, beginning, and whether the ending fits; True for a file of the kind

    def is_named(self, name: str) -> bool:
        return re.search(rf"\.(?:{self.endings})\Z", name.lower()) is not None


def _is_tar(name: str, beginning: bytes, is_named: bool) -> bool:
    """Return True for a tar archive, by its magic; by its name if it is compressed, or too old to have one."""
    is_old = name.lower().endswith(".tar")
    return beginning[257:262] == b"ustar" or is_old or (is_named and beginning.startswith(COMPRESSED))


KINDS = (
    PackageKind("wheel", "wheels.pass_wheel", "whl", lambda _, data, named: named and data.startswith(ZIP)),
    PackageKind("deb", "debs.pass_deb", "deb", lambda _, data, __: is_debian_package(data)),
    PackageKind("tar", "tar_archives.pass_archive", r"tar(?:\.(?:gz|xz|bz2|zst))?|t(?:gz|xz|bz2|zst)", _is_tar),
)


class Unhandled(NamedTuple):
    named: str  # a regular expression for the whole name in lower case
    begins: tuple[bytes, ...]  # how files of the kind begin; empty: the name says enough
    why: str


UNHANDLED = (
    Unhandled(r".*\.dsc", (), "a source package: it has no programs; build it, and give the .deb"),
    Unhandled(r".*\.rpm", (), RPM),
    Unhandled(ANY, (b"\xed\xab\xee\xdb",), RPM),
    Unhandled(r".*\.(?:squashfs|sqfs|snap)", (b"hsqs",), SQUASHFS),
    Unhandled(ANY, (b"hsqs",), SQUASHFS),
    Unhandled(r".*\.conda", (ZIP,), CONDA),
    Unhandled(r".*\.apk", (GZIP,), ALPINE),
    Unhandled(ANY, (b"ADB.", b"ADBd", b"ADBc"), ALPINE),
    Unhandled(
        r".*\.(?:changes|buildinfo)",
        (b"Format:", b"-----BEGIN PGP"),
        "a list of packages and their hashes: give the packages, then make it again, and sign it",
    ),
    Unhandled(
        r".*\.gem", (), "a Ruby gem: its files are in data.tar.gz, with checksums; unpack that, add sections, and build it again"
    ),
    Unhandled(
        r".*\.[io]pk", (GZIP,), "an opkg package: its files are in data.tar.gz; unpack that, add sections, and build it again"
    ),
    Unhandled(r".*\.(?:jar|war|ear|aar)", (ZIP,), "a Java archive: add sections to its libraries before it is packed, and signed"),
    Unhandled(r".*\.egg", (ZIP,), "a Python egg: unpack it, or make a wheel of it with `wheel convert`"),
    Unhandled(r".*\.apk", (ZIP,), "an Android package: add sections to its libraries before it is packed, and signed"),
    Unhandled(r".*\.xbps", COMPRESSED, XBPS),
    Unhandled(rf"(?!.*\.(?:tar|apk|t[gx]z)\b)(?:.*/)?init(?:rd|ramfs)[^/]*|{ANY}\.cpio\.[a-z0-9]+", COMPRESSED, INITRAMFS),
    Unhandled(ANY, CPIO, INITRAMFS),
)


def why_unhandled(name: str, beginning: bytes | None = None) -> str:
    """Return why a package-like file is not handled; "" if it is not package-like. `beginning` None: not known."""
    if beginning is not None and beginning.startswith(b"\x7fELF"):
        return ""
    for kind in UNHANDLED:
        begins = kind.named != ANY if beginning is None else not kind.begins or beginning.startswith(kind.begins)
        if begins and re.fullmatch(kind.named, name.lower(), re.DOTALL):
            return kind.why
    return ""


def kind_of(path: str | os.PathLike[str], beginning: bytes) -> PackageKind | None:
    """Return the package kind of a file, None if it is not a package. `beginning`: its first BEGINNING bytes, or all.

    Raises FormatError for package-like files that are not handled.
    """
    name = os.fspath(path)
    if why := why_unhandled(name, beginning):
        raise FormatError(why, file=name)
    return next((kind for kind in KINDS if kind.has(name, beginning, kind.is_named(name))), None)


def pass_through(source: BinaryIO, name: str, visit: Visit, target: BinaryIO | None, *, force: bool) -> PassReport:
    """Pass a package through `visit`, which is called for each linked ELF file in it, and write the new one to `target`.

    `source`: a regular file, which can seek. `target` None: only read. A package in which nothing has changed (its `changed` is
    0) need not have been written as a whole: the caller copies it. Raises FormatError for a package that is damaged, or that
    could lead out of itself; RefusedError for one that is signed, if anything changes and `force` is not given; OSError; and what
    `visit` raises. `target` then has a part.
    """
    with name_file_in_errors(name):
        source.seek(0)
        kind = kind_of(name, source.read(BEGINNING))
        if kind is None:
            raise FormatError(f"not a package (known kinds: {', '.join(one.name for one in KINDS)})")
        source.seek(0)
        module, _, function = kind.passer.partition(".")
        passer: Passer = getattr(import_module(f"sframegen.packages.{module}"), function)
        return passer(source, visit, target, force=force)
