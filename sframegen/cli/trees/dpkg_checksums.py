"""dpkg's own checksums of the files below a root, which debsums and dpkg --verify compare: renewed for files that were changed.

A checksum is renewed only if it was right for the file before: what somebody else changed is still found.
"""

from __future__ import annotations

import hashlib
import os
import re
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from linker.existing.original import original_of
from linker.files.location import below
from linker.files.target import Target
from sframegen.base.errors import FormatError
from sframegen.cli.trees.tree_files import Name
from sframegen.elf.file import ElfFile, map_descriptor

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from linker.files.location import Location

ADMINISTRATION = "var/lib/dpkg"
ENDING = ".md5sums"
MAX_BYTES = 64 << 20  # of one list; the largest of Debian have 3 MB
MAX_TARGET = 4096  # bytes of a link
LINE = re.compile(rb"(?m)^([0-9a-f]{32})  (.+)$")


class Md5Sums(NamedTuple):
    """MD5 checksums of a changed file, in hexadecimal."""

    before: frozenset[str]  # what was right for it: as it was found, and as it was before add-tree
    after: str


def sums_before(file: Location) -> frozenset[str]:
    """Raises FormatError and OSError."""
    descriptor = file.open()
    try:
        data, status = map_descriptor(descriptor, file.path)
        elf = ElfFile(data, file.path, status, descriptor)
        original = original_of(elf)
        return frozenset(_md5(data) for data in (elf.data, *([original.elf.data] if original else [])))
    finally:
        os.close(descriptor)


def sum_after(file: Location) -> str:
    """Raises OSError."""
    with os.fdopen(file.open(), "rb") as opened:
        return hashlib.file_digest(opened, _new_md5).hexdigest()


class Administration:
    """dpkg's files below a root, which is held open; no symbolic link on the way is followed."""

    def __init__(self, root: int, shown: str) -> None:
        self._root, self._shown = root, shown
        self._aliases: dict[str, str] = {}  # of directories at the root: /lib may be a link to /usr/lib
        self._diversions: dict[str, tuple[str, str]] = {}  # of a path: where it is instead, except that of one package

    def renew(self, sums: Mapping[str, Md5Sums]) -> Iterator[tuple[Name, int | Exception]]:
        """For each list that changes, how many checksums were renewed, or why they could not. `sums`: by path from the root."""
        try:
            lists = sorted(name for name in self._names() if name.endswith(ENDING))
            self._diversions = self._read_diversions()
        except (FormatError, OSError) as error:
            yield Name(self._shown, f"{ADMINISTRATION}/info"), error
            return
        for name in lists:
            path = f"{ADMINISTRATION}/info/{name}"
            package = name.removesuffix(ENDING).partition(":")[0]
            try:
                with self._locate(path) as location:
                    count = self._renew_list(location, package, sums)
            except (FormatError, OSError) as error:
                yield Name(self._shown, path), error
                continue
            if count:
                yield Name(self._shown, path), count

    def _renew_list(self, location: Location, package: str, sums: Mapping[str, Md5Sums]) -> int:
        descriptor = location.open()
        try:
            _, count = self._renewed(_read(descriptor, location.path), package, sums)
        finally:
            os.close(descriptor)
        if not count:
            return 0
        with Target(location, None, verify=False, dry_run=False) as target:
            data, count = self._renewed(_read(target.source.descriptor, location.path), package, sums)
            target.write(lambda out: _write(out.fileno(), data), lambda *_: None)
        return count

    def _renewed(self, data: bytes, package: str, sums: Mapping[str, Md5Sums]) -> tuple[bytes, int]:
        """The list with the checksums that files have now, and how many these are."""
        count = 0

        def line(found: re.Match[bytes]) -> bytes:
            nonlocal count
            own = sums.get(self._place(os.fsdecode(found[2]), package))
            old = found[1].decode()
            if own is None or old == own.after or old not in own.before:
                return found[0]
            count += 1
            return b"%s  %s" % (own.after.encode(), found[2])

        return LINE.sub(line, data), count

    def _place(self, path: str, package: str) -> str:
        """Where the file of a package is that its list names so."""
        path = self._without_alias(path)
        instead, by = self._diversions.get(path, (path, package))
        return path if by == package else instead

    def _without_alias(self, path: str) -> str:
        first, slash, rest = path.partition("/")
        if first not in self._aliases:
            target = ""
            with suppress(OSError):
                target = os.readlink(first, dir_fd=self._root)
            leads_on = bool(target) and ".." not in target.split("/") and len(target) <= MAX_TARGET
            self._aliases[first] = target.strip("/") if leads_on else first
        return f"{self._aliases[first]}{slash}{rest}"

    def _read_diversions(self) -> dict[str, tuple[str, str]]:
        """Three lines each: a path, where it is instead, and the package whose file stays there."""
        with self._locate(f"{ADMINISTRATION}/diversions") as location:
            try:
                descriptor = location.open()
            except FileNotFoundError:
                return {}
            try:
                lines = os.fsdecode(_read(descriptor, location.path)).splitlines()
            finally:
                os.close(descriptor)
        places = [self._without_alias(line.removeprefix("/")) for line in lines]
        return {places[at]: (places[at + 1], lines[at + 2]) for at in range(0, len(lines) - 2, 3)}

    def _names(self) -> list[str]:
        with self._locate(f"{ADMINISTRATION}/info/.") as location:
            return location.names_beside()

    def _locate(self, path: str) -> Location:
        return below(self._root, path, os.path.join(self._shown, path))  # noqa: PTH118 - as text, for messages


def _read(descriptor: int, path: str) -> bytes:
    """All of a file, which another user may cut short meanwhile."""
    with os.fdopen(os.dup(descriptor), "rb") as file:
        file.seek(0)
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise FormatError(f"a list of checksums has at most {MAX_BYTES >> 20} MiB", file=path)
    return data


def _write(descriptor: int, data: bytes) -> None:
    with os.fdopen(os.dup(descriptor), "wb") as file:
        file.write(data)


def _new_md5() -> hashlib._Hash:
    return hashlib.md5(usedforsecurity=False)  # dpkg has no other


def _md5(data: memoryview) -> str:
    found = _new_md5()
    found.update(data)
    return found.hexdigest()
