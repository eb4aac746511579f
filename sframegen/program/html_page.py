"""One HTML page that opens without a network, and in which names cannot become markup or code: a template and its parts."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# Characters that could end the element of the data.
ESCAPES = {ord(character): f"\\u{ord(character):04x}" for character in "<>&"}


def html_page(template: Path, parts: dict[str, str]) -> Iterator[str]:
    """Return the page in pieces. `template`: x.html, with @NAME@ for each part, and for those of x.css and x.js beside it."""
    style, script = (template.with_suffix(ending).read_text() for ending in (".css", ".js"))
    parts |= {"STYLE": style, "SCRIPT": script, "STYLE_HASH": _allowing_hash(style), "SCRIPT_HASH": _allowing_hash(script)}
    for number, part in enumerate(template.read_text().split("@")):
        yield parts[part] if number % 2 else part


def _allowing_hash(text: str) -> str:
    """Return the hash with which a content security policy allows an element."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def json_element(value: object) -> str:
    """Return JSON as the text of an element."""
    return json.dumps(value).translate(ESCAPES)
