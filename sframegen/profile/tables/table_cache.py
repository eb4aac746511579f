"""Tables that were made before, as files in a directory that only this user can write."""

from __future__ import annotations

import os
from functools import cache
from hashlib import blake2b
from typing import TYPE_CHECKING

from cfi.errors import FormatError
from sframegen.profile.kept_files import LIMIT, KeptFiles, is_settled, name_of_unchanged
from sframegen.profile.tables.table_file import stored, table_in
from sframegen.program.build import packages_directory

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from cfi.columns import Bytes
    from sframegen.profile.tables.decoded_table import DecodedTable

ENDING = ".table"
PACKAGES = ("cfi", "linker", "sframegen")


class TableCache:
    """`note`: why there is none, one line; empty if there is one."""

    def __init__(self, directory: Path | None = None, limit: int = LIMIT) -> None:
        """`directory`: by default sframegen/tables in $XDG_CACHE_HOME or ~/.cache; it is made. `limit`: bytes of its files."""
        self._tool = _tool()
        self._files = KeptFiles("tables", ENDING, directory, limit)
        self.note = f"tables are not kept: {self._files.why}" if self._files.why else ""

    def name_of(self, build_id: bytes, content: Iterable[Bytes]) -> str:
        """The file for a table. `content`: all that decides it, since files can have one another's build-ids."""
        digest = blake2b(self._tool, digest_size=16)
        for part in content:
            digest.update(len(part).to_bytes(8, "little"))
            digest.update(part)
        return f"{build_id.hex()[:64]}-{digest.hexdigest()}{ENDING}"

    def load(self, name: str) -> DecodedTable | None:
        """None if there is none, or if it is damaged or another user's."""
        data = self._files.load(name)
        try:
            return None if data is None else table_in(data)
        except FormatError:
            return None

    def store(self, name: str, table: DecodedTable, machine: int) -> None:
        """Keep it, with the machine of its file (e_machine); where it cannot be written, it is made again next time."""
        if self._files.usable:
            self._files.store(name, stored(table, machine))

    def recall(self, status: os.stat_result | None, state: str = "") -> DecodedTable | None:
        """Return the table of an unchanged file without reading that file; None if there is none.

        `state`: of the stores of detached sections, in which there must be none or the same one for the file as then.
        """
        return None if status is None or not self._files.usable else self.load(self._name_of_file(status, state))

    def remember(self, status: os.stat_result | None, name: str, state: str = "") -> None:
        """Let `recall` find the table with this name, unless the file may still be changing: times of files are coarse."""
        if status is not None and self._files.usable and is_settled(status):
            self._files.link(name, self._name_of_file(status, state))

    def _name_of_file(self, status: os.stat_result, state: str) -> str:
        return name_of_unchanged(status, _tool(), state) + ENDING

    @property
    def descriptors(self) -> tuple[int, ...]:
        """What is open for it: another process that uses it needs it."""
        return self._files.descriptors

    def trim(self) -> None:
        self._files.trim()

    def close(self) -> None:
        self._files.close()


@cache
def _tool() -> bytes:
    return modules_digest(packages_directory())


def modules_digest(packages: str) -> bytes:
    """The hash of all modules, compiled and interpreted, the version among them: any of them may decide what is in a table."""
    digest = blake2b(digest_size=16)
    for package in PACKAGES:
        for folder, folders, names in os.walk(f"{packages}/{package}"):
            folders.sort()
            for name in sorted(names):
                if name.endswith((".py", ".so")):
                    path = f"{folder}/{name}"
                    with open(path, "rb") as file:  # noqa: PTH123 - hundreds of files: without pathlib
                        data = file.read()
                    digest.update(f"{path[len(packages) :]} {len(data)}\n".encode())
                    digest.update(data)
    return digest.digest()
