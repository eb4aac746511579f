"""One HTML page that opens without a network: figures, plots, and all tables, in which names cannot become markup or code."""

from __future__ import annotations

import base64
import gzip
import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import vl_convert

from sframegen.program.html_page import allowing_hash, html_page, json_element

if TYPE_CHECKING:
    from collections.abc import Iterator

TEMPLATE = Path(__file__).with_suffix(".html")


def report_page(summary: dict[str, Any], packages: dict[str, Any], files: dict[str, Any]) -> Iterator[str]:
    """Return the parts of the page. Tables, and the library that draws plots, are compressed: the script unpacks them."""
    vega_hash, vega = _vega()
    tables = {
        "PACKAGES": _packed(json.dumps(packages, separators=(",", ":"))),
        "FILES": _packed(json.dumps(files, separators=(",", ":"))),
    }
    return html_page(TEMPLATE, tables | {"VEGA_HASH": vega_hash, "VEGA": vega, "SUMMARY": json_element(summary)})


@cache
def _vega() -> tuple[str, str]:
    """Return the library that draws plots: its hash, and itself, packed."""
    # In a function: its names must not replace those of the page's own script.
    text = f"(() => {{{vl_convert.javascript_bundle('window.vegaEmbed = vegaEmbed;')}}})();"
    return allowing_hash(text), _packed(text)


def _packed(text: str) -> str:
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()
