"""Defines an item of a run, which is one package to work on: a name for the results, and the path or URL to fetch it from.

A name from an index may be hostile. It becomes a path or URL only in `join_below`, after `check_name`.
"""

from __future__ import annotations

import os
import re
from hashlib import sha256
from typing import NamedTuple
from urllib.parse import quote, urlsplit, urlunsplit

from sframegen.base.errors import FormatError
from sframegen.base.text import cut_middle, printable

MAX_COMPONENT_BYTES = 255  # NAME_MAX of Linux: bytes between two slashes of a path
MAX_NAME_BYTES = 2048
URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*(?:::|://)")
CHAIN = "::"  # separates the parts of a chained fsspec URL: `zip://x::https://host/a`
UNQUOTED = "/+~:@=,!$&'()*;"  # characters of names that stay the same in URLs
LOCAL = re.compile(r"(?:file|local)://")


class Item(NamedTuple):
    """A package of a run."""

    name: str  #: unique in the run: a relative path without `..`
    path_or_url: str  #: a local path, or a URL
    sha256: str = ""  #: of its content according to an index, or ""
    size: int = -1  #: in bytes according to an index, or -1
    refused: str = ""  #: the reason if it must not be fetched
    size_and_mtime: str = ""  #: of a file on the machine of the run; a worker that sees other values refuses the item

    @property
    def is_local(self) -> bool:
        return not is_url(self.path_or_url)

    @property
    def source(self) -> str:
        """Return the path or URL without secrets, as results contain it."""
        return without_secrets(self.path_or_url)


def is_url(text: str) -> bool:
    return URL.match(text) is not None


def make_absolute(path_or_url: str) -> str:
    """Return an absolute path or URL, because workers run in other directories. `..` stays, as it can follow a symbolic link."""
    chain, separator, last = path_or_url.rpartition(CHAIN)
    if is_url(last) and not LOCAL.match(last):
        return path_or_url
    path = LOCAL.sub("", last)
    return chain + separator + os.path.join(os.getcwd(), path)  # noqa: PTH109, PTH118 - as text


def local_path(text: str) -> str:
    """Return the path of a file: or local: URL, and other texts unchanged."""
    return LOCAL.sub("", text) if LOCAL.match(text) and CHAIN not in text else text


def without_secrets(path_or_url: str) -> str:
    """Return a path or URL in one line. URLs lose user, password and query, which can be secrets."""
    if is_url(path_or_url):
        path_or_url = CHAIN.join(_url_without_secrets(part) for part in path_or_url.split(CHAIN))
    return cut_middle(printable(path_or_url))


def _url_without_secrets(url: str) -> str:
    try:
        parts = urlsplit(url)
    except ValueError:
        return url.partition("?")[0]
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def make_name(path_or_url: str) -> str:
    """Make the name of a package that does not come from a directory or index: host and path of a URL, or the path."""
    if not is_url(path_or_url):
        return clean_path(path_or_url)
    try:
        parts = urlsplit(path_or_url.rpartition(CHAIN)[2])
    except ValueError:
        return ""  # `refuse_bad_name` refuses it
    name = clean_path(f"{parts.netloc.rpartition('@')[2]}/{parts.path}")
    if parts.query:
        above, slash, last = name.rpartition("/")
        name = f"{above}{slash}{sha256(parts.query.encode()).hexdigest()[:12]}/{last}"
    return name


def clean_path(path: str) -> str:
    """Return a path without empty parts, `.` and `..`, for use as a name below a directory."""
    parts: list[str] = []
    for part in path.split("/"):
        if part == "..":
            del parts[-1:]
        elif part not in ("", "."):
            parts.append(part)
    return "/".join(parts)


def check_name(name: str) -> None:
    """Raise FormatError for a name that may not be used below a directory."""
    try:
        raw = name.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise FormatError("its name is not text") from error
    parts = name.split("/")
    if name.startswith("/") or ".." in parts:
        raise FormatError("its name leads out of the repository")
    if any(part in ("", ".") for part in parts):
        raise FormatError("its name has empty parts")
    if len(raw) > MAX_NAME_BYTES or any(len(part.encode("utf-8", "surrogateescape")) > MAX_COMPONENT_BYTES for part in parts):
        raise FormatError("its name is too long")
    if not name.isprintable() and any(ord(letter) < 32 or ord(letter) == 127 for letter in name):
        raise FormatError("its name has control characters")


def join_below(base: str, name: str) -> str:
    """Return the path or URL below `base` of a file in an index. No other function makes one from a name.

    In a URL, the name is quoted, so that `%`, `?`, `#` and backslashes belong to it. Raises FormatError for a bad name.
    """
    check_name(name)
    if not is_url(base):
        return f"{base.rstrip('/')}/{name}"
    if CHAIN in name:  # fsspec would take it for a chain of file systems
        raise FormatError(f"its name has {CHAIN}, which would lead to another file system")
    return f"{base.rstrip('/')}/{quote(name, safe=UNQUOTED, errors='surrogateescape')}"


def make_item_below(base: str, name: str, sha256: str = "", size: int = -1) -> Item:
    """Make the item for a name in an index, or a refused item if the name is not allowed."""
    try:
        return Item(name, join_below(base, name), sha256=sha256, size=size)
    except FormatError as error:
        return make_refused_item(name, without_secrets(f"{base}/{name}"), str(error))


def refuse_bad_name(item: Item) -> Item:
    """Return the item, or a refused item if its name is not allowed."""
    try:
        check_name(item.name)
    except FormatError as error:
        return make_refused_item(item.name, without_secrets(item.path_or_url), str(error))
    return item


def make_refused_item(name: str, path_or_url: str, reason: str) -> Item:
    """Make an item that is refused for this reason. `name`: any text."""
    return Item(cut_middle(printable(name))[:MAX_COMPONENT_BYTES] or path_or_url, path_or_url, refused=reason)
