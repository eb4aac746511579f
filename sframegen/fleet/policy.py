"""What a run leaves out, and the coverage that it demands: from options, and from a file in TOML."""

from __future__ import annotations

import tomllib
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, NamedTuple

from cfi.errors import FormatError
from sframegen.format.abi import ABIS

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_BYTES = 1 << 20
PATTERNS = ("include", "exclude")
KEYS = {"packages": PATTERNS, "files": PATTERNS, "coverage": ("minimum", "machines")}


class Patterns(NamedTuple):
    """Names with `*`, `?` and `[...]`. A pattern without `/` is for the last part of a name."""

    include: tuple[str, ...] = ()  #: none: everything
    exclude: tuple[str, ...] = ()

    def fit(self, name: str) -> bool:
        return (not self.include or _fits(name, self.include)) and not _fits(name, self.exclude)


class Policy(NamedTuple):
    packages: Patterns = Patterns()
    files: Patterns = Patterns()
    minimum: float | None = None  #: coverage of each file, in per cent
    machines: Mapping[str, float] = {}  #: the same for files of one machine


def policy_in(text: bytes) -> Policy:
    """Raises FormatError for what is not a policy."""
    if len(text) > MAX_BYTES:
        raise FormatError(f"has more than {MAX_BYTES:,} bytes")
    try:
        tables = tomllib.loads(text.decode())
    except (ValueError, RecursionError) as error:
        raise FormatError(f"not TOML: {error}") from error
    _check_keys(tables, KEYS, "")
    for name, keys in KEYS.items():
        _check_keys(_table(tables, name), keys, f"{name}.")
    coverage = _table(tables, "coverage")
    machines = _table(coverage, "machines", "coverage.")
    _check_keys(machines, [abi.other_name or abi.name for abi in ABIS], "coverage.machines.")
    return Policy(
        _patterns(tables, "packages"),
        _patterns(tables, "files"),
        _per_cent(coverage["minimum"], "coverage.minimum") if "minimum" in coverage else None,
        {name: _per_cent(value, f"coverage.machines.{name}") for name, value in machines.items()},
    )


def _fits(name: str, patterns: tuple[str, ...]) -> bool:
    last = name.rpartition("/")[2]
    return any(fnmatchcase(name if "/" in pattern else last, pattern) for pattern in patterns)


def _check_keys(table: Mapping[str, Any], known: Any, above: str) -> None:  # noqa: ANN401 - of names
    for key in table:
        if key not in known:
            raise FormatError(f"unknown key {above}{key}; known are {', '.join(known)}")


def _table(tables: Mapping[str, Any], name: str, above: str = "") -> Mapping[str, Any]:
    table = tables.get(name, {})
    if not isinstance(table, dict):
        raise FormatError(f"{above}{name} is not a table")
    return table


def _patterns(tables: Mapping[str, Any], name: str) -> Patterns:
    lists = []
    for key in PATTERNS:
        value = _table(tables, name).get(key, [])
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise FormatError(f"{name}.{key} is not a list of patterns")
        lists.append(tuple(value))
    return Patterns(*lists)


def _per_cent(value: object, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 100:
        raise FormatError(f"{name} is not a number from 0 to 100")
    return float(value)
