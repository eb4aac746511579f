"""Which files of an image something still names: those that a change no longer needs may belong to another image, too."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from sframegen.packages.images.documents import MAX_DOCUMENT, dumped, read_document
from sframegen.packages.images.edited_document import NOTE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from sframegen.packages.images.documents import ImageFiles
    from sframegen.packages.images.oci_index import Changes

TOKEN = re.compile(r"[0-9a-f]{128}|[0-9a-f]{64}")  # what names of files and documents have of a digest
DOCUMENTS = {64: ("blobs/sha256/{}", "{}.json", "{}/json"), 128: ("blobs/sha512/{}",)}  # of a token of this length


def unreferenced(files: ImageFiles, changes: Changes, roots: Iterable[str]) -> set[str]:
    """Return the unneeded files that no remaining document names. `roots`: the documents that lead to all others."""
    if not changes.unneeded:
        return set()
    waiting = [name for name in roots if name in files]
    seen: set[str] = set()
    while waiting:
        for token in _tokens(files, changes, waiting.pop()):
            if token not in seen:
                seen.add(token)
                waiting += [
                    name for place in DOCUMENTS[len(token)] if (name := place.format(token)) in changes.new or name in files
                ]
    return {name for name in changes.unneeded if seen.isdisjoint(TOKEN.findall(name))}


def _tokens(files: ImageFiles, changes: Changes, name: str) -> Iterator[str]:
    """The tokens in a file, if it is a document."""
    data = changes.rewritten.get(name, changes.new.get(name))
    if data is None and files.size(name) <= MAX_DOCUMENT:
        with files.open(name) as file:
            is_document = file.read(1) in (b"{", b"[", b" ", b"\n")
        data = read_document(files, name) if is_document else None
    if not isinstance(data, bytes):
        return
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        document = None
    if isinstance(document, dict) and NOTE in document:
        del document[NOTE]  # a digest that was
        data = dumped(document)
    for found in TOKEN.finditer(data.decode("utf-8", "replace")):
        yield found[0]
