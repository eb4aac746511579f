"""Recognises kinds of packages and finds the function for each, or tells why a kind is not handled."""

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

BEGINNING_BYTES = 512  # bytes at a file's start that determine its kind
# Magic numbers: the first bytes of a file of the format.
COMPRESSED = (b"\x1f\x8b", b"\xfd7zXZ\0", b"BZh", b"\x28\xb5\x2f\xfd")  # gzip, xz, bzip2, Zstandard
ZIP, GZIP, CPIO = b"PK\3\4", b"\x1f\x8b", (b"070701", b"070702", b"070707", b"\xc7\x71")

OCI_LAYOUT = "oci-layout"  # a file that marks a directory as a container image
USE_ADD_TREE = "run add-tree in its build (docs/packaging.md)"
# Reasons to report for kinds that are not handled.
IMAGE = f"a container image: {USE_ADD_TREE}"
RPM, SQUASHFS = f"an RPM package: {USE_ADD_TREE}", f"a squashfs image: {USE_ADD_TREE}"
ALPINE, CONDA = f"an Alpine package: {USE_ADD_TREE}", f"a conda package: {USE_ADD_TREE}"
XBPS = f"an XBPS package: {USE_ADD_TREE}"
INITRAMFS = "an initramfs, or another cpio archive: add sections to its files, and make it again"
ANY_NAME = ".*"


class PassFunction(Protocol):
    def __call__(self, source: BinaryIO, visit: Visit, target: BinaryIO | None, /, *, force: bool) -> PassReport: ...


class PackageKind(NamedTuple):
    """A kind of package: its name, the function that processes it, and how a file of the kind is recognised.

    The function updates the checksums in the package, and refuses a package if it cannot.
    """

    name: str
    function: str  # "module.function", imported only for packages of this kind
    endings: str  # a regular expression for lower-case names, because of a remote file only the name is known
    matches: Callable[[str, bytes, bool], bool]  # (name, beginning, whether the ending fits) -> True for a file of the kind

    def is_named(self, name: str) -> bool:
        return re.search(rf"\.(?:{self.endings})\Z", name.lower()) is not None


def _is_tar(name: str, beginning: bytes, is_named: bool) -> bool:
    """Return True for a tar archive: by its magic, or by its name if it is compressed or too old to have a magic."""
    is_old = name.lower().endswith(".tar")
    has_magic = beginning[257:262] == b"ustar"  # at the offset of tar's field `magic`
    return has_magic or is_old or (is_named and beginning.startswith(COMPRESSED))


KINDS = (
    PackageKind("wheel", "wheels.pass_wheel", "whl", lambda _, data, named: named and data.startswith(ZIP)),
    PackageKind("deb", "debs.pass_deb", "deb", lambda _, data, __: is_debian_package(data)),
    PackageKind("tar", "tar_archives.pass_archive", r"tar(?:\.(?:gz|xz|bz2|zst))?|t(?:gz|xz|bz2|zst)", _is_tar),
)


class Unhandled(NamedTuple):
    """A kind of package that is not handled, and the reason to report."""

    name_pattern: str  # a regular expression for the whole name in lower case
    beginnings: tuple[bytes, ...]  # the first bytes of such files; empty if the name is sufficient
    why: str


UNHANDLED = (
    Unhandled(r".*\.dsc", (), "a source package: it has no programs; build it, and give the .deb"),
    Unhandled(r".*\.rpm", (), RPM),
    Unhandled(ANY_NAME, (b"\xed\xab\xee\xdb",), RPM),
    Unhandled(r".*\.(?:squashfs|sqfs|snap)", (b"hsqs",), SQUASHFS),
    Unhandled(ANY_NAME, (b"hsqs",), SQUASHFS),
    Unhandled(r".*\.conda", (ZIP,), CONDA),
    Unhandled(r".*\.apk", (GZIP,), ALPINE),
    Unhandled(ANY_NAME, (b"ADB.", b"ADBd", b"ADBc"), ALPINE),
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
    Unhandled(rf"(?!.*\.(?:tar|apk|t[gx]z)\b)(?:.*/)?init(?:rd|ramfs)[^/]*|{ANY_NAME}\.cpio\.[a-z0-9]+", COMPRESSED, INITRAMFS),
    Unhandled(ANY_NAME, CPIO, INITRAMFS),
)


def explain_unhandled(name: str, beginning: bytes | None = None) -> str:
    """Return why a package-like file is not handled; "" for other files. `beginning`: its first bytes, None if not known."""
    if beginning is not None and beginning.startswith(b"\x7fELF"):
        return ""
    for kind in UNHANDLED:  # one without `beginnings` matches all first bytes, which start with b""
        may_match = kind.name_pattern != ANY_NAME if beginning is None else beginning.startswith(kind.beginnings or b"")
        if may_match and re.fullmatch(kind.name_pattern, name.lower(), re.DOTALL):
            return kind.why
    return ""


def detect_kind(path: str | os.PathLike[str], beginning: bytes) -> PackageKind | None:
    """Return the package kind of a file, or None if it is not a package. `beginning`: its first BEGINNING_BYTES, if it has as many.

    Raises FormatError for package-like files that are not handled.
    """
    name = os.fspath(path)
    if why := explain_unhandled(name, beginning):
        raise FormatError(why, file=name)
    return next((kind for kind in KINDS if kind.matches(name, beginning, kind.is_named(name))), None)


def pass_through(source: BinaryIO, name: str, visit: Visit, target: BinaryIO | None, *, force: bool) -> PassReport:
    """Call `visit` for each linked ELF file in a package, and write the package with the changed files to `target`.

    `source`: a seekable file. `target`: None to only read. If no file has changed (`changed_files` of the report is 0), `target`
    may be incomplete, and the caller copies the package instead. Raises FormatError for a package that is damaged, or has names
    that lead out of it; RefusedError for a signed one if anything changes without `force`; OSError; and exceptions of `visit`.
    After an exception, `target` is incomplete.
    """
    with name_file_in_errors(name):
        source.seek(0)
        package_kind = detect_kind(name, source.read(BEGINNING_BYTES))
        if package_kind is None:
            raise FormatError(f"not a package (known kinds: {', '.join(kind.name for kind in KINDS)})")
        source.seek(0)
        module, _, function = package_kind.function.partition(".")
        pass_package: PassFunction = getattr(import_module(f"sframegen.packages.{module}"), function)
        return pass_package(source, visit, target, force=force)
