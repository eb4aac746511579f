"""The table of package kinds: how to recognise each, and the function that passes it through."""

from __future__ import annotations

import os
import re
from importlib import import_module
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, Protocol

from linker.objects.archive import is_debian
from sframegen.base.errors import FormatError, naming
from sframegen.packages.unhandled import COMPRESSED, ZIP, why_unhandled

if TYPE_CHECKING:
    from collections.abc import Callable

    from sframegen.packages.package_pass import PassReport, Visit

BEGINNING = 512  # bytes at a file's start that determine its kind


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
    PackageKind("deb", "debs.pass_deb", "deb", lambda _, data, __: is_debian(data)),
    PackageKind("tar", "tar_archives.pass_archive", r"tar(?:\.(?:gz|xz|bz2|zst))?|t(?:gz|xz|bz2|zst)", _is_tar),
)


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
    with naming(name):
        source.seek(0)
        kind = kind_of(name, source.read(BEGINNING))
        if kind is None:
            raise FormatError(f"not a package (known kinds: {', '.join(one.name for one in KINDS)})")
        source.seek(0)
        module, _, function = kind.passer.partition(".")
        passer: Passer = getattr(import_module(f"sframegen.packages.{module}"), function)
        return passer(source, visit, target, force=force)
