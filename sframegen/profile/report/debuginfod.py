"""Fetches debug files from the servers of $DEBUGINFOD_URLS, if the user asks for it, and keeps them."""

from __future__ import annotations

import os
import time
from http.client import HTTPException
from typing import TYPE_CHECKING
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from sframegen.base.errors import FormatError
from sframegen.elf.file import ElfFile
from sframegen.profile.kept_files import KeptFiles
from sframegen.program import patience

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from http.client import HTTPResponse
    from pathlib import Path

ENDING = ".debug"
VARIABLE = "DEBUGINFOD_URLS"
SCHEMES = ("https://", "http://")
MAX_BYTES = 1 << 30  # of one file
PIECE = 1 << 20
NOT_FOUND = 404


class Debuginfod:
    """Calling it fetches the debug file with a build-id. A server that does not answer is not asked again."""

    def __init__(self, servers: Sequence[str] | None = None, directory: Path | None = None) -> None:
        """`servers`: by default those of the variable. `directory`: by default sframegen/debuginfod in the user's cache."""
        urls = os.environ.get(VARIABLE, "").split() if servers is None else servers
        self._servers = [url.rstrip("/") for url in urls if url.startswith(SCHEMES)]
        self._kept = KeptFiles("debuginfod", ENDING, directory)
        self.notes: list[str] = []
        if not self._servers:
            self.notes.append(f"debuginfod: no server in {VARIABLE}")
        elif self._kept.why:
            self.notes.append(f"debuginfod: files cannot be kept: {self._kept.why}")

    def __call__(self, build_id: bytes) -> ElfFile | None:
        name = f"{build_id.hex()[:64]}{ENDING}"
        if self._kept.usable and self._kept.opened(name) is None:
            for server in [*self._servers]:
                if self._fetch(server, build_id, name):
                    break
        return self._read(name)

    def close(self) -> None:
        self._kept.trim()
        self._kept.close()

    def _read(self, name: str) -> ElfFile | None:
        found = self._kept.opened(name)
        try:
            return ElfFile(found[0], name, found[1]) if found else None
        except FormatError:
            return None

    def _fetch(self, server: str, build_id: bytes, name: str) -> bool:
        request = Request(f"{server}/buildid/{build_id.hex()}/debuginfo", headers={"User-Agent": "sframegen"})  # noqa: S310 - of SCHEMES
        try:
            with urlopen(request, timeout=patience.current.server) as answer, self._kept.writing(name) as file:  # noqa: S310 - the same
                for piece in _pieces(answer):
                    file.write(piece)
        except HTTPError as error:
            with error:  # an HTTP error is an answer, too
                if error.code != NOT_FOUND:
                    self._drop(server, str(error))
            return False
        except (OSError, HTTPException, ValueError) as error:  # ValueError: not a valid URL
            self._drop(server, str(error) or type(error).__name__)
            return False
        return True

    def _drop(self, server: str, why: str) -> None:
        self._servers.remove(server)
        self.notes.append(f"debuginfod: {server} is no longer used: {' '.join(why.split())}")


def _pieces(answer: HTTPResponse) -> Iterator[bytes]:
    """Yield the bytes of an answer. Raises OSError if there are too many, or if they take too long."""
    most = patience.current.download
    until, total = time.monotonic() + most, 0
    while piece := answer.read1(PIECE):
        total += len(piece)
        if total > MAX_BYTES:
            raise OSError(f"more than {MAX_BYTES >> 20} MiB")
        if time.monotonic() > until:
            raise TimeoutError(f"more than {most:g} seconds")
        yield piece
