"""Fetches files by URL or path, within limits, and identifies their content without reading it."""

from __future__ import annotations

import os
import re
from contextlib import contextmanager
from hashlib import file_digest
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from linker.files.location import locate
from linker.files.rights import read_umask
from sframegen.base.errors import FormatError
from sframegen.fleet.sources.items import CHAIN, Item, is_url, without_secrets

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

READ_CHUNK = 1 << 22  # bytes to read at a time
MAX_PACKAGE_BYTES = 16 << 30
# Keys under which fsspec's file systems give a file's version or time.
VERSION_KEYS = ("ETag", "etag", "Content-MD5", "Last-Modified", "LastModified", "last_modified", "mtime", "generation")
HTTP_SCHEMES = ("http:", "https:")  # fetched in one request, because some servers do not support ranges
URL_IN_TEXT = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s'\"<>]+")
NO_HTTP = "the answer is not HTTP"
# Name of an exception's class -> reason. Names, because aiohttp, which defines most of them, may not be installed.
REASONS = {
    "ClientConnectorCertificateError": "the certificate of the server is not valid",
    "ClientConnectorSSLError": "no TLS connection to the server",
    "ClientConnectorDNSError": "unknown host",
    "ServerDisconnectedError": "the server closed the connection",
    "ClientPayloadError": "the answer ends early, or is damaged",
    "TooManyRedirects": "too many redirections",
    "NonHttpUrlRedirectClientError": "a redirection to a URL that is not HTTP",
    "InvalidUrlRedirectClientError": "a redirection to an invalid URL",
    "BadHttpMessage": NO_HTTP,
    "TimeoutError": "no answer in time",
}


async def _release_if_failed(response: Any) -> None:  # noqa: ANN401 - aiohttp's
    """Close the connection of a failed response, because the traceback of fsspec's exception would keep it open."""
    if not response.ok:
        response.release()


# aiohttp only takes proxies from the environment with `trust_env`. It calls `raise_for_status` for each response.
HTTP_OPTIONS = {"client_kwargs": {"trust_env": True, "raise_for_status": _release_if_failed}}


class FetchError(OSError):
    """Raised if a file cannot be fetched, or differs from its index. Another attempt may succeed."""


@contextmanager
def as_fetch_errors(path_or_url: str) -> Iterator[None]:
    """Turn exceptions of file system libraries in the block into a FetchError."""
    try:
        yield
    except (FormatError, FetchError, MemoryError):
        raise
    except Exception as error:
        raise FetchError(None, f"cannot be fetched: {explain_failure(error)}", without_secrets(path_or_url)) from error


def open_filesystem(url: str) -> tuple[Any, str]:
    """Return fsspec's file system for a URL, and the path in it."""
    import fsspec  # noqa: PLC0415 - of the extra `fleet`

    with as_fetch_errors(url):
        is_http = url.startswith(HTTP_SCHEMES) and CHAIN not in url
        system, path = fsspec.core.url_to_fs(url, **(HTTP_OPTIONS if is_http else {}))
    return system, path


def identify_url(item: Item) -> str:
    """Return a text that changes when the content at a URL does, without reading it; "" if there is none. Raises OSError."""
    system, path = open_filesystem(item.path_or_url)
    with as_fetch_errors(item.path_or_url):
        info = system.info(path)
    versions = [f"{name}={info[name]}" for name in VERSION_KEYS if info.get(name)]
    return "\n".join([item.source, str(info.get("size")), *versions]) if versions else ""


class ContentIdentity(NamedTuple):
    """The facts about an item's content that are known before it is read."""

    identity: str  #: a text that changes when the content does; "" if only the content shows a change
    size_and_mtime: str = ""  #: for a path, a text that is the same on each machine that sees the same content


