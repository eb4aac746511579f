"""One HTML page that opens without a network: figures, plots, and all tables, in which names cannot become markup or code."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import vl_convert

if TYPE_CHECKING:
    from collections.abc import Iterator

FOLDER = Path(__file__).parent
# Characters that could end the element of the data.
ESCAPES = {ord(character): f"\\u{ord(character):04x}" for character in "<>&"}


def report_page(summary: dict[str, Any], packages: dict[str, Any], files: dict[str, Any]) -> Iterator[str]:
    """Return the parts of the page. Tables, and the library that draws plots, are compressed: the script unpacks them."""
    style, script = ((FOLDER / f"report_page{ending}").read_text() for ending in (".css", ".js"))
    vega_hash, vega = _vega()
    parts = {
        "STYLE": style,
        "SCRIPT": script,
        "STYLE_HASH": _hash(style),
        "SCRIPT_HASH": _hash(script),
        "VEGA_HASH": vega_hash,
        "VEGA": vega,
        "SUMMARY": json.dumps(summary).translate(ESCAPES),
        "PACKAGES": _packed(json.dumps(packages, separators=(",", ":"))),
        "FILES": _packed(json.dumps(files, separators=(",", ":"))),
    }
    for number, part in enumerate((FOLDER / "report_page.html").read_text().split("@")):
        yield parts[part] if number % 2 else part


@cache
def _vega() -> tuple[str, str]:
    """Return the library that draws plots: its hash, and itself, packed."""
    # In a function: its names must not replace those of the page's own script.
    text = f"(() => {{{vl_convert.javascript_bundle('window.vegaEmbed = vegaEmbed;')}}})();"
    return _hash(text), _packed(text)


def _hash(text: str) -> str:
    """Return the hash with which a content security policy allows an element."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _packed(text: str) -> str:
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()
