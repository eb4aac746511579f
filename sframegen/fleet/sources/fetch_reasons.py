"""Why a file cannot be fetched, in words: the libraries' own name their classes, and have URLs with secrets."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from sframegen.fleet.sources.items import shown

if TYPE_CHECKING:
    from collections.abc import Iterator

URL_IN_TEXT = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s'\"<>]+")
NO_HTTP = "the answer is not HTTP"
# By the name of an exception's class: aiohttp, which has them, is not everywhere.
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


def reason_of(error: BaseException) -> str:
    """A few words."""
    chain = list(_causes(error))
    for one in chain:
        for kind in type(one).__mro__:
            if kind.__name__ in REASONS:
                return REASONS[kind.__name__]
    for one in chain:
        status = getattr(one, "status", None)  # of HTTP
        if status:
            return f"HTTP status {status}"
    for one in reversed(chain):
        if isinstance(one, OSError) and one.errno and one.errno > 0:
            return os.strerror(one.errno)
    if any(type(one).__name__ == "ClientConnectorError" for one in chain):
        return "no connection to the server"
    return URL_IN_TEXT.sub(lambda found: shown(found[0]), str(chain[-1])) or type(error).__name__


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """The exception, and those that it was raised from. fsspec's own hide the reason in theirs."""
    while error is not None:
        yield error
        error = error.__cause__
