"""Each page of docs/reports names the sframegen that its figures were measured with, in one form: tools/lint/documents.py."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING

from sframegen import __version__

if TYPE_CHECKING:
    from pathlib import Path


def measured_with(version: str = __version__) -> str:
    """Return the beginning of a line; a full stop, or a comma and more, comes after it."""
    return f"Measured with sframegen {version}"


def linux() -> str:
    """Return the kernel's release up to its first hyphen: what comes after it is a flavour, or names a machine's maker."""
    return f"Linux {platform.release().partition('-')[0]}"


def write_page(path: Path, text: str, version: str = __version__) -> None:
    """Write a page with its version after its title."""
    title, _, rest = text.partition("\n\n")
    path.write_text(f"{title}\n\n{measured_with(version)}.\n\n{rest}")


def write_or_print(path: Path | None, text: str) -> None:
    """Write a page, or print its text where no path is given."""
    if path:
        write_page(path, text)
    else:
        print(text, end="")
