"""What a study measured, as one JSON document; docs/measured/ has those that docs/measured.md shows."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import sys
import time
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from sframegen import __version__

if TYPE_CHECKING:
    from collections.abc import Mapping

STARTED, LOAD_BEFORE = time.monotonic(), os.getloadavg()[0]


def argument_parser(study: str, about: str | None) -> argparse.ArgumentParser:
    """`about`: the docstring of the study."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog=f"python -m {study}", description=about, formatter_class=raw)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to this file, not to standard output")
    return parser


def write(path: Path | None, results: Mapping[str, object], version: str = __version__) -> None:
    """Write the results, after what they were measured with and on; print them where no path is given."""
    text = as_text(about(version) | dict(results)).replace(f"{Path.home()}/", "~/")
    if path:
        path.write_text(text)
    else:
        print(text, end="")


def about(version: str = __version__) -> dict[str, object]:
    """Load: averages of a minute, before and after."""
    return {
        "command": f"python {shlex.join(sys.orig_argv[1:])}",
        "sframegen": version,
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "machine": f"{linux()}, {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "load": [round(load, 1) for load in (LOAD_BEFORE, os.getloadavg()[0])],
        "seconds": round(time.monotonic() - STARTED),
    }


def linux() -> str:
    """Return the kernel's release up to its first hyphen: what comes after it is a flavour, or names a machine's maker."""
    return f"Linux {platform.release().partition('-')[0]}"


def as_text(document: Mapping[str, object]) -> str:
    """A line for each key, and for each record of a list."""
    return "{\n" + ",\n".join(f'"{key}": {_lines(plain(value))}' for key, value in document.items()) + "\n}\n"


def _lines(value: object) -> str:
    if isinstance(value, list) and value and isinstance(value[0], (dict, list)):
        return "[\n " + ",\n ".join(json.dumps(item, ensure_ascii=False) for item in value) + "\n]"
    return json.dumps(value, ensure_ascii=False)


def plain(value: object) -> object:
    """Of what JSON has: records become objects, sets and tuples lists."""
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return plain(value._asdict())
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted(map(str, value))
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value if value is None or isinstance(value, (str, int, float)) else str(value)