def identify_content(item: Item) -> ContentIdentity:
    """Identify an item's content without reading it. Raises FormatError, OSError."""
    if item.is_local and not item.sha256:
        with opened_file(item.path_or_url) as file:
            status = os.fstat(file.fileno())
        size_and_mtime = format_size_and_mtime(status)
        identity = f"{item.path_or_url}\n{size_and_mtime} {status.st_ctime_ns} {status.st_ino}"
        return ContentIdentity(identity, size_and_mtime)
    return ContentIdentity(f"sha256:{item.sha256}" if item.sha256 else identify_url(item))


def format_size_and_mtime(status: os.stat_result) -> str:
    """Return a file's size and modification time as text, without what differs between machines, such as inode numbers."""
    return f"{status.st_size} {status.st_mtime_ns}"


def opened_content(item: Item) -> AbstractContextManager[BinaryIO]:
    """Open the content of an item as a regular file, after downloading it if necessary.

    Raises FormatError if it is not a regular file, OSError.
    """
    return opened_file(item.path_or_url) if item.is_local else _download(item.path_or_url, item.size)


@contextmanager
def opened_file(path: str) -> Iterator[BinaryIO]:
    """Open a local file, without following links of other users. Raises FormatError, OSError."""
    with locate(path) as location, os.fdopen(location.open(), "rb") as file:
        yield file


@contextmanager
def _download(url: str, size: int = -1, limit: int = MAX_PACKAGE_BYTES) -> Iterator[BinaryIO]:
    """Download a URL to an unnamed file. `size`: its size according to an index, -1 if unknown."""
    with TemporaryFile() as copy:
        with read_url(url) as file:
            copy_pieces(file, copy, without_secrets(url), limit if size < 0 else size)
        copy.flush()
        copy.seek(0)
        os.fchmod(copy.fileno(), 0o666 & ~read_umask())
        yield copy


def copy_pieces(source: Any, copy: Any, name: str, limit: int) -> None:  # noqa: ANN401 - files of fsspec
    """Copy a file in pieces. Raises FetchError for more than `limit` bytes."""
    copied_bytes = 0
    with as_fetch_errors(name):
        while piece := source.read(READ_CHUNK):
            copied_bytes += len(piece)
            if copied_bytes > limit:
                raise FetchError(None, f"has more than {limit:,} bytes", name)
            copy.write(piece)


@contextmanager
def read_url(url: str) -> Iterator[Any]:
    system, path = open_filesystem(url)
    streamed = url.startswith(HTTP_SCHEMES)
    with as_fetch_errors(url):
        file = system.open(path, "rb", block_size=0 if streamed else READ_CHUNK)
    with file:
        yield file


def opened_index(path_or_url: str, limit: int) -> AbstractContextManager[BinaryIO]:
    """Open an index as a regular file, after downloading it if necessary."""
    return _download(path_or_url, limit=limit) if is_url(path_or_url) else opened_file(path_or_url)


def compute_digest(file: BinaryIO, algorithm: str = "sha256") -> str:
    """Return a file's hexadecimal digest, and rewind the file."""
    file.seek(0)
    text = file_digest(file, algorithm).hexdigest()  # type: ignore[arg-type] # any file of bytes
    file.seek(0)
    return text


def explain_failure(error: BaseException) -> str:
    """Return in words why a file cannot be fetched. Messages of the libraries may name classes, and contain URLs with secrets."""
    chain = list(_yield_causes(error))
    for cause in chain:
        for exception_type in type(cause).__mro__:
            if exception_type.__name__ in REASONS:
                return REASONS[exception_type.__name__]
    for cause in chain:
        status = getattr(cause, "status", None)  # the HTTP status
        if status:
            return f"HTTP status {status}"
    for cause in reversed(chain):
        if isinstance(cause, OSError) and cause.errno and cause.errno > 0:
            return os.strerror(cause.errno)
    if any(type(cause).__name__ == "ClientConnectorError" for cause in chain):
        return "no connection to the server"
    return URL_IN_TEXT.sub(lambda match: without_secrets(match[0]), str(chain[-1])) or type(error).__name__


def _yield_causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield the exception and its chain of causes, because the causes of fsspec's exceptions have the reason."""
    while error is not None:
        yield error
        error = error.__cause__
