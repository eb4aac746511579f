"""Where the header and the libraries of this installation are."""

from __future__ import annotations

from pathlib import Path

from cfi.errors import SframegenError
from sframegen.backtrace.library_files import PRELOAD

HERE = Path(__file__).parent
STATISTICS = "SFRAMEGEN_PRELOAD_STATISTICS"  # preload.c reads it


def preload_object() -> Path:
    """Return the path of the object for LD_PRELOAD. Raises SframegenError if it is missing, or cannot stand in LD_PRELOAD."""
    path = HERE / PRELOAD
    if not path.exists():
        remedy = "install a C compiler, then sframegen again from its sources"
        raise SframegenError(f"this installation has no {PRELOAD}: {remedy}")
    if any(separator in str(path) for separator in ": \t\n"):
        remedy = "copy the file elsewhere, and set LD_PRELOAD to the copy"
        raise SframegenError(f"{path}: a path in LD_PRELOAD has no spaces and colons: {remedy}")
    return path
