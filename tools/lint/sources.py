"""The files that rules read, and what they have in common."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import tomllib
from functools import cache
from typing import TYPE_CHECKING, Any

from tools.rooms import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

NOT_SOURCES = {"build", "dist", "__pycache__"}


@cache
def tracked() -> tuple[str, ...]:
    """Names of the files that git tracks; where there is no git, of all but what is built and what is hidden."""
    command = ["git", "-c", "safe.directory=*", "ls-files", "-z"]
    try:
        listing = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError):
        listing = ""
    names = listing.split("\0") if listing else _all_files()
    return tuple(sorted(name for name in names if (ROOT / name).is_file()))


def _all_files() -> Iterator[str]:
    for folder, folders, files in os.walk(ROOT):
        folders[:] = [name for name in folders if name not in NOT_SOURCES and not name.startswith(".")]
        yield from (os.path.relpath(os.path.join(folder, name), ROOT) for name in files)  # noqa: PTH118 - as os.walk


def files(*folders: str, ending: str = ".py") -> list[str]:
    """Names of files below folders."""
    return [name for name in tracked() if name.endswith(ending) and name.startswith(tuple(f"{one}/" for one in folders))]


def pages() -> list[str]:
    """README, the documents beside it, and docs/."""
    return [name for name in tracked() if (name.endswith(".md") and name.startswith("docs/")) or re.fullmatch(r"\w+\.md", name)]


@cache
def text_of(name: str) -> str:
    return (ROOT / name).read_text(errors="replace")


@cache
def tree_of(name: str) -> ast.Module:
    return ast.parse(text_of(name))


@cache
def nodes_of(name: str) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(tree_of(name)))


@cache
def project() -> dict[str, Any]:
    """pyproject.toml."""
    return tomllib.loads(text_of("pyproject.toml"))


def found(name: str, pattern: re.Pattern[str], why: str, text: str | None = None) -> Iterator[str]:
    """Each place of a file where a pattern is found. `text`: the file's, with as many lines."""
    text = text_of(name) if text is None else text
    for match in pattern.finditer(text):
        yield f"{name}:{text.count(chr(10), 0, match.start()) + 1}: {' '.join(match[0].split())}: {why}"


def differ(place: str, what: str, found: object, expected: object) -> Iterator[str]:
    """An offender if two things that should be equal are not."""
    if found != expected:
        yield f"{place}: {what}: {found}, not {expected}"
