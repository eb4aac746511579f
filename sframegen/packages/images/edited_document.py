"""A JSON document as text, changed only where it must be: every other byte stays, so a change can be undone exactly."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from cfi.errors import FormatError
from sframegen.packages.images.documents import DIGEST, dumped, parsed

if TYPE_CHECKING:
    from sframegen.packages.images.documents import Document

NOTE = "sframegen.added-to"  # the digests that the document had before each change, the first one first; the last of its members
MAX_NOTES = 16  # of more, none is tried

Place = tuple[str | int, ...]  # names of members and numbers of elements, from the document inwards

_DECODER = json.JSONDecoder()
_SPACE = re.compile(r"[ \t\r\n]*")


class TextMember(NamedTuple):
    """A member of an object or an element of a list, and where it is in the text."""

    key: str | int
    start: int  # of its name, if it has one
    value: int
    end: int


class EditedDocument:
    """An object. Its places are those of the parsed document, which the caller knows."""

    def __init__(self, data: bytes, where: str) -> None:
        """Raises FormatError if it is not a JSON object in UTF-8."""
        self.where = where
        self.document: Document = parsed(data, where)  # as given
        try:
            self._text = data.decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:
            self._text = ""
        if not self._text.startswith("{", _after_space(self._text, 0)):
            raise FormatError(f"{where}: a document that is not UTF-8")

    @property
    def data(self) -> bytes:
        return self._text.encode("utf-8", "surrogatepass")

    def set(self, place: Place, value: object) -> None:
        """Give a member another value."""
        found = self._found(place)
        self._replace(found.value, found.end, dumped(value).decode("utf-8", "surrogatepass"))

    def append(self, place: Place, value: object, name: str = "") -> None:
        """Add an element to a list, or a member of this name to an object, as the last one."""
        start = self._start(place)
        members = _members(self._text, start)
        at = members[-1].end if members else start + 1
        text = f"{dumped(name).decode()}:" * bool(name) + dumped(value).decode("utf-8", "surrogatepass")
        self._replace(at, at, "," * bool(members) + text)

    def pop(self, place: Place) -> None:
        """Undo `append`."""
        start = self._start(place)
        *others, last = _members(self._text, start)
        self._replace(others[-1].end if others else start + 1, last.end, "")

    def point(self, place: Place, data: bytes) -> None:
        """Make a descriptor that of other contents."""
        given: Any = self.document
        for key in place:
            given = given[key]
        self.set((*place, "digest"), digest_like(given["digest"], data))
        self.set((*place, "size"), len(data))
        if "data" in given:
            self.set((*place, "data"), base64.b64encode(data).decode())

    def note(self, digest: str) -> None:
        """Remember a digest that the document had before."""
        if self.notes():
            self.append((NOTE,), digest)
        else:
            self.append((), [digest], NOTE)

    def notes(self) -> list[str]:
        """Raises FormatError for what is not a list of digests."""
        found = self.document.get(NOTE, [])
        if not isinstance(found, list) or not all(isinstance(one, str) and DIGEST.fullmatch(one) for one in found):
            raise FormatError(f"{self.where}: {NOTE} is not a list of digests")
        return found

    def is_noted(self) -> bool:
        """True if it has notes that can be undone."""
        return 0 < len(self.notes()) <= MAX_NOTES and list(self.document)[-1] == NOTE

    def before(self, number: int) -> bytes:
        """The document without its notes from this number on."""
        edited = EditedDocument(self.data, self.where)
        for _ in range(len(self.notes()) - number if number else 0):
            edited.pop((NOTE,))
        if not number:
            edited.pop(())
        return edited.data

    def original(self) -> bytes | None:
        """The document without notes that has the digest that a note gives, from the first on; None if there is none."""
        notes = self.notes()
        if not self.is_noted():
            return None
        candidates = ((self.before(number), digest) for number, digest in enumerate(notes))
        return next((data for data, digest in candidates if digest_like(digest, data) == digest), None)

    def _found(self, place: Place) -> TextMember:
        start = self._start(place[:-1])
        return next(member for member in _members(self._text, start) if member.key == place[-1])

    def _start(self, place: Place) -> int:
        return self._found(place).value if place else _after_space(self._text, 0)

    def _replace(self, start: int, end: int, text: str) -> None:
        self._text = f"{self._text[:start]}{text}{self._text[end:]}"


def digest_like(digest: str, data: bytes) -> str:
    """The digest of these bytes, of the same algorithm as another one."""
    algorithm = digest.partition(":")[0]
    return f"{algorithm}:{hashlib.new(algorithm, data).hexdigest()}"


def _after_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    assert found is not None
    return found.end()


def _members(text: str, at: int) -> list[TextMember]:
    """What the object or list that begins there has. The text is sound JSON."""
    is_object, found = text[at] == "{", list[TextMember]()
    at = _after_space(text, at + 1)
    while text[at] not in "}]":
        start, key = at, len(found)
        if is_object:
            key, at = _DECODER.raw_decode(text, at)
            at = _after_space(text, _after_space(text, at) + 1)
        _, end = _DECODER.raw_decode(text, at)
        found.append(TextMember(key, start, at, end))
        at = _after_space(text, end)
        if text[at] == ",":
            at = _after_space(text, at + 1)
    return found
