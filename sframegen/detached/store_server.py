"""A store of detached sections on a web server: a section is fetched by build-id into memory, within limits of size and time."""

from __future__ import annotations

from hashlib import sha256
from http.client import HTTPException
from time import monotonic
from urllib.error import HTTPError, URLError
from urllib.request import (
    HTTPDefaultErrorHandler,
    HTTPErrorProcessor,
    HTTPHandler,
    HTTPRedirectHandler,
    HTTPSHandler,
    OpenerDirector,
    ProxyHandler,
    UnknownHandler,
)

from cfi.errors import FormatError
from sframegen.detached.identity import path_in_store
from sframegen.elf.text import printable, shortened

MAX_BYTES = 64 << 20  # of one file; libxul's has 7 MB
MAX_KEPT_BYTES = 512 << 20  # of all files of one server in one command
STEP_SECONDS = 5.0  # until it connects, and for each piece
TOTAL_SECONDS = 60.0  # of one file
PIECE = 1 << 16
ABSENT = (404, 410)
HANDLERS = (  # without `file:` and `ftp:`, to which a server could lead
    HTTPHandler,
    HTTPSHandler,
    HTTPRedirectHandler,
    HTTPErrorProcessor,
    HTTPDefaultErrorHandler,
    ProxyHandler,
    UnknownHandler,
)


class StoreServer:
    """What it had is kept as long as this object. After a failure it is not asked again: each question could take as long."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self._kept: dict[bytes, bytes | None] = {}
        self._size = 0
        self._is_broken = False
        self._opener = OpenerDirector()
        for handler in HANDLERS:
            self._opener.add_handler(handler())

    def place_of(self, build_id: bytes) -> str:
        return f"{self.url}/{path_in_store(build_id)}"

    def section_file(self, build_id: bytes) -> bytes | None:
        """The bytes of the file for that build-id; None if it has none. Raises FormatError the first time that it fails."""
        if build_id not in self._kept:
            if self._is_broken:
                return None
            self._kept[build_id] = None
            try:
                self._kept[build_id] = self._fetched(self.place_of(build_id))
            except (OSError, HTTPException, ValueError, FormatError) as error:
                self._is_broken = True
                raise FormatError(f"{_words(error)}; this server is not asked again", file=self.place_of(build_id)) from error
        return self._kept[build_id]

    def state(self, build_id: bytes) -> str | None:
        """A text that changes if the file is another."""
        try:
            data = self.section_file(build_id)
        except FormatError:
            return None
        return None if data is None else sha256(data).hexdigest()

    def _fetched(self, url: str) -> bytes | None:
        end = monotonic() + TOTAL_SECONDS
        try:
            answer = self._opener.open(url, timeout=STEP_SECONDS)
        except HTTPError as error:
            with error:
                if error.code in ABSENT:
                    return None
                raise FormatError(f"HTTP status {error.code}") from error
        with answer:
            data = bytearray()
            while piece := answer.read1(PIECE):
                data += piece
                if len(data) > MAX_BYTES or self._size + len(data) > MAX_KEPT_BYTES:
                    raise FormatError(f"more than {min(MAX_BYTES, MAX_KEPT_BYTES - self._size):,} bytes")
                if monotonic() > end:
                    raise TimeoutError
            expected = answer.headers.get("Content-Length", "")
            if expected.isdigit() and int(expected) != len(data):
                raise FormatError("the answer ends early")
        self._size += len(data)
        return bytes(data)


def _words(error: Exception) -> str:
    if isinstance(error, URLError) and isinstance(error.reason, OSError):
        error = error.reason
    elif isinstance(error, URLError):
        return "cannot be fetched"
    if isinstance(error, FormatError):
        return error.message
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, OSError):
        return error.strerror or "the server closed the connection"
    return f"the answer is not HTTP ({shortened(printable(type(error).__name__))})"
