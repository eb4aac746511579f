"""Recognises package-like files that are not handled, and says why, and what to do instead."""

from __future__ import annotations

import re
from typing import NamedTuple

COMPRESSED = (b"\x1f\x8b", b"\xfd7zXZ\0", b"BZh", b"\x28\xb5\x2f\xfd")
ZIP, GZIP, CPIO = b"PK\3\4", b"\x1f\x8b", (b"070701", b"070702", b"070707", b"\xc7\x71")

IN_ITS_BUILD = "run add-tree in its build (docs/packaging.md)"
IMAGE, LAYOUT = f"a container image: {IN_ITS_BUILD}", "oci-layout"  # the latter: a file that marks a directory as one
RPM, SQUASHFS = f"an RPM package: {IN_ITS_BUILD}", f"a squashfs image: {IN_ITS_BUILD}"
ALPINE, CONDA = f"an Alpine package: {IN_ITS_BUILD}", f"a conda package: {IN_ITS_BUILD}"
XBPS = f"an XBPS package: {IN_ITS_BUILD}"

ANY, INITRAMFS = ".*", "an initramfs, or another cpio archive: add sections to its files, and make it again"


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
