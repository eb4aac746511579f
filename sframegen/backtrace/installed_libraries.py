"""Where the header and the libraries of this installation are."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sframegen.backtrace.library_files import PRELOAD
from sframegen.base.errors import SframegenError

if TYPE_CHECKING:
    from collections.abc import Mapping

HERE = Path(__file__).parent
STATISTICS = "SFRAMEGEN_PRELOAD_STATISTICS"  # preload.c reads it
SPACES, SEPARATORS = frozenset(" \t\n\v\f\r"), frozenset(":;")  # of LD_PRELOAD, to which a colon is one, too; of LD_LIBRARY_PATH


def preload_object() -> Path:
    """Return the path of the object for LD_PRELOAD. Raises SframegenError if it is missing."""
    path = HERE / PRELOAD
    if not path.exists():
        remedy = "install a C compiler, then sframegen again from its sources"
        raise SframegenError(f"this installation has no {PRELOAD}: {remedy}")
    return path


def preloading(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with which programs load the object before all others. Raises SframegenError.

    A path in LD_PRELOAD has no spaces: then it is a name, and LD_LIBRARY_PATH says where it is.
    """
    path = preload_object()
    if not SPACES.intersection(str(path)) and ":" not in str(path):
        return {"LD_PRELOAD": _first(path, environment, "LD_PRELOAD")}
    if SEPARATORS.intersection(str(path.parent)):
        remedy = "copy the file elsewhere, and set LD_PRELOAD to the copy"
        raise SframegenError(f"{path}: the dynamic loader does not accept paths with colons and semicolons: {remedy}")
    return {
        "LD_PRELOAD": _first(path.name, environment, "LD_PRELOAD"),
        "LD_LIBRARY_PATH": _first(path.parent, environment, "LD_LIBRARY_PATH"),
    }


def _first(added: str | Path, environment: Mapping[str, str], variable: str) -> str:
    return ":".join(filter(None, [str(added), environment.get(variable, "")]))
