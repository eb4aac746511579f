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
TAR_NAME = re.compile(r"\.(?:tar(?:\.(?:gz|xz|bz2|zst))?|t(?:gz|xz|bz2|zst))\Z")
COMPRESSED = (b"\x1f\x8b", b"\xfd7zXZ\0", b"BZh", b"\x28\xb5\x2f\xfd")
# What people take for packages, and what to do instead.
OTHERS = {
    ".dsc": "a source package: it has no programs; build it, and give the .deb",
    ".src.rpm": "a source package: it has no programs; build it, and give the .rpm",
}


class Kind(NamedTuple):
    """A kind of package. What passes it through is imported when it is needed: most runs need none."""

    name: str
    has: Callable[[str, bytes], bool]  # the kind has a file of that name and beginning
    module: str  # in this package
    function: str  # that passes it through

    def passer(self) -> Callable[..., Passed]:
        found: Callable[..., Passed] = getattr(import_module(f"sframegen.packages.{self.module}"), self.function)
        return found


def kind_of(path: str | os.PathLike[str], beginning: bytes) -> Kind | None:
    """The kind of a file that begins so, BEGINNING bytes of it if it has as many; None: it is not a package.

    Raises FormatError for what is near to a package and cannot be one.
    """
    name = os.fspath(path)
    for end, what in OTHERS.items():
        if name.endswith(end) and not beginning.startswith(b"\x7fELF"):
            raise FormatError(what, file=name)
    return next((kind for kind in KINDS if kind.has(name, beginning)), None)


def is_layout(path: str | os.PathLike[str]) -> bool:
    """True if the path is that of a directory with an OCI layout: images/layout_directory.py passes it through."""
    return Path(path, "oci-layout").is_file()


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
        return kind.passer()(source, visit, target, force=force)


def _is_tar(name: str, beginning: bytes) -> bool:
    """By its mark; by its name if it is compressed, or older than marks."""
    if beginning[257:262] == b"ustar":
        return True
    return TAR_NAME.search(name.lower()) is not None and (beginning.startswith(COMPRESSED) or name.lower().endswith(".tar"))


def _is_wheel(name: str, beginning: bytes) -> bool:
    return beginning.startswith(b"PK\3\4") and name.lower().endswith(".whl")


def _is_deb(_: str, beginning: bytes) -> bool:
    return beginning.startswith(b"!<arch>\ndebian-binary")


def _is_squashfs(_: str, beginning: bytes) -> bool:
    return beginning.startswith(b"hsqs")


def _is_rpm(_: str, beginning: bytes) -> bool:
    return beginning.startswith(b"\xed\xab\xee\xdb")


KINDS = (
    Kind("wheel", _is_wheel, "wheels", "pass_wheel"),
    Kind("deb", _is_deb, "debs", "pass_deb"),
    Kind("rpm", _is_rpm, "rpms", "pass_rpm"),
    Kind("squashfs", _is_squashfs, "squashfs", "pass_image"),
    Kind("tar", _is_tar, "tar_archives", "pass_archive"),  # also images in an archive
)
