"""The last line of a command that has done what it was asked for: what people usually do next. For terminals only."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST_NAMES = 3  # files that a line has
# By the ending of a profile: what shows it.
VIEWERS = {
    ".html": "xdg-open {}",
    ".pb.gz": "go tool pprof -http=: {}",
}


def next_step(line: str, *names: str) -> None:
    """Print a line on standard error if that is a terminal; `{}` in it stands for the names, as words for a shell.

    Nothing is printed if there are many names, or if one cannot be typed.
    """
    if sys.stderr.isatty() and 0 < len(names) <= MOST_NAMES and all(name.isprintable() for name in names):
        sys.stdout.flush()
        click.echo(f"next: {line.replace('{}', ' '.join(map(_word, names)))}", err=True)


def _word(name: str) -> str:
    """A name as an operand: one that begins with a dash is no option."""
    return shlex.quote(f"./{name}" if name.startswith("-") else name)


def next_to_view(paths: Sequence[str]) -> None:
    """Print what shows the first of these profiles that something shows."""
    for path in paths:
        for ending, viewer in VIEWERS.items():
            if path.endswith(ending):
                next_step(viewer, path)
                return
